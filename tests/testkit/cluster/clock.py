"""Virtual time: one heap ordered by (time, sequence), the one generator of chance, and hosts' clocks, which differ."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

Action = Callable[[], None]


class Clock:
    """A virtual clock: actions run in the order of their times; at one time, in the order in which they were asked for.

    Attributes:
        now: virtual seconds since the start.
        random: decides every delay.
        num_events: that happened so far.
    """

    def __init__(self, random: Random, spread: float = 4.0, *, is_exact: bool = False) -> None:
        self.now = 0.0
        self.random = random
        self.num_events = 0
        self._spread = spread
        self._is_exact = is_exact
        self._heap: list[tuple[float, int, Action]] = []
        self._sequence = 0

    @property
    def num_waiting(self) -> int:
        """Number of actions whose time has not come."""
        return len(self._heap)

    def after(self, delay_s: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._sequence, action))

    def at(self, when_s: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_s, self._sequence, action))

    def vary(self, mean_s: float) -> float:
        """Returns a delay: from nothing to `spread` times the mean, most often short; now and then much longer. Or
        exactly the mean."""
        if self._is_exact:
            return mean_s
        chance = self.random.random()
        if chance < 0.02:
            return mean_s * (5.0 + 1250.0 * chance)
        return mean_s * chance * chance * self._spread

    def tick(self) -> bool:
        """Runs the next action; returns False when there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.num_events += 1
        action()
        return True


class HostClock:
    """A host's monotonic clock: it begins anywhere, drifts, and may jump ahead, as a host's that was suspended does.

    Args:
        clock: the true time.
        drift: share by which it runs too fast.
        began_s: what it shows at the start.
    """

    def __init__(self, clock: Clock, drift: float = 0.0, began_s: float = 0.0) -> None:
        self._clock = clock
        self._rate = 1.0 + drift
        self._ahead_s = began_s

    @property
    def now(self) -> float:
        return self._clock.now * self._rate + self._ahead_s

    def jump(self, seconds: float) -> None:
        self._ahead_s += seconds
