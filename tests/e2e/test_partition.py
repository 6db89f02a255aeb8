"""Hosts that are network namespaces, and cables that are pulled: found, survived, and joined again, bit for bit."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.job.parse import load_job
from tests.e2e.commands import wait_until
from tests.e2e.conftest import Reference
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import MODELS, profile
from tests.e2e.network import Command, Farm, Host, NoNamespaces, farm

NUM_HOSTS = 7
"""The coordinator's, and six nodes'."""

EMULATED = """
[cluster]
device = "emulated"
profile = "profile.json"
"""
REAL = f"""
[model]
{MODELS["gpt2"]}
[data]
source = "text.txt"
"""


@pytest.fixture(scope="module")
def hosts(incubator: Incubator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    try:
        with farm(NUM_HOSTS, tmp_path_factory.mktemp("farm"), incubator) as made:
            yield made
    except NoNamespaces as reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")


class Cluster:
    """A run with one agent on each node's host."""

    def __init__(self, hosts: Farm, folder: Path, text: Path, sections: str = EMULATED, num_nodes: int = 6) -> None:
        self._farm = hosts
        self._folder = folder
        self.network = hosts.network
        self.coordinator, *self.nodes = hosts.network.hosts[: num_nodes + 1]
        (folder / "profile.json").write_bytes(msgspec.json.encode(profile()))
        (folder / "text.txt").write_bytes(text.read_bytes())
        cluster = "" if "[cluster]" in sections else "[cluster]\n"
        (folder / "job.toml").write_text(
            f"""
{sections}{cluster}
nodes = {num_nodes}
launcher = "agents"
host = {self.coordinator.address!r}
port = 29400
[train]
steps = 100_000
global_batch = 9
microbatch = 1
sequence_length = 16
lr_schedule = "constant"
[resilience]
min_nodes_per_pipeline = 2
heartbeat_timeout_s = 2.0
"""
        )
        self.run = folder / "runs" / "job"
        self.agents: dict[str, Command] = {}

    def start(self) -> Cluster:
        self.train = self._farm.start(self.coordinator, self._folder, "train", "job.toml")
        assert wait_until(lambda: "run on each:" in self.train.said)
        line = next(line for line in self.train.said.splitlines() if "run on each:" in line)
        self._agent = shlex.split(line.partition("run on each: planaria ")[2])
        for host in self.nodes:
            self.start_agent(host)
        self.wait_for_steps(2)
        return self

    def start_agent(self, host: Host) -> Command:
        """As the user is told to."""
        self.agents[host.name] = self._farm.start(host, self._folder, *self._agent)
        return self.agents[host.name]

    def ask(self, *arguments: str) -> str:
        """What a command says that a user gives where the coordinator runs."""
        command = self._farm.start(self.coordinator, self._folder, *arguments)
        command.wait()
        return command.said

    def start_stranger(self, host: Host) -> Command:
        """An agent with another token."""
        file = self._folder / "another token"
        file.write_text("not the job's token")
        file.chmod(0o600)
        return self._farm.start(host, self._folder, *self._agent, "--token-file", str(file))

    # What happened

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.run / "events.jsonl").read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["event"] == kind]

    def wait_for(self, kind: str, number: int = 1) -> list[dict[str, Any]]:
        """All events of a kind, once there are so many."""
        assert wait_until(lambda: self.is_over() or len(self.events(kind)) >= number)
        assert len(self.events(kind)) >= number, self.train.said
        return self.events(kind)

    def wait_for_steps(self, count: int) -> int:
        """So many more are committed; returns the last."""
        target = self.last_step + count
        assert wait_until(lambda: self.is_over() or self.last_step >= target)
        assert self.last_step >= target, self.train.said
        return self.last_step

    def is_over(self) -> bool:
        return self.train.is_over()

    @property
    def last_step(self) -> int:
        committed = self.events("step_committed") if (self.run / "events.jsonl").exists() else []
        return committed[-1]["step"] if committed else 0

    def nodes_in_plan(self) -> set[int]:
        (*_, plan) = self.events("plan_taken")
        return {worker for pipeline in plan["pipelines"] for worker, _, _ in pipeline}

    def host_of(self, node: int) -> Host:
        """Where a node runs, or ran last."""
        return next(host for host in self.nodes if f"node {node} starts\n" in self.agents[host.name].said)

    def wait_for_plan_of(self, count: int) -> None:
        """A plan with so many nodes, and a step with it."""
        assert wait_until(lambda: self.is_over() or len(self.nodes_in_plan()) == count)
        assert len(self.nodes_in_plan()) == count, self.train.said
        self.wait_for_steps(2)

    def end(self) -> dict[str, Any]:
        """Stop the run after the step in progress; returns its summary. All agents end with it."""
        self.train.signal(signal.SIGINT)
        assert self.train.wait() == 130, self.train.said
        return json.loads((self.run / "summary.json").read_text())

    def assert_same_bits(self, reference: Reference) -> None:
        """As one process that trains so many steps."""
        summary = self.end()
        assert summary["skipped_microbatches"] == summary["duplicated_microbatches"] == 0
        assert not [note for note in self.events("note") if "before it had joined" in note["text"]]
        job = load_job(self._folder / "job.toml", [f"train.steps={summary['steps']}"])
        if job.cluster.profile is not None:
            file = str(self._folder / "profile.json")
            job = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, profile=file))
        else:
            source = str(self._folder / "text.txt")
            job = msgspec.structs.replace(job, data=msgspec.structs.replace(job.data, source=source))
        alone = reference(job)
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        assert {entry["step"]: entry["loss"] for entry in map(json.loads, lines)} == alone.losses
        assert summary["weights_sha256"] == alone.summary["weights_sha256"]


