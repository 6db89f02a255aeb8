"""What becomes of a run whose pods are evicted, killed and made anew elsewhere: real processes at changing addresses.

A pod is `planaria agent` with an address of its own on loopback, and the coordinator's name is in an /etc/hosts of
their own, which changes as a cluster's DNS does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from planaria.api import load_job
from tests.e2e.agents import NUM_NODES, Agent, Hosts, family
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.conftest import Reference
from tests.e2e.incubator import Incubator, Started

NAME = "job-coordinator"


class Names:
    """Starts commands that have an /etc/hosts of their own, and no name server."""

    def __init__(self, folder: Path, incubator: Incubator) -> None:
        self._incubator = incubator
        self._hosts = folder / "hosts"
        self.say("127.0.0.1")
        resolver = folder / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self._binds = {Path("/etc/hosts"): self._hosts, Path("/etc/resolv.conf"): resolver}

    def say(self, address: str) -> None:
        """Where the coordinator is from now on."""
        self._hosts.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def start(self, folder: Path, *arguments: str, **others: Any) -> Started:
        """See `Incubator.start`."""
        return self._incubator.start(folder, *arguments, binds=self._binds, **others)


def mount_namespaces_can_be() -> bool:
    options = "-m" if os.geteuid() == 0 else "-rm"
    command = ["unshare", options, "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def names(tmp_path_factory: pytest.TempPathFactory, incubator: Incubator) -> Names:
    if not mount_namespaces_can_be():
        pytest.skip("mount namespaces cannot be made here")
    return Names(tmp_path_factory.mktemp("etc"), incubator)


class Pods(Hosts):
    """A run whose coordinator is found by name."""

    def __init__(self, folder: Path, names: Names) -> None:
        super().__init__(folder, names, min_nodes_per_pipeline=1)
        self.port = self.address.rpartition(":")[2]
        self.address = f"{NAME}:{self.port}"

    def start_coordinator(self, address: str) -> Started:
        """As its pod does, at an address."""
        where = ("--set", f'cluster.host="{address}"', "--set", f"cluster.port={self.port}")
        command = ("launch", "here", "job.toml", "--no-agent", "--nodes", str(NUM_NODES), "--token-file", "token")
        return self.incubator.start(self.folder, *command, *where, log=self.folder / "train.log")

    def start_pod(self) -> Agent:
        return self.start_agent("--host", f"127.0.1.{len(self.agents) + 1}", "--give-up", "300")

    @property
    def num_live(self) -> int:
        committed = self.events("step_committed")
        return int(committed[-1]["live_nodes"]) if committed else 0

    def wait_for_all(self) -> None:
        assert wait_until(lambda: self.num_live == NUM_NODES), self.said


@pytest.mark.proof
def test_pods_go_and_come_and_the_coordinator_moves(folder: Path, names: Names, reference: Reference) -> None:
    names.say("127.0.0.2")
    pods = Pods(folder, names)
    coordinator = pods.start_coordinator("127.0.0.2")
    for _ in range(NUM_NODES):
        pods.start_pod()
    pods.wait_for_step(3)
    pods.wait_for_all()

    evicted = pods.agents[0]
    node = evicted.node
    evicted.signal_everybody(Signals.SIGTERM)
    assert evicted.wait() == 4, evicted.said
    pods.wait_for("node_released")  # it is let go first, then told
    assert [event["node"] for event in pods.events("node_released")] == [node]
    assert not pods.events("node_lost")
    assert pods.start_pod().node == NUM_NODES, "a new pod is a new node"
    pods.wait_for_all()

    killed = pods.agents[1]
    node = killed.node
    killed.signal_everybody(Signals.SIGKILL)
    pods.wait_for("node_lost")
    assert [event["node"] for event in pods.events("node_lost")] == [node]
    assert pods.start_pod().node == NUM_NODES + 1
    pods.wait_for_all()

    pods.wait_for("checkpoint_saved", len(pods.events("checkpoint_saved")) + 1)
    before = pods.last_step
    for pid in family(coordinator.pid):
        os.kill(pid, signal.SIGKILL)
    names.say("127.0.0.3")
    coordinator = pods.start_coordinator("127.0.0.3")
    assert wait_until(lambda: pods.last_step > before + 3), pods.said
    pods.wait_for_all()
    live = pods.agents[2:]
    assert all(agent.process.poll() is None for agent in live)
    assert len(pods.events("node_lost")) == 1

    coordinator.send_signal(Signals.SIGTERM)
    assert coordinator.wait(DEADLINE_S) == 128 + Signals.SIGTERM, pods.said
    assert [agent.wait() for agent in live] == [75] * NUM_NODES, "they are to come back"
    summary = json.loads(pods.run.summary.read_text())
    assert summary["skipped_microbatches"] == summary["duplicated_microbatches"] == 0
    changed = [f"train.steps={summary['steps']}", f'cluster.profile="{folder}/profile.json"']
    alone = reference(load_job(folder / "job.toml", changed))
    assert summary["weights_sha256"] == alone.summary["weights_sha256"]


@pytest.mark.proof
def test_one_command_on_every_node(folder: Path, incubator: Incubator) -> None:
    """As Kubeflow Trainer starts it: node 0 has the coordinator too, and comes back with it."""
    hosts = Hosts(folder, incubator, min_nodes_per_pipeline=1)
    host, _, port = hosts.address.partition(":")

    def start() -> list[Started]:
        said = {"PET_MASTER_ADDR": host, "PET_MASTER_PORT": port, "PET_NNODES": "3", "PET_NPROC_PER_NODE": "1"}
        return [
            incubator.start(
                folder, "launch", "here", "job.toml", "--token-file", "token",
                log=folder / ("train.log" if rank == 0 else f"node-{rank}.log"),
                environment={**said, "PET_NODE_RANK": str(rank)},
            )
            for rank in range(3)
        ]  # fmt: skip

    first, *others = start()
    hosts.wait_for_step(3)
    first.send_signal(Signals.SIGTERM)
    assert first.wait(DEADLINE_S) == 128 + Signals.SIGTERM, hosts.said
    assert [other.wait(DEADLINE_S) for other in others] == [75, 75]
    before = hosts.last_step

    first, *others = start()
    hosts.wait_for_step(before + 3)
    stop = incubator.start(folder, "stop", "runs/job")
    assert stop.wait(DEADLINE_S) == 0
    assert first.wait(DEADLINE_S) == 0, hosts.said
    assert [other.wait(DEADLINE_S) for other in others] == [75, 75]
