"""A job of two to four nodes: it starts on two, grows, and keeps to its most and its budget. Real agents, real bits."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from planaria.api import load_job
from planaria.protocol.messages.agent import Farewell
from planaria.runtime.engines.engine import Task, TaskState
from planaria.runtime.engines.keeper import Keeper
from planaria.runtime.nodes.agent_settings import EXIT_CODES
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


class LocalEngine:
    """An engine whose tasks are agents of this machine, as many as may run."""

    poll_s = 0.1

    def __init__(self, hosts: Hosts, number: int) -> None:
        self._hosts = hosts
        self._agents: dict[str, Agent | None] = dict.fromkeys(f"task-{count}" for count in range(number))
        self._allowed = number

    def tasks(self) -> list[Task]:
        for name, agent in self._agents.items():
            if agent is None and sum(self._state(name) is TaskState.RUNNING for name in self._agents) < self._allowed:
                self._agents[name] = self._hosts.start_agent("--label", name)
        return [Task(name=name, state=self._state(name)) for name in self._agents]

    def _state(self, name: str) -> TaskState:
        agent = self._agents[name]
        if agent is None:
            return TaskState.SPARE
        code = agent.process.poll()
        if code is None:
            return TaskState.RUNNING
        ends = {EXIT_CODES[Farewell.DRAINED]: TaskState.GIVEN_BACK, EXIT_CODES[Farewell.OVER]: TaskState.DONE}
        return ends.get(code, TaskState.LOST)

    def replace(self, task: Task) -> None:
        self._agents[task.name] = None

    def allow(self, num_running: int) -> None:
        self._allowed = num_running

    def come_back(self) -> None: ...

    def end(self) -> None: ...


@pytest.mark.proof
def test_a_node_that_cost_too_much_is_given_back_to_the_engine_and_asked_for_when_it_does_not(
    folder: Path, incubator: Incubator, reference: Reference
) -> None:
    price = folder / "price"
    price.write_text("1.0")
    budget = ("budget.price_command=cat price", "budget.price_every_s=0.1", "budget.per_hour=3.5")
    hosts = Elastic(folder, incubator, "cluster.nodes={ least = 2, most = 3 }", "train.global_batch=12", *budget)
    engine, said = LocalEngine(hosts, 3), list[str]()
    keeper = Keeper(engine, hosts.run, 2, 0, said.append)

    def comes(condition: Callable[[], object]) -> None:
        def looked() -> object:
            keeper.look()
            return condition()

        assert wait_until(looked), f"{said}\n{hosts.said}"

    def given_back() -> list[str]:
        return [task.name for task in engine.tasks() if task.state is TaskState.GIVEN_BACK]

    comes(lambda: hosts.num_live == 3)
    price.write_text("1.5")
    comes(given_back)
    (name,) = given_back()
    (leaving,) = hosts.events("node_leaving")
    assert leaving["cause"] == "given back: the nodes would cost 4.50 dollars an hour, over budget.per_hour = 3.5"
    before = hosts.last_step
    comes(lambda: hosts.last_step >= before + 5)
    assert (given_back(), hosts.num_live) == ([name], 2), "it stays with the engine while it costs too much"
    price.write_text("1.0")
    comes(lambda: hosts.num_live == 3)
    assert [line for line in said if "given back" in line] == [
        f"task {name} was given back, and is started again: the run wants 3 nodes now"
    ]
    labels = [event["label"] for event in hosts.events("node_joined")]
    assert sorted(labels) == sorted(["task-0", "task-1", "task-2", name])
    assert not hosts.events("node_lost")
    hosts.assert_same_bits(reference)
