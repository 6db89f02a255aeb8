"""Loading: how fast nodes really read a checkpoint, for estimates of the next time."""

from __future__ import annotations

from dataclasses import replace

from planaria.estimate.restore import Storage, restore_time
from planaria.plan.plan import Plan


class Loading:
    """Of one run.

    Args:
        expected: of the storage, before anything was measured.

    Attributes:
        storage: as of the last restore that was measured.
    """

    def __init__(self, expected: Storage) -> None:
        self.storage = expected
        self._under_way: tuple[Plan, float] | None = None

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
            self.storage = replace(self.storage, node_bytes_per_s=read.busiest_bytes / seconds, latency_s=0.0)
