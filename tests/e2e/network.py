"""Hosts for tests: network namespaces with one cable each to a switch (a bridge), and cables that can be pulled.

Needs no right but that to make namespaces: as root, or else in a user namespace of its own. Nothing of the machine's
own network is touched, and everything goes away with the processes that hold the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.commands import DEADLINE_S
from tests.e2e.incubator import ROOT, Incubator, Started

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

    def __init__(self, num_hosts: int, delay_s: float = 0.0) -> None:
        """`delay_s`: that what hosts send takes longer than a cable of this machine; each frame costs some time of a
        core then."""
        if any(shutil.which(tool) is None for tool in ("ip", "unshare", "nsenter")):
            raise NoNamespaces("ip, unshare and nsenter are needed")
        self._holders: list[subprocess.Popen[str]] = []
        self._own_user = os.geteuid() != 0
        try:
            self.switch = self._hold(None)
            self._ip(self.switch, *(f"link add {name} type bridge" for name in ("switch", "other")))
            self._ip(self.switch, *(f"link set {name} up" for name in ("switch", "other")))
            self.hosts = [
                Host(f"host{number}", f"10.77.0.{number + 1}", self._hold(self.switch)) for number in range(num_hosts)
            ]
            self._lay_long_cables(delay_s) if delay_s else self._lay_cables()
            for host in self.hosts:
                self._ip(self.switch, f"link set {host.name} master switch up")
                self._ip(host.pid, "link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up")
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
        return self._start([*prefix, "unshare", options, "sh", "-c", "echo ready; exec sleep infinity"])

    def _start(self, command: list[str]) -> int:
        """A process that lives as long as the network and says when it is ready; returns its pid."""
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise NoNamespaces(f"{command[0]}: {holder.stderr.read().strip()}")
        return holder.pid

    def _lay_cables(self) -> None:
        for host in self.hosts:
            self._ip(self.switch, f"link add {host.name} type veth peer name eth0 netns {host.pid}")

    def _lay_long_cables(self, delay_s: float) -> None:
        ends = [f"{host.pid}={host.name}" for host in self.hosts]
        module = [sys.executable, "-m", "tests.e2e.long_cables"]
        self._start([*self.user_prefix(), *module, str(delay_s), str(self.switch), *ends])

    def _ip(self, pid: int, *commands: str) -> None:
        self._batch("ip", pid, *commands)

    def _batch(self, tool: str, pid: int, *commands: str) -> None:
        self.ask(pid, [tool, "-batch", "-"], "\n".join(commands))

    def ask(self, pid: int, command: list[str], text: str = "") -> str:
        """What a command in a namespace says."""
        done = subprocess.run(
            [*self.user_prefix(), "nsenter", "-t", str(pid), "-n", *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        if done.returncode != 0:
            raise NoNamespaces(f"{' '.join(command)}: {text or ''} {done.stderr.strip()}")
        return done.stdout

    # Cables

    def limit(self, bits_per_s: float, *hosts: Host) -> None:
        """Let each of these hosts, or each of all, send and receive so much at most."""
        limited = hosts or self.hosts
        shape = self._shape(bits_per_s)
        self._batch("tc", self.switch, *(f"qdisc replace dev {host.name} {shape}" for host in limited))
        for host in limited:
            self._batch("tc", host.pid, f"qdisc replace dev eth0 {shape}")

    @staticmethod
    def _shape(bits_per_s: float) -> str:
        burst = max(32_000, int(bits_per_s / 8 * 1e-3))
        waiting = max(1_000_000, int(bits_per_s / 8 * 20e-3))
        return f"root tbf rate {bits_per_s:.0f}bit burst {burst} limit {waiting}"

    def join_switches(self, bits_per_s: float) -> None:
        """Lay one cable between the two switches, which lets so much through at most: each is a zone then."""
        self._ip(
            self.switch,
            "link add trunk type veth peer name far-trunk",
            "link set trunk master switch up",
            "link set far-trunk master other up",
        )
        shape = self._shape(bits_per_s)
        self._batch("tc", self.switch, *(f"qdisc replace dev {end} {shape}" for end in ("trunk", "far-trunk")))

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

    process: Started
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def poll(self) -> int | None:
        """Its exit status, or minus the signal; None while it runs."""
        return self.process.poll()

    def is_over(self) -> bool:
        return self.poll() is not None

    def wait(self) -> int:
        """Its exit status, or minus the signal."""
        return self.process.wait(DEADLINE_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Farm:
    """Starts commands on hosts."""

    def __init__(self, network: Network, incubator: Incubator, folder: Path) -> None:
        self.network = network
        self._incubator = incubator
        self._folder = folder
        self._started: list[Command] = []

    def start(
        self,
        host: Host,
        folder: Path,
        *arguments: str,
        script: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Command:
        """Run `planaria`, or a Python script, with these arguments on a host, in a folder."""
        log = self._folder / f"{host.name}-{len(self._started)}.log"
        process = self._incubator.start(
            folder, *arguments, log=log, netns=host.pid, script=script, environment=environment
        )
        self._started.append(Command(process, log))
        return self._started[-1]

    def kill_all(self) -> None:
        """What runs still is killed; waits until it is gone."""
        for command in self._started:
            command.process.kill()
        for command in self._started:
            command.wait()


@contextlib.contextmanager
def farm(num_hosts: int, folder: Path, incubator: Incubator | None = None, *, delay_s: float = 0.0) -> Iterator[Farm]:
    """Raises NoNamespaces. Without an incubator, or where the namespaces are another user's, there is an own one."""
    with contextlib.closing(Network(num_hosts, delay_s)) as network, contextlib.ExitStack() as own:
        prefix = network.user_prefix()
        if incubator is None or prefix:
            incubator = own.enter_context(contextlib.closing(Incubator(prefix)))
        made = Farm(network, incubator, folder)
        yield made
        made.kill_all()