@pytest.fixture
def cluster(hosts: Farm, tmp_path: Path, text: Path) -> Iterator[Callable[..., Cluster]]:
    def start(sections: str = EMULATED, num_nodes: int = 6) -> Cluster:
        return Cluster(hosts, tmp_path, text, sections, num_nodes).start()

    yield start
    hosts.kill_all()
    hosts.network.heal()


def test_a_host_that_is_gone_without_a_closing_packet_is_lost(
    cluster: Callable[..., Cluster], reference: Reference
) -> None:
    job = cluster()
    gone = job.host_of(3)
    job.network.pull(gone)
    job.agents[gone.name].signal(signal.SIGKILL)
    (lost,) = job.wait_for("node_lost")
    assert (lost["node"], lost["cause"][:10]) == (3, "silent for")
    job.wait_for("recovered")
    stranger = job.start_stranger(job.host_of(0))
    assert stranger.wait() == 2
    assert stranger.said.splitlines() == [
        f"planaria: error: the coordinator at {job.coordinator.address}:29400 refuses this node: "
        "the token is not the job's."
    ]
    job.wait_for_plan_of(5)
    job.assert_same_bits(reference)
    lost = [(event["node"], event["cause"]) for event in job.events("node_lost")]
    assert len(lost) == 1, lost
    assert [job.agents[host.name].wait() for host in job.nodes if host is not gone] == [75] * 5


def test_the_minority_side_never_commits_and_joins_again(cluster: Callable[..., Cluster], reference: Reference) -> None:
    """A whole pipeline is on the other side of the cut: it could compute steps, if it were allowed to."""
    job = cluster()
    (taken,) = job.events("plan_taken")
    minority = sorted({worker for worker, _, _ in taken["pipelines"][-1]})
    away = [job.host_of(node) for node in minority]
    job.network.split_off(*away)
    lost = job.wait_for("node_lost", len(minority))
    assert sorted(event["node"] for event in lost) == minority
    assert all(event["cause"].startswith("silent for") for event in lost)
    job.wait_for_plan_of(6 - len(minority))
    assert not job.nodes_in_plan() & set(minority)
    assert all("has ended" not in job.agents[host.name].said for host in away), "they know of nothing, and wait"

    job.network.heal()
    job.wait_for_plan_of(6)
    assert job.nodes_in_plan() & set(minority) == set(), "their numbers do not come back"
    assert job.nodes_in_plan() >= {6, 7}
    for host, node in zip(away, minority, strict=True):
        assert f"node {node} has ended" in job.agents[host.name].said
    steps = [event["step"] for event in job.events("step_committed")]
    assert steps == list(range(1, len(steps) + 1)), "each step once, by one side"
    job.assert_same_bits(reference)
    assert len(job.events("node_lost")) == len(minority)


