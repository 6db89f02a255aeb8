"""A loss inside a step: who must stop and report, and what their ledgers say together."""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.ledger import Ledger, combine
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages import Report


def broken_workers(plan: Plan, live: Collection[WorkerId], unready: Collection[WorkerId]) -> set[WorkerId]:
    """The live workers that a loss stops: those that share a pipeline or a route, however indirectly, with a worker
    that is dead or has no state yet. Everybody else goes on undisturbed."""
    circles = [set(pipeline.workers) for pipeline in plan.pipelines if pipeline.is_whole(plan.num_layers)]
    circles += [{hop.worker for hop in route.hops} for route in plan.routes]
    broken = {stage.worker for p in plan.pipelines if not p.is_whole(plan.num_layers) for stage in p.stages}
    broken |= {worker for worker in plan.workers if worker not in live or worker in unready}
    spread = True
    while spread:
        spread = False
        for circle in circles:
            if not circle.isdisjoint(broken) and not circle <= broken:
                broken |= circle
                spread = True
    return {worker for worker in broken if worker in live}


class Salvage:
    """Reports of the workers that were halted."""

    def __init__(self) -> None:
        self.halted: set[WorkerId] = set()
        self._reports: dict[WorkerId, Report] = {}

    def halt(self, workers: Collection[WorkerId]) -> tuple[WorkerId, ...]:
        """Count these as halted; returns those that were not yet."""
        new = sorted(set(workers) - self.halted)
        self.halted.update(new)
        return tuple(new)

    def report(self, worker: WorkerId, report: Report) -> None:
        if worker in self.halted:
            self._reports[worker] = report

    def forget(self, worker: WorkerId) -> None:
        """The worker is lost, and what it held with it."""
        self.halted.discard(worker)
        self._reports.pop(worker, None)

    @property
    def is_complete(self) -> bool:
        return self.halted <= self._reports.keys()

    @property
    def is_untouched(self) -> bool:
        """Nothing is counted in any halted worker's accumulators."""
        return all(report.ledger.is_empty for report in self._reports.values())

    def counted(self, num_layers: int) -> Ledger:
        return combine((report.ledger for report in self._reports.values()), num_layers)[0]

    def held(self, worker: WorkerId) -> tuple[int, ...] | None:
        """Groups that the worker reported to hold; None when it was not asked."""
        report = self._reports.get(worker)
        return None if report is None else report.held
