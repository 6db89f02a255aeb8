"""The training that a run has done, and how much of it the last checkpoint has."""

from __future__ import annotations

import copy
import math


class Trained:
    """The steps that one run has trained.

    Attributes:
        steps: committed, and not lost again.
        microbatches: how many microbatches these steps counted.
    """

    def __init__(self) -> None:
        self.steps = self.microbatches = 0
        self._saved = 0
        """Steps that the last checkpoint has."""
        self._recent: list[tuple[int, float, int]] = []
        """Training since the last checkpoint: steps, seconds of one, microbatches of one."""

    def fork(self) -> Trained:
        """Returns a copy for a run that goes its own way from now on."""
        other = copy.copy(self)
        other._recent = list(self._recent)
        return other

    @property
    def unsaved(self) -> int:
        """Steps since the last checkpoint."""
        return self.steps - self._saved

    def count(self, steps: int, step_s: float, microbatches: int) -> None:
        """Counts so many steps more, with the seconds of each and the microbatches of all."""
        self.steps += steps
        self.microbatches += microbatches
        self._recent.append((steps, step_s, microbatches // steps))

    def save(self, lag: float, every: int) -> None:
        """Notes which checkpoint is whole. One is taken every so many steps, and is whole `lag` steps later."""
        saved = min(self.steps, max(0, math.floor(self.steps - lag))) // every * every
        if saved > self._saved:
            self._saved = saved
            unsaved, kept = self.steps - saved, []
            for segment in reversed(self._recent):
                if unsaved <= 0:
                    break
                kept.append(segment)
                unsaved -= segment[0]
            self._recent = kept[::-1]

    def go_back(self) -> list[float]:
        """Goes back to the last checkpoint; returns the seconds of the steps that are lost, the last first."""
        lost, spent = self.unsaved, []
        while lost > 0 and self._recent:
            steps, step_s, microbatches = self._recent.pop()
            back = min(steps, lost)
            lost -= back
            self.steps -= back
            self.microbatches -= back * microbatches
            spent.append(back * step_s)
            if steps > back:
                self._recent.append((steps - back, step_s, microbatches))
        return spent
