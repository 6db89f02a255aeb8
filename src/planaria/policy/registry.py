"""Makes the policy of a name. The names are in `planaria.job.registry`."""

from __future__ import annotations

from planaria.job.registry import PolicyName
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner


def make_policy(name: PolicyName, planner: Planner) -> Policy:
    """Returns the policy of that name.

    Raises:
        PlanError: the model or f + 1 replicas of it do not fit.
    """
    policy: type[Policy] = name.load()
    return policy.of(planner)
