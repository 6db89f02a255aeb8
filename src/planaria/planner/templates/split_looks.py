"""Closer looks: whether some split has a step time of at most a target, stage by stage, all beginnings side by side.

A look continues the beginnings of splits by one stage at a time and keeps those that may pass. `Branches` begin with the
last stage, and are simulated whole, with less than what any stages before them do: the first microbatch comes after the
shortest way there, others no faster than the slowest forward or message on any way there lets them, a forward not
before the backward that its sender must do first, and the backwards leave no faster than the slowest backward or
message. `Stretches` begin with the first stage, and remember how long the last few stages are: a stage and the k before
it form a cycle, in which a backward goes up to the first of them and comes back as a forward. It takes k + 1
microbatches' worth of the schedule and holds two messages over each boundary inside, which slows 1F1B down where
messages take long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Kernel, Numbers, Work
from planaria.plan.costs.pipeline_time import INTERPRETED_EVENTS_PER_S, Floats, Ints
from planaria.plan.plan import ScheduleKind
from planaria.planner.templates.split_dp import longest_range, path_weights
from planaria.planner.templates.splits import Space, Split

_SHARE_OF_BEAM = 0.1
"""Of the events, for what is done once they are spent: only to find good splits, at all numbers of stages together,"""
_MOST_BEAM_LEVELS = 40
"""if there are not more than these: each takes time even where it holds little."""
_EVENTS_PER_ROW = 15
"""That take as long as one more stage of one branch, which may not pass the first conditions."""
_REMEMBERED = 3
"""Stages whose lengths stretches remember."""
_GRAIN = 1e-7
"""Lengths of stretches are rounded down to this part of the budget, so that equal ones are equal."""


@dataclass(frozen=True, slots=True)
class _Stages:
    """Stages that beginnings of splits are continued by, one a row.

    Attributes:
        row: of the beginning.
        used: devices before the boundary that the beginning then ends at.
        layer: of that boundary.
        devices: of the stage.
        forward_s: of the stage; with messages, where these occupy their sender.
        backward_s: the same.
        link_s: the message to the next stage, where it occupies its link.
        rest_s: the shortest way from that boundary on.
        way_s: the beginning's way, and over the stage.
    """

    row: Ints
    used: Ints
    layer: Ints
    devices: Ints
    forward_s: Floats
    backward_s: Floats
    link_s: Floats
    rest_s: Floats
    way_s: Floats

    def __getitem__(self, rows: npt.NDArray[np.generic]) -> _Stages:
        return _Stages(*(getattr(self, name)[rows] for name in _Stages.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[_Stages]) -> _Stages:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


class _Look:
    """What both looks share: how beginnings are continued.

    Args:
        space: of splits.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
    """

    _back: bool
    """Whether splits begin with the last stage."""

    def __init__(self, space: Space, nodes: int, num_microbatches: int) -> None:
        self._space = space
        self._devices = nodes * space.per_node
        self._num = num_microbatches

    def _continued(
        self, used: Ints, layer: Ints, way_s: Floats, rest_s: Floats, weights: Floats, after: int, budget_s: float
    ) -> _Stages:
        """The stages, `after` others behind them, that no path is too long through.

        Args:
            used: of each beginning, devices before its boundary.
            layer: the boundary.
            way_s: of its stages.
            rest_s: for each boundary, the shortest way on.
            weights: of the paths, one a row.
            after: stages that follow.
            budget_s: for a path.
        """
        space, costs, back = self._space, self._space.ahead, self._back
        found = []
        for place, devices in enumerate(space.counts.tolist()):
            most = longest_range(costs.forward_s[place] + costs.backward_s[place], budget_s / self._num)
            beside = (
                (used - 1) % space.per_node + 1 - devices if back else space.per_node - used % space.per_node - devices
            )
            row = np.flatnonzero(beside >= 0)
            then = layer[row][:, None] + np.arange(1, most + 1) * (-1 if back else 1)
            inside = (then >= 0) & (then <= space.num_layers)
            row, then = row[np.nonzero(inside)[0]], then[inside]
            then_used = used[row] + (-devices if back else devices)
            start, end = (then, layer[row]) if back else (layer[row], then)
            rest = rest_s[then_used, then]
            keep = (rest < np.inf) & (costs.limit[place, start, end] >= after)
            row, then, then_used, start, end, rest = (
                column[keep] for column in (row, then, then_used, start, end, rest)
            )
            forward = costs.forward_s[place, end] - costs.forward_s[place, start]
            backward = costs.backward_s[place, end] - costs.backward_s[place, start]
            used_start, used_end = (then_used, used[row]) if back else (used[row], then_used)
            link = costs.link_s[(used_end % space.per_node != 0).astype(np.int64), end]
            if not space.overlap:
                forward = forward + link
                backward = backward + costs.link_s[(used_start % space.per_node != 0).astype(np.int64), start]
                link = np.zeros_like(link)
            before, behind = (rest, way_s[row] + 2.0 * link) if back else (way_s[row], rest)
            passes = np.ones(len(row), dtype=bool)
            for weight in weights:
                length = weight[0] * before + weight[1] * behind + weight[2] * forward + weight[3] * backward
                passes &= length + weight[4] * link <= budget_s
            way = way_s[row] + (forward + backward + 2.0 * link)
            stages = _Stages(row, then_used, then, np.full_like(row, devices), forward, backward, link, rest, way)
            found.append(stages[passes])
        return _Stages.joined(found)


@dataclass(frozen=True, slots=True)
class Branched:
    """What came of a look at branches.

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
    """One a row: the boundary before their first stage, their way, and the shortest way to the boundary; and of their
    stages, the first one first, what `_Stages` has: forward_s, backward_s, link_s, layer of the end, devices."""

    used: Ints
    layer: Ints
    way_s: Floats
    rest_s: Floats
    stages: Floats

    def __getitem__(self, rows: npt.NDArray[np.generic]) -> _Branches:
        return _Branches(self.used[rows], self.layer[rows], self.way_s[rows], self.rest_s[rows], self.stages[:, rows])

    def splits(self) -> list[Split]:
        ends, devices = self.stages[3:].astype(np.int64).tolist()
        return [tuple(zip(*stages, strict=True)) for stages in zip(ends, devices, strict=True)]


