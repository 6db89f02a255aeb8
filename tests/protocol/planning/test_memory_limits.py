"""What a shortage of memory says of the plans that follow."""

from __future__ import annotations

import dataclasses

import pytest

from planaria.estimate.memory import worker_memory_bytes
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.events import NodeGone, RanOut
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.thresholds import SOON_STEPS
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(6, tied=False)
SETTINGS = PlannerSettings(num_microbatches=12, fault_tolerance=1, num_nodes=6, devices_per_node=1)


def plan_of(nodes: int, smallest: int) -> Plan:
    """Pipelines of `smallest` nodes."""
    settings = dataclasses.replace(SETTINGS, min_nodes=smallest, num_nodes=nodes)
    return TemplatesPolicy.of(Planner(PROFILE, settings)).initial([NodeId(node) for node in range(nodes)], 1).plan


LIGHT, HEAVY = plan_of(6, 3), plan_of(4, 2)


def most(plan: Plan) -> int:
    return max(worker_memory_bytes(plan, PROFILE, worker) for worker in plan.workers)


def gone(node: int, *, needed: int = 0) -> NodeGone:
    return NodeGone(NodeId(node), "out of memory", RanOut(worker=WorkerId(node), where="here", held_bytes=needed))


@pytest.fixture
def shortages() -> Shortages:
    return Shortages(
        PROFILE, lambda size: TemplatesPolicy.of(Planner(PROFILE, dataclasses.replace(SETTINGS, memory_bytes=size)))
    )


def test_before_anything_was_carried_as_much_is_too_much(shortages: Shortages) -> None:
    assert shortages.allows(HEAVY)
    event = shortages.note(gone(0), LIGHT, 1)
    assert event.cause.startswith("out of memory here (")
    assert event.ran_out is None
    assert not shortages.allows(HEAVY)
    assert shortages.fatal is None
    text = str(shortages.refuse(HEAVY))
    assert "node 0 ran out of memory in step 1" in text
    assert "--resume" in text


def test_what_others_carried_is_allowed_and_no_more(shortages: Shortages) -> None:
    shortages.committed(LIGHT)
    shortages.note(gone(0), LIGHT, 5)
    assert shortages.allows(LIGHT)
    assert not shortages.allows(HEAVY)


def test_whatever_plan_others_carried_is_allowed(shortages: Shortages) -> None:
    for plan in (LIGHT, LIGHT, HEAVY, LIGHT):
        shortages.committed(plan)
    shortages.note(gone(0), HEAVY, 5)
    assert shortages.allows(HEAVY)


def test_a_node_that_needed_more_than_others_with_the_same_load_says_little(shortages: Shortages) -> None:
    """The load was not the reason, so what it needed is the bound."""
    shortages.committed(LIGHT)
    shortages.note(gone(0, needed=10 * most(HEAVY)), LIGHT, 5)
    assert shortages.allows(HEAVY)


def test_an_estimate_that_nobody_disproved_is_not_trusted_to_be_too_low(shortages: Shortages) -> None:
    shortages.note(gone(0, needed=10 * most(HEAVY)), LIGHT, 1)
    assert not shortages.allows(HEAVY)


def test_the_policy_keeps_to_the_bound(shortages: Shortages) -> None:
    shortages.committed(LIGHT)
    shortages.note(gone(0), LIGHT, 5)
    proposal = shortages.policy().initial([NodeId(node) for node in range(6)], 2)
    assert shortages.allows(proposal.plan)
    with pytest.raises(PlanError):
        shortages.policy().initial([NodeId(node) for node in range(4)], 3)


@pytest.mark.parametrize(("apart", "ends"), [(0, True), (SOON_STEPS, True), (SOON_STEPS + 1, False)])
def test_a_second_node_soon_afterwards_ends_the_job(apart: int, ends: bool, shortages: Shortages) -> None:
    shortages.note(gone(0), LIGHT, 3)
    shortages.note(gone(1), LIGHT, 3 + apart)
    assert (shortages.fatal is not None) == ends
    if shortages.fatal is not None:
        assert "nodes 0 and 1 ran out of memory" in shortages.fatal


def test_an_idle_node_shows_nothing(shortages: Shortages) -> None:
    shortages.note(gone(17), LIGHT, 3)
    shortages.note(gone(1), LIGHT, 3)
    assert shortages.fatal is None


def test_without_a_profile_only_the_pattern_counts() -> None:
    blind = Shortages()
    blind.note(gone(0), LIGHT, 3)
    assert blind.allows(HEAVY)
    blind.note(gone(1), LIGHT, 4)
    assert blind.fatal is not None


@pytest.mark.parametrize("is_alone", [False, True])
def test_the_next_coordinator_goes_on_with_what_was_known(shortages: Shortages, is_alone: bool) -> None:
    shortages.committed(LIGHT)
    shortages.note(gone(0), LIGHT, 3, is_alone=is_alone)
    later = Shortages(PROFILE)
    later.recall(shortages.learnt, [LIGHT])
    assert later.bound_bytes == shortages.bound_bytes
    later.note(gone(1), LIGHT, 4)
    assert later.fatal is not None
    assert "nodes 0 and 1 ran out of memory" in later.fatal
