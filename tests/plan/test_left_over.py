"""Nodes that a plan has no use for: it asks nothing of them, and what they alone hold is not lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.reconfigure.reconfigure import reconfigure
from planaria.planner.templates.templates import make_templates
from planaria.policy.interface import ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from tests.plan.profiles import uniform_profile
from tests.proof import examples

PROFILE = uniform_profile(2)


def planner_of(num_nodes: int, num_microbatches: int, min_nodes: int) -> PlannerSettings:
    return PlannerSettings(
        num_nodes=num_nodes,
        devices_per_node=1,
        fault_tolerance=1,
        num_microbatches=num_microbatches,
        min_nodes=min_nodes,
    )


@settings(max_examples=examples(150), deadline=None)
@given(held=st.lists(st.sets(st.sampled_from(range(len(PROFILE.groups)))), min_size=5, max_size=7), lost=st.booleans())
def test_state_comes_from_workers_that_hear_of_the_plan(held: list[set[int]], lost: bool) -> None:
    """Pipelines of two nodes each: of an odd number, one is left over, whatever it holds."""
    held[0].update(range(len(PROFILE.groups)))
    planner = planner_of(7, 8, 2)
    templates = make_templates(PROFILE, planner)
    before = initial_plan(PROFILE, templates, planner, [NodeId(node) for node in range(7)], 1)
    order = reversed(range(7)) if lost else range(7)
    holders = {WorkerId(node): tuple(sorted(groups)) for node, groups in zip(order, held, strict=False)}
    gone = [NodeId(node) for node in range(7) if node not in holders]
    plan = reconfigure(PROFILE, templates, planner, before, gone, holders, 2).plan
    validate(plan, fault_tolerance=1)
    for move in plan.transfers:
        assert move.source in plan.groups_of
        assert move.group in holders[move.source]
    for shadow in plan.shadows:
        assert {move.group for move in plan.transfers if move.source == shadow.worker}
        own = set(plan.groups_of[shadow.worker])
        assert own <= set(holders[shadow.worker])


def test_nodes_without_a_microbatch_are_idle() -> None:
    """Two microbatches feed two pipelines; the third and fourth node of pipelines of one node have nothing to do."""
    profile = uniform_profile(1)
    planner = planner_of(2, 2, 1)
    policy = TemplatesPolicy.of(Planner(profile, planner))
    plan = policy.initial([NodeId(0), NodeId(1)], 1).plan
    everything = tuple(range(len(profile.groups)))
    holders = {WorkerId(1): everything, WorkerId(2): (), WorkerId(3): ()}
    after = policy.reconfigure(ReplanRequest(plan=plan, lost=[NodeId(0)], holders=holders, generation=2)).plan
    assert after.nodes == (1, 2)
    assert policy.initial([NodeId(node) for node in (1, 2, 3)], 3).plan.nodes == (1, 2)
