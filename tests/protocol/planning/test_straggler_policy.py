"""Pacing: when another plan pays, who rests, and when a node that rests is tried again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import pytest

from planaria.plan.plan import NodeId, PlanError, Redundancy, Stage, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.planning.straggler_detection import SpeedEvidence
from planaria.protocol.planning.straggler_policy import TRIAL_STEPS, StragglerPolicy, same_work
from planaria.protocol.thresholds import FIRST_REST_STEPS
from tests.plan.profiles import uniform_profile

SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=1)
POLICY = TemplatesPolicy.of(Planner(uniform_profile(6), SETTINGS))
ANY = POLICY.initial([NodeId(n) for n in range(4)], 1)
MANY = 1000
NOW = 100.0
SLOW = {NodeId(2): 0.5, NodeId(3): 0.2}

Propose = Callable[[frozenset[NodeId]], Candidate]


def takes(step_s: float, transfer_s: float = 0.0) -> Candidate:
    return replace(ANY, step_time_s=step_s, transfer_s=transfer_s)


def proposals(step_s: Mapping[tuple[int, ...], float]) -> Propose:
    """Of plans without these nodes, how long their steps take; no other can be made."""

    def propose(without: frozenset[NodeId]) -> Candidate:
        if tuple(sorted(without)) not in step_s:
            raise PlanError("too few nodes")
        return takes(step_s[tuple(sorted(without))])

    return propose


@pytest.fixture
def pacing() -> StragglerPolicy:
    made = StragglerPolicy()
    made.look_again(5)
    return made


def test_speeds_are_looked_at_once_in_a_step(pacing: StragglerPolicy) -> None:
    assert [pacing.is_due(step, NOW) for step in (4, 5, 6)] == [False, True, True]
    pacing.choose(6, SLOW, proposals({(): 1.0}), None, MANY)
    assert not pacing.is_due(7, NOW)


@pytest.mark.parametrize(
    ("other", "steps_left", "pays"),
    [
        (takes(0.9), MANY, True),
        (takes(0.99), MANY, False),
        (takes(0.9), 10, False),
        (takes(0.9, transfer_s=20.0), 200, False),
        (takes(0.9, transfer_s=20.0), 300, True),
        (takes(0.9, transfer_s=60.0), MANY, False),
    ],
    ids=["it pays", "it is hardly better", "the job ends soon", "much moves", "and it pays", "no plan lasts so long"],
)
def test_a_plan_must_gain_more_than_it_costs(
    other: Candidate, steps_left: int, pays: bool, pacing: StragglerPolicy
) -> None:
    chosen = pacing.choose(5, {}, lambda without: other, takes(1.0), steps_left)
    assert chosen is (other if pays else None)


def test_a_plan_that_cannot_stay_is_replaced_by_the_best(pacing: StragglerPolicy) -> None:
    other = takes(7.0)
    assert pacing.choose(5, {}, lambda without: other, None, MANY) is other


@pytest.mark.parametrize(
    ("step_s", "resting"),
    [
        ({(): 1.0, (3,): 0.9, (2, 3): 0.8}, {2, 3}),
        ({(): 1.0, (3,): 0.9, (2, 3): 0.89}, {3}),
        ({(): 1.0, (3,): 0.97}, set()),
        ({(): 1.0}, set()),
        ({(3,): 3.0}, {3}),
    ],
    ids=["both", "the slowest", "none, for it is hardly better", "none can be missed", "one has to"],
)
def test_slow_nodes_rest_where_that_is_clearly_better(
    step_s: Mapping[tuple[int, ...], float], resting: set[int], pacing: StragglerPolicy
) -> None:
    assert pacing.choose(5, SLOW, proposals(step_s), takes(5.0), MANY) is not None
    assert pacing.resting == resting


def test_no_plan_at_all_is_an_error(pacing: StragglerPolicy) -> None:
    with pytest.raises(PlanError):
        pacing.choose(5, SLOW, proposals({}), None, MANY)


def test_a_node_is_tried_again_later_each_time(pacing: StragglerPolicy) -> None:
    slow, propose = {NodeId(3): 0.2}, proposals({(): 2.0, (3,): 1.0})
    step, rests = 5, FIRST_REST_STEPS
    for _ in range(4):
        pacing.choose(step, slow, propose, takes(2.0), MANY)
        assert pacing.resting == {3}
        assert not pacing.is_due(step + rests - 1, NOW)
        assert pacing.is_due(step + rests, NOW)
        step += rests
        assert pacing.choose(step, slow, propose, takes(1.0), MANY) is not None
        assert not pacing.resting
        assert not pacing.is_due(step + TRIAL_STEPS - 1, NOW)
        assert pacing.is_due(step + TRIAL_STEPS, NOW)
        step += TRIAL_STEPS
        rests *= 2


def test_one_that_was_fast_meanwhile_begins_anew(pacing: StragglerPolicy) -> None:
    slow, propose = {NodeId(3): 0.2}, proposals({(): 2.0, (3,): 1.0})
    pacing.choose(5, slow, propose, takes(2.0), MANY)
    pacing.choose(5 + FIRST_REST_STEPS, slow, propose, takes(1.0), MANY)
    pacing.choose(50, {}, proposals({(): 0.5}), takes(1.0), MANY)
    pacing.choose(60, slow, propose, takes(2.0), MANY)
    assert pacing.is_due(60 + FIRST_REST_STEPS, NOW)


def test_a_trial_that_cannot_be_is_not_asked_for_at_every_step(pacing: StragglerPolicy) -> None:
    slow = {NodeId(3): 0.2}
    pacing.choose(5, slow, proposals({(): 2.0, (3,): 1.0}), takes(2.0), MANY)
    step = 5 + FIRST_REST_STEPS
    with pytest.raises(PlanError):
        pacing.choose(step, slow, proposals({(3,): 1.0}), takes(1.0), MANY)
    assert not pacing.is_due(step + 1, NOW)


def test_whoever_is_gone_rests_no_longer(pacing: StragglerPolicy) -> None:
    pacing.choose(5, SLOW, proposals({(): 2.0, (3,): 1.0, (2, 3): 0.5}), takes(2.0), MANY)
    pacing.forget(NodeId(3))
    assert pacing.resting == {2}
    pacing.wake_all()
    assert not pacing.resting
    assert not pacing.is_due(5 + FIRST_REST_STEPS, NOW)


def test_the_same_pipelines_with_other_shares_are_other_work() -> None:
    nodes = [NodeId(0), NodeId(1)]
    plan = TemplatesPolicy.of(Planner(uniform_profile(6), replace(SETTINGS, num_nodes=2))).initial(nodes, 1).plan
    slower = TemplatesPolicy.of(Planner(uniform_profile(6), replace(SETTINGS, num_nodes=2), speeds={nodes[1]: 0.5}))
    other = slower.reconfigure(ReplanRequest(plan=plan, lost=(), holders=plan.groups_of, generation=2)).plan
    assert same_work(plan, plan)
    spare = Stage(worker=WorkerId(2), first_layer=0, end_layer=6)
    shadowed = msgspec.structs.replace(plan, shadows=(spare,))
    assert same_work(plan, shadowed), "a shadow that is left over makes no difference"
    assert not same_work(shadowed, plan)
    assert not same_work(plan, msgspec.structs.replace(plan, redundancy=Redundancy.LAZY_LAZY))
    assert plan.pipelines == other.pipelines
    assert not same_work(plan, other)


def test_plans_that_follow_speeds_have_a_rest_between_them() -> None:
    pacing = StragglerPolicy(SpeedEvidence(rest_s=10.0))
    pacing.look_again(5)
    assert pacing.choose(5, {}, proposals({(): 0.5}), takes(1.0), MANY, now=NOW) is not None
    pacing.look_again(6)
    assert not pacing.is_due(7, NOW + 9.9)
    successor = StragglerPolicy(SpeedEvidence(rest_s=10.0))
    successor.recall(pacing.learnt, [])
    assert not successor.is_due(7, NOW + 9.9)
    assert successor.is_due(7, NOW + 10.0), "it is only put off"


def test_a_look_that_changed_nothing_needs_no_rest() -> None:
    pacing = StragglerPolicy(SpeedEvidence(rest_s=10.0))
    pacing.look_again(5)
    assert pacing.choose(5, {}, proposals({(): 0.999}), takes(1.0), MANY, now=NOW) is None
    pacing.look_again(6)
    assert pacing.is_due(6, NOW)


def test_a_plan_must_pay_while_such_speeds_last(pacing: StragglerPolicy) -> None:
    """They lasted eight steps the last time; when they last longer, it is looked at again."""
    other = proposals({(): 0.9})
    assert pacing.choose(5, {}, other, takes(1.0), MANY, lasts_steps=8) is None
    assert [pacing.is_due(step, NOW) for step in (12, 13)] == [False, True]
    assert pacing.choose(13, {}, other, takes(1.0), MANY, lasts_steps=16) is not None


def test_a_change_of_plans_takes_time_too(pacing: StragglerPolicy) -> None:
    """As it was measured: for steps of ten milliseconds it is what counts."""
    stay, other = takes(0.010), proposals({(): 0.009})
    assert pacing.choose(5, {}, other, stay, 100, change_s=0.1) is None
    assert pacing.choose(5, {}, other, stay, 200, change_s=0.1) is not None
