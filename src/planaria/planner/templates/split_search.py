"""The split with the shortest simulated step, and how sure that is: an exact search of a close model, then scoring.

The close model of a split's step time is the longest of the paths of `planaria.planner.templates.split_dp`: a lower
bound of it, and most often equal to it. Candidates are what `split_bound` lets pass, and those of a sweep over period
bounds; these and their neighbours are scored by the events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from planaria.plan.compiled import Work
from planaria.plan.plan import ScheduleKind
from planaria.plan.thresholds import (
    FULL_SHARE_OF_BUDGET,
    MOST_NEIGHBOURS,
    NEIGHBOUR_EVENTS,
    SPLIT_BUDGET,
    SPLITS_ENUMERATED,
)
from planaria.planner.templates.split_bound import BoundSearch
from planaria.planner.templates.split_dp import DpTables, expected_s
from planaria.planner.templates.split_scores import Climb, Fit, Scores, Shared, by_length
from planaria.planner.templates.splits import Space, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A split with its simulated step time, and a lower bound of all splits' step times."""

    split: Split
    time_s: float
    lower_bound_s: float


class StepTimeSearch:
    """Search for the splits with the shortest step, for one number of nodes and one number of microbatches.

    Args:
        space: the splits that are searched.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        work: that this is part of; None: it is on its own.
        enumerate_up_to: splits up to which all are scored.
        budget: states that the search for a bound may pass.
        shared: what other searches found, of the same layers, nodes and devices; what is found now is added. None:
            there are none.
        only_best: nobody asks for `scored`, so neighbours that cannot be the best need not be scored.
    """

    def __init__(
        self,
        space: Space,
        nodes: int,
        num_microbatches: int,
        *,
        work: Work | None = None,
        enumerate_up_to: int = SPLITS_ENUMERATED,
        budget: float = SPLIT_BUDGET,
        shared: Shared | None = None,
        only_best: bool = False,
    ) -> None:
        self._space = space
        self._nodes = nodes
        self._num = num_microbatches
        self._budget = budget
        work = work or Work(expected_s(space, nodes, num_microbatches))
        self._enumerate_up_to = enumerate_up_to
        self._is_shared = shared is not None
        self._shared = shared or Shared()
        if self._shared.widest is None:
            self._shared.widest = space
        self._is_within = bool((space.ahead.limit <= self._shared.widest.ahead.limit).all())
        self._aside: dict[Split, float] = {}
        """Scored splits that are none of the best: as long as none is a neighbour of those, nothing depends on them."""
        self._met_aside = False
        self._climbed: Climb | None = None
        self._fits: list[Fit] = []
        self._only_best = only_best
        self._tables = DpTables(space, nodes, num_microbatches, work)
        self._scores = Scores(space, num_microbatches, work, shared, only_best=only_best)
        self._lower_bound = BoundSearch(space, nodes, num_microbatches, budget, work, self._tables, self._scores)

    @property
    def scored(self) -> tuple[Split, ...]:
        """The candidates, best first; those that are as good as equal are ordered by how uneven their stages are."""
        equal = self._scores.equal()
        others = sorted((time, split) for split, time in self._scores.times.items() if split not in equal)
        return (*sorted(equal, key=lambda split: (equal[split], split)), *(split for _, split in others))

    def time_s(self, split: Split) -> float:
        """Returns the simulated step time of a split."""
        self._scores.ask([split])
        return self._scores.times[split]

    def run(self) -> Found | None:
        """Returns the best split found, or None where none fits the memory."""
        if self._space.num_splits(self._nodes) <= self._enumerate_up_to:
            self._scores.score_near(self._space.splits(self._nodes, self._enumerate_up_to) or ())
            return self._found(np.inf) if self._scores.times else None
        self._sweep()
        if not self._scores.times:
            return None
        self._climb(0.0)
        low = self._bound()
        self._climb(low)
        self._scores.times |= self._aside
        return self._found(low)

    def _found(self, low: float) -> Found:
        equal = self._scores.equal()
        split = min(equal, key=lambda split: (equal[split], split))
        return Found(split=split, time_s=self._scores.times[split], lower_bound_s=min(low, self._scores.best_s))

    # What other searches found

    def _shortest(self, cap_s: float, hidden: bool) -> Split | None:
        """Returns the shortest split under a period bound: that of a space which allows more, where it is allowed."""
        known, at = self._shared.shortest, (cap_s, hidden)
        if self._is_within and at in known:
            split = known[at]
            if split is None or self._space.allows(split):
                return split
        split = self._tables.shortest(cap_s, hidden)
        if self._space is self._shared.widest:
            known[at] = split
        return split

    def _bound(self) -> float:
        """Returns the lower bound of `_descend`, shared between searches that must find the same."""
        if not self._is_shared:
            return self._lower_bound.run()
        most = min(self._nodes * self._space.per_node, self._space.num_layers)
        digest = self._space.limits_digest(most, self._scores.best_s / self._num)
        at = (self._num, self._budget, self._scores.best_s, digest)
        if at in self._shared.descents:
            low, asked = self._shared.descents[at]
            self._scores.ask(asked)
        else:
            before = len(self._scores.asked)
            low = self._lower_bound.run()
            self._shared.descents[at] = low, self._scores.asked[before:]
        return low

    def _climb(self, low: float) -> None:
        """Improves the best splits as `_improve` does, or takes over what an equal search found."""
        if not self._is_shared:
            self._improve(low)
            return
        at = (self._num, self._only_best, low, frozenset(self._scores.asked), self._climbed)
        known = self._shared.climbs.setdefault(at, [])
        climb = next((climb for climb in known if climb.holds(self._space, self._aside)), None)
        if climb is None:
            self._fits, self._met_aside = [], False
            self._improve(low)
            climb = Climb(self._fits, dict(self._scores.times), set(self._scores.seen), self._scores.top)
            if not self._met_aside:
                known.append(climb)
        else:
            self._scores.times, self._scores.seen, self._scores.top = dict(climb.times), set(climb.seen), climb.top
        self._climbed = climb

    # Candidates from period bounds

    def _sweep(self) -> None:
        """Scores the shortest splits under period bounds, from the least that has any to the widest useful one."""
        hidden = self._space.overlap and self._space.schedule is not ScheduleKind.ONE_F_ONE_B
        low, high, split = self._least_with_a_split(hidden)
        for _ in range(3):
            if split is None:
                break
            self._keep(split)
            high = min(high, self._period(split, hidden))
            if not low < high / 1.01:
                break
            middle = (low * high) ** 0.5
            split = self._shortest(middle, hidden)
            if split is None:
                low, split = middle, self._shortest(high, hidden)
            else:
                high = middle
        for wider in (1.08, 1.25, 1.6, 2.5):
            split = self._shortest(high * wider, hidden)
            if split is not None:
                self._keep(split)
        if self._space.limited and (split := self._tables.fewest_stages()) is not None:
            is_new = split not in self._scores.times
            self._scores.ask([split])
            if self._is_shared and is_new and split not in (best for _, best in self._scores.top):
                self._scores.asked.remove(split)
                self._scores.seen.remove(split)
                self._aside[split] = self._scores.times.pop(split)

    def _least_with_a_split(self, hidden: bool) -> tuple[float, float, Split | None]:
        """Returns a period bound without a split, and one a fifth above it with its split, if any has one."""
        bounds = [0.0, self._space.least_period_s(self._nodes)]
        most = bounds[1] * self._nodes * self._space.per_node * self._space.num_layers * 4
        while bounds[-1] < most:
            bounds.append(bounds[-1] * 1.2)
        known: dict[int, Split | None] = {}

        def has_none(at: int) -> bool:
            known[at] = self._shortest(bounds[at], hidden)
            return known[at] is None

        last, first = 0, 1  # Steps are doubled until some bound has a split: it is often one of the first.
        while has_none(first) and first < len(bounds) - 1:
            last, first = first, min(2 * first, len(bounds) - 1)
        if known[first] is not None:
            first = bisect_left(range(first), True, lo=last + 1, key=lambda at: not has_none(at))
        return bounds[first - 1], bounds[first], known[first]

    def _keep(self, split: Split) -> None:
        if self._space.fits(split):
            self._scores.ask([split])

    def _period(self, split: Split, hidden: bool) -> float:
        forwards, backwards, links = (rows[0] for rows in self._space.rows([split]))
        charge = 0.0 if hidden else 1.0
        near, far = np.concatenate([[0.0], links]), np.concatenate([links, [0.0]])
        return float(((forwards + backwards) + charge * (near + far)).max())

    # Neighbours

    def _improve(self, low: float) -> None:
        """Goes on to better neighbours of the best splits, until there is none or the best is close to the bound."""
        done: set[Split] = set()
        smaller = min(self._nodes * self._space.per_node, self._space.num_layers)
        events = NEIGHBOUR_EVENTS * min(1.0, self._budget / (FULL_SHARE_OF_BUDGET * SPLIT_BUDGET))
        left = int(events / (2 * (smaller + 1) * self._num)) + 1
        while left > 0 and self._scores.best_s > low * self._lower_bound.close:
            split = next((split for _, split in self._scores.top if split not in done), None)
            if split is None:
                break
            done.add(split)
            new = (near for near in self._space.neighbours(split) if self._is_new(near))
            near = list(islice(new, min(left, MOST_NEIGHBOURS)))
            self._scores.score_near(self._fitting(near) if self._space.limited or self._is_shared else near)
            left -= len(near)

    def _is_new(self, split: Split) -> bool:
        if self._aside and split in self._aside:
            self._met_aside = True
            return False
        return split not in self._scores.seen

    def _fitting(self, splits: Sequence[Split]) -> list[Split]:
        fitting: list[Split] = []
        for same in by_length(splits):
            stages = self._space.stages(same)
            fits = self._space.fit(stages)
            fitting += (same[at] for at in np.flatnonzero(fits).tolist())
            if self._is_shared:
                self._fits.append(Fit(stages, fits))
        return fitting
