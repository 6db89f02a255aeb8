"""A job of two to four nodes: it starts on two, grows, and keeps to its most and its budget. Real agents, real bits."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from planaria.api import load_job
from tests.e2e.agents import Agent, Hosts
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.conftest import Reference
from tests.e2e.incubator import Incubator

JOB = ("cluster.nodes={ least = 2, most = 4 }", "train.global_batch=12")  # of which each node has as much


class Elastic(Hosts):
    """A job on agents, trained with some fields set."""

    def __init__(self, folder: Path, incubator: Incubator, *changes: str) -> None:
        super().__init__(folder, incubator, min_nodes_per_pipeline=1)
        self.changes = changes
        self.command = self.train(*(word for change in changes for word in ("--set", change)))

    @property
    def num_live(self) -> int:
        committed = self.events("step_committed")
        return int(committed[-1]["live_nodes"]) if committed else 0

    @property
    def wanted(self) -> int:
        status = self.incubator.start(self.folder, "status", "runs/job", "--json")
        told, _ = status.communicate(DEADLINE_S)
        return int(json.loads(told)["wanted"])

    def notes(self, words: str) -> list[str]:
        return [note["text"] for note in self.events("note") if words in note["text"]]

    def agent_of(self, node: int) -> Agent:
        (found,) = (agent for agent in self.agents if agent.process.poll() != -signal.SIGKILL and agent.node == node)
        return found

    def assert_same_bits(self, reference: Reference) -> None:
        """Ends the run, and compares it with one process that trains as many steps."""
        self.command.send_signal(signal.SIGTERM)
        assert self.command.wait(DEADLINE_S) == 128 + signal.SIGTERM, self.said
        summary = json.loads(self.run.summary.read_text())
        assert summary["skipped_microbatches"] == summary["duplicated_microbatches"] == 0
        profile = f'cluster.profile="{self.folder}/profile.json"'
        changed = [*self.changes, f"train.steps={summary['steps']}", profile]
        alone = reference(load_job(self.folder / "job.toml", changed))
        assert summary["weights_sha256"] == alone.summary["weights_sha256"]


def test_a_run_grows_from_its_least_to_its_most_and_keeps_to_its_budget(
    folder: Path, incubator: Incubator, reference: Reference
) -> None:
    price = folder / "price"
    price.write_text("1.0")
    budget = ("budget.price_command=cat price", "budget.price_every_s=0.1", "budget.per_hour=5.0")
    hosts = Elastic(folder, incubator, *JOB, *budget)
    for _ in range(2):
        hosts.start_agent()
    hosts.wait_for_step(3)
    assert (hosts.num_live, hosts.wanted) == (2, 4)
    for _ in range(2):
        hosts.start_agent()
    assert wait_until(lambda: hosts.num_live == 4), hosts.said

    spare = hosts.start_agent()
    assert wait_until(lambda: hosts.notes("waits as a spare: the run has 4 nodes, the most that cluster.nodes allows"))
    hosts.agents[0].signal_everybody(signal.SIGKILL)
    hosts.wait_for("node_lost")
    assert spare.node == 4, "it takes the place of the lost one"
    assert wait_until(lambda: hosts.num_live == 4), hosts.said

    price.write_text("no idea")
    assert wait_until(lambda: hosts.notes("the last known price holds"))
    price.write_text("1.5")
    hosts.wait_for("node_released")
    (given_back,) = hosts.events("node_leaving")
    assert given_back["cause"] == "given back: the nodes would cost 6.00 dollars an hour, over budget.per_hour = 5"
    assert hosts.agent_of(given_back["node"]).wait() == 4
    hosts.wait_for_step(hosts.last_step + 3)
    assert (hosts.num_live, hosts.wanted, len(hosts.notes("the last known price holds"))) == (3, 3, 1)
    hosts.assert_same_bits(reference)
    assert json.loads(hosts.run.summary.read_text())["cost"] > 0


@pytest.mark.proof
def test_a_node_that_brings_nothing_is_given_back(folder: Path, incubator: Incubator, reference: Reference) -> None:
    """Of four microbatches, two nodes have two each, and a third one cannot make that less."""
    hosts = Elastic(folder, incubator, "cluster.nodes={ least = 2, most = 3 }", "train.global_batch=4")
    for _ in range(3):
        hosts.start_agent()
    hosts.wait_for("node_released")
    (given_back,) = hosts.events("node_leaving")
    assert given_back["cause"].startswith("given back: it brings "), given_back
    assert hosts.agent_of(given_back["node"]).wait() == 4
    late = hosts.start_agent()
    assert wait_until(lambda: hosts.notes("waits as a spare: the run has 2 nodes, and another one brought too little"))
    assert (hosts.num_live, hosts.wanted, late.process.poll()) == (2, 2, None)
    hosts.assert_same_bits(reference)
