"""How soon the next loss is expected: from what the job's owner expected, and what was seen since the job began."""

from __future__ import annotations

import copy
import math
from collections import deque

import msgspec

from planaria.protocol.messages.records import (
    NodeLost,
    PlanTaken,
    Record,
    RunEnded,
    StepCommitted,
    StepSkipped,
)
from planaria.protocol.messages.run_measurements import SeenLosses
from planaria.protocol.thresholds import CHANCE, LOSSES_EXAMINED


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier runs of this job on these nodes saw: how long they trained, and how often nodes were lost.

    Attributes:
        seconds: from first plans to last steps.
        losses: those in one step count as one.
        nodes: how many nodes the losses took.
    """

    seconds: float = 0.0
    losses: int = 0
    nodes: int = 0

    def __add__(self, other: Watched) -> Watched:
        return Watched(
            seconds=self.seconds + other.seconds, losses=self.losses + other.losses, nodes=self.nodes + other.nodes
        )


class Failures:
    """Losses of one run, and the time to the next that they suggest.

    The mean of a gamma distribution whose prior is one loss in the expected time: (prior + seen) / (1 + losses). Where
    the last few losses came closer together than that could explain, as in a storm of preemptions, it is their own
    mean; with every quiet second it is longer again. Nodes that are lost in one step count as one loss: they go
    together, and are decided about together.

    Args:
        mean_time_between_s: expected before anything is seen.
        before: what earlier runs saw.
    """

    def __init__(self, mean_time_between_s: float, before: Watched = Watched()) -> None:  # noqa: B008 (frozen)
        self._prior_s = mean_time_between_s
        self._before = before
        self._began: float | None = None
        self._losses = self._nodes = 0
        self._last_step: int | None = None
        self._recent: deque[float] = deque(maxlen=LOSSES_EXAMINED)

    def begin(self, now: float) -> None:
        """Records when nodes first run and may be lost; later calls change nothing."""
        if self._began is None:
            self._began = now

    def lost(self, step: int, now: float) -> None:
        """Records that a node was lost in this step."""
        if step != self._last_step:
            self._losses += 1
            self._recent.append(now)
        self._nodes += 1
        self._last_step = step

    @property
    def seen(self) -> SeenLosses:
        """Losses seen so far, for the next coordinator."""
        return SeenLosses(
            began=self._began,
            count=self._losses,
            last_step=self._last_step,
            nodes=self._nodes,
            recent=tuple(self._recent),
        )

    def recall(self, seen: SeenLosses) -> None:
        """Takes over what the last coordinator saw. Time without a coordinator counts too, as nodes may die then."""
        self._began, self._losses, self._last_step = seen.began, seen.count, seen.last_step
        self._nodes = max(seen.nodes, seen.count)
        self._recent = deque(seen.recent, maxlen=LOSSES_EXAMINED)

    def fork(self) -> Failures:
        """Returns a copy for a run that was this one until now."""
        other = copy.copy(self)
        other._recent = self._recent.copy()
        return other

    @property
    def nodes_together(self) -> float:
        """How many nodes a loss takes, on average; one before any is seen."""
        return (1 + self._before.nodes + self._nodes) / (1 + self._before.losses + self._losses)

    def time_to_next_s(self, now: float) -> float:
        """Returns the expected seconds until the next loss."""
        seen_s = self._before.seconds + (0.0 if self._began is None else max(0.0, now - self._began))
        usual_s = (self._prior_s + seen_s) / (1 + self._before.losses + self._losses)
        least, expected_s = CHANCE, usual_s
        for number, at in enumerate(reversed(self._recent), start=1):
            # The first of them began the storm: what came after it is what it says.
            span_s = max(0.0, now - at)
            if number > 1 and span_s and (chance := _at_least(number - 1, span_s / usual_s)) < least:
                least, expected_s = chance, span_s / (number - 1)
        return min(expected_s, usual_s)


def _at_least(number: int, mean: float) -> float:
    """Returns the chance of so many events or more where `mean` are expected (Poisson)."""
    term = math.exp(-mean)
    fewer = 0.0
    for count in range(number):
        fewer += term
        term *= mean / (count + 1)
    return max(0.0, 1.0 - fewer)


class Watch:
    """Adds up the training time and losses of runs, the last of which may have broken off. Give it every record with
    its time, in order."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._losses = self._nodes = 0
        self._last_step: int | None = None
        self._trains_from: float | None = None
        self._trained_until = 0.0

    @property
    def watched(self) -> Watched:
        """What was seen up to the last record."""
        under_way_s = 0.0 if self._trains_from is None else self._trained_until - self._trains_from
        return Watched(seconds=self._seconds + under_way_s, losses=self._losses, nodes=self._nodes)

    def note(self, record: Record, at: float) -> None:
        """Takes a record with the time, in seconds, at which it was told."""
        match record:
            case PlanTaken(purpose="start"):
                self._close()
                self._trains_from = self._trained_until = at
            case StepCommitted() | StepSkipped() | PlanTaken() if self._trains_from is not None:
                self._trained_until = max(at, self._trained_until)
            case RunEnded():
                self._trained_until = max(at, self._trained_until)
                self._close()
            case NodeLost(step=step):
                self._losses += step != self._last_step
                self._nodes += 1
                self._last_step = step
            case _:
                pass

    def _close(self) -> None:
        """Closes a run: the time until the next one counts for none; of one that broke off, the last step is known."""
        self._seconds = self.watched.seconds
        self._trains_from = self._last_step = None
