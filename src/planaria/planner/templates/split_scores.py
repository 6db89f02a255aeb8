"""Scores of splits: the simulated step times that a search knows, the best of them, and what searches share.

Searches share what they find that have the same layers, nodes and devices, but other memory for their stages. Each
answer is taken over only where the search would find the same by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Work
from planaria.plan.costs.pipeline_time import Floats, charged, times_s
from planaria.plan.thresholds import NEIGHBOURS_AT_ONCE, ROUNDING, SPLITS_LOOKED_AT, STEPS_EQUAL
from planaria.planner.templates.split_dp import bounds_s
from planaria.planner.templates.splits import Space, Split, Stages

_Row = tuple[Floats, Floats, Floats]
"""Forward, backward and link times of splits' stages."""

Times = dict[tuple[int, Split], float]
"""Simulated step times, by number of microbatches and split."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Record of which of some splits with equally many stages fit the memory."""

    stages: Stages
    answer: npt.NDArray[np.bool_]

    def holds(self, space: Space) -> bool:
        return bool((space.fit(self.stages) == self.answer).all())


@dataclass(frozen=True, slots=True, eq=False)
class Climb:
    """Record of a climb through neighbours: which of those that it met fit, and what it knew in the end."""

    fits: list[Fit]
    times: dict[Split, float]
    seen: set[Split]
    top: list[tuple[float, Split]]

    def holds(self, space: Space, aside: Collection[Split]) -> bool:
        """Returns whether a search here would climb the same way, with splits `aside` known and none the best."""
        return self.seen.isdisjoint(aside) and all(fit.holds(space) for fit in self.fits)


@dataclass(slots=True)
class Shared:
    """Findings that searches share so far.

    Attributes:
        times: of splits that were scored.
        widest: the first search's space.
        shortest: there, the shortest ways under period bounds, messages hidden or not.
        descents: by what they depend on, the bound and the splits that were scored on the way.
        climbs: by what was known before.
    """

    times: Times = field(default_factory=dict)
    widest: Space | None = None
    shortest: dict[tuple[float, bool], Split | None] = field(default_factory=dict)
    descents: dict[Hashable, tuple[float, list[Split]]] = field(default_factory=dict)
    climbs: dict[Hashable, list[Climb]] = field(default_factory=dict)


class _Rows:
    """Times of splits with equally many stages."""

    def __init__(self, splits: Sequence[Split], rows: _Row) -> None:
        self.rows = rows
        self._places = {split: at for at, split in enumerate(splits)}

    def of(self, splits: Sequence[Split]) -> _Row:
        """Returns the times of some of them."""
        at = [self._places[split] for split in splits]
        forward, backward, link = self.rows
        return forward[at], backward[at], link[at]


class Scores:
    """Splits with their simulated step times, of one number of microbatches.

    Args:
        space: of splits.
        num_microbatches: of the pipeline's step.
        work: that this is part of.
        shared: what other searches scored, and this one adds to; None: there are none.
        only_best: neighbours that cannot be the best need not be scored.

    Attributes:
        times: of the splits.
        top: the best of them, whose neighbours are looked at.
        seen: splits that were scored, and neighbours that were left unscored.
        asked: all splits that were to be scored, except neighbours.
    """

    def __init__(
        self, space: Space, num_microbatches: int, work: Work, shared: Shared | None, *, only_best: bool
    ) -> None:
        self._space = space
        self._num = num_microbatches
        self._work = work
        self._shared = shared
        self._only_best = only_best
        self.times: dict[Split, float] = {}
        self.top: list[tuple[float, Split]] = []
        self.seen: set[Split] = set()
        self.asked: list[Split] = []

    @property
    def best_s(self) -> float:
        """Seconds of the best."""
        return self.top[0][0]

    def equal(self) -> dict[Split, float]:
        """Returns the candidates that are as good as the best, and how uneven their stages are."""
        most = self.best_s * (1 + STEPS_EQUAL) if self.times else 0.0
        uneven: dict[Split, float] = {}
        for same in by_length(split for split, time in self.times.items() if time <= most):
            forwards, backwards, _ = self._space.rows(same)
            squares = ((forwards + backwards) ** 2).sum(axis=1)
            uneven.update((split, round(square, 15)) for split, square in zip(same, squares.tolist(), strict=True))
        return uneven

    def ask(self, splits: Iterable[Split]) -> None:
        """Scores splits that are no neighbours."""
        asked = list(splits)
        self.asked += asked
        self._score(asked)

    def _score(self, splits: Iterable[Split], rows: Mapping[int, _Rows] | None = None) -> None:
        """Scores splits by simulation. `rows`: by number of stages, of these splits, where they are known."""
        new: dict[Split, float] = {}
        unknown: list[Split] = []
        for split in splits:
            if split in self.times:
                continue
            known_s = self._shared.times.get((self._num, split)) if self._shared is not None else None
            if known_s is None:
                unknown.append(split)
            else:
                new[split] = known_s
        for same in by_length(unknown):
            forward, backward, link = self._rows(same) if rows is None else rows[len(same[0])].of(same)
            seconds = times_s(forward, backward, link, self._num, self._space.schedule, self._work)
            times = seconds.tolist()
            new.update(zip(same, times, strict=True))
            if self._shared is not None:
                self._shared.times.update(((self._num, split), time) for split, time in zip(same, times, strict=True))
        self.times |= new
        self.seen |= new.keys()
        self.top = nsmallest(SPLITS_LOOKED_AT, (*self.top, *((time, split) for split, time in new.items())))

    def score_near(self, splits: Sequence[Split]) -> None:
        """Scores the splits that may be among the best looked at, or as good as the best; the likeliest first."""
        if not self._only_best:
            self._score(splits)
            return
        bounds: list[tuple[float, Split]] = []
        rows: dict[int, _Rows] = {}
        for same in by_length(splits):
            own = rows[len(same[0])] = _Rows(same, self._rows(same))
            bounds += zip(bounds_s(*own.rows, self._num, self._space.schedule).tolist(), same, strict=True)
        bounds.sort()
        for at in range(0, len(bounds), NEIGHBOURS_AT_ONCE):
            most = float("inf")
            if len(self.top) == SPLITS_LOOKED_AT:
                most = max(self.top[-1][0], self.best_s * (1 + STEPS_EQUAL)) * (1 + ROUNDING)
            if bounds[at][0] > most:
                break
            self._score((split for least_s, split in bounds[at : at + NEIGHBOURS_AT_ONCE] if least_s <= most), rows)
        self.seen.update(splits)

    def _rows(self, same: Sequence[Split]) -> _Row:
        return charged(*self._space.rows(same), overlap=self._space.overlap)


def by_length(splits: Iterable[Split]) -> Iterable[list[Split]]:
    """Returns the splits in lists of equally many stages."""
    found: dict[int, list[Split]] = {}
    for split in splits:
        found.setdefault(len(split), []).append(split)
    return found.values()
