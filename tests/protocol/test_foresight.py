"""Whose loss is thought about, and when there is time; and when a plan is weighed again."""

from __future__ import annotations

from collections.abc import Iterator

from tests.plan.profiles import uniform_profile

from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.policy.adaptive import AdaptivePolicy
from planaria.protocol.foresight import Foresight
from planaria.protocol.second_look import SecondLook


class Counting(AdaptivePolicy):
    """Each answer takes three pieces."""

    asked: list[tuple[NodeId, ...]]

    def ponder(self, plan: object, lost: object, holders: object) -> Iterator[None]:
        self.asked.append(tuple(lost))  # type: ignore[call-overload]
        return iter((None, None, None))


def policy() -> Counting:
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
    made = Counting(uniform_profile(4), settings)
    made.asked = []
    return made


def test_every_node_and_then_the_plan_itself() -> None:
    thinker = policy()
    plan = thinker.initial([NodeId(n) for n in range(4)], 1).plan
    foresight, pieces = Foresight(), 0
    while foresight.look(thinker, plan, 4, frozenset()):
        foresight.think(thinker, plan, plan.groups_of, frozenset())
        pieces += 1
    assert thinker.asked == [(0,), (1,), (2,), (3,), ()]
    assert pieces == 5 * 4
    assert foresight.answered == [0, 1, 2, 3]
    assert foresight.look(thinker, plan, 3, frozenset()), "somebody is gone: it begins anew"


def test_who_leaves_is_done_without_in_any_case() -> None:
    thinker = policy()
    plan = thinker.initial([NodeId(n) for n in range(4)], 1).plan
    foresight, leaving = Foresight(), frozenset({NodeId(2)})
    while foresight.look(thinker, plan, 4, leaving):
        foresight.think(thinker, plan, plan.groups_of, leaving)
    assert thinker.asked == [(0, 2), (1, 2), (2, 3)]


def test_nothing_is_begun_that_may_not_be_done_before_votes() -> None:
    foresight = Foresight()
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
