"""How many nodes a run has: who is let in, who is given back and why, and that numbers do not swing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.train import TrainSection
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.templates.templates import make_templates
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import Command, NodeGone, PriceChanged, Publish, Received, Release, WorkerJoined
from planaria.protocol.messages.from_worker import Ready
from planaria.protocol.messages.journal import JournalCommit
from planaria.protocol.messages.records import NodeLeaving, Note
from planaria.protocol.messages.run_measurements import GivenBack
from planaria.protocol.phases import Phase
from planaria.protocol.planning.node_count import NodeCount, least_useful, too_little
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.thresholds import STEPS_BEFORE_GIVING_BACK, STEPS_UNTIL_WANTED_AGAIN
from tests.plan.profiles import uniform_profile
from tests.protocol.test_coordinator import vote

LEAST, MOST = 2, 5
ONE = Counter({"": 1})


class Job:
    """A machine of one layer, on 2 to 5 nodes with a pipeline each; nodes are all there is of workers."""

    def __init__(self, num_microbatches: int, most: int | None = MOST, **budget: object) -> None:
        profile = uniform_profile(1, tied=False)
        self.policy = TemplatesPolicy.of(
            Planner(
                profile,
                PlannerSettings(
                    num_microbatches=num_microbatches,
                    fault_tolerance=1,
                    num_nodes=LEAST,
                    most_nodes=most or 0,
                    devices_per_node=1,
                ),
            )
        )
        self.settings = RunSettings(
            train=TrainSection(steps=10_000, global_batch=num_microbatches, microbatch=1, sequence_length=8),
            policy_name="templates",
            fault_tolerance=1,
            num_nodes=LEAST,
            most_nodes=most,
            devices_per_node=1,
            num_groups=len(profile.groups),
            checkpoint_root="checkpoints",
            checkpoint_every=0,
            resume=None,
            budget=BudgetSection(**budget),  # type: ignore[arg-type]
        )
        self.machine = Coordinator(self.settings, self.policy)
        self.now = 0.0

    def join(self, *nodes: int) -> None:
        for node in nodes:
            self.machine.handle(WorkerJoined(WorkerId(node), f"host:{node}"), self.now)
            self.get_ready()

    def get_ready(self) -> None:
        if self.machine.phase is Phase.TRAINING:
            generation = self.machine.plan.generation
            for worker in self.machine.plan.workers:
                self.machine.handle(Received(worker, Ready(generation=generation)), self.now)

    def train(self, steps: int) -> list[Command]:
        """All workers of the plan vote, step by step."""
        commands: list[Command] = []
        for _ in range(steps):
            step = self.machine.step
            for worker in sorted(self.machine.plan.workers):
                self.now += 0.01
                commands += self.machine.handle(vote(self.machine, worker), self.now)
            assert self.machine.step == step + 1
            self.get_ready()
        return commands


def causes(commands: list[Command]) -> list[str]:
    told = [command.record for command in commands if isinstance(command, Publish)]
    return [record.cause for record in told if isinstance(record, NodeLeaving)]


def test_a_run_starts_on_its_least_nodes_and_plans_for_its_most() -> None:
    job = Job(num_microbatches=4)
    job.join(0, 1)
    assert job.machine.phase is Phase.TRAINING
    assert job.machine.state.wanted == MOST
    job.join(2, 3)
    job.train(3)
    assert job.machine.plan.nodes == (0, 1, 2, 3)
    settings = PlannerSettings(num_microbatches=9, fault_tolerance=1, num_nodes=LEAST, devices_per_node=1)
    sizes = [
        [template.num_nodes for template in make_templates(uniform_profile(6), made)]
        for made in (settings, replace(settings, most_nodes=MOST))
    ]
    assert sizes == [[1], [1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("num_microbatches", "nodes", "given_back"),
    [
        (4, 5, "given back: it brings 0.0% of the throughput for 20.0% of the cost"),  # no pipeline is left for it
        (
            5,
            4,
            "given back: it brings 0.0% of the throughput for 25.0% of the cost",
        ),  # one has two anyway
        (4, 4, None),
    ],
)
def test_a_node_that_brings_too_little_is_given_back_once(
    num_microbatches: int, nodes: int, given_back: str | None
) -> None:
    job = Job(num_microbatches)
    job.join(*range(nodes))
    assert causes(job.train(STEPS_BEFORE_GIVING_BACK)) == []
    commands = job.train(STEPS_BEFORE_GIVING_BACK)
    assert causes(commands) == ([] if given_back is None else [given_back])
    if given_back is None:
        return
    assert Release(NodeId(nodes - 1)) in commands
    assert job.machine.plan.nodes == tuple(range(nodes - 1))
    assert job.machine.state.wanted == nodes - 1
    assert job.machine.no_room(Counter(), ONE) == f"the run has {nodes - 1} nodes, and another one brought too little"
    assert causes(job.train(2 * STEPS_BEFORE_GIVING_BACK)) == []
    job.machine.handle(NodeGone(NodeId(0), "connection closed"), job.now)
    assert job.machine.no_room(Counter(), ONE) is None, "a lost one is replaced"
    assert job.machine.no_room(ONE, ONE) is not None, "one is on its way"


def test_a_run_never_gives_back_its_least_nor_one_without_a_range() -> None:
    for job, nodes in ((Job(num_microbatches=4), LEAST), (Job(num_microbatches=4, most=None), MOST)):
        job.join(*range(nodes))
        assert causes(job.train(3 * STEPS_BEFORE_GIVING_BACK)) == []
        assert len(job.machine.state.nodes) == nodes
    assert job.machine.state.wanted == 0
    assert job.machine.no_room(Counter(), Counter({"": 100})) is None


def test_nodes_that_cost_too_much_are_not_started_and_not_kept() -> None:
    job = Job(num_microbatches=4, most=None, price_command="prices", per_hour=4.0)
    assert job.machine.no_room(Counter(), ONE) is None, "no price is known yet"
    job.machine.handle(PriceChanged(1.0), job.now)
    job.join(0, 1, 2)
    assert job.machine.no_room(Counter(), ONE) is None
    over = "the nodes would cost 5.00 dollars an hour, over budget.per_hour = 4"
    assert job.machine.no_room(ONE, ONE) == over
    job.join(3)
    commands = job.train(3)
    assert causes(commands) == []
    job.machine.handle(PriceChanged(1.5), job.now)
    commands = job.train(5)
    assert causes(commands) == [
        f"given back: the nodes would cost {hourly} dollars an hour, over budget.per_hour = 4"
        for hourly in ("6.00", "4.50")
    ]
    assert job.machine.state.nodes == (0, 1)
    told = job.machine.handle(PriceChanged(3.0), job.now)
    notes = [command.record for command in told if isinstance(command, Publish)]
    assert [note.level for note in notes if isinstance(note, Note)] == ["info", "warning"]
    assert causes(job.train(3)) == [], "the least are kept"
    assert job.machine.no_room(Counter(), ONE) is not None


def test_of_a_range_no_more_are_wanted_than_the_budget_allows_for() -> None:
    job = Job(num_microbatches=4, price=1.0, per_hour=3.5)
    job.join(0, 1)
    assert job.machine.state.wanted == 3
    job.machine.handle(PriceChanged(3.0), job.now)
    assert job.machine.state.wanted == LEAST
    job.machine.handle(PriceChanged(0.0), job.now)
    assert job.machine.state.wanted == MOST


def test_what_is_dear_goes_first() -> None:
    prices = {NodeId(0): 1.0, NodeId(1): 2.0, NodeId(2): 1.0}
    order = []
    nodes = set(prices)
    while nodes:
        order.append(least_useful(nodes, [NodeId(1), NodeId(2)], {NodeId(2): 0.5}, prices.__getitem__))
        nodes.discard(order[-1])
    assert order == [0, 2, 1], "that the plan does without, the slow one, the dear one"
    assert least_useful(prices, list(prices), {}, prices.__getitem__) == 1
    assert least_useful([NodeId(3), NodeId(4)], [], {}, lambda node: 1.0) == 4, "the youngest"


@pytest.mark.parametrize(
    ("seconds", "share", "is_too_little"), [(1.1, 0.25, True), (1.1, 0.1, False), (1.3, 0.25, False)]
)
def test_what_a_node_brings_is_measured_by_what_it_costs(seconds: float, share: float, is_too_little: bool) -> None:
    stay = Job(num_microbatches=4).policy.initial([NodeId(0), NodeId(1)], 1)
    stay = replace(stay, step_time_s=1.0)
    without = replace(stay, step_time_s=seconds)
    assert (too_little(stay, without, share) is not None) == is_too_little
    assert too_little(stay, replace(without, is_degraded=True), share) is None, "replicas are worth more"


def test_a_node_is_tried_again_later_and_later() -> None:
    count = NodeCount(LEAST, MOST)
    count.gave_back(100, 3)
    assert [count.wanted(step) for step in (101, 99 + STEPS_UNTIL_WANTED_AGAIN)] == [3, 3]
    again = 100 + STEPS_UNTIL_WANTED_AGAIN
    assert count.wanted(again) == MOST
    successor = NodeCount(LEAST, MOST)
    successor.recall(count.learnt)
    successor.gave_back(again, 4)
    assert successor.learnt == GivenBack(most=4, until=again + 2 * STEPS_UNTIL_WANTED_AGAIN, pause_steps=2000)


def test_it_is_asked_seldom_and_soon_after_something_is_new() -> None:
    count = NodeCount(LEAST, MOST)
    asked = [step for step in range(1000) if count.is_due(step, {NodeId(0), NodeId(1), NodeId(2)})]
    first = STEPS_BEFORE_GIVING_BACK
    assert asked == [first, 3 * first, 7 * first, 15 * first]
    count.look_again()
    again = [step for step in range(1000, 2000) if count.is_due(step, {NodeId(0), NodeId(1), NodeId(2)})]
    assert again[0] == 1000 + first


def test_the_next_coordinator_knows_of_it() -> None:
    job = Job(num_microbatches=4)
    job.join(*range(MOST))
    commands = job.train(2 * STEPS_BEFORE_GIVING_BACK)
    learnt = [command.learnt for command in commands if isinstance(command, JournalCommit) and command.learnt]
    assert learnt[-1].given_back.most == 4
    successor = Coordinator(job.settings, job.policy, JournalState(learnt=learnt[-1]))
    assert successor.no_room(Counter({"": 4}), ONE) is not None
