"""The split with the shortest simulated step, and how sure that is: an exact search of a close model, then scoring.

The close model of a split's step time is the longest of the paths of `planaria.planner.templates.split_dp`: a lower
bound of it, and most often equal to it. Whether some split has a model time of at most T is decided exactly but for one
thing: the stages before and the stages after a stage are each taken at their shortest for the number of stages to come,
although one split need not have both. So where no split passes, none has a step time of T or less: a certified lower
bound. What passes is a candidate; candidates, those of a sweep over period bounds, and their neighbours are scored by
the events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

import numpy as np

from planaria.plan.compiled import Work
from planaria.plan.costs.pipeline_time import Floats, charged, times_s
from planaria.plan.plan import ScheduleKind
from planaria.plan.thresholds import LARGE_SPLITS_CLOSE, SPLITS_CLOSE
from planaria.planner.templates.split_dp import DpTables, bounds_s, expected_s
from planaria.planner.templates.split_looks import Branches, Stretches
from planaria.planner.templates.split_shared import Climb, Fit, Shared, limits_digest
from planaria.planner.templates.splits import Space, Split

ENUMERATE = 2_000
"""Number of splits up to which all are scored."""
_QUICK_STATES = 3e4
"""Devices x layers x stages up to which a search is quick, whatever the stages' device counts."""
_STEPS = (0.0, 0.012, 0.03, 0.1, 0.17, 0.3, 1.0, 3.0, 10.0)
"""Shares below the best step time that are tried for a split, in order, until there is none; 0: just close."""
_FIRST_STEP = ((40, 0), (20, 1), (14, 2), (0, 3))
"""Index of the first step to try, by the passes over all states that the budget has room for."""
_PASSES_FOR_ROUNDS = 8
"""Passes above which the paths before and behind are each made twice, the second time with the other's."""
BUDGET = 4e6
"""States that the search for a bound may pass; it tries at least one step time."""
_LOOKS, _LOOKS_MANY, _LOOKS_LARGE = 10, 3, 2
"""Most closer looks at a step time; with many templates and in large spaces they are expensive."""
_SMALL_SHARE = 1 / 4
"""Share of the budget up to which there are taken to be many templates."""
_LOOK = 6
"""Budget for each state that a look needs."""
_PER_STATE = 4e3
"""Budget for one state of a level of a closer look."""
_BRANCH_LOOKS = 3
"""Most looks of branch and bound."""
_EVENTS, _EVENTS_BESIDE_STRETCHES = 6e7, 1e7
"""Most events that branch and bound simulates with the full budget: alone, and where closer looks follow it."""
_SHARE_OF_LOOK = 0.6
"""Share of the remaining events that one look may simulate."""
_STATES_PER_BRANCHES = 22
"""Budget for each state from which branch and bound may come to an end."""
_EVENTS_PER_STATE = 6.0
"""Events that take as long as what a look at a state needs before."""
_EQUAL = 2e-3
"""Step times closer than this are taken for equal: the more even split is better for other numbers of microbatches."""
_SLACK = 1e-9
"""Bound of the relative rounding errors of sums."""
_NEIGHBOUR_EVENTS = 1e6
"""Most events that are spent on neighbours of the best splits."""
_FULL_SHARE = 1 / 8
"""Share of the budget from which that many neighbour events are spent; with less of it, fewer are."""
_NEIGHBOURS = 200
"""Most neighbours of one split that are scored."""
_LOOKED_AT = 4
"""Number of best splits that are looked at, one after the other, until none of them has better neighbours."""
_TOGETHER = 16
"""Neighbours that are scored at once, before the list of those that may still be among the best is renewed."""

_Row = tuple[Floats, Floats, Floats]
"""Forward, backward and link times of a split's stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A split with its simulated step time, and a lower bound of all splits' step times."""

    split: Split
    time_s: float
    lower_bound_s: float


