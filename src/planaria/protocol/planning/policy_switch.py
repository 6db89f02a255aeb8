"""Policy switches: which policy is in force, and whether the plan in force is left for another policy's plan.

A policy that was in force is kept as it is: when it comes back, it knows what it knew. Nothing here makes plans.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.validate import lacking, num_replicas
from planaria.policy.interface import Candidate, Policy
from planaria.protocol.planning.straggler_policy import pays

MakePolicy = Callable[[PolicyName, int], Policy]
"""Makes the policy of that name, whose plans put at most so many bytes on a device (0: what the job says). Raises
PlanError: it has no plan for this job."""


class PolicySwitch:
    """The policy in force in one run, and those that were in force before.

    Args:
        name: of the policy that the run begins with.
        make: makes another; None: there is none.
        may_drop: samples may be left out.

    Attributes:
        name: of the policy in force.
        is_new: it came since the plan in force was looked at.
    """

    def __init__(self, name: str, make: MakePolicy | None, *, may_drop: bool) -> None:
        self.name = name
        self.is_new = False
        self._make = make
        self._may_drop = may_drop
        self._kept: dict[str, Policy] = {}

    def refusal(self, name: str) -> str | None:
        """Returns why a user may not have this policy, whatever plans it would make; None if allowed."""
        if name not in [*PolicyName]:
            return f"policy = {name!r:.80} is unknown. Choose {', '.join(PolicyName)}"
        if name == PolicyName.DROP and not self._may_drop:
            return (
                "policy drop leaves samples out, and the job file does not allow it. Set resilience.allow_drop = true "
                "in the job file, and go on with --resume"
            )
        if self._make is None:
            return "this coordinator makes no other policy"
        return None

    def candidate(self, name: PolicyName, bound_bytes: int | None) -> Policy:
        """Returns the policy of that name, as it was when it was left, or a new one.

        Args:
            name: of it.
            bound_bytes: the most that a plan may put on a device; None: nothing more is known than the job says.

        Raises:
            PlanError: it has no plan for this job.
        """
        if bound_bytes is None and name in self._kept:
            return self._kept[name]
        return self.made(name, bound_bytes or 0)

    def made(self, name: PolicyName, most_bytes: int) -> Policy:
        """Makes a new policy of that name. Raises PlanError."""
        assert self._make is not None, "no other policy can be made"
        made = self._make(name, most_bytes)
        if not most_bytes:
            self._kept[name] = made
        return made

    def switch(self, name: PolicyName, before: Policy) -> None:
        """Records that another policy is in force; the one before is kept as it was."""
        self._kept[self.name] = before
        self.name, self.is_new = name, True


def why_change(now: Candidate, then: Candidate, fault_tolerance: int, steps_left: int) -> str | None:
    """Returns why the plan in force is left after a change of policy, though it could go on; None if it stays.

    What counts is, in this order: that no more samples are left out, that every layer has f + 1 replicas, how many it
    has, and time.

    Args:
        now: the plan in force, as the new policy estimates it.
        then: what the new policy makes of it.
        fault_tolerance: f: how many nodes may be lost at once.
        steps_left: of the job.
    """
    left_out, then_left_out = len(now.plan.dropped), len(then.plan.dropped)
    arrived = msgspec.structs.replace(then.plan, transfers=())  # shadows count whose state is under way now
    is_short, then_is_short = (bool(lacking(plan, fault_tolerance)) for plan in (now.plan, arrived))
    if then_left_out > left_out or (then_is_short and not is_short):
        return None
    if then_left_out < left_out:
        return "fewer samples are left out" if then_left_out else "no sample is left out any more"
    if is_short and not then_is_short:
        return f"every layer has {fault_tolerance + 1} replicas again"
    if min(num_replicas(arrived)) > min(num_replicas(now.plan)):
        return "every layer has more replicas"
    return "steps are shorter" if pays(now, then, steps_left) else None