class Branches(_Look):
    """Branch and bound from the last stage to the first.

    Args:
        space: of splits.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        work: that this is part of.
    """

    _back = True

    def __init__(self, space: Space, nodes: int, num_microbatches: int, work: Work) -> None:
        super().__init__(space, nodes, num_microbatches)
        self._work = work
        self._fill_s = _slowest(space.ahead.forward_s, space, self._devices)
        self._drain_s = _slowest(space.ahead.backward_s, space, self._devices)
        layers = np.diff(space.ahead.forward_s + space.ahead.backward_s, axis=1).min(axis=0)
        self._layer_s = np.concatenate([[0.0], layers])

    def run(
        self, target_s: float, close: float, before: Sequence[Floats], stages: int | None, most_events: float
    ) -> Branched:
        """Look for splits; each one found lowers the target to its time divided by `close`.

        Args:
            target_s: longest step time.
            close: ratio.
            before: for each number of stages to go, the shortest ways to a boundary of splits that may pass.
            stages: of every split, if they have equally many.
            most_events: that are simulated.
        """
        last, layers = np.array([self._devices]), np.array([self._space.num_layers])
        branches = _Branches(last, layers, np.zeros(1), np.zeros(1), np.zeros((5, 1, 0)))
        passed: list[Split] = []
        certain, events, level = True, 0.0, most_events
        beam = _SHARE_OF_BEAM * most_events / len(before)
        for after in range(len(before) - 1):
            weights = path_weights(self._space.schedule, self._num, after, stages)
            each, row = 2.0 * self._num * (after + 1), _EVENTS_PER_ROW * self._width(target_s)
            if len(branches.used) > max(1, level / (each + row)):
                if certain and len(before) > _MOST_BEAM_LEVELS:
                    return Branched(tuple(passed), 0.0, events)
                certain, level = False, level if not certain else beam
                branches = self._likeliest(branches, level / (each + row))
            events += row * len(branches.used)
            branches = self._grown(branches, before[after + 1], weights, after, target_s * (1 + 1e-9))
            if not len(branches.used):
                break
            if len(branches.used) * each > level:
                certain, level = False, beam
                branches = self._likeliest(branches, level / each)
            events += each * len(branches.used)
            level = most_events - events if certain else level
            bounds = self._simulated(branches, after)
            reached = bounds <= target_s * (1 + 1e-9)
            whole = reached & (branches.used == 0) & (bounds <= target_s)
            for split, time_s in zip(branches[whole].splits(), bounds[whole].tolist(), strict=True):
                if time_s <= target_s:
                    passed.append(split)
                    target_s = min(target_s, time_s / close)
            branches = branches[(branches.used > 0) & (bounds <= target_s * (1 + 1e-9))]
        return Branched(tuple(passed), target_s if certain else 0.0, events)

    def _width(self, target_s: float) -> int:
        """Stages that a branch may be continued by, at most."""
        costs, most = self._space.ahead, target_s / self._num
        return sum(longest_range(f + b, most) for f, b in zip(costs.forward_s, costs.backward_s, strict=True))

    def _grown(self, branches: _Branches, rest_s: Floats, weights: Floats, after: int, budget_s: float) -> _Branches:
        """The branches with one more stage."""
        stages = self._continued(branches.used, branches.layer, branches.way_s, rest_s, weights, after, budget_s)
        columns = (stages.forward_s, stages.backward_s, stages.link_s, branches.layer[stages.row], stages.devices)
        joined = np.concatenate([np.stack(columns)[:, :, None], branches.stages[:, stages.row]], axis=2)
        return _Branches(stages.used, stages.layer, stages.way_s, stages.rest_s, joined)

    def _likeliest(self, branches: _Branches, most: float) -> _Branches:
        """So many, by a rough bound: the way there and back, and the slowest stage for the other microbatches."""
        slowest_s = (branches.stages[0] + branches.stages[1]).max(axis=1)
        least_s = branches.rest_s + branches.way_s + (self._num - 1) * slowest_s
        return branches[np.sort(np.argsort(least_s, kind="stable")[: max(1, int(most))])]

    def _simulated(self, branches: _Branches, after: int) -> Floats:
        space, schedule, at = self._space, self._space.schedule, (branches.used, branches.layer)
        near = space.ahead.link_s[(branches.used % space.per_node != 0).astype(np.int64), branches.layer]
        loop = self._layer_s[branches.layer] + (2.0 * near if space.overlap else 0.0)
        ahead = np.array([schedule.forwards_ahead(after - s, self._num) for s in range(after + 1)], dtype=np.int64)
        forward_s, backward_s, link_s = branches.stages[:3]
        bounds_s, clocks = np.empty(len(loop)), np.empty((3, after + 1))
        self._work.add(2.0 * forward_s.size * self._num / INTERPRETED_EVENTS_PER_S)
        BOUNDS.form(compiled=self._work.compiled)(
            forward_s, backward_s, link_s, ahead, self._num, self._fill_s[at], self._drain_s[at],
            np.where(branches.used > 0, loop, 0.0), schedule.forwards_ahead(after + 1, self._num), bounds_s, clocks,
            np.empty((after + 2) * self._num), np.empty(self._num),
        )  # fmt: skip
        return branches.rest_s + bounds_s


