"""Sync rounds: no worker in two sums of a round, and no more rounds than the fullest worker has groups."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings

from planaria.plan.instantiate import initial_plan
from planaria.plan.plan import NodeId, Plan
from planaria.plan.profile import ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.plan.sync_rounds import colour
from planaria.plan.templates import make_templates
from tests.plan.profiles import random_jobs


def _plan(job: tuple[ModelProfile, PlannerSettings]) -> Plan:
    profile, planner = job
    nodes = [NodeId(n) for n in range(planner.num_nodes)]
    return initial_plan(profile, make_templates(profile, planner), planner, nodes, 1)


@settings(max_examples=60, deadline=None)
@given(job=random_jobs())
def test_rounds_are_a_proper_colouring(job: tuple[ModelProfile, PlannerSettings]) -> None:
    plan = _plan(job)
    rounds = colour(plan)
    for groups in plan.groups_of.values():
        assert len({rounds[g] for g in groups}) == len(groups)


@settings(max_examples=60, deadline=None)
@given(job=random_jobs())
def test_rounds_of_own_groups_are_the_fewest(job: tuple[ModelProfile, PlannerSettings]) -> None:
    plan = _plan(job)
    own = tuple(group for group in plan.groups if len(group.layers) == 1)
    plan = msgspec.structs.replace(plan, groups=own, sync_epochs=(1,) * len(own))
    assert max(colour(plan)) + 1 == max(len(groups) for groups in plan.groups_of.values())
