"""The registry of policies: one line each, by the name in the job file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planaria.job.settings import PolicyName
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.drop import DropPolicy
from planaria.policy.interface import Policy
from planaria.policy.morph import MorphPolicy
from planaria.policy.planner import Planner
from planaria.policy.redundancy import RedundancyPolicy
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy

POLICIES: Mapping[PolicyName, Callable[[Planner], Policy]] = {
    PolicyName.TEMPLATES: TemplatesPolicy.of,
    PolicyName.REROUTE: ReroutePolicy.of,
    PolicyName.DROP: DropPolicy.of,
    PolicyName.MORPH: MorphPolicy.of,
    PolicyName.REDUNDANCY: RedundancyPolicy.of,
    PolicyName.ADAPTIVE: AdaptivePolicy.of,
}


def make_policy(name: PolicyName, planner: Planner) -> Policy:
    """Returns the policy of that name.

    Raises:
        PlanError: the model or f + 1 replicas of it do not fit.
    """
    return POLICIES[name](planner)
