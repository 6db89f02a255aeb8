"""A loss inside a step: what the workers that were halted report, and what their ledgers say together."""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.ledger import Ledger, combine
from planaria.plan.plan import WorkerId
from planaria.protocol.messages import Report


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
