"""Programs on hosts that are network namespaces with limited links, as sides of a comparison; what they sent."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from figures import SCRATCH
from interleave import Side, process_tree
from sides import BASELINES

from planaria.data.opening import prepare
from planaria.job.parse import job_json
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.profile_check import decode_profile
from planaria.protocol.messages.records import AnyRecord, StepCommitted
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.run_folder.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.commands import wait_until
from tests.e2e.network import Command, Host, Network
from tests.e2e.network import Farm as Farm
from tests.e2e.network import NoNamespaces as NoNamespaces
from tests.e2e.network import farm as farm

FORCED = Path(__file__).parent / "forced_plan.py"
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "eth0"}
PORTS = iter(range(29400, 60000))
"""Each coordinator, and each rank 0, has one of its own: what a dead one left behind is in nobody's way."""

QUIET_S = 0.2
"""And a step: so long nothing is sent by workers that wait for a commit."""


@dataclass(slots=True, kw_only=True)
class HostSide(Side):
    """A side whose processes run on hosts.

    Attributes:
        farm: of the hosts.
        launches: the processes, in the order in which they are started: where, the script (None: planaria), and its
            arguments and environment. All but the first wait until the first one's output has `ready` in it.
    """

    farm: Farm
    launches: Sequence[tuple[Host, Path | None, Sequence[str], Mapping[str, str]]]
    ready: str
    running: list[Command] = field(default_factory=list)

    def start(self) -> None:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        for host, script, arguments, environment in self.launches:
            self.running.append(
                self.farm.start(host, SCRATCH, *arguments, script=script, environment={**ENVIRONMENT, **environment})
            )
            self.output = self.running[0].log
            assert wait_until(lambda: self.ready in self.running[0].said or self.running[0].poll() is not None)
        self._processes = list(self.running)


class Cluster(HostSide):
    """A run of Planaria: the coordinator on the first host, an agent on each of the others."""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.log.parent)

    @property
    def records(self) -> list[tuple[AnyRecord, float]]:
        return list(read_events(self.log)) if self.log.exists() else []

    @property
    def profile(self) -> ModelProfile:
        return decode_profile(self.folder.profile.read_bytes())

    def payload(self) -> int:
        """Bytes that its workers' sockets have sent to other workers so far, none twice."""
        coordinator, *nodes = self.farm.network.hosts
        return sum(sent_from(self.farm.network, host, coordinator.address) for host in nodes)

    def at_edge(self) -> tuple[int, int]:
        """Returns the last step committed, and the payload when all workers have voted for the one after it.

        The coordinator is stopped meanwhile: nobody begins a further step.
        """
        step_s = max(self.steps(2))
        time.sleep(step_s / 10)  # between two commits
        coordinator = process_tree([self.running[0].pid])
        try:
            for pid in coordinator:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(2 * step_s)
            sent = -1
            while sent != (sent := self.payload()):
                time.sleep(step_s + QUIET_S)
            return max(record.step for record, _ in self.records if isinstance(record, StepCommitted)), sent
        finally:
            for pid in coordinator:
                os.kill(pid, signal.SIGCONT)

    def workers_at(self, host: Host) -> list[int]:
        """Processes of a host's node: all but its agent, and what the agent forks them from."""
        (agent,) = (command.pid for command, (at, *_) in zip(self.running, self.launches, strict=True) if at is host)
        (forkserver,) = [pid for pid in process_tree([agent]) if parent_of(pid) == agent]
        return [pid for pid in process_tree([forkserver]) if pid != forkserver]


def sent_from(network: Network, host: Host, but_to: str) -> int:
    """Bytes that the open sockets of a host have sent, but those to an address: TCP's payload, nothing twice."""
    total = 0
    for line in network.ask(host.pid, ["ss", "-tinHO"]).splitlines():
        if f"{but_to}:" in line:
            continue
        counts = dict(re.findall(r"\b(bytes_\w+):(\d+)", line))
        total += int(counts.get("bytes_sent", 0)) - int(counts.get("bytes_retrans", 0))
    return total


@contextlib.contextmanager
def started(side: Side) -> Iterator[None]:
    """A run of Planaria that goes on for the time being; nothing of it is left."""
    try:
        side.start()
        yield
    finally:
        side.kill()
        shutil.rmtree(side.log.parent, ignore_errors=True)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def cluster(
    farm: Farm,
    name: str,
    text: str,
    *overrides: str,
    plan: object = None,
    zones: Sequence[str] = (),
    order: object = None,
    tls: Path | None = None,
) -> Cluster:
    """A run on all hosts but the first, where its coordinator is.

    Args:
        farm: of the hosts.
        name: of the side.
        text: of the job, in TOML.
        overrides: of the job.
        plan: the first plan, forced: of each pipeline the ends of its stages' layers; None: as the policy chooses.
        zones: of the hosts but the first; none: they do not say where they are.
        order: of the forced plan, the zone of each stage.
        tls: folder with certificates that all of them show; None: connections are plain.
    """
    coordinator, *nodes = farm.network.hosts
    port = next(PORTS)
    run = f"{name}-{secrets.token_hex(4)}"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    settings = [
        f"cluster.nodes={len(nodes)}",
        'cluster.launcher="agents"',
        f'cluster.host="{coordinator.address}"',
        f"cluster.port={port}",
        f'run.folder="{SCRATCH / "runs"}"',
        *([f'cluster.tls="{tls}"'] if tls else []),
        *overrides,
    ]
    file = SCRATCH / f"{run}.toml"
    file.write_text(text)
    folder = RunFolder(SCRATCH / "runs" / run)
    train = ["train", str(file), "--name", run, *(word for setting in settings for word in ("--set", setting))]
    agent = ["agent", "--coordinator", f"{coordinator.address}:{port}", "--token-file", str(folder.token)]
    agent += ["--tls", str(tls)] if tls else []
    forced = {} if plan is None else {"FORCED_PLAN": json.dumps(plan)}
    forced |= {} if order is None else {"FORCED_ZONES": json.dumps(order)}
    return Cluster(
        name=name,
        commands=(),
        log=folder.events,
        seconds_of=lambda line: float(str(line["duration_s"])) if line["event"] == "step_committed" else None,
        output=SCRATCH / f"{run}.out",
        farm=farm,
        ready="run on each:",
        launches=[
            (coordinator, None if plan is None else FORCED, train, forced),
            *(
                (node, None, [*agent, *(["--zone", zone] if zone else [])], {})
                for node, zone in itertools.zip_longest(nodes, zones)
            ),
        ],
    )


def torch_on(farm: Farm, name: str, script: str, job: Job, arguments: Sequence[str] = ()) -> HostSide:
    """A baseline script, one process on each host but the first."""
    _, *nodes = farm.network.hosts
    data = SCRATCH / "data"
    data.mkdir(parents=True, exist_ok=True)
    prepare(job, data)
    run = f"{name}-{secrets.token_hex(4)}"
    job_file, log = SCRATCH / f"{run}.json", SCRATCH / f"{run}.steps"
    job_file.write_bytes(job_json(job))
    meet = {
        "MASTER_ADDR": nodes[0].address,
        "MASTER_PORT": str(next(PORTS)),
        "WORLD_SIZE": str(len(nodes)),
    }
    return HostSide(
        name=name,
        commands=(),
        log=log,
        seconds_of=lambda line: float(str(line["duration_s"])),
        output=SCRATCH / f"{run}.out",
        farm=farm,
        ready="",
        launches=[
            (host, BASELINES / script, [str(job_file), str(data), str(log), *arguments], {**meet, "RANK": str(rank)})
            for rank, host in enumerate(nodes)
        ],
    )
