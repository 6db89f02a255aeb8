"""How long changes of plans, transfers of state and restores take in this run, as its workers tell when they are ready.

Between two plans everybody waits: so from when a plan is sent until all of its workers have their state, that is what
the transition takes. What was measured replaces what the profile and this module's constants say. Pure: no clock.
"""

from __future__ import annotations

import statistics
from collections import deque

from planaria.plan.plan import WorkerId
from planaria.policy.outlook import CHANGE_S, RESTORE_S
from planaria.protocol.learnt import MeasuredMoves

REMEMBERED = 8
"""Measurements of each kind; their median counts."""

LEAST_MOVE_S = 0.002
"""A transfer that should take less says nothing of the links."""

MOST_STRETCH = 20.0


class Moving:
    """Of one run."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque(maxlen=REMEMBERED)
        self._stretches: deque[float] = deque(maxlen=REMEMBERED)
        self._restores: deque[float] = deque(maxlen=REMEMBERED)
        self._awaited: set[WorkerId] = set()
        self._began = 0.0
        self._decided_s = 0.0
        self._moves_s = 0.0
        self._is_restore = False

    def begin(self, workers: tuple[WorkerId, ...], now: float, moves_s: float, *, is_restore: bool) -> None:
        """A plan is sent to workers that all wait for it; its state should be under way for so long."""
        self._awaited = set(workers)
        self._began, self._moves_s, self._is_restore = now, moves_s, is_restore
        self._decided_s = 0.0

    def decided(self, seconds: float) -> None:
        """Of that time, the decision for the plan."""
        self._decided_s = seconds

    def stop(self) -> None:
        """Somebody is lost, or has other things to do: nothing is measured."""
        self._awaited.clear()

    def ready(self, worker: WorkerId, now: float) -> None:
        """He has all of his state."""
        if worker not in self._awaited:
            return
        self._awaited.discard(worker)
        if self._awaited:
            return
        took_s = max(0.0, now - self._began - self._decided_s)
        if self._is_restore:
            self._restores.append(took_s)
        elif self._moves_s <= 0:
            self._changes.append(took_s)
        elif self._moves_s >= LEAST_MOVE_S:
            stretch = max(0.0, took_s - self.change_s) / self._moves_s
            self._stretches.append(min(max(stretch, 1 / MOST_STRETCH), MOST_STRETCH))

    @property
    def measured(self) -> MeasuredMoves:
        """For the next coordinator."""
        return MeasuredMoves(
            changes_s=tuple(self._changes), stretches=tuple(self._stretches), restores_s=tuple(self._restores)
        )

    def recall(self, measured: MeasuredMoves) -> None:
        """What the coordinator before measured."""
        self._changes.extend(measured.changes_s)
        self._stretches.extend(measured.stretches)
        self._restores.extend(measured.restores_s)

    @property
    def change_s(self) -> float:
        """Of a change of plans for which nothing moves."""
        return statistics.median(self._changes) if self._changes else CHANGE_S

    @property
    def transfer_stretch(self) -> float:
        """How many times longer state is under way than the profile's links say."""
        return statistics.median(self._stretches) if self._stretches else 1.0

    @property
    def restore_s(self) -> float:
        """Of reading a checkpoint."""
        return statistics.median(self._restores) if self._restores else RESTORE_S
