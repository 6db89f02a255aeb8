"""A loss inside a step: what the workers that were halted report, and what their ledgers say together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from planaria.plan.ledger import Ledger, combine, mask_of
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
        ledgers = {**self._earlier, **{worker: report.ledger for worker, report in self._reports.items()}}
        if self._num_sharing == 1:
            return ledgers
        stages: dict[WorkerId, list[Ledger]] = {}
        for worker in sorted(self._reports):
            first = WorkerId(worker - worker % self._num_sharing)
            stages.setdefault(first, []).append(ledgers.pop(worker))
        for first, own in stages.items():
            ledgers.pop(first, None)
            if len(own) == self._num_sharing and all(ledger == own[0] for ledger in own):
                ledgers[first] = own[0]
        return ledgers

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
