"""Whose loss is thought about, and when there is time; and when a plan is weighed again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from planaria.plan.plan import NodeId, PlanError
from planaria.plan.settings import PlannerSettings
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.interface import ReplanRequest
from planaria.policy.planner import Planner
from planaria.protocol.planning.plan_validity import SecondLook
from planaria.protocol.planning.precompute import Precomputed
from tests.plan.profiles import uniform_profile


@dataclass(frozen=True, eq=False)
class Counting(AdaptivePolicy):
    """Each answer takes three pieces."""

    asked: list[tuple[NodeId, ...]] = field(default_factory=list)

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        self.asked.append(tuple(request.lost))
        return iter((None, None, None))


def policy() -> Counting:
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
    return Counting.of(Planner(uniform_profile(4), settings))


def thought(
    thinker: Counting, nodes: int = 4, zones: dict[NodeId, str] | None = None, gone: frozenset[NodeId] = frozenset()
) -> tuple[Precomputed, int]:
    """Everything thought out; and in how many pieces."""
    plan = thinker.initial([NodeId(n) for n in range(nodes)], 1).plan
    foresight, pieces = Precomputed(), 0
    while foresight.look(thinker, plan, nodes, gone, zones):
        foresight.think(thinker, plan, plan.groups_of, gone)
        pieces += 1
    return foresight, pieces


def test_every_node_and_then_the_plan_itself_and_then_two_that_may_go_together() -> None:
    """Two pipelines of two nodes: those of one, then those of one stage."""
    thinker = policy()
    plan = thinker.initial([NodeId(n) for n in range(4)], 1).plan
    foresight, pieces = thought(thinker)
    assert thinker.asked == [(0,), (1,), (2,), (3,), (), (0, 1), (0, 2), (1, 3)], "(2, 3) is as (0, 1)"
    assert pieces == 8 * 4
    assert foresight.answered == [0, 1, 2, 3]
    assert foresight.look(thinker, plan, 3, frozenset()), "somebody is gone: it begins anew"


def test_nodes_of_one_zone_are_the_first_pairs() -> None:
    thinker = policy()
    thought(thinker, zones={NodeId(0): "a", NodeId(1): "b", NodeId(2): "b", NodeId(3): "a"})
    assert thinker.asked[5:] == [(0, 3), (1, 2), (0, 1), (2, 3), (0, 2), (1, 3)]


def test_pairs_are_as_many_as_may_be_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of many nodes."""
    for most, pairs in ((7, 2), (5, 0), (4, 0), (3, 0)):
        monkeypatch.setattr("planaria.protocol.planning.precompute.MOST_ASKED", most)
        thinker = policy()
        thought(thinker)
        assert thinker.asked[:5] == [(0,), (1,), (2,), (3,), ()]
        assert len(thinker.asked) == 5 + pairs
    monkeypatch.setattr("planaria.protocol.planning.precompute.MOST_ASKED", 96)
    monkeypatch.setattr("planaria.protocol.planning.precompute.MOST_PAIRED", 3)
    thinker = policy()
    thought(thinker)
    assert len(thinker.asked) == 5


def test_an_answer_about_two_nodes_is_the_one_that_is_given() -> None:
    """And it is there: nothing is found out any more when it is asked."""
    settings = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=2)
    first, second = (AdaptivePolicy.of(Planner(uniform_profile(8), settings)) for _ in range(2))
    plan = first.initial([NodeId(n) for n in range(8)], 1).plan
    foresight = Precomputed()
    while foresight.look(first, plan, 8, frozenset()):
        foresight.think(first, plan, plan.groups_of, frozenset())
    answers = dict(first.answers.known)
    lost = (NodeId(0), NodeId(1))
    holders = {worker: groups for worker, groups in plan.groups_of.items() if worker not in lost}
    asked = ReplanRequest(plan=plan, lost=lost, holders=holders, generation=2)
    assert first.reconfigure(asked) == second.reconfigure(asked)
    assert first.answers.known == answers


def test_who_leaves_is_done_without_in_any_case() -> None:
    thinker = policy()
    thought(thinker, gone=frozenset({NodeId(2)}))
    assert thinker.asked == [(0, 2), (1, 2), (2, 3)]


def test_the_plan_that_follows_in_any_case_is_the_first() -> None:
    """Two nodes are gone, and the step is being finished without them: what comes after it is sure to be asked."""
    thinker = policy()
    plan = thinker.initial([NodeId(n) for n in range(4)], 1).plan
    foresight, gone = Precomputed(), frozenset({NodeId(1), NodeId(2)})
    assert foresight.look(thinker, plan, 2, gone, next_at_once=True)
    assert foresight.hurries
    while foresight.hurries:
        foresight.think(thinker, plan, plan.groups_of, gone)
    assert thinker.asked == [(1, 2)]
    assert foresight.look(thinker, plan, 2, gone, next_at_once=True)
    foresight.think(thinker, plan, plan.groups_of, gone)
    assert thinker.asked[1:] == [(0, 1, 2)], "then what may happen on the way"


def test_an_answer_half_found_is_gone_on_with() -> None:
    """By whoever cannot wait; and who began it finds it done."""
    settings = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=2)
    first, second = (AdaptivePolicy.of(Planner(uniform_profile(8), settings)) for _ in range(2))
    plan = first.initial([NodeId(n) for n in range(8)], 1).plan
    holders = {worker: groups for worker, groups in plan.groups_of.items() if worker != 3}
    asked = ReplanRequest(plan=plan, lost=[NodeId(3)], holders=holders, generation=2)
    half, rest = first.precompute(asked), second.precompute(asked)
    number = sum(1 for _ in rest)
    for _ in range(number // 2):
        next(half)
    (under_way,) = first.answers.under_way.values()
    assert first.reconfigure(asked) == second.reconfigure(asked)
    assert next(under_way, None) is None
    assert list(half) == []
    assert not first.answers.under_way


def test_the_loss_of_all_nodes_is_thought_of_where_layers_are_frozen() -> None:
    """A frozen layer has no group that nobody holds: the coordinator of two nodes must not end by it."""
    profile = uniform_profile(4, tied=False)
    frozen = msgspec.structs.replace(profile, groups=profile.groups[1:])
    settings = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=2, devices_per_node=1, min_nodes=1)
    thinker = AdaptivePolicy.of(Planner(frozen, settings))
    plan = thinker.initial([NodeId(0), NodeId(1)], 1).plan
    asked = ReplanRequest(plan=plan, lost=[NodeId(0), NodeId(1)], holders={}, generation=2)
    assert list(thinker.precompute(asked)) == []
    with pytest.raises(PlanError):
        thinker.reconfigure(asked)


def test_nothing_is_begun_that_may_not_be_done_before_votes() -> None:
    foresight = Precomputed()
    assert foresight.has_time(10.0, began=10.0, step_s=1.0)
    foresight.took(0.2)
    foresight.took(0.01)
    assert foresight.has_time(10.4, began=10.0, step_s=1.0)
    assert not foresight.has_time(10.6, began=10.0, step_s=1.0)
    assert not foresight.has_time(10.0, began=10.0, step_s=0.3)


def test_a_plan_is_weighed_again_when_the_next_loss_is_twice_as_far() -> None:
    look = SecondLook()
    assert not look.is_due(1e9), "nothing was weighed"
    look.chosen(10.0)
    assert not look.is_due(19.0)
    assert look.is_due(20.0)
    assert not look.is_due(30.0)
    assert look.is_due(40.0)
    look.forget()
    assert not look.is_due(1e9)
