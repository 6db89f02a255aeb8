"""Makes the policy of a name. The names are in `planaria.job.registry`."""

from __future__ import annotations

from planaria.job.registry import PolicyName
from planaria.plan.plan import PlanError
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner


def make_policy(name: PolicyName, planner: Planner) -> Policy:
    """Returns the policy of that name.

    Raises:
        PlanError: the model or f + 1 replicas of it do not fit; or plans are to be Oobleck's, and this policy makes
            others.
    """
    if planner.settings.is_oobleck and name is not PolicyName.TEMPLATES:
        raise PlanError(
            f"The policy {name} makes no plans of Oobleck's, which the objective asks for. Use the policy templates, "
            "or the objective steptime."
        )
    policy: type[Policy] = name.load()
    return policy.of(planner)
