"""Loading: how fast nodes really read a checkpoint, for estimates of the next time."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from planaria.estimate.restore_time import Storage, restore_time
from planaria.plan.plan import Plan

MEASURED = 9
"""Restores, whose median rate counts: one that a busy machine held up is no measure of the storage."""


class Loading:
    """Of one run.

    Args:
        expected: of the storage, before anything was measured.

    Attributes:
        storage: as of the last restores that were measured.
    """

    def __init__(self, expected: Storage) -> None:
        self.storage = expected
        self._rates: deque[float] = deque(maxlen=MEASURED)
        self._under_way: tuple[Plan, float] | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """Bytes a second of the last restores, for the next coordinator."""
        return tuple(self._rates)

    def recall(self, rates: Iterable[float]) -> None:
        """What the coordinator before measured."""
        for rate in rates:
            self._measured(rate)

    def begin(self, plan: Plan, now: float) -> None:
        """A plan is taken whose workers read their state from a checkpoint."""
        self._under_way = plan, now

    def give_up(self) -> None:
        """Another plan is taken, before they have it."""
        self._under_way = None

    def settled(self, now: float) -> None:
        """All have it."""
        if self._under_way is None:
            return
        (plan, began), self._under_way = self._under_way, None
        read, seconds = restore_time(plan, self.storage), now - began
        if seconds > 0 and read.busiest_bytes:
            self._measured(read.busiest_bytes / seconds)

    def _measured(self, rate: float) -> None:
        self._rates.append(rate)
        self.storage = replace(self.storage, node_bytes_per_s=statistics.median(self._rates), latency_s=0.0)