class StepTimeSearch:
    """Search for the splits with the shortest step, for one number of nodes and one number of microbatches.

    Args:
        space: of splits.
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
        enumerate_up_to: int = ENUMERATE,
        budget: float = BUDGET,
        shared: Shared | None = None,
        only_best: bool = False,
    ) -> None:
        self._space = space
        self._nodes = nodes
        self._num = num_microbatches
        self._budget = budget
        self._states = float(nodes * space.per_node * space.num_layers * min(nodes * space.per_node, space.num_layers))
        self._work = work or Work(expected_s(space, nodes, num_microbatches))
        self._stages = nodes * space.per_node if space.counts.tolist() == [1] else None
        quick = self._stages is not None or self._states <= _QUICK_STATES
        self._close = SPLITS_CLOSE if quick else LARGE_SPLITS_CLOSE
        most = _LOOKS if budget > _SMALL_SHARE * BUDGET else _LOOKS_MANY
        self._looks = most if quick or budget > BUDGET else min(_LOOKS_LARGE, int(budget / (_LOOK * self._states)))
        # Where stages run further ahead, stretches are rarely what is slow.
        self._stretched = space.schedule is ScheduleKind.ONE_F_ONE_B
        self._branches = budget >= _STATES_PER_BRANCHES * self._states
        self._enumerate_up_to = enumerate_up_to
        self._times: dict[Split, float] = {}
        self._top: list[tuple[float, Split]] = []
        """The best of the scored splits, whose neighbours are looked at."""
        self._is_shared = shared is not None
        self._shared = shared or Shared()
        if self._shared.widest is None:
            self._shared.widest = space
        self._is_within = bool((space.ahead.limit <= self._shared.widest.ahead.limit).all())
        self._asked: list[Split] = []
        """All splits that were to be scored, except neighbours."""
        self._aside: dict[Split, float] = {}
        """Scored splits that are none of the best: as long as none is a neighbour of those, nothing depends on them."""
        self._met_aside = False
        self._climbed: Climb | None = None
        self._fits: list[Fit] = []
        self._only_best = only_best
        self._seen: set[Split] = set()
        """Splits that were scored, and neighbours that were left unscored."""
        self._tables = DpTables(space, nodes, num_microbatches, self._work)

    @property
    def scored(self) -> tuple[Split, ...]:
        """The candidates, best first; those that are as good as equal are ordered by how uneven their stages are."""
        equal = self._equal()
        others = sorted((time, split) for split, time in self._times.items() if split not in equal)
        return (*sorted(equal, key=lambda split: (equal[split], split)), *(split for _, split in others))

    def _equal(self) -> dict[Split, float]:
        """Returns the candidates that are as good as the best, and how uneven their stages are."""
        most = self._best() * (1 + _EQUAL) if self._times else 0.0
        uneven: dict[Split, float] = {}
        for same in _by_length(split for split, time in self._times.items() if time <= most):
            forwards, backwards, _ = self._space.rows(same)
            squares = ((forwards + backwards) ** 2).sum(axis=1)
            uneven.update((split, round(square, 15)) for split, square in zip(same, squares.tolist(), strict=True))
        return uneven

    def time_s(self, split: Split) -> float:
        """Returns the simulated step time of a split."""
        self._ask([split])
        return self._times[split]

    def run(self) -> Found | None:
        """Returns the best split found, or None where none fits the memory."""
        if self._space.num_splits(self._nodes) <= self._enumerate_up_to:
            self._score_near(self._space.splits(self._nodes, self._enumerate_up_to) or ())
            return self._found(np.inf) if self._times else None
        self._sweep()
        if not self._times:
            return None
        self._climb(0.0)
        low = self._bound()
        self._climb(low)
        self._times |= self._aside
        return self._found(low)

    def _found(self, low: float) -> Found:
        equal = self._equal()
        split = min(equal, key=lambda split: (equal[split], split))
        return Found(split=split, time_s=self._times[split], lower_bound_s=min(low, self._best()))

    def _best(self) -> float:
        return self._top[0][0]

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
            return self._descend()
        most = min(self._nodes * self._space.per_node, self._space.num_layers)
        digest = limits_digest(self._space, most, self._best() / self._num)
        at = (self._num, self._budget, self._best(), digest)
        if at in self._shared.descents:
            low, asked = self._shared.descents[at]
            self._ask(asked)
        else:
            before = len(self._asked)
            low = self._descend()
            self._shared.descents[at] = low, self._asked[before:]
        return low

    def _climb(self, low: float) -> None:
        """Improves the best splits as `_improve` does, or takes over what an equal search found."""
        if not self._is_shared:
            self._improve(low)
            return
        at = (self._num, self._only_best, low, frozenset(self._asked), self._climbed)
        known = self._shared.climbs.setdefault(at, [])
        climb = next((climb for climb in known if climb.holds(self._space, self._aside)), None)
        if climb is None:
            self._fits, self._met_aside = [], False
            self._improve(low)
            climb = Climb(self._fits, dict(self._times), set(self._seen), self._top)
            if not self._met_aside:
                known.append(climb)
        else:
            self._times, self._seen, self._top = dict(climb.times), set(climb.seen), climb.top
        self._climbed = climb

    # Scoring

    def _ask(self, splits: Iterable[Split]) -> None:
        asked = list(splits)
        self._asked += asked
        self._score(asked)

    def _score(self, splits: Iterable[Split], rows: Mapping[Split, _Row] | None = None) -> None:
        """Scores splits by simulation. `rows`: of these splits, where they are known."""
        new: dict[Split, float] = {}
        unknown: list[Split] = []
        for split in splits:
            if split in self._times:
                continue
            known_s = self._shared.times.get((self._num, split)) if self._is_shared else None
            if known_s is None:
                unknown.append(split)
            else:
                new[split] = known_s
        for same in _by_length(unknown):
            if rows is None:
                forward, backward, link = self._rows(same)
            else:
                forward, backward, link = map(np.array, zip(*(rows[split] for split in same), strict=True))
            seconds = times_s(forward, backward, link, self._num, self._space.schedule, self._work)
            times = seconds.tolist()
            new.update(zip(same, times, strict=True))
            if self._is_shared:
                self._shared.times.update(((self._num, split), time) for split, time in zip(same, times, strict=True))
        self._times |= new
        self._seen |= new.keys()
        self._top = nsmallest(_LOOKED_AT, (*self._top, *((time, split) for split, time in new.items())))

    def _score_near(self, splits: Sequence[Split]) -> None:
        """Scores the splits that may be among the best looked at, or as good as the best; the likeliest first."""
        if not self._only_best:
            self._score(splits)
            return
        bounds: list[tuple[float, Split]] = []
        rows: dict[Split, _Row] = {}
        for same in _by_length(splits):
            arrays = self._rows(same)
            bounds += zip(bounds_s(*arrays, self._num, self._space.schedule).tolist(), same, strict=True)
            rows.update(zip(same, zip(*arrays, strict=True), strict=True))
        bounds.sort()
        for at in range(0, len(bounds), _TOGETHER):
            most = float("inf")
            if len(self._top) == _LOOKED_AT:
                most = max(self._top[-1][0], self._best() * (1 + _EQUAL)) * (1 + _SLACK)
            if bounds[at][0] > most:
                break
            self._score((split for least_s, split in bounds[at : at + _TOGETHER] if least_s <= most), rows)
        self._seen.update(splits)

    def _rows(self, same: Sequence[Split]) -> _Row:
        return charged(*self._space.rows(same), overlap=self._space.overlap)

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
            is_new = split not in self._times
            self._ask([split])
            if self._is_shared and is_new and split not in (best for _, best in self._top):
                self._asked.remove(split)
                self._seen.remove(split)
                self._aside[split] = self._times.pop(split)

    def _least_with_a_split(self, hidden: bool) -> tuple[float, float, Split | None]:
        """Returns a period bound without a split, and one a fifth above it with its split, if any has one."""
        bounds = [0.0, self._least_period()]
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
            self._ask([split])

    def _period(self, split: Split, hidden: bool) -> float:
        forwards, backwards, links = (rows[0] for rows in self._space.rows([split]))
        charge = 0.0 if hidden else 1.0
        near, far = np.concatenate([[0.0], links]), np.concatenate([links, [0.0]])
        return float(((forwards + backwards) + charge * (near + far)).max())

    def _least_period(self) -> float:
        """Returns the least time of a largest stage: the slowest layer, or an even share of the devices' time."""
        costs, counts = self._space.ahead, self._space.counts
        layers = np.diff(costs.forward_s + costs.backward_s, axis=1)
        even = float((layers * counts[:, None]).min(axis=0).sum()) / (self._nodes * self._space.per_node)
        return max(float(layers.min(axis=0).max()), even)

    # The bound

    def _descend(self) -> float:
        """Tries step times below the best until no split has one; returns the largest that is known to have none."""
        cap = self._best() / self._num * (1 + _SLACK)
        self._before = self._tables.ways(self._space.ahead, cap)
        self._behind = self._tables.ways(self._space.back, cap)
        low = max(float(self._before[-1, -1]), self._num * self._least_period()) * (1 - _SLACK)
        low = self._branch(self._planes_descend(low))
        return self._stretches(low) if self._stretched else low

    def _branch(self, low: float) -> float:
        """Raises the lower bound by branch and bound, which sees all but what comes before the last stages."""
        events = _EVENTS_BESIDE_STRETCHES if self._stretched else _EVENTS
        most_events = events * self._budget / BUDGET if self._branches else 0.0
        look: Branches | None = None
        passed = np.inf
        for number in range(_BRANCH_LOOKS):
            best = min(passed, self._best())
            if best <= low * self._close or most_events <= 0:
                break
            target = best / self._close if number == 0 else (low * best) ** 0.5
            most_events -= _EVENTS_PER_STATE * self._states
            before = self._relevant(target)
            if before is None:
                low = target
                continue
            if look is None:
                look = Branches(self._space, self._nodes, self._num, self._work)
            splits, bound_s, events = look.run(target, self._close, before, self._stages, _SHARE_OF_LOOK * most_events)
            self._ask(splits)
            most_events -= events
            if bound_s:
                low = max(low, bound_s)
            else:
                passed = target
        return low

    def _stretches(self, low: float) -> float:
        """Raises the lower bound by closer looks at stretches of stages, quicker where there are many stages."""
        passed = np.inf
        for look in range(self._looks):
            best = min(passed, self._best())
            if best <= low * self._close:
                break
            target = self._best() / self._close if look == 0 else (low * best) ** 0.5
            if self._try(target, rounds=2, look=True):
                passed = target
            else:
                low = target
        return low

    def _relevant(self, target_s: float) -> list[Floats] | None:
        """Returns the shortest paths to each state of splits that may take at most `target_s`, if some may."""
        budget = target_s * (1 + _SLACK)
        whole = self._before + self._behind[::-1, ::-1] <= budget
        behind = self._tables.behind(budget, [np.where(whole, self._before, np.inf)])
        before, split = self._tables.before(budget, behind)
        return None if split is None else before

    def _planes_descend(self, low: float) -> float:
        """Raises the lower bound with the planes only, which are quick but blind for stretches of stages."""
        passed, passes = np.inf, 2 + int(self._budget / self._states)
        first = next(step for least, step in _FIRST_STEP if passes >= least)
        rounds = 2 if passes > _PASSES_FOR_ROUNDS else 1
        for step in _STEPS[first:]:
            target = self._best() / max(1 + step, self._close)
            if passes <= 0 or target <= low:
                break
            if target >= passed:
                continue
            passes -= 2 * rounds
            if not self._try(target, rounds):
                low = target
                break
            passed = target
        while passes > 0 and min(passed, self._best()) > low * self._close:
            middle = (low * min(passed, self._best())) ** 0.5
            passes -= 2 * rounds
            if self._try(middle, rounds):
                passed = middle
            else:
                low = middle
        return low

    def _try(self, target_s: float, rounds: int, *, look: bool = False) -> bool:
        """Returns whether a split may have a step time of at most `target_s`; scores one that passes."""
        budget = target_s * (1 + _SLACK)
        whole = self._before + self._behind[::-1, ::-1] <= budget
        before = [np.where(whole, self._before, np.inf)]
        split: Split | None = None
        for _ in range(rounds):
            behind = self._tables.behind(budget, before)
            before, split = self._tables.before(budget, behind)
            if split is None:
                return False
        assert split is not None
        self._ask([split])
        if self._times[split] <= target_s or not look:
            return True
        stretches = Stretches(self._space, self._nodes, self._num)
        passes, split = stretches.run(budget, behind, self._stages, int(self._budget / _PER_STATE))
        if split is not None:
            self._ask([split])
        return passes

    # Neighbours

    def _improve(self, low: float) -> None:
        """Goes on to better neighbours of the best splits, until there is none or the best is close to the bound."""
        done: set[Split] = set()
        smaller = min(self._nodes * self._space.per_node, self._space.num_layers)
        events = _NEIGHBOUR_EVENTS * min(1.0, self._budget / (_FULL_SHARE * BUDGET))
        left = int(events / (2 * (smaller + 1) * self._num)) + 1
        while left > 0 and self._best() > low * self._close:
            split = next((split for _, split in self._top if split not in done), None)
            if split is None:
                break
            done.add(split)
            new = (near for near in self._space.neighbours(split) if self._is_new(near))
            near = list(islice(new, min(left, _NEIGHBOURS)))
            self._score_near(self._fitting(near) if self._space.limited or self._is_shared else near)
            left -= len(near)

    def _is_new(self, split: Split) -> bool:
        if split in self._aside:
            self._met_aside = True
            return False
        return split not in self._seen

    def _fitting(self, splits: Sequence[Split]) -> list[Split]:
        fitting: list[Split] = []
        for same in _by_length(splits):
            stages = self._space.stages(same)
            fits = self._space.fit(stages)
            fitting += (same[at] for at in np.flatnonzero(fits).tolist())
            if self._is_shared:
                self._fits.append(Fit(stages, fits))
        return fitting


def _by_length(splits: Iterable[Split]) -> Iterable[list[Split]]:
    """Returns the splits in lists of equally many stages."""
    found: dict[int, list[Split]] = {}
    for split in splits:
        found.setdefault(len(split), []).append(split)
    return found.values()
