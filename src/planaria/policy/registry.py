"""Makes the policy of a name. The names are in `planaria.job.registry`."""

from __future__ import annotations

from planaria.job.registry import PolicyName
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.stage_devices import StageDevicesPolicy


def make_policy(name: PolicyName, planner: Planner) -> Policy:
    """Returns the policy of that name.

    Raises:
        PlanError: the model or f + 1 replicas of it do not fit.
    """
    policy: type[Policy] = name.load()
    if planner.settings.devices_per_stage == 1:
        return policy.of(planner)
    return StageDevicesPolicy(planner, policy.of(planner.of_places()))
