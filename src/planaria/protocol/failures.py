"""How soon the next loss is expected: what the job's owner thought, and what was seen since this coordinator began."""

from __future__ import annotations


class Failures:
    """Those of one run.

    The mean of a gamma distribution whose prior is one loss in the expected time: (prior + seen) / (1 + losses). Nodes
    that are lost in one step count as one loss: they go together, and are decided about together.

    Args:
        mean_time_between_s: expected before anything is seen.
    """

    def __init__(self, mean_time_between_s: float) -> None:
        self._prior_s = mean_time_between_s
        self._began: float | None = None
        self._losses = 0
        self._last_step: int | None = None

    def begin(self, now: float) -> None:
        """Nodes run, and may be lost from now on; once is enough."""
        if self._began is None:
            self._began = now

    def lost(self, step: int) -> None:
        """A node was, in that step."""
        if step != self._last_step:
            self._losses += 1
        self._last_step = step

    def time_to_next_s(self, now: float) -> float:
        """Expected."""
        seen_s = 0.0 if self._began is None else now - self._began
        return (self._prior_s + seen_s) / (1 + self._losses)
