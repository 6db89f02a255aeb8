"""Oobleck's own objective (section 4.1.2), minimised over all splits.

For S stages whose forward and backward take c_0 .. c_S-1, with N_b = 4 S microbatches and k* the place (from 0) of the
slowest stage, the last of them where several are:

    T1 = c_0 + ... + c_S-1
    T2 = (N_b - S + k* - 1) c_k*
    T3 = c_k* + ... + c_S-1

and the objective is T1 + T2 + T3. Messages are not in it. Stages whose times differ by less than 1e-9 of the slowest
count as equally slow. Given the slowest stage's time W it is a sum over stages: c + 4 W for each before k*, 4 W for k*,
and 2 c + 3 W for each after it. So for a given W it is a shortest path; over W, intervals are bounded from below and
halved.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from planaria.plan.compiled import Work
from planaria.plan.costs.pipeline_time import Floats, Ints
from planaria.plan.thresholds import INTERPRETED_STAGES_PER_S, MAX_COUNTS, ROUNDING
from planaria.planner.templates.split_dp import RELAX
from planaria.planner.templates.splits import Space, Split


def objective_s(stages_s: Sequence[float]) -> float:
    """Returns T1 + T2 + T3 of a pipeline whose stages take these times, forward and backward."""
    slowest = max(stages_s)
    last = max(place for place, time in enumerate(stages_s) if time >= slowest * (1 - ROUNDING))
    return sum(stages_s) + (3 * len(stages_s) + last - 1) * stages_s[last] + sum(stages_s[last:])


@dataclass(frozen=True, slots=True)
class _Interval:
    """Interval of the slowest stage's time: groups [first, end) of equal times."""

    first: int
    end: int


