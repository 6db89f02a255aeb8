"""Hosts for tests: network namespaces with one cable each to a switch (a bridge), and cables that can be pulled.

Needs no right but that to make namespaces: as root, or else in a user namespace of its own. Nothing of the machine's
own network is touched, and everything goes away with the processes that hold the namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEADLINE_S = 60.0
NOWHERE = "02:00:00:00:00:01"
"""A link address that nobody has: what is sent there is lost without a word."""


class NoNamespaces(Exception):
    """Network namespaces cannot be made here; says why."""


@dataclass
class Host:
    """A network namespace."""

    name: str
    address: str
    pid: int


class Network:
    """Hosts 10.77.0.1 and so on; two switches, of which the second has nobody at first."""

    def __init__(self, num_hosts: int) -> None:
        if any(shutil.which(tool) is None for tool in ("ip", "unshare", "nsenter")):
            raise NoNamespaces("ip, unshare and nsenter are needed")
        self._holders: list[subprocess.Popen[str]] = []
        self._own_user = os.geteuid() != 0
        try:
            self.switch = self._hold(None)
            self._ip(self.switch, *(f"link add {name} type bridge" for name in ("switch", "other")))
            self._ip(self.switch, *(f"link set {name} up" for name in ("switch", "other")))
            self.hosts = [self._add_host(number) for number in range(num_hosts)]
        except BaseException:
            self.close()
            raise

    def user_prefix(self) -> list[str]:
        """Of a command that shall have rights over the namespaces."""
        return ["nsenter", "-t", str(self.switch), "-U", "--preserve-credentials"] if self._own_user else []

    def _hold(self, switch: int | None) -> int:
        """A process with a network namespace of its own; returns its pid."""
        prefix = [] if switch is None else self.user_prefix()
        options = "-Urn" if switch is None and self._own_user else "-n"
        holder = subprocess.Popen(
            [*prefix, "unshare", options, "sh", "-c", "echo ready; exec sleep infinity"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise NoNamespaces(f"unshare: {holder.stderr.read().strip()}")
        return holder.pid

    def _add_host(self, number: int) -> Host:
        host = Host(f"host{number}", f"10.77.0.{number + 1}", self._hold(self.switch))
        self._ip(
            self.switch,
            f"link add {host.name} type veth peer name eth0 netns {host.pid}",
            f"link set {host.name} master switch up",
        )
        self._ip(host.pid, "link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up")
        return host

    def _ip(self, pid: int, *commands: str) -> None:
        done = subprocess.run(
            [*self.user_prefix(), "nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"],
            input="\n".join(commands),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        if done.returncode != 0:
            raise NoNamespaces(f"ip {'; '.join(commands)}: {done.stderr.strip()}")

    # Cables

    def pull(self, *hosts: Host) -> None:
        """Take the cables out: no packet comes or goes, and nobody is told."""
        self._ip(self.switch, *(f"link set {host.name} down" for host in hosts))

    def plug(self, *hosts: Host) -> None:
        """Put the cables into the first switch."""
        self._ip(self.switch, *(f"link set {host.name} master switch up" for host in hosts))

    def split_off(self, *hosts: Host) -> None:
        """Put the cables into the other switch: these hosts reach each other, and nobody else."""
        self._ip(self.switch, *(f"link set {host.name} master other" for host in hosts))

    def drop(self, source: Host, target: Host) -> None:
        """What `source` sends to `target` vanishes; the other direction works."""
        self._ip(source.pid, f"neigh replace {target.address} lladdr {NOWHERE} dev eth0 nud permanent")

    def undrop(self, source: Host, target: Host) -> None:
        self._ip(source.pid, f"neigh del {target.address} dev eth0")

    def heal(self) -> None:
        """All cables in the first switch, and no packet dropped."""
        self.plug(*self.hosts)
        for host in self.hosts:
            self._ip(host.pid, "neigh flush dev eth0 nud permanent")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.wait()
            for stream in (holder.stdout, holder.stderr):
                assert stream is not None
                stream.close()


@dataclass
class Command:
    """`planaria` with some arguments, running on a host."""

    pid: int
    log: Path
    farm: Farm = field(repr=False)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait(self) -> int:
        """Its exit status, or minus the signal."""
        self.farm.wait_until(lambda: self.pid in self.farm.statuses)
        return self.farm.statuses[self.pid]

    def signal(self, number: signal.Signals) -> None:
        if self.pid not in self.farm.statuses:
            os.kill(self.pid, number)


class Farm:
    """Starts commands on hosts, forked from one process that has imported everything."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self._folder = folder
        self._ours, theirs = socket.socketpair()
        self.statuses: dict[int, int] = {}
        self._started: list[int] = []
        self._buffer = b""
        self._process = subprocess.Popen(
            [*network.user_prefix(), sys.executable, "-m", "tests.e2e.incubator", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        theirs.close()

    def start(self, host: Host, folder: Path, *arguments: str) -> Command:
        """Run `planaria` with these arguments on a host, in a folder."""
        log = self._folder / f"{host.name}-{len(self._started)}.log"
        log.touch()
        order = {"netns": host.pid, "folder": str(folder), "arguments": arguments, "log": str(log)}
        self._ours.sendall(json.dumps(order).encode() + b"\n")
        before = len(self._started)
        self.wait_until(lambda: len(self._started) > before)
        return Command(self._started[-1], log, self)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait with a deadline for a condition, hearing of commands that end."""
        end = time.monotonic() + DEADLINE_S
        self._ours.settimeout(0.005)
        while not condition():
            assert time.monotonic() < end
            try:
                data = self._ours.recv(1 << 16)
            except TimeoutError:
                continue
            assert data, "the process that starts commands is gone"
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                news = json.loads(line)
                if "started" in news:
                    self._started.append(news["started"])
                else:
                    self.statuses[news["ended"]] = news["status"]

    def kill_all(self) -> None:
        """What runs still is killed; waits until it is gone."""
        for pid in self._started:
            if pid not in self.statuses:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: self.statuses.keys() >= set(self._started))

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.kill_all()
        self._ours.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def farm(num_hosts: int, folder: Path) -> Iterator[Farm]:
    """Raises NoNamespaces."""
    network = Network(num_hosts)
    try:
        made = Farm(network, folder)
        try:
            yield made
        finally:
            made.close()
    finally:
        network.close()
