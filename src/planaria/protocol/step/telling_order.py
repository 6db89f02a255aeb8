"""The order in which workers are told the plan that finishes a step: first those that have to act at once.

To tell thousands of workers takes a coordinator tenths of a second. Most of them go on with what they do, and need the
plan no sooner than for their sums, which wait for those that do more.
"""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.plan import Plan, WorkerId


def telling_order(before: Plan, after: Plan, halted: Collection[WorkerId]) -> list[WorkerId]:
    """Returns the workers of the plan that finishes a step, in the order in which they are to be told.

    Args:
        before: in force when the step was struck.
        after: the plan that finishes the step.
        halted: workers that stopped, and do nothing until they are told.
    """
    acting = whose_work_changes(before, after).union(halted)
    # Sorting is stable: both parts ascend, as the plan's workers do.
    return sorted(after.workers, key=lambda worker: worker not in acting)


def whose_work_changes(before: Plan, after: Plan) -> set[WorkerId]:
    """Returns the workers on routes that only `after` has."""
    known = set(before.of_pass.routes)
    return {hop.worker for route in after.of_pass.routes if route not in known for hop in route.hops}
