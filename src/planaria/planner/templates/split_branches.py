"""Branch and bound over splits, from the last stage to the first: the last stages are known and simulated whole.

A branch is what follows a boundary. Its bound is the simulated step of its stages, with less than what any stages
before them do: the first microbatch comes after the shortest way there, others no faster than the slowest forward or
message on any way there lets them, a forward not before the backward that its sender must do first, and the backwards
leave no faster than the slowest backward or message. A branch whose bound passes a target is dropped. All branches with
equally many stages are looked at together, so that one call simulates them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Kernel, Numbers, Work
from planaria.plan.costs.pipeline_time import INTERPRETED_EVENTS_PER_S, Floats, Ints
from planaria.planner.templates.split_dp import longest_range, path_weights
from planaria.planner.templates.splits import PrefixCosts, Space, Split

_SHARE_OF_BEAM = 0.1
"""Of the events, for what is done once they are spent: only to find good splits, at all numbers of stages together,"""
_MOST_BEAM_LEVELS = 40
"""if there are not more than these: each takes time even where it holds little."""
_EVENTS_PER_ROW = 15
"""That take as long as one more stage of one branch, which may not pass the first conditions."""


@dataclass(frozen=True, slots=True)
class Branched:
    """What came of one look.

    Attributes:
        passed: splits with a step time of at most the target, as far as it fell while they were found.
        lower_bound_s: no split's step time is below it; 0: not certain.
        events: simulated.
    """

    passed: tuple[Split, ...]
    lower_bound_s: float
    events: float


@dataclass(frozen=True, slots=True)
class _Branches:
    """One a row: the boundary before their first stage, and their stages, the first one first."""

    used: Ints
    start: Ints
    way_s: Floats
    forward_s: Floats
    backward_s: Floats
    link_s: Floats
    ends: Ints
    devices: Ints

    def take(self, rows: npt.NDArray[np.generic]) -> _Branches:
        return _Branches(
            self.used[rows], self.start[rows], self.way_s[rows], self.forward_s[rows], self.backward_s[rows],
            self.link_s[rows], self.ends[rows], self.devices[rows],
        )  # fmt: skip


class BranchLook:
    """Splits with a step time of at most a target, for one number of nodes and microbatches.

    Args:
        space: of splits.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        work: that this is part of.
    """

    def __init__(self, space: Space, nodes: int, num_microbatches: int, work: Work) -> None:
        self._space = space
        self._devices = nodes * space.per_node
        self._num = num_microbatches
        self._work = work
        self._fill = _slowest(space.ahead.forward_s, space, self._devices)
        self._drain = _slowest(space.ahead.backward_s, space, self._devices)
        layers = np.diff(space.ahead.forward_s + space.ahead.backward_s, axis=1).min(axis=0)
        self._layer_s = np.concatenate([[0.0], layers])

    def run(
        self, target_s: float, close: float, before: list[Floats], stages: int | None, most_events: float
    ) -> Branched:
        """Look for splits; each one found lowers the target to its time divided by `close`.

        Args:
            target_s: longest step time.
            close: ratio.
            before: for each number of stages to go, the shortest ways to a boundary of splits that may pass.
            stages: of every split, if they have equally many.
            most_events: that are simulated.
        """
        none, whole = np.zeros((1, 0)), np.zeros((1, 0), dtype=np.int64)
        last, layers = np.array([self._devices]), np.array([self._space.num_layers])
        branches = _Branches(last, layers, np.zeros(1), none, none, none, whole, whole)
        passed: list[Split] = []
        certain, events, level = True, 0.0, most_events
        for after in range(len(before) - 1):
            weights = path_weights(self._space.schedule, self._num, after, stages)
            each = 2.0 * self._num * (after + 1)
            rows = max(1, int(level / (each + _EVENTS_PER_ROW * self._width(target_s))))
            if len(branches.used) > rows:
                if certain and len(before) > _MOST_BEAM_LEVELS:
                    return Branched(tuple(passed), 0.0, events)
                if certain:
                    certain, level = False, _SHARE_OF_BEAM * most_events / len(before)
                    rows = max(1, int(level / (each + _EVENTS_PER_ROW * self._width(target_s))))
                ways = before[after][branches.used, branches.start]
                branches = branches.take(np.argsort(self._least(branches, ways), kind="stable")[:rows])
            events += _EVENTS_PER_ROW * self._width(target_s) * len(branches.used)
            branches, ways = self._grow(branches, before[after + 1], weights, after, target_s * (1 + 1e-9))
            if not len(ways):
                break
            if len(ways) * each > level:
                certain, level = False, _SHARE_OF_BEAM * most_events / len(before)
                kept = np.sort(np.argsort(self._least(branches, ways), kind="stable")[: max(1, int(level / each))])
                branches, ways = branches.take(kept), ways[kept]
            events += each * len(ways)
            level = most_events - events if certain else level
            bounds = self._simulated(branches, ways, after)
            done, reached = branches.used == 0, bounds <= target_s * (1 + 1e-9)
            for row in np.flatnonzero(done & reached):
                if bounds[row] <= target_s:
                    passed.append(tuple(zip(branches.ends[row].tolist(), branches.devices[row].tolist(), strict=True)))
                    target_s = min(target_s, float(bounds[row]) / close)
            branches = branches.take(np.flatnonzero(~done & (bounds <= target_s * (1 + 1e-9))))
        return Branched(tuple(passed), target_s if certain else 0.0, events)

    def _width(self, target_s: float) -> int:
        """Stages that a branch may be continued by, at most."""
        costs, most = self._space.ahead, target_s / self._num
        return sum(longest_range(f + b, most) for f, b in zip(costs.forward_s, costs.backward_s, strict=True))

    def _grow(
        self, branches: _Branches, before: Floats, weights: Floats, after: int, budget_s: float
    ) -> tuple[_Branches, Floats]:
        """The branches with one more stage, as far as no path through it is too long, and the ways to them."""
        found = [
            self._grown(branches, place, devices, before, weights, after, budget_s)
            for place, devices in enumerate(self._space.counts.tolist())
        ]
        ways = np.concatenate([ways for _, ways in found])
        parts = [part for part, _ in found]
        fields = ("used", "start", "way_s", "forward_s", "backward_s", "link_s", "ends", "devices")
        return _Branches(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields)), ways

    def _grown(
        self, branches: _Branches, place: int, devices: int, before: Floats, weights: Floats, after: int,
        budget_s: float,
    ) -> tuple[_Branches, Floats]:  # fmt: skip
        space, costs = self._space, self._space.ahead
        most = longest_range(costs.forward_s[place] + costs.backward_s[place], budget_s / weights[0, 2])
        rows = np.flatnonzero((branches.used - 1) % space.per_node + 1 >= devices)
        start = branches.start[rows][:, None] - np.arange(1, most + 1)
        inside = start >= 0
        rows, start = rows[np.nonzero(inside)[0]], start[inside]
        used, end = branches.used[rows] - devices, branches.start[rows]
        way = before[used, start]
        keep = (way < np.inf) & (costs.limit[place, start, end] >= after)
        rows, start, used, end, way = rows[keep], start[keep], used[keep], end[keep], way[keep]
        forward = costs.forward_s[place, end] - costs.forward_s[place, start]
        backward = costs.backward_s[place, end] - costs.backward_s[place, start]
        link = costs.link_s[(branches.used[rows] % space.per_node != 0).astype(np.int64), end]
        if not space.overlap:
            forward = forward + link
            backward = backward + costs.link_s[(used % space.per_node != 0).astype(np.int64), start]
            link = np.zeros_like(link)
        there = branches.way_s[rows] + 2.0 * link
        passes = np.ones(len(rows), dtype=bool)
        for weight in weights:
            length = weight[0] * way + weight[1] * there + weight[2] * forward + weight[3] * backward
            passes &= length + weight[4] * link <= budget_s
        rows, there, own = rows[passes], there[passes], (forward + backward)[passes]
        first = [forward[passes, None], backward[passes, None], link[passes, None], end[passes, None]]
        old = [branches.forward_s, branches.backward_s, branches.link_s, branches.ends, branches.devices]
        first.append(np.full_like(first[-1], devices))
        joined = [np.hstack([new, values[rows]]) for new, values in zip(first, old, strict=True)]
        return _Branches(used[passes], start[passes], there + own, *joined), way[passes]

    def _least(self, branches: _Branches, ways: Floats) -> Floats:
        """A rough bound, to choose by: the way there and back, and the slowest stage for the other microbatches."""
        slowest = (branches.forward_s + branches.backward_s).max(axis=1)
        return np.asarray(ways + branches.way_s + (self._num - 1) * slowest)

    def _simulated(self, branches: _Branches, ways: Floats, after: int) -> Floats:
        space, schedule = self._space, self._space.schedule
        at = branches.used, branches.start
        lead = schedule.forwards_ahead(after + 1, self._num)
        near = space.ahead.link_s[(branches.used % space.per_node != 0).astype(np.int64), branches.start]
        if not space.overlap:
            near = np.zeros_like(near)
        loop = np.where(branches.used > 0, self._layer_s[branches.start] + 2.0 * near, 0.0)
        ahead = np.array([schedule.forwards_ahead(after - s, self._num) for s in range(after + 1)], dtype=np.int64)
        bounds_s, clocks, left = np.empty(len(ways)), np.empty((3, after + 1)), np.empty(self._num)
        self._work.add(2.0 * branches.forward_s.size * self._num / INTERPRETED_EVENTS_PER_S)
        BOUNDS.form(compiled=self._work.compiled)(
            branches.forward_s, branches.backward_s, branches.link_s, ahead, self._num, self._fill[at], self._drain[at],
            loop, lead, bounds_s, clocks, np.empty((after + 2) * self._num), left,
        )  # fmt: skip
        return ways + bounds_s


def _slowest(times_s: Floats, space: Space, devices: int) -> Floats:
    """For each state: on any way there some stage or, with overlap, some message takes at least as long."""
    costs: PrefixCosts = space.ahead
    size = space.num_layers + 1
    plane = np.full((devices + 1, size), np.inf)
    plane[0, 0] = 0.0
    stages = [np.where(np.tri(size, k=-1, dtype=bool).T, row[None, :] - row[:, None], np.inf) for row in times_s]
    for then in range(1, devices + 1):
        for place, count in enumerate(space.counts.tolist()):
            if count <= (then - 1) % space.per_node + 1:
                ways = np.maximum(plane[then - count][:, None], stages[place]).min(axis=0)
                plane[then] = np.minimum(plane[then], ways)
        if space.overlap:
            plane[then] = np.maximum(plane[then], costs.link_s[int(then % space.per_node != 0)])
    return plane


def _bounds(
    forward_s: Numbers, backward_s: Numbers, link_s: Numbers, ahead: Numbers, num: int, fill_s: Numbers,
    drain_s: Numbers, loop_s: Numbers, lead: int, bounds_s: Numbers, clocks: Numbers, arrived: Numbers,
    left: Numbers,
) -> None:  # fmt: skip
    """Writes `bounds_s`: as `planaria.plan.costs.pipeline_time`, with what comes before the first stage."""
    clock, down, up, stages = clocks[0], clocks[1], clocks[2], len(ahead)
    for c in range(len(bounds_s)):
        forwards, backwards, links = forward_s[c], backward_s[c], link_s[c]
        for i in range(num):
            arrived[i] = i * fill_s[c]
        for s in range(stages):
            now, sent = 0.0, 0.0
            for at in range(s * num, s * num + ahead[s]):
                come = arrived[at]
                now = (come if come > now else now) + forwards[s]
                sent = (now if now > sent else sent) + links[s]
                arrived[at + num] = sent
            clock[s], down[s], up[s] = now, sent, 0.0
        bound = 0.0
        for t in range(num):
            i = t + ahead[0]
            if i - 1 - lead >= 0 and i < num:
                again = left[i - 1 - lead] + loop_s[c]
                arrived[i] = again if again > arrived[i] else arrived[i]
            for s in range(stages):
                if t + ahead[s] < num:
                    at = s * num + t + ahead[s]
                    come, now, sent = arrived[at], clock[s], down[s]
                    now = (come if come > now else now) + forwards[s]
                    sent = (now if now > sent else sent) + links[s]
                    clock[s], down[s], arrived[at + num] = now, sent, sent
            come = 0.0
            for s in range(stages - 1, -1, -1):
                now, sent = clock[s], up[s]
                now = (come if come > now else now) + backwards[s]
                come = (now if now > sent else sent) + links[s - 1]
                clock[s], up[s] = now, come
            left[t] = clock[0]
            end = clock[0] + (num - 1 - t) * drain_s[c]
            bound = end if end > bound else bound
        bounds_s[c] = bound


BOUNDS = Kernel(_bounds, writes=(9,))
