"""The registry: every policy that a job file may name is there, and makes a plan."""

from __future__ import annotations

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.policy.interface import ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from tests.plan.profiles import uniform_profile

PLANNER = Planner(
    uniform_profile(8),
    PlannerSettings(num_microbatches=12, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=2),
)


@pytest.mark.parametrize("name", PolicyName)
def test_policies_share_a_planner(name: PolicyName) -> None:
    policy = make_policy(name, PLANNER)
    plan = policy.initial([NodeId(node) for node in range(8)], 1).plan
    validate(plan, fault_tolerance=1)
    holders = {worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) != 3}
    after = policy.reconfigure(ReplanRequest(plan=plan, lost=[NodeId(3)], holders=holders, generation=2))
    assert 3 not in after.plan.nodes
    assert policy.planner.templates is PLANNER.templates or name is PolicyName.REDUNDANCY, (
        "its own have room for shadows"
    )
