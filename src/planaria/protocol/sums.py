"""Sums: which of a worker's groups are being summed in the step in progress, whose parts are missing, what is done.

Bookkeeping alone: parts come from the mail and are added up by whoever asks, in worker order. A sum belongs to a sync
epoch; one of an older epoch is void, and is begun anew.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from planaria.plan.plan import Plan, WorkerId

Part = TypeVar("Part")


@dataclass(slots=True)
class Sum(Generic[Part]):
    """One group's sum under way.

    Attributes:
        missing: owners whose part is not here yet.
        parts: of owners that counted something.
        norm: squared norm of the sum, where it is this worker's to tell.
    """

    epoch: int
    round: int
    missing: list[WorkerId]
    parts: dict[WorkerId, Part] = field(default_factory=dict)
    norm: float | None = None
    is_done: bool = False


class Sums(Generic[Part]):
    """Of one worker in the step in progress."""

    def __init__(self, worker: WorkerId) -> None:
        self._worker = worker
        self._sums: dict[int, Sum[Part]] = {}

    def clear(self) -> None:
        """A step begins."""
        self._sums.clear()

    def is_begun(self, group: int, epoch: int) -> bool:
        return group in self._sums and self._sums[group].epoch == epoch

    def begin(self, group: int, epoch: int, round_: int, owners: Sequence[WorkerId], own: Part | None) -> None:
        """This worker's part is whole; None where it counted nothing."""
        missing = [owner for owner in owners if owner != self._worker]
        self._sums[group] = Sum(epoch, round_, missing, {} if own is None else {self._worker: own})

    def collect(
        self, arrived: Callable[[WorkerId, int, int], tuple[Part | None] | None], held: Container[int]
    ) -> tuple[int, Sum[Part]] | None:
        """The first group, lowest round first, all of whose parts are here.

        Args:
            arrived: for an owner, a group and an epoch: the owner's part in a tuple, whose entry is None where it
                counted nothing; None where it is not here yet.
            held: groups of which this worker has a replica, and so a place for the sum; others' wait for theirs.
        """
        for group, pending in sorted(self._sums.items(), key=lambda item: (item[1].round, item[0])):
            if pending.is_done or group not in held:
                continue
            for owner in list(pending.missing):
                part = arrived(owner, group, pending.epoch)
                if part is not None:
                    pending.missing.remove(owner)
                    if part[0] is not None:
                        pending.parts[owner] = part[0]
            if not pending.missing:
                return group, pending
        return None

    def tells(self, plan: Plan, group: int) -> bool:
        """Whether the group's norm is this worker's to tell."""
        owners = plan.owners_of[group]
        return owners[group % len(owners)] == self._worker

    def is_whole(self, plan: Plan) -> bool:
        """Whether every group that this worker owns is summed for the plan's epochs."""
        return all(
            (found := self._sums.get(group)) is not None and found.is_done and found.epoch == plan.sync_epochs[group]
            for group in plan.groups_of[self._worker]
        )

    def awaited(self) -> WorkerId | None:
        """An owner whose part of a sum is not here yet."""
        return next((owner for pending in self._sums.values() for owner in pending.missing), None)

    @property
    def norms(self) -> dict[int, float]:
        """Squared norms of the groups whose norm is this worker's to tell."""
        return {group: s.norm for group, s in sorted(self._sums.items()) if s.norm is not None}
