"""How long changes of plans, transfers of state and restores take in this run.

A change of plans takes what the first step under a plan was longer than its others, less what was to be waited for.
Transfers and restores take until the last worker has its state, less what that takes where nothing moves: the
optimizer's step and messages, which are parts of any step. What was measured replaces what the profile and this
module's constants say. Pure: no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from planaria.estimate.restore_time import Storage, restore_time
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.thresholds import CHANGE_S, RESTORE_S
from planaria.protocol.messages.run_measurements import MeasuredMoves
from planaria.protocol.thresholds import LEAST_MOVE_S, MOST_STRETCH, RESTORES_KEPT, TRANSITIONS_KEPT, UNMOVED_S


class TransitionTimes:
    """Measured times of transitions in one run."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque(maxlen=TRANSITIONS_KEPT)
        self._unmoved: deque[float] = deque(maxlen=TRANSITIONS_KEPT)
        """Seconds from sending a plan until all workers were ready where no state moves."""
        self._stretches: deque[float] = deque(maxlen=TRANSITIONS_KEPT)
        self._restores: deque[float] = deque(maxlen=TRANSITIONS_KEPT)
        self._awaited: set[WorkerId] = set()
        self._generation: int | None = None
        """Generation of the last plan that stalled all workers."""
        self._wait_s: float | None = None
        self._began = 0.0
        self._ended = 0.0
        """When the last of the workers that are ready so far had all of its state."""
        self._decided_s = 0.0
        self._moves_s = 0.0
        self._is_restore = False

    def begin(self, plan: Plan, now: float, moves_s: float, wait_s: float | None, *, is_restore: bool) -> None:
        """Begins measuring a plan that is sent to workers that all wait for it; its state should move for `moves_s`
        seconds and hold up the first step by `wait_s` (None: nobody knows)."""
        self._awaited = set(plan.workers)
        self._generation = plan.generation
        self._wait_s = None if is_restore else wait_s
        self._began = self._ended = now
        self._moves_s, self._is_restore = moves_s, is_restore
        self._decided_s = 0.0

    def decided(self, seconds: float) -> None:
        """Records how much of the measured time the decision for the plan took."""
        self._decided_s = seconds

    def stop(self) -> None:
        """Stops measuring: a worker is lost, or has other things to do."""
        self._awaited.clear()

    def ready(self, worker: WorkerId, now: float) -> None:
        """Records when a worker had all of its state."""
        if worker not in self._awaited:
            return
        self._awaited.remove(worker)
        self._ended = max(self._ended, now)
        if self._awaited:
            return
        took_s = max(0.0, self._ended - self._began - self._decided_s)
        if self._is_restore:
            self._restores.append(took_s)
        elif self._moves_s <= 0:
            self._unmoved.append(took_s)
        elif self._moves_s >= LEAST_MOVE_S:
            unmoved_s = statistics.median(self._unmoved) if self._unmoved else UNMOVED_S
            stretch = max(0.0, took_s - unmoved_s) / self._moves_s
            self._stretches.append(min(max(stretch, 1 / MOST_STRETCH), MOST_STRETCH))

    def changed(self, generation: int, seconds: float) -> None:
        """Records by how much a plan's first step was longer than its others."""
        if generation == self._generation and self._wait_s is not None:
            self._changes.append(max(0.0, seconds - self._wait_s))

    @property
    def measured(self) -> MeasuredMoves:
        """Measured times, for the next coordinator."""
        return MeasuredMoves(
            changes_s=tuple(self._changes),
            unmoved_s=tuple(self._unmoved),
            stretches=tuple(self._stretches),
            restores_s=tuple(self._restores),
        )

    def recall(self, measured: MeasuredMoves) -> None:
        """Takes over what the last coordinator measured."""
        self._changes.extend(measured.changes_s)
        self._unmoved.extend(measured.unmoved_s)
        self._stretches.extend(measured.stretches)
        self._restores.extend(measured.restores_s)

    @property
    def change_s(self) -> float:
        """Seconds that a change of plans takes for which no state moves."""
        return statistics.median(self._changes) if self._changes else CHANGE_S

    @property
    def transfer_stretch(self) -> float:
        """How many times longer state moves than the profile's links say."""
        return statistics.median(self._stretches) if self._stretches else 1.0

    @property
    def restore_s(self) -> float:
        """Seconds from sending a plan that restores a checkpoint until all workers have their state."""
        return statistics.median(self._restores) if self._restores else RESTORE_S


class ReadRates:
    """Measured rates at which one run reads checkpoints.

    Args:
        expected: of the storage, before anything was measured.

    Attributes:
        storage: as of the last restores that were measured.
    """

    def __init__(self, expected: Storage) -> None:
        self.storage = expected
        self._rates: deque[float] = deque(maxlen=RESTORES_KEPT)
        self._under_way: tuple[Plan, float] | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """Bytes a second of the last restores, for the next coordinator."""
        return tuple(self._rates)

    def recall(self, rates: Iterable[float]) -> None:
        """Takes over the rates that the last coordinator measured."""
        for rate in rates:
            self._measured(rate)

    def begin(self, plan: Plan, now: float) -> None:
        """Begins measuring a plan whose workers read their state from a checkpoint."""
        self._under_way = plan, now

    def give_up(self) -> None:
        """Stops measuring: another plan is taken before the workers have their state."""
        self._under_way = None

    def settled(self, now: float) -> None:
        """Ends the measurement: all workers have read their state."""
        if self._under_way is None:
            return
        (plan, began), self._under_way = self._under_way, None
        read, seconds = restore_time(plan, self.storage), now - began
        if seconds > 0 and read.busiest_bytes:
            self._measured(read.busiest_bytes / seconds)

    def _measured(self, rate: float) -> None:
        self._rates.append(rate)
        self.storage = replace(self.storage, node_bytes_per_s=statistics.median(self._rates), latency_s=0.0)
