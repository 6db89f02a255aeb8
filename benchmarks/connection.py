"""One connection between two workers, beside iperf3 on the same link.

What training sends goes through the shipped transport from one process to another, as messages of 64 KB, 1 MB and
16 MB, and as one long move of state; in turns with iperf3 (or, where that is not installed, with a plain socket): on
loopback, and between two hosts with 10 Gbit/s links. A figure is the ratio of medians.

threads: how many threads a worker has with 2 to 16 peers, each of which it sends to and hears from.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from figures import note, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.network import Host, Network, NoNamespaces

from planaria.plan.plan import WorkerId
from planaria.runtime.worker.compute.replica import zeros
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.transport import Transport

WAYS = {
    "64KB": (Kind.ACTIVATION, 64 << 10, 1024),
    "1MB": (Kind.GRADIENT, 1 << 20, 256),
    "16MB": (Kind.SUM, 16 << 20, 32),
    "state": (Kind.STATE, 192 << 20, 2),
}
"""Of each: the kind of its messages, their bytes and their number."""

GOALS = {"loopback": 0.8, "10gbit": 0.95}
PLAIN_BYTES = 512 << 20
PLAIN_PIECE = 1 << 20
IPERF_PORT = 5201
IPERF_S = 1


class End:
    """One of the two processes: a transport, and words with the other end over a socket of its own."""

    def __init__(self, number: int, words: socket.socket, host: str) -> None:
        self._words = words
        self._file = words.makefile()
        self.number = number
        self.other = WorkerId(1 - number)
        self.mailbox = Mailbox()
        self.transport = Transport(WorkerId(number), "token", self.mailbox, host)
        self.say(self.transport.start())
        self.transport.set_peers({self.other: self.hear()})
        self.count = 0

    def say(self, text: str) -> None:
        self._words.sendall(f"{text}\n".encode())

    def hear(self) -> str:
        return self._file.readline().strip()

    def keys(self, way: str) -> list[Key]:
        """Names of the next messages of this way, the same at both ends."""
        kind, _, number = WAYS[way]
        self.count += number
        return [Key(kind, 0, self.count - at, 1, 0, 0) for at in range(number)]


def receive(end: End, host: str) -> None:
    """Does as the sender says, until it goes. State comes into the same memory each time."""
    replica = tuple(zeros(WAYS["state"][1] // 12, torch.device("cpu")) for _ in range(3))
    while way := end.hear():
        if way == "iperf3":
            server = subprocess.Popen(
                ["iperf3", "-s", "-1", "-B", host, "-p", str(IPERF_PORT)], stdout=subprocess.DEVNULL
            )
            end.say("ready")
            server.wait()
        elif way == "plain":
            receive_plain(end, host)
        else:
            keys = end.keys(way)
            if way == "state":
                end.mailbox.expect(dict.fromkeys(keys, replica))
            end.say("ready")
            began = time.process_time()
            for key in keys:
                end.mailbox.take(key, lambda: False)
            end.say(str(time.process_time() - began))


def receive_plain(end: End, host: str) -> None:
    buffer = memoryview(bytearray(PLAIN_PIECE))
    with socket.create_server((host, 0)) as listener:
        end.say(str(listener.getsockname()[1]))
        peer, _ = listener.accept()
        with peer:
            while peer.recv_into(buffer, PLAIN_PIECE, socket.MSG_WAITALL):
                pass
    end.say("done")


def send(end: End, host: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Bytes a second of each way, and seconds of a processor for each gigabyte at both ends (0: unknown), in turns."""
    baseline = "plain" if shutil.which("iperf3") is None else "iperf3"
    tensors = {way: torch.ones(size // 12, 3) for way, (_, size, _) in WAYS.items()}
    seen: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):
        for way in (baseline, *WAYS):
            end.say(way)
            if way == "iperf3":
                end.hear()
                time.sleep(0.1)  # its server listens by then
                figure = iperf3(host)
            elif way == "plain":
                figure = send_plain(end, host), 0.0
            else:
                figure = send_messages(end, way, tensors[way])
            if turn:
                seen.setdefault("baseline" if way == baseline else way, []).append(figure)
    return seen


def iperf3(host: str) -> tuple[float, float]:
    command = ["iperf3", "-c", host, "-p", str(IPERF_PORT), "-t", str(IPERF_S), "-J"]
    end = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["end"]
    rate = float(end["sum_received"]["bits_per_second"]) / 8
    used = end["cpu_utilization_percent"]
    return rate, (used["host_total"] + used["remote_total"]) / 100 / rate * 1e9


def send_plain(end: End, host: str) -> float:
    piece = bytes(PLAIN_PIECE)
    with socket.create_connection((host, int(end.hear()))) as sock:
        began = time.perf_counter()
        for _ in range(PLAIN_BYTES // PLAIN_PIECE):
            sock.sendall(piece)
    end.hear()
    return PLAIN_BYTES / (time.perf_counter() - began)


def send_messages(end: End, way: str, tensor: torch.Tensor) -> tuple[float, float]:
    keys = end.keys(way)
    parts = tuple(tensor.view(3, -1)) if way == "state" else (tensor,)
    end.hear()
    began, worked = time.perf_counter(), time.process_time()
    for key in keys:
        end.transport.send(end.other, key, parts)
    there = float(end.hear())
    took, gigabytes = time.perf_counter() - began, len(keys) * tensor.nbytes / 1e9
    return gigabytes * 1e9 / took, (there + time.process_time() - worked) / gigabytes


def member(number: int, address: str, host: str, rounds: int) -> None:
    """One of the two processes. The receiver listens for the sender's words."""
    torch.set_num_threads(1)
    place, _, port = address.rpartition(":")
    if number == 1:
        with socket.create_server((place, int(port))) as listener:
            print("listens", flush=True)
            words, _ = listener.accept()
        receive(End(1, words, host), host)
    else:
        words = socket.create_connection((place, int(port)))
        print(json.dumps(send(End(0, words, host), place, rounds)), flush=True)
    os._exit(0)


Seen = dict[str, list[list[float]]]


def measured(prefixes: tuple[list[str], list[str]], hosts: tuple[str, str], rounds: int) -> Seen:
    """What the sender has seen."""
    address = f"{hosts[1]}:{29000 + os.getpid() % 1000}"
    command = [sys.executable, __file__, "--rounds", str(rounds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(number: int) -> subprocess.Popen[str]:
        words = [*prefixes[number], *command, "--member", str(number), address, hosts[number]]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)

    with start(1) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        with start(0) as sender:
            assert sender.stdout is not None
            said = sender.stdout.readline()
    return json.loads(said) if said else {}


@contextlib.contextmanager
def two_hosts(gbits: float) -> Iterator[tuple[Host, Host, Callable[[Host], list[str]]]]:
    """Two hosts, and what a command is prefixed with to run on one of them. Raises NoNamespaces."""
    with contextlib.closing(Network(2)) as network:
        network.limit(gbits * 1e9)
        enter = lambda host: [*network.user_prefix(), "nsenter", "-t", str(host.pid), "-n"]  # noqa: E731
        yield network.hosts[0], network.hosts[1], enter


def tell(link: str, seen: Seen) -> None:
    medians = {way: statistics.median(rate for rate, _ in figures) for way, figures in seen.items()}
    report(f"connection.{link}.baseline", medians["baseline"] * 8e-9, "Gbit/s")
    report(f"connection.{link}.baseline.processor", statistics.median(work for _, work in seen["baseline"]), "s/GB")
    for way in WAYS:
        goal = f">= {GOALS[link]}" if way in ("16MB", "state") else None
        report(f"connection.{link}.{way}.ratio", medians[way] / medians["baseline"], "ratio", goal=goal)
        report(f"connection.{link}.{way}.processor", statistics.median(work for _, work in seen[way]), "s/GB")


def threads(peers: int) -> float:
    """Threads of one transport that sends to, and hears from, so many others in this process, beside theirs;
    those that connect end by themselves."""
    mailboxes = [Mailbox() for _ in range(peers + 1)]
    ends = [Transport(WorkerId(number), "token", mailbox) for number, mailbox in enumerate(mailboxes)]
    addresses = {WorkerId(number): end.start() for number, end in enumerate(ends)}
    for number, end in enumerate(ends):
        end.set_peers({worker: address for worker, address in addresses.items() if worker != number})
    for number, end in enumerate(ends):
        for other in addresses:
            if other != number:
                end.send(other, Key(Kind.SUM, number, 1, 1, 0, 0), (torch.ones(4),))
    for number, mailbox in enumerate(mailboxes):
        for other in addresses:
            if other != number:
                mailbox.take(Key(Kind.SUM, other, 1, 1, 0, 0), lambda: False)
    count = sum(thread.name not in ("MainThread", "connect") for thread in threading.enumerate())
    for end in ends:
        end.close()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    return count / (peers + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="loopback, 10gbit, threads; none: all")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (default: %(default)s)")
    parser.add_argument("--member", nargs=3, metavar=("NUMBER", "ADDRESS", "HOST"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        member(int(arguments.member[0]), arguments.member[1], arguments.member[2], arguments.rounds)
    what = arguments.what or ["loopback", "10gbit", "threads"]
    if "loopback" in what:
        tell("loopback", measured(([], []), ("127.0.0.1", "127.0.0.1"), arguments.rounds))
    if "10gbit" in what:
        try:
            with two_hosts(10) as (one, two, enter):
                tell("10gbit", measured((enter(one), enter(two)), (one.address, two.address), arguments.rounds))
        except NoNamespaces as error:
            note(f"no network namespaces here: {error}")
    if "threads" in what:
        for peers in (2, 4, 8, 16):
            report(f"connection.threads.{peers}", threads(peers), "count")


if __name__ == "__main__":
    main()
