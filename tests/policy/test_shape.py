"""Pipelines of a number and a depth that the user fixes, under every policy."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.policy.interface import Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8)
DEPTH, NUMBER = 4, 3
RESTARTS_SHAPES = (PolicyName.TEMPLATES, PolicyName.REDUNDANCY, PolicyName.MORPH, PolicyName.ADAPTIVE)
"""Policies that make whole pipelines again as soon as there are nodes for them."""


def policy_of(name: PolicyName, num_nodes: int = DEPTH * NUMBER, **changes: object) -> Policy:
    given: dict[str, object] = {
        "num_microbatches": 24,
        "fault_tolerance": 1,
        "num_nodes": num_nodes,
        "devices_per_node": 1,
        "shape": (NUMBER, DEPTH),
        "may_drop": name is PolicyName.DROP,
    }
    return make_policy(name, Planner(PROFILE, PlannerSettings(**{**given, **changes})))  # type: ignore[arg-type]


def depths(plan: Plan) -> list[int]:
    return sorted(len(pipeline.nodes(plan.devices_per_node)) for pipeline in plan.pipelines)


def first(policy: Policy, num_nodes: int) -> Plan:
    return policy.initial([NodeId(node) for node in range(num_nodes)], 1).plan


def after(policy: Policy, plan: Plan, live: Collection[int]) -> Plan:
    """The plan when these nodes live; those that have no place in the one before hold nothing."""
    holders = {WorkerId(node): plan.groups_of.get(WorkerId(node), ()) for node in live}
    lost = [node for node in plan.nodes if node not in live]
    return policy.reconfigure(ReplanRequest(plan=plan, lost=lost, holders=holders, generation=plan.generation + 1)).plan


@pytest.mark.parametrize("name", PolicyName)
@pytest.mark.parametrize("num_nodes", [DEPTH * NUMBER, DEPTH * NUMBER + 3])
def test_a_job_begins_with_the_pipelines_asked_for_and_other_nodes_wait(name: PolicyName, num_nodes: int) -> None:
    plan = first(policy_of(name, num_nodes), num_nodes)
    validate(plan, fault_tolerance=1)
    assert depths(plan) == [DEPTH] * NUMBER


@pytest.mark.parametrize("name", PolicyName)
def test_without_it_other_pipelines_are_made(name: PolicyName) -> None:
    assert depths(first(policy_of(name, shape=None), DEPTH * NUMBER)) != [DEPTH] * NUMBER


@pytest.mark.parametrize("name", RESTARTS_SHAPES)
def test_fewer_nodes_make_no_more_and_no_deeper_pipelines_until_there_are_enough_again(name: PolicyName) -> None:
    policy = policy_of(name)
    left = set(range(DEPTH * NUMBER)) - {2, 7}
    short = after(policy, first(policy, DEPTH * NUMBER), left)
    assert len(short.pipelines) <= NUMBER
    assert max(depths(short)) <= DEPTH
    again = after(policy, short, left | {12, 13})
    assert depths(again) == [DEPTH] * NUMBER


@pytest.mark.parametrize("name", RESTARTS_SHAPES)
def test_more_nodes_than_the_pipelines_have_wait(name: PolicyName) -> None:
    policy = policy_of(name)
    plan = after(policy, first(policy, DEPTH * NUMBER), range(DEPTH * NUMBER + 5))
    assert depths(plan) == [DEPTH] * NUMBER


def test_a_waiting_node_takes_the_place_of_a_lost_one() -> None:
    policy = policy_of(PolicyName.TEMPLATES, 13)
    plan = first(policy, 13)
    new = after(policy, plan, set(range(13)) - {5})
    assert depths(new) == [DEPTH] * NUMBER
    assert NodeId(12) in new.nodes


def test_nodes_of_other_speeds_keep_the_pipelines() -> None:
    policy = policy_of(PolicyName.TEMPLATES, 14)
    slow = policy.with_planner(policy.planner.with_speeds({NodeId(3): 0.5, NodeId(9): 0.4}))
    plan = first(slow, 14)
    assert depths(plan) == [DEPTH] * NUMBER
    assert NodeId(9) not in plan.nodes


def test_a_depth_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(PlanError, match=r"cannot be cut onto 9 nodes; .* 1 to 8 can be had. Set another"):
        policy_of(PolicyName.TEMPLATES, 27, shape=(3, 9))
    with pytest.raises(PlanError, match=r"shape is \(0, 4\); give at least 1 pipeline"):
        policy_of(PolicyName.TEMPLATES, shape=(0, 4))
