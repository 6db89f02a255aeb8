"""How soon the next loss is expected: what the job's owner thought, and what was seen since this coordinator began."""

from __future__ import annotations

import math
from collections import deque

REMEMBERED = 16
"""Losses that may be a storm of their own."""

CHANCE = 1e-3
"""Losses that would come so close together by chance this seldom are no chance: the machines have become worse."""


class Failures:
    """Those of one run.

    The mean of a gamma distribution whose prior is one loss in the expected time: (prior + seen) / (1 + losses). Where
    the last few losses came closer together than that could explain, as in a storm of preemptions, it is their own
    mean; with every quiet second it is longer again. Nodes that are lost in one step count as one loss: they go
    together, and are decided about together.

    Args:
        mean_time_between_s: expected before anything is seen.
    """

    def __init__(self, mean_time_between_s: float) -> None:
        self._prior_s = mean_time_between_s
        self._began: float | None = None
        self._losses = 0
        self._last_step: int | None = None
        self._recent: deque[float] = deque(maxlen=REMEMBERED)

    def begin(self, now: float) -> None:
        """Nodes run, and may be lost from now on; once is enough."""
        if self._began is None:
            self._began = now

    def lost(self, step: int, now: float) -> None:
        """A node was, in that step."""
        if step != self._last_step:
            self._losses += 1
            self._recent.append(now)
        self._last_step = step

    def time_to_next_s(self, now: float) -> float:
        """Expected."""
        seen_s = 0.0 if self._began is None else now - self._began
        usual_s = (self._prior_s + seen_s) / (1 + self._losses)
        least, expected_s = CHANCE, usual_s
        for number, at in enumerate(reversed(self._recent), start=1):
            # The first of them began the storm: what came after it is what it says.
            span_s = now - at
            if number > 1 and (chance := _at_least(number - 1, span_s / usual_s)) < least:
                least, expected_s = chance, span_s / (number - 1)
        return min(expected_s, usual_s)


def _at_least(number: int, mean: float) -> float:
    """The chance of so many events or more where so many are expected (Poisson)."""
    term = math.exp(-mean)
    fewer = 0.0
    for count in range(number):
        fewer += term
        term *= mean / (count + 1)
    return max(0.0, 1.0 - fewer)