@pytest.mark.proof
def test_of_two_workers_that_do_not_reach_each_other_one_goes(
    cluster: Callable[..., Cluster], reference: Reference
) -> None:
    """Both reach the coordinator. One of the two is fenced; it joins again when the way is there again."""
    job = cluster()
    (taken,) = job.events("plan_taken")
    first, second = (worker for worker, _, _ in taken["pipelines"][0])
    one, other = job.host_of(first), job.host_of(second)
    job.network.drop(one, other)
    job.network.drop(other, one)
    (lost, *_) = job.wait_for("node_lost")
    assert lost["node"] in (first, second)
    assert lost["cause"].startswith(("hung:", "cut off from"))
    job.wait_for("recovered")
    job.wait_for_steps(2)
    job.network.heal()
    job.wait_for_plan_of(6)
    job.assert_same_bits(reference)
    assert {event["node"] for event in job.events("node_lost")} <= {first, second, *range(6, 100)}


@pytest.mark.proof
def test_a_worker_to_which_everything_sent_vanishes_is_lost(
    cluster: Callable[..., Cluster], reference: Reference
) -> None:
    """The coordinator hears the worker, and the worker does not hear the coordinator."""
    job = cluster()
    deaf = job.host_of(2)
    job.network.drop(job.coordinator, deaf)
    (lost,) = job.wait_for("node_lost")
    assert lost["node"] == 2
    job.wait_for_plan_of(5)
    job.network.heal()
    job.wait_for_plan_of(6)
    job.assert_same_bits(reference)


@pytest.mark.proof
def test_a_coordinator_that_is_cut_off_from_everybody_loses_nobody(
    cluster: Callable[..., Cluster], reference: Reference
) -> None:
    """Nobody is lost: that would be the worst thing to do, and it may be the coordinator that is out of reach."""
    job = cluster()
    job.network.pull(job.coordinator)
    quiet = job.last_step
    hosts = job.nodes
    assert wait_until(lambda: all("out of reach" in job.agents[host.name].said for host in hosts))
    assert job.last_step <= quiet + 1, "nothing is committed without the coordinator"
    job.network.plug(job.coordinator)
    job.wait_for_steps(3)
    job.assert_same_bits(reference)
    assert not job.events("node_lost")
    assert job.nodes_in_plan() <= set(range(6))


@pytest.mark.proof
def test_a_real_model_trains_on_hosts(cluster: Callable[..., Cluster], reference: Reference) -> None:
    """State and sums go through the network; one host goes for a while, and one for good after a notice."""
    job = cluster(REAL)
    away, leaving = job.host_of(1), job.host_of(2)
    job.network.pull(away)
    job.wait_for("node_lost")
    job.wait_for_steps(2)
    job.network.plug(away)
    job.wait_for_plan_of(6)
    assert max(job.nodes_in_plan()) >= 6, "it came back under a new number"
    job.agents[leaving.name].signal(signal.SIGTERM)
    assert job.agents[leaving.name].wait() == 4
    (released,) = job.wait_for("node_released")
    assert released["node"] == 2
    job.wait_for_plan_of(5)
    job.assert_same_bits(reference)
    lost = [(event["node"], event["cause"]) for event in job.events("node_lost")]
    assert len(lost) == 1, lost


@pytest.mark.proof
def test_nodes_of_two_devices_are_lost_and_drained_whole(cluster: Callable[..., Cluster], reference: Reference) -> None:
    job = cluster(EMULATED + "devices_per_node = 2\n", 5)
    assert "5 nodes: 0, 1, 2, 3, 4" in job.ask("status", "runs/job")
    assert "Run planaria agent on one more" in job.ask("add", "runs/job")
    away, drained = job.host_of(3), job.host_of(1)
    job.network.pull(away)
    job.wait_for("node_lost")
    job.network.plug(away)
    job.wait_for("node_joined", 6)
    assert "hands over its work" in job.ask("drain", "runs/job", "1")
    assert job.agents[drained.name].wait() == 4, "it is not offered again"
    (released,) = job.wait_for("node_released")
    assert released["node"] == 1
    job.wait_for_steps(2)
    job.assert_same_bits(reference)
    assert [event["node"] for event in job.events("node_lost")] == [3]
