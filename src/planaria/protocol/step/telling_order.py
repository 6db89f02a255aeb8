"""Who is told at once of the plan that finishes a step: those that have to act. Others are told when there is time.

To tell thousands of workers takes a coordinator tenths of a second. Most of them go on with what they do, and need the
plan no sooner than for their sums, which wait for those that do more. Where another loss is quicker, they get only the
plan after it: a worker goes from any plan to any later one.
"""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages.to_worker import PlanMessage, ToWorker


def who_acts(before: Plan, after: Plan, halted: Collection[WorkerId]) -> set[WorkerId]:
    """Returns the workers that have to be told at once.

    Args:
        before: in force when the step was struck.
        after: the plan that finishes the step.
        halted: workers that stopped, and do nothing until they are told.
    """
    return whose_work_changes(before, after).union(halted)


def whose_work_changes(before: Plan, after: Plan) -> set[WorkerId]:
    """Returns the workers on routes that only `after` has."""
    old, new = before.of_pass.routes, after.of_pass.routes
    same = set(map(id, old)).intersection(map(id, new))  # nearly all: to compare those by what they say takes long
    known = {route for route in old if id(route) not in same}
    first = {hop.worker for route in new if id(route) not in same and route not in known for hop in route.hops}
    return {WorkerId(worker + place) for worker in first for place in range(after.num_sharing)}


class WaitingPlans:
    """The plans that workers will be told when there is time: of each worker the newest."""

    def __init__(self) -> None:
        self._plans: dict[WorkerId, PlanMessage] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def wait(self, worker: WorkerId, message: PlanMessage) -> None:
        """Has a worker told later, in the turn that it has already, if it has one."""
        self._plans[worker] = message

    def before(self, worker: WorkerId, message: ToWorker) -> PlanMessage | None:
        """Returns the plan that a worker must have before it gets a message. A newer plan stands for the one before."""
        plan = self._plans.pop(worker, None)
        return None if isinstance(message, PlanMessage) else plan

    def next(self, most: int) -> list[tuple[WorkerId, PlanMessage]]:
        """Returns the first in turn, so many at most; they wait no more."""
        found = [(worker, self._plans[worker]) for worker, _ in zip(self._plans, range(most), strict=False)]
        for worker, _ in found:
            del self._plans[worker]
        return found
