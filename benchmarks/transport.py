"""The data plane on one machine: our connections against gloo, between two processes.

one-way: half a round trip of one message.
sum: 42 MB of float32 gradients, in 8 groups, summed by both. Ours over TCP, and in shared memory as workers of one
host do; gloo's is one all_reduce a group. Ours ends with the sum in a second buffer, so the parts stay intact.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from figures import report

from planaria.plan.plan import WorkerId
from planaria.runtime.worker.compute.accumulator import total_gradient
from planaria.runtime.worker.compute.shared_memory import SharedReader, SharedVector
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.transport import Transport

SIZES = {"4KB": 4 << 10, "64KB": 64 << 10, "1MB": 1 << 20, "4MB": 4 << 20, "16MB": 16 << 20}
NUM_GROUPS = 8
GROUP_FLOATS = 42_000_000 // 4 // NUM_GROUPS


class Pair:
    """One of two processes, with both kinds of connection to the other."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.other = WorkerId(1 - rank)
        self.mailbox = Mailbox()
        self.transport = Transport(WorkerId(rank), "token", self.mailbox)
        addresses: list[object] = [None, None]
        dist.all_gather_object(addresses, self.transport.start())
        self.transport.set_peers({self.other: str(addresses[self.other])})
        self.sent = 0
        self.taken = 0
        self.reader = SharedReader()

    def send(self, tensor: torch.Tensor, item: int = 0) -> None:
        self.sent += 1
        self.transport.send(self.other, Key(Kind.SUM, self.rank, self.sent, 0, item, 0), (tensor,))

    def take(self, item: int = 0) -> torch.Tensor:
        self.taken += 1
        return self.mailbox.take(Key(Kind.SUM, self.other, self.taken, 0, item, 0), lambda: False)[0]


def ping_ours(pair: Pair, tensor: torch.Tensor) -> None:
    if pair.rank == 0:
        pair.send(tensor)
        pair.take()
    else:
        pair.take()
        pair.send(tensor)


def ping_gloo(pair: Pair, tensor: torch.Tensor) -> None:
    received = torch.empty_like(tensor)
    if pair.rank == 0:
        dist.send(tensor, 1)
        dist.recv(received, 1)
    else:
        dist.recv(received, 0)
        dist.send(tensor, 0)


class Sums:
    """42 MB in groups, and the ways to sum them."""

    def __init__(self, pair: Pair, dtype: torch.dtype) -> None:
        self.pair = pair
        self.shared = [SharedVector(GROUP_FLOATS, dtype) for _ in range(NUM_GROUPS)]
        self.outputs = [torch.zeros(GROUP_FLOATS) for _ in range(NUM_GROUPS)]

    def gloo(self) -> None:
        works = [dist.all_reduce(vector.tensor, async_op=True) for vector in self.shared]
        for work in works:
            work.wait()

    def tcp(self) -> None:
        for item, vector in enumerate(self.shared):
            self.pair.send(vector.tensor, item)
        for item, (vector, output) in enumerate(zip(self.shared, self.outputs, strict=True)):
            total_gradient([vector.tensor, self.pair.take(item)], output, with_norm=item % 2 == self.pair.rank)

    def in_place(self) -> None:
        for item, vector in enumerate(self.shared):
            self.pair.send(vector.address(), item)
        for item, (vector, output) in enumerate(zip(self.shared, self.outputs, strict=True)):
            part = self.pair.reader.read(self.pair.other, item, self.pair.take(item), vector.tensor.dtype)
            assert part is not None
            total_gradient([vector.tensor, part], output, with_norm=item % 2 == self.pair.rank)


def times_in_turn(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each way, one after the other, again and again. Both processes do the same in the same order."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 2):
        for name, way in ways.items():
            dist.barrier()
            began = time.perf_counter()
            way()
            if repeat >= 2:
                times[name].append(time.perf_counter() - began)
    return times


def member(repeats: int) -> None:
    """One of the two processes; rank 0 reports."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pair = Pair(dist.get_rank())
    first = pair.rank == 0
    for name, size in SIZES.items():
        tensor = torch.ones(size // 4)
        times = times_in_turn(
            {"ours": lambda t=tensor: ping_ours(pair, t), "gloo": lambda t=tensor: ping_gloo(pair, t)},  # type: ignore[misc]
            repeats * 5 if size <= 1 << 20 else repeats,
        )
        if first:
            for way, seconds in times.items():
                report(f"transport.one-way.{name}.{way}", statistics.median(seconds) / 2 * 1e3, "ms")
    for dtype in (torch.float32, torch.float64):
        sums = Sums(pair, dtype)
        ways = {"gloo": sums.gloo, "ours-tcp": sums.tcp, "ours-shared": sums.in_place}
        times = times_in_turn(ways, repeats)
        if first:
            kind = str(dtype).removeprefix("torch.")
            medians = {way: statistics.median(seconds) for way, seconds in times.items()}
            for way, seconds in medians.items():
                report(f"transport.sum-10.5M.{kind}.{way}", seconds * 1e3, "ms")
            report(f"transport.sum-10.5M.{kind}.ratio", medians["ours-shared"] / medians["gloo"], "ratio")
    dist.barrier()
    os._exit(0)  # the transport's threads wait for a peer that is gone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="of each large message (default: %(default)s)")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        member(arguments.repeats)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    members = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **meet, "RANK": str(rank)}) for rank in (0, 1)
    ]
    sys.exit(max(abs(process.wait()) for process in members))


if __name__ == "__main__":
    main()
