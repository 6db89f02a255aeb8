"""A run whose nodes are agents, all on this machine, each a process of its own in a session of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec

from planaria.runtime.run_folder.run_folder import RunFolder
from tests.e2e.commands import DEADLINE_S, descendants, wait_until
from tests.e2e.incubator import Incubator, Started
from tests.e2e.jobs import profile

NUM_NODES = 4


class Hosts:
    """One job, its agents, and what happened. All of it runs in the job's folder."""

    def __init__(
        self, folder: Path, incubator: Incubator, steps: int = 100_000, cluster: str = "", **resilience: object
    ) -> None:
        self.folder = folder
        self.incubator = incubator
        self.run = RunFolder(folder / "runs" / "job")
        (folder / "profile.json").write_bytes(msgspec.json.encode(profile()))
        (folder / "token").write_text("0123456789abcdef")
        (folder / "token").chmod(0o600)
        self.address = f"127.0.0.1:{free_port()}"
        lines = [f"{key} = {json.dumps(value)}" for key, value in resilience.items()]
        (folder / "job.toml").write_text(
            f"""
[cluster]
device = "emulated"
profile = "profile.json"
nodes = {NUM_NODES}
launcher = "agents"
port = {self.address.rpartition(":")[2]}
{cluster}
[train]
steps = {steps}
global_batch = 9
microbatch = 1
sequence_length = 16
lr_schedule = "constant"
[run]
checkpoint_every = 10
[resilience]
heartbeat_timeout_s = 2.0
"""
            + "\n".join(lines)
        )
        self.agents: list[Agent] = []
        self.environment: dict[str, str] = {}

    def train(self, *arguments: str) -> Started:
        log = self.folder / "train.log"
        given = ("train", "job.toml", "--token-file", "token", *arguments)
        return self.incubator.start(self.folder, *given, log=log, environment=self.environment)

    def start_agent(self, *arguments: str, folder: Path | None = None) -> Agent:
        """`folder`: where it runs, and does not see this one; None: here."""
        self.agents.append(Agent(self, len(self.agents), *arguments, folder=folder))
        return self.agents[-1]

    @property
    def said(self) -> str:
        """By `planaria train`."""
        return (self.folder / "train.log").read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        if not self.run.events.exists():
            return []
        lines = self.run.events.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["event"] == kind]

    @property
    def last_step(self) -> int:
        committed = self.events("step_committed")
        return committed[-1]["step"] if committed else 0

    def wait_for(self, kind: str, number: int = 1) -> None:
        assert wait_until(lambda: len(self.events(kind)) >= number), self.said

    def wait_for_step(self, step: int) -> None:
        assert wait_until(lambda: self.last_step >= step), self.said


def free_port() -> int:
    """Returns a port on which nobody listens. It is below those that the kernel gives to outgoing connections, so none
    has it by the time somebody listens there."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Agent:
    """`planaria agent` as a process."""

    def __init__(self, hosts: Hosts, number: int, *more: str, folder: Path | None = None) -> None:
        self._log = hosts.folder / f"agent-{number}.log"
        arguments = ("agent", "--coordinator", hosts.address, "--token-file", "token", *more)
        self.process = hosts.incubator.start(
            folder or hosts.folder,
            *arguments,
            log=self._log,
            environment=hosts.environment,
            hidden=None if folder is None else hosts.folder,
        )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_until_it_says(self, words: str) -> None:
        assert wait_until(lambda: words in self.said), self.said

    @property
    def node(self) -> int:
        """That it started first."""
        self.wait_until_it_says(" starts\n")
        line = next(line for line in self.said.splitlines() if line.endswith(" starts"))
        return int(line.split()[1])

    def signal_everybody(self, number: signal.Signals) -> None:
        """What a batch system does with a node: the agent, and all that it started."""
        for pid in family(self.process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


def family(ancestor: int) -> list[int]:
    """A process, its children, theirs, and so on."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [ancestor]
    for pid in found:  # it grows
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def end_all(folder: Path) -> None:
    """What runs still of a test."""
    for pid in descendants(folder):
        os.kill(pid, signal.SIGKILL)