def _slowest(times_s: Floats, space: Space, devices: int) -> Floats:
    """For each state: on any way there some stage or, with overlap, some message takes at least as long."""
    costs = space.ahead
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


_PARENT, _WAY, _LENGTHS, _LAYER, _USED = 0, 1, slice(1, _REMEMBERED + 2), _REMEMBERED + 2, _REMEMBERED + 3
"""Columns of beginnings: the row of theirs without the last stage, or -1; their way, and how long their last 1, 2, ..
stages are; the boundary after them."""


class Stretches(_Look):
    """The paths of the planes and those over stretches of stages, from the first stage to the last."""

    _back = False

    def run(
        self, budget_s: float, behind: Sequence[Floats], stages: int | None, most_states: int
    ) -> tuple[bool, Split | None]:
        """Whether some split may pass, and one that does.

        Args:
            budget_s: that no path is longer than.
            behind: for each number of stages to go, the shortest ways to the end, seen from the end.
            stages: of every split, if they have equally many.
            most_states: beginnings with equally many stages to go, above which the look is given up, and refuses
                nothing.
        """
        empty = np.array([[-1.0, 0.0, *[-np.inf] * _REMEMBERED, 0.0, 0.0]])
        rows, levels = empty[:0], []
        for after in range(len(behind) - 2, -1, -1):
            if behind[after + 1][-1, -1] < np.inf:
                rows = np.vstack([rows, empty])
            levels.append(rows)
            weights = path_weights(self._space.schedule, self._num, after, stages)
            rows = self._grown(rows, behind[after][::-1, ::-1], weights, after, budget_s)
            if len(rows) > most_states:
                return True, None
        whole = np.flatnonzero((rows[:, _USED] == self._devices) & (rows[:, _LAYER] == self._space.num_layers))
        if not len(whole):
            return False, None
        row, split = rows[whole[rows[whole, _WAY].argmin()]], []
        while row[_PARENT] >= 0:
            before = levels.pop()[int(row[_PARENT])]
            split.append((int(row[_LAYER]), int(row[_USED] - before[_USED])))
            row = before
        return True, tuple(reversed(split))

    def _grown(self, rows: Floats, rest_s: Floats, weights: Floats, after: int, budget_s: float) -> Floats:
        """The beginnings with one more stage, without those that others at the same boundary are better than."""
        used, layer = (rows[:, column].astype(np.int64) for column in (_USED, _LAYER))
        stages = self._continued(used, layer, rows[:, _WAY], rest_s, weights, after, budget_s)
        stages = stages[self._stretches_pass(rows, stages, after, budget_s)]
        own = (stages.forward_s + stages.backward_s + 2.0 * stages.link_s)[:, None]
        lengths = np.hstack([own, rows[stages.row, _LENGTHS][:, 1:-1] + own])
        grain = _GRAIN * budget_s / self._num
        columns = (stages.row, stages.way_s, np.floor(lengths / grain) * grain, stages.layer, stages.used)
        rows = np.column_stack(columns)
        rows = rows[np.lexsort(rows.T)]
        rows = rows[_first(rows[:, _WAY + 1 :])]
        if not _first(rows[:, _LAYER:]).all():
            for column in range(_WAY, _LAYER):
                rows = _undominated(rows, column)
        return rows

    def _stretches_pass(self, rows: Floats, stages: _Stages, after: int, budget_s: float) -> npt.NDArray[np.bool_]:
        """The first and the last microbatch go down and back; between them, trips up over the last stages."""
        schedule, num = self._space.schedule, self._num
        ahead = schedule.forwards_ahead(after, num)
        passes = np.ones(len(stages.row), dtype=bool)
        room = num - 2 - ahead
        if schedule is ScheduleKind.GPIPE or room < 0:
            return passes
        there_and_back = rows[stages.row, _WAY] + 2.0 * stages.rest_s
        own = stages.forward_s + stages.backward_s
        for back in range(1, _REMEMBERED + 1):
            up = schedule.forwards_ahead(after + back, num) - ahead
            trips = (room + 1) // (up + 1)
            if trips > 0:
                length = there_and_back + (num - ahead - trips * up) * own + trips * rows[stages.row, _WAY + back]
                passes &= length <= budget_s
        return passes


def _first(rows: Floats) -> npt.NDArray[np.bool_]:
    """Which rows differ from the one before."""
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return first


def _undominated(rows: Floats, column: int) -> Floats:
    """Without the beginnings that are nowhere shorter than the first, by one of their lengths, at the same boundary."""
    rows = rows[np.lexsort((*rows[:, :_LAYER].T, rows[:, column], *rows[:, _LAYER:].T))]
    first = _first(rows[:, _LAYER:])
    best = rows[np.flatnonzero(first)[np.cumsum(first) - 1], _LENGTHS]
    return rows[first | (rows[:, _LENGTHS] < best).any(axis=1)]
