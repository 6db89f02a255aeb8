"""A loss inside a step: what the workers that were halted report, and what their ledgers say together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from planaria.plan.ledger import Ledger, combine, mask_of
from planaria.plan.pipeline import first_sharing
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Report


class Salvage:
    """Reports of the workers that were halted.

    Where so many devices of a stage share microbatches, each has counted a part of their gradients: what they report
    counts where all of them report the same, as the first one's ledger, and else nothing of it does.

    Args:
        earlier: the last ledger of every live worker that was halted before in the same step. Its accumulators keep
            what no route of the plan accounts for, whether or not it is halted again.
        num_sharing: see `Plan.num_sharing`.
    """

    def __init__(self, earlier: Mapping[WorkerId, Ledger] | None = None, num_sharing: int = 1) -> None:
        self._num_sharing = num_sharing
        self.halted: set[WorkerId] = set()
        self._reports: dict[WorkerId, Report] = {}
        self._earlier = dict(earlier or {})

    def again(self, dropped: Sequence[int] = ()) -> Salvage:
        """Returns the reports to begin with at the next loss in this step; the plan leaves these microbatches out."""
        left_out = mask_of(dropped)
        ledgers = self._ledgers
        if left_out:
            ledgers = {worker: ledger.without(left_out) for worker, ledger in ledgers.items()}
        return Salvage(ledgers, self._num_sharing)

    def halt(self, workers: Collection[WorkerId]) -> tuple[WorkerId, ...]:
        """Counts these workers as halted; returns those that were not yet."""
        new = sorted(set(workers) - self.halted)
        self.halted.update(new)
        return tuple(new)

    def report(self, worker: WorkerId, report: Report) -> None:
        if worker in self.halted:
            self._reports[worker] = report

    def forget(self, worker: WorkerId) -> None:
        """Forgets a lost worker and what it held."""
        self.halted.discard(worker)
        self._reports.pop(worker, None)
        self._earlier.pop(worker, None)

    @property
    def is_complete(self) -> bool:
        return self.halted <= self._reports.keys()

    @property
    def _ledgers(self) -> dict[WorkerId, Ledger]:
        reported = {first: own[0] for first, own in self._stages.items() if self._is_one(own)}
        return {worker: ledger for worker, ledger in self._earlier.items() if worker not in self._reports} | reported

    @property
    def _stages(self) -> dict[WorkerId, list[Ledger]]:
        """Returns what the devices of each stage reported, by the stage's first device."""
        stages: dict[WorkerId, list[Ledger]] = {}
        for worker, report in sorted(self._reports.items()):
            stages.setdefault(first_sharing(worker, self._num_sharing), []).append(report.ledger)
        return stages

    def _is_one(self, reported: Sequence[Ledger]) -> bool:
        return len(reported) == self._num_sharing and all(ledger == reported[0] for ledger in reported)

    @property
    def parts_differ(self) -> bool:
        """Whether devices of a stage have counted others, so that nothing of it counts."""
        return self._num_sharing > 1 and not all(map(self._is_one, self._stages.values()))

    @property
    def is_untouched(self) -> bool:
        """Whether the accumulators of all halted workers are empty."""
        return all(ledger.is_empty for ledger in self._ledgers.values())

    def counted(self, num_layers: int) -> Ledger:
        """Returns what live accumulators hold beside the work of the routes that go on."""
        return combine(self._ledgers.values(), num_layers)[0]

    @property
    def held(self) -> dict[WorkerId, tuple[int, ...]]:
        """Groups that the halted workers reported to hold."""
        return {worker: report.held for worker, report in self._reports.items()}
