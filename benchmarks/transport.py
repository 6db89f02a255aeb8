"""The data plane on one machine: our connections against gloo, between two processes.

one-way: half a round trip of one message.
sum: 42 MB of float32 gradients, in 8 groups, summed by both. Ours over TCP, and in shared memory as workers of one
host do; gloo's is a copy and one all_reduce a group. Ours ends with the sum in a second buffer, so the parts stay
intact.
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

from planaria.job.sections.train import Numerics, TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.plan.plan import Group, Pipeline, Plan, Route, Stage, WorkerId
from planaria.runtime.worker.compute.accumulator import grid_step
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.device_clock import OwnPace
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.sync import Sync
from planaria.runtime.worker.transport.transport import Transport

SIZES = {"4KB": 4 << 10, "64KB": 64 << 10, "1MB": 1 << 20, "4MB": 4 << 20, "16MB": 16 << 20}
NUM_GROUPS = 8
GROUP_FLOATS = 42_000_000 // 4 // NUM_GROUPS
EXPONENT = -3
SCALE = 2.0**-14
"""Of gradients whose group has that exponent: a norm of 2^-3 over a million of them."""


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


class Apart(Transport):
    """A transport of workers that have no memory in common, though they share a host."""

    def host_of(self, worker: WorkerId) -> WorkerId:
        return worker

    def memory_of(self, worker: WorkerId) -> WorkerId:
        return worker


class Sums:
    """42 MB in groups, and the ways to sum them."""

    def __init__(self, numerics: Numerics) -> None:
        rank = dist.get_rank()
        train = TrainSection(steps=1, global_batch=2, microbatch=1, sequence_length=1, numerics=numerics)
        self._plan = plan_of_two()
        self._step = 0
        self._holdings = Holdings(FlatModel(), train, HostDevice(), lambda count: NoLayers())  # type: ignore[arg-type, return-value]
        self._holdings.begin_step((EXPONENT,) * NUM_GROUPS)
        for group in range(NUM_GROUPS):
            self._holdings.put(group, self._holdings.new_replica(group))
            counted = self._holdings.accumulator(group)
            counted.total.normal_(generator=torch.Generator().manual_seed(rank)).mul_(SCALE)
            if numerics is Numerics.EXACT:
                counted.total.div_(grid_step(EXPONENT)).round_().mul_(grid_step(EXPONENT))
            counted.is_empty = False
        self._syncs = {kind: self._sync(WorkerId(rank), kind) for kind in (Apart, Transport)}

    def _sync(self, worker: WorkerId, kind: type[Transport]) -> tuple[Sync, Mailbox]:
        mailbox = Mailbox()
        transport = kind(worker, "token", mailbox)
        addresses: list[str] = ["", ""]
        dist.all_gather_object(addresses, transport.start())
        transport.set_peers({WorkerId(1 - worker): addresses[1 - worker]})
        return Sync(worker, self._holdings, transport, mailbox, OwnPace()), mailbox

    def gloo(self) -> None:
        totals = [self._holdings.accumulator(group).total for group in range(NUM_GROUPS)]
        for work in [dist.all_reduce(total.clone(), async_op=True) for total in totals]:
            work.wait()

    def tcp(self) -> None:
        self._sum_up(*self._syncs[Apart])

    def in_place(self) -> None:
        self._sum_up(*self._syncs[Transport])

    def _sum_up(self, sync: Sync, mailbox: Mailbox) -> None:
        self._step += 1
        sync.begin_step(self._plan, self._step)
        for group in range(NUM_GROUPS):
            sync.start(group, 1, group)
        mailbox.wait_until(sync.is_whole, sync.progress)


def plan_of_two() -> Plan:
    """Returns a plan of two replicas of one stage."""
    stages = [Stage(worker=WorkerId(rank), first_layer=0, end_layer=NUM_GROUPS) for rank in range(2)]
    everything = tuple(range(NUM_GROUPS))
    return Plan(
        generation=1,
        num_layers=NUM_GROUPS,
        num_microbatches=2,
        devices_per_node=1,
        groups=tuple(Group(layers=(layer,), size_bytes=4 * GROUP_FLOATS) for layer in everything),
        pipelines=tuple(Pipeline(stages=(stage,)) for stage in stages),
        routes=tuple(
            Route(hops=(stage,), microbatches=(rank,), born=1, counted=everything) for rank, stage in enumerate(stages)
        ),
        sync_epochs=(1,) * NUM_GROUPS,
    )


class FlatModel:
    """A model of vectors; nothing is computed."""

    layer_names = tuple(map(str, range(NUM_GROUPS)))
    groups = tuple(
        GroupSpec(
            layers=(layer,),
            parameters=(ParameterSpec(name="w", shape=(GROUP_FLOATS,), decays=True, uses=((layer, "w"),)),),
        )
        for layer in range(NUM_GROUPS)
    )


class NoLayers:
    """What holds no modules."""

    layers: tuple[int, ...] = ()


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
    for numerics in (Numerics.FAST, Numerics.EXACT):
        sums = Sums(numerics)
        ways = {"gloo": sums.gloo, "ours-tcp": sums.tcp, "ours-shared": sums.in_place}
        times = times_in_turn(ways, repeats)
        if first:
            kind = numerics.value
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
