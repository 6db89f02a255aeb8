"""Replicas as of the last commit that the plan in force does not account for.

A worker keeps what it holds until it applies the next commit: groups that a new plan takes away from it, and everything
where the new plan does without it. While the step lasts, these are replicas as good as any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planaria.plan.plan import WorkerId

Holders = Mapping[WorkerId, tuple[int, ...]]


class Kept:
    """What workers held when the step in progress got its plans."""

    def __init__(self) -> None:
        self._step = -1
        self._noted: list[tuple[Holders, Holders]] = []

    def note(self, step: int, holders: Holders, reported: Holders | None = None) -> None:
        """Another plan is taken for `step`; until then these were the holders, but for those who reported to hold
        something else. Of who is gone by then, nobody will ask."""
        if step != self._step:
            self.forget()
            self._step = step
        self._noted.append((holders, reported or {}))

    def forget(self) -> None:
        """The job goes back to another state."""
        self._step = -1
        self._noted.clear()

    def added_to(self, holders: Holders, step: int) -> dict[WorkerId, tuple[int, ...]]:
        """The holders with what they kept beside, if `step` is still the one in progress."""
        if step != self._step:
            return dict(holders)
        return {worker: tuple(sorted({*groups, *self._noted_of(worker)})) for worker, groups in holders.items()}

    def _noted_of(self, worker: WorkerId) -> Iterator[int]:
        for holders, reported in self._noted:
            yield from reported.get(worker, holders.get(worker, ()))
