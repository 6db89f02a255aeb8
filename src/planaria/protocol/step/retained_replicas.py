"""Replicas as of the last commit that the plan in force does not account for.

A worker keeps what it holds until it applies the next commit: groups that a new plan takes away from it, and everything
where the new plan does without it. While the step lasts, these are replicas as good as any; but for those that a plan
moves to it, for which it makes room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planaria.plan.plan import Transfer, WorkerId

Holders = Mapping[WorkerId, tuple[int, ...]]


class RetainedReplicas:
    """What workers held when the step in progress got its plans."""

    def __init__(self) -> None:
        self._step = -1
        self._noted: list[tuple[Holders, dict[WorkerId, set[int]]]] = []

    def note(
        self, step: int, holders: Holders, reported: Holders | None = None, transfers: Sequence[Transfer] = ()
    ) -> None:
        """Records what workers held before a plan with these transfers is taken for `step`; `reported` overrides
        `holders`. Workers that are gone by then are never asked for."""
        if step != self._step:
            self.forget()
            self._step = step
        held = {**holders, **reported} if reported else holders
        moved: dict[WorkerId, set[int]] = {}
        for move in transfers:
            moved.setdefault(move.target, set()).add(move.group)
        self._noted.append((held, moved))

    def forget(self) -> None:
        """Forgets all replicas: the job goes back to another state."""
        self._step = -1
        self._noted.clear()

    def lose(self, worker: WorkerId) -> None:
        """Forgets what a worker held that was lost, as another one comes under its number."""
        self._noted = [({w: held for w, held in noted.items() if w != worker}, moved) for noted, moved in self._noted]

    def added_to(self, holders: Holders, step: int) -> dict[WorkerId, tuple[int, ...]]:
        """Returns the holders with the replicas they kept beside, if `step` is still the one in progress."""
        if step != self._step:
            return dict(holders)
        return {worker: tuple(sorted({*groups, *self._noted_of(worker)})) for worker, groups in holders.items()}

    def _noted_of(self, worker: WorkerId) -> set[int]:
        found = set[int]()
        for holders, moved in self._noted:
            found.update(holders.get(worker, ()))
            found -= moved.get(worker, set())
        return found
