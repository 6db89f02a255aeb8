"""The account of an episode's seconds: some are known to be a cause's as it acts, the rest follows at the end."""

from __future__ import annotations

from planaria.simulate.episode.subject import Cause, EpisodeTally


class Spending:
    """Seconds spent since the time was last attributed."""

    def __init__(self) -> None:
        self._from = 0.0
        self._parts: list[tuple[Cause, float]] = []

    def add(self, cause: Cause, seconds: float) -> None:
        """Adds seconds of a cause, unless training goes on meanwhile."""
        if seconds > 0:
            self._parts.append((cause, seconds))

    def attribute(self, now: float, nominal_s: float, tally: EpisodeTally) -> None:
        """Attributes the time since the last call: of it, at most an undisturbed step's (`nominal_s`) is training."""
        span = now - self._from
        causes = tally.causes
        surplus = max(0.0, span - nominal_s)
        causes[Cause.TRAINING] += span - surplus
        for cause, seconds in self._parts:
            part = min(seconds, surplus)
            causes[cause] += part
            surplus -= part
        causes[Cause.REDONE] += surplus
        self._parts.clear()
        self._from = now
