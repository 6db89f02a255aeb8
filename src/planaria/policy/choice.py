"""The choice of a policy by its name in the job file."""

from __future__ import annotations

from planaria.job.settings import PolicyName
from planaria.plan.profile import ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.policy.adaptive import AdaptivePolicy
from planaria.policy.drop import DropPolicy
from planaria.policy.morph import MorphPolicy
from planaria.policy.redundancy import RedundancyPolicy
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy


def make_policy(name: PolicyName, profile: ModelProfile, settings: PlannerSettings) -> TemplatesPolicy:
    """The policy of that name. All of them make a job's first plan from templates; morph's is a grid of equal ones.

    Raises:
        PlanError: the model or f + 1 replicas of it do not fit.
    """
    match name:
        case PolicyName.TEMPLATES:
            return TemplatesPolicy(profile, settings)
        case PolicyName.REROUTE:
            return ReroutePolicy(profile, settings)
        case PolicyName.DROP:
            return DropPolicy(profile, settings)
        case PolicyName.MORPH:
            return MorphPolicy(profile, settings)
        case PolicyName.REDUNDANCY:
            return RedundancyPolicy(profile, settings)
        case PolicyName.ADAPTIVE:
            return AdaptivePolicy(profile, settings)