class OobleckSearch:
    """Search for the split of least T1 + T2 + T3 for one number of nodes.

    Args:
        space: of splits; schedule and messages play no part, memory does.
        nodes: whose devices are all used.
        work: that this is part of.
    """

    def __init__(self, space: Space, nodes: int, work: Work | None = None) -> None:
        self._space = space
        self._nodes = nodes
        self._shape = (nodes * space.per_node + 1, space.num_layers + 1)
        self._work = work or Work()
        self._low_s, self._high_s = _groups(space)

    def run(self) -> tuple[Split, float] | None:
        """Returns the best split and its objective in seconds, or None where none fits the memory."""
        found = self._search(by_level=False)
        if found is not None and not self._space.fits(found[0]):
            found = self._search(by_level=True)
        return found

    def objective_s(self, split: Split) -> float:
        forwards, backwards, _ = (rows[0] for rows in self._space.rows([split]))
        return objective_s((forwards + backwards).tolist())

    def _search(self, *, by_level: bool) -> tuple[Split, float] | None:
        best: tuple[Split, float] | None = None
        numbers = count()
        queue = [(float(self._low_s[part.first]), next(numbers), part) for part in self._parts()]
        heapq.heapify(queue)
        bounded: list[tuple[float, int, _Interval]] = []
        while queue or bounded:
            if queue:
                least, _, part = heapq.heappop(queue)
                if best is not None and least * (3 * self._nodes + 1) >= best[1]:
                    queue.clear()
                    continue
            else:
                least, _, part = heapq.heappop(bounded)
                if best is not None and least >= best[1] * (1 - ROUNDING):
                    break
                if part.end - part.first == 1:
                    continue
                middle = (part.first + part.end) // 2
                for half in (_Interval(part.first, middle), _Interval(middle, part.end)):
                    best = self._bound(half, best, bounded, next(numbers), by_level)
                continue
            best = self._bound(part, best, bounded, next(numbers), by_level)
        return best

    def _bound(
        self,
        part: _Interval,
        best: tuple[Split, float] | None,
        bounded: list[tuple[float, int, _Interval]],
        number: int,
        by_level: bool,
    ) -> tuple[Split, float] | None:
        """Bounds an interval, queues it unless it is a single group, and returns the best split so far."""
        solved = self._solve_levels(part) if by_level else self._solve(part)
        if solved is None:
            return best
        bound, split = solved
        value = self.objective_s(split)
        if best is None or value < best[1]:
            best = split, value
        if part.end - part.first > 1 and bound < best[1] * (1 - ROUNDING):
            heapq.heappush(bounded, (bound, number, part))
        return best

    def _parts(self) -> list[_Interval]:
        """Returns all groups of equal stage times, in intervals that span at most a fifth."""
        parts, first = [], 0
        for end in range(1, len(self._low_s) + 1):
            if end == len(self._low_s) or self._low_s[end] > self._low_s[first] * 1.2:
                parts.append(_Interval(first, end))
                first = end
        return parts

    def _phases(self, part: _Interval) -> tuple[tuple[float, float, float, float], ...]:
        """Returns slope, constant, period above and period at most, for stages after, at and before the slowest one."""
        least, most = float(self._low_s[part.first]), float(self._high_s[part.end - 1])
        under = float(self._high_s[part.first - 1]) if part.first else 0.0
        after = under if part.end - part.first == 1 else most
        return (2.0, 3.0 * least, -1.0, after), (4.0, 0.0, under, most), (1.0, 4.0 * least, -1.0, most)

    def _plane(self, *, start: bool) -> tuple[Floats, Ints]:
        plane = np.full(self._shape, np.inf)
        if start:
            plane[0, 0] = 0.0
        return plane, np.zeros(self._shape, dtype=np.int64)

    def _run(
        self,
        source: Floats,
        target: Floats,
        parent: Ints,
        phase: tuple[float, float, float, float],
        after: int,
        tag: int,
    ) -> None:
        compiled = self._work.compiled
        forward_s, backward_s, link_s, _, limit_to = self._space.back.tables(compiled=compiled)
        slope, constant, above, cap = phase
        looked = RELAX.form(compiled=compiled)(
            source, target, parent, forward_s, backward_s, link_s, limit_to, self._space.counts, self._space.per_node,
            slope, constant, 0.0, 0.0, above, cap, after, tag,
        )  # fmt: skip
        self._work.add(looked / INTERPRETED_STAGES_PER_S)

    def _solve(self, part: _Interval) -> tuple[float, Split] | None:
        """Returns a lower bound over splits whose slowest stage is in the interval, and the split that has it."""
        behind, slowest, before = self._phases(part)
        rest, rest_from = self._plane(start=True)
        self._run(rest, rest, rest_from, behind, 0, 0)
        whole, whole_from = self._plane(start=False)
        self._run(rest, whole, whole_from, slowest, 0, 1)
        self._run(whole, whole, whole_from, before, 0, 0)
        if whole[-1, -1] == np.inf:
            return None
        used, end, parent, stages = self._shape[0] - 1, self._shape[1] - 1, whole_from, []
        while used:
            code, crossed = divmod(int(parent[used, end]), 2)
            start, place = divmod(code, MAX_COUNTS)
            stages.append((self._space.num_layers - start, int(self._space.counts[place])))
            used, end = used - stages[-1][1], start
            parent = rest_from if crossed else parent
        return float(whole[-1, -1]), tuple(stages)

    def _solve_levels(self, part: _Interval) -> tuple[float, Split] | None:
        """Does what `_solve` does with memory by the stage's place: one plane for each number of following stages."""
        behind, slowest, before = self._phases(part)
        rests, wholes = [self._plane(start=True)], [self._plane(start=False)]
        for after in range(min(self._shape) - 1):
            rest, whole = self._plane(start=False), self._plane(start=False)
            self._run(rests[-1][0], *rest, behind, after, 0)
            self._run(rests[-1][0], *whole, slowest, after, 1)
            self._run(wholes[-1][0], *whole, before, after, 0)
            rests.append(rest)
            wholes.append(whole)
        level = min(range(len(wholes)), key=lambda at: float(wholes[at][0][-1, -1]))
        value = float(wholes[level][0][-1, -1])
        if value == np.inf:
            return None
        used, end, table, stages = self._shape[0] - 1, self._shape[1] - 1, wholes, []
        while used:
            code, crossed = divmod(int(table[level][1][used, end]), 2)
            start, place = divmod(code, MAX_COUNTS)
            stages.append((self._space.num_layers - start, int(self._space.counts[place])))
            used, end, level = used - stages[-1][1], start, level - 1
            table = rests if crossed else table
        return value, tuple(stages)


def _groups(space: Space) -> tuple[Floats, Floats]:
    """Returns the least and the most of each group of equal stage times, ascending."""
    first, end = np.triu_indices(space.num_layers + 1, 1)
    forward, backward = space.back.forward_s, space.back.backward_s
    times = np.unique((forward[:, end] - forward[:, first]) + (backward[:, end] - backward[:, first]))
    new = np.flatnonzero(np.diff(times) > ROUNDING * times[1:]) + 1
    starts = np.concatenate([[0], new])
    ends = np.concatenate([new, [len(times)]])
    return times[starts], times[ends - 1]
