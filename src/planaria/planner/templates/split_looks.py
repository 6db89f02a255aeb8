"""Closer looks: whether some split has a step time of at most a target, stage by stage, all beginnings side by side.

A look continues the beginnings of splits by one stage at a time and keeps those that may pass. `Branches` begin with
the last stage, and are simulated whole, with less than what any stages before them do: the first microbatch comes after
the shortest way there, others no faster than the slowest forward or message on any way there lets them, a forward not
before the backward that its sender must do first, and the backwards leave no faster than the slowest backward or
message. `Stretches` begin with the first stage, and remember how long the last few stages are: a stage and the k before
it form a cycle, in which a backward goes up to the first of them and comes back as a forward. It takes k + 1
microbatches' worth of the schedule and holds two messages over each boundary inside, which slows 1F1B down where
messages take long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Work
from planaria.plan.costs.pipeline_time import Before, Floats, times_s
from planaria.plan.plan import ScheduleKind
from planaria.plan.thresholds import EVENTS_PER_ROW, MOST_BEAM_LEVELS, SHARE_OF_BEAM, STRETCH_GRAIN, STRETCH_STAGES
from planaria.planner.templates.split_dp import longest_range, path_weights
from planaria.planner.templates.splits import Space, Split

_PARENT, _WAY, _LAYER, _USED, _REST = range(5)
"""Columns of beginnings: the row without the newest stage, or -1; the path's length; the boundary they end at: the
layer after it and the devices before it; the shortest path from there on. More columns follow, see the looks."""
_STAGE = slice(5, 10)
"""Columns of the newest stage: its forward and backward, with messages where these occupy their sender; the message to
the next stage, where it occupies its link; the layer it ends before; its devices."""


class _Look:
    """Base of the closer looks: how beginnings of splits are continued.

    Args:
        space: the splits that are searched.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        back: whether splits begin with the last stage.
    """

    def __init__(self, space: Space, nodes: int, num_microbatches: int, *, back: bool) -> None:
        self._space = space
        self._devices = nodes * space.per_node
        self._num = num_microbatches
        self._back = back

    def _continued(self, rows: Floats, rest_s: Floats, weights: Floats, after: int, budget_s: float) -> Floats:
        """Returns the beginnings with one more stage where no path through it is too long; `_STAGE` is the last column.

        Args:
            rows: the beginnings, one a row.
            rest_s: for each boundary, by devices and layers before it, the shortest way on.
            weights: of the paths, one a row.
            after: stages that follow the new one.
            budget_s: the seconds that a path may take.
        """
        found = []
        for place in range(len(self._space.counts)):
            columns, before, behind = self._stages(rows, rest_s, place, after, budget_s)
            forward, backward, link = columns[5:8]
            passes = np.ones(len(forward), dtype=bool)
            for weight in weights:
                length = weight[0] * before + weight[1] * behind + weight[2] * forward + weight[3] * backward
                passes &= length + weight[4] * link <= budget_s
            found.append(np.column_stack([column[passes] for column in columns]))
        return np.concatenate(found)

    def _stages(
        self, rows: Floats, rest_s: Floats, place: int, after: int, budget_s: float
    ) -> tuple[list[npt.NDArray[np.generic]], Floats, Floats]:
        """Returns columns of beginnings with one more stage of one number of devices, and paths before and behind."""
        space, costs, sign = self._space, self._space.ahead, -1 if self._back else 1
        devices = int(space.counts[place])
        layer, used = rows[:, _LAYER].astype(np.int64), rows[:, _USED].astype(np.int64)
        in_node = (used - 1) % space.per_node + 1 if self._back else space.per_node - used % space.per_node
        parent = np.flatnonzero(in_node >= devices)
        most = longest_range(costs.forward_s[place] + costs.backward_s[place], budget_s / self._num)
        then = layer[parent][:, None] + sign * np.arange(1, most + 1)
        inside = (then >= 0) & (then <= space.num_layers)
        parent, then = parent[np.nonzero(inside)[0]], then[inside]
        rest = rest_s[used[parent] + sign * devices, then]
        start, end = (then, layer[parent]) if self._back else (layer[parent], then)
        keep = (rest < np.inf) & (costs.limit[place, start, end] >= after)
        parent, then, rest, start, end = parent[keep], then[keep], rest[keep], start[keep], end[keep]
        then_used = used[parent] + sign * devices
        first, last = (then_used, used[parent]) if self._back else (used[parent], then_used)
        forward = costs.forward_s[place, end] - costs.forward_s[place, start]
        backward = costs.backward_s[place, end] - costs.backward_s[place, start]
        link = costs.link_s[(last % space.per_node != 0).astype(np.int64), end]
        if not space.overlap:
            forward = forward + link
            backward = backward + costs.link_s[(first % space.per_node != 0).astype(np.int64), start]
            link = np.zeros_like(link)
        way = rows[parent, _WAY]
        ways = (rest, way + 2.0 * link) if self._back else (way, rest)
        way = way + (forward + backward + 2.0 * link)
        return [parent, way, then, then_used, rest, forward, backward, link, end, np.full_like(end, devices)], *ways


class Branches(_Look):
    """Branch and bound over splits; the columns of more stages follow those of the newest.

    Args:
        space: the splits that are searched.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        work: that this is part of.
    """

    def __init__(self, space: Space, nodes: int, num_microbatches: int, work: Work) -> None:
        super().__init__(space, nodes, num_microbatches, back=True)
        self._work = work
        self._fill_s = _slowest(space.ahead.forward_s, space, self._devices)
        self._drain_s = _slowest(space.ahead.backward_s, space, self._devices)
        layers = np.diff(space.ahead.forward_s + space.ahead.backward_s, axis=1).min(axis=0)
        self._layer_s = np.concatenate([[0.0], layers])

    def run(
        self, target_s: float, close: float, before: Sequence[Floats], stages: int | None, most_events: float
    ) -> tuple[list[Split], float, float]:
        """Looks for splits; each one found lowers the target to its time divided by `close`.

        Args:
            target_s: the longest step time that is accepted.
            close: ratio within which a split is good enough.
            before: for each number of stages to go, the shortest ways to a boundary of splits that may pass.
            stages: of every split, if they have equally many.
            most_events: most events that are simulated.

        Returns:
            Splits with a step time of at most the target, as far as it fell while they were found; a lower bound of all
            splits' step times, 0 where none is certain; and how many events were simulated.
        """
        rows = np.array([[-1.0, 0.0, self._space.num_layers, self._devices, 0.0]])
        passed: list[Split] = []
        certain, events, level = True, 0.0, most_events
        beam = SHARE_OF_BEAM * most_events / len(before)
        for after in range(len(before) - 1):
            weights = path_weights(self._space.schedule, self._num, after, stages)
            each, row = 2.0 * self._num * (after + 1), EVENTS_PER_ROW * self._width(target_s)
            if len(rows) > max(1, level / (each + row)):
                if certain and len(before) > MOST_BEAM_LEVELS:
                    return passed, 0.0, events
                certain, level = False, beam if certain else level
                rows = self._likeliest(rows, level / (each + row))
            events += row * len(rows)
            new = self._continued(rows, before[after + 1], weights, after, target_s * (1 + 1e-9))
            rows = np.hstack([new, rows[new[:, _PARENT].astype(np.int64), _STAGE.start :]])
            if not len(rows):
                break
            if len(rows) * each > level:
                certain, level = False, beam
                rows = self._likeliest(rows, level / each)
            events += each * len(rows)
            level = most_events - events if certain else level
            bounds = self._bounds_s(rows, after)
            for at in np.flatnonzero((rows[:, _USED] == 0) & (bounds <= target_s)):
                if bounds[at] <= target_s:
                    ends, devices = _chains(rows[at : at + 1])[3:, 0].astype(np.int64).tolist()
                    passed.append(tuple(zip(ends, devices, strict=True)))
                    target_s = min(target_s, float(bounds[at]) / close)
            rows = rows[(rows[:, _USED] > 0) & (bounds <= target_s * (1 + 1e-9))]
        return passed, target_s if certain else 0.0, events

    def _width(self, target_s: float) -> int:
        """Returns the most stages that a branch may be continued by."""
        costs, most = self._space.ahead, target_s / self._num
        return sum(longest_range(f + b, most) for f, b in zip(costs.forward_s, costs.backward_s, strict=True))

    def _likeliest(self, rows: Floats, most: float) -> Floats:
        """Returns the likeliest rows, by a rough bound: path there and back, slowest stage for other microbatches."""
        forward_s, backward_s = _chains(rows)[:2]
        least_s = rows[:, _REST] + rows[:, _WAY] + (self._num - 1) * (forward_s + backward_s).max(axis=1)
        return rows[np.argsort(least_s, kind="stable")[: max(1, int(most))]]

    def _bounds_s(self, rows: Floats, after: int) -> Floats:
        space, layer, used = self._space, rows[:, _LAYER].astype(np.int64), rows[:, _USED].astype(np.int64)
        near_s = space.ahead.link_s[(used % space.per_node != 0).astype(np.int64), layer]
        loop_s = np.where(used > 0, self._layer_s[layer] + (2.0 * near_s if space.overlap else 0.0), 0.0)
        lead = space.schedule.forwards_ahead(after + 1, self._num)
        before = Before(self._fill_s[used, layer], self._drain_s[used, layer], loop_s, lead)
        forward_s, backward_s, link_s = _chains(rows)[:3]
        times = times_s(forward_s, backward_s, link_s[:, :-1], self._num, space.schedule, self._work, before)
        return rows[:, _REST] + times


def _chains(rows: Floats) -> Floats:
    """Returns the columns of all stages: what `_STAGE` is, by branch, by stage."""
    return np.ascontiguousarray(rows[:, _STAGE.start :].reshape(len(rows), -1, 5).transpose(2, 0, 1))


def _slowest(times_s: Floats, space: Space, devices: int) -> Floats:
    """Returns, for each state, what some stage or, with overlap, some message takes at least on any path there."""
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
            plane[then] = np.maximum(plane[then], space.ahead.link_s[int(then % space.per_node != 0)])
    return plane


class Stretches(_Look):
    """Closer look at the paths of the planes and those over stretches of stages. How long the last 1, 2, .. stages are,
    and nothing of the newest stage, is in the last columns."""

    def __init__(self, space: Space, nodes: int, num_microbatches: int) -> None:
        """Prepares the look; arguments as of `Branches`."""
        super().__init__(space, nodes, num_microbatches, back=False)

    def run(
        self, budget_s: float, behind: Sequence[Floats], stages: int | None, most_states: int
    ) -> tuple[bool, Split | None]:
        """Returns whether some split may pass, and one that does.

        Args:
            budget_s: that no path is longer than.
            behind: for each number of stages to go, the shortest ways to the end, seen from the end.
            stages: of every split, if they have equally many.
            most_states: beginnings with equally many stages to go, above which the look is given up, and refuses none.
        """
        empty = np.array([[-1.0, 0.0, 0.0, 0.0, 0.0, *[-np.inf] * STRETCH_STAGES]])
        rows, levels = empty[:0], []
        for after in range(len(behind) - 2, -1, -1):
            if behind[after + 1][-1, -1] < np.inf:
                rows = np.vstack([rows, empty])
            levels.append(rows)
            weights = path_weights(self._space.schedule, self._num, after, stages)
            new = self._continued(rows, behind[after][::-1, ::-1], weights, after, budget_s)
            rows = self._distinct(rows, new, after, budget_s)
            if len(rows) > most_states:
                return True, None
        whole = rows[(rows[:, _USED] == self._devices) & (rows[:, _LAYER] == self._space.num_layers)]
        if not len(whole):
            return False, None
        row, split = whole[whole[:, _WAY].argmin()], []
        while row[_PARENT] >= 0:
            before = levels.pop()[int(row[_PARENT])]
            split.append((int(row[_LAYER]), int(row[_USED] - before[_USED])))
            row = before
        return True, tuple(reversed(split))

    def _distinct(self, rows: Floats, new: Floats, after: int, budget_s: float) -> Floats:
        """Returns the beginnings with one more stage that pass, without those than which another one is better."""
        forward_s, backward_s, link_s = new[:, _STAGE].T[:3]
        own = forward_s + backward_s + 2.0 * link_s
        stretch = rows[new[:, _PARENT].astype(np.int64), _STAGE.start :]
        passes = self._stretches_pass(rows, new, stretch, after, budget_s)
        grain = STRETCH_GRAIN * budget_s / self._num
        longer = np.column_stack([own, stretch[:, :-1] + own[:, None]])
        rows = np.hstack([new[:, : _STAGE.start], np.floor(longer / grain) * grain])[passes]
        rows = rows[np.lexsort((rows[:, _PARENT], *rows[:, _LENGTHS].T, rows[:, _LAYER], rows[:, _USED]))]
        rows = rows[_first(rows[:, [_USED, _LAYER, *_LENGTHS[1:]]])]
        if not _first(rows[:, [_USED, _LAYER]]).all():
            for column in _LENGTHS:
                rows = _undominated(rows, column)
        return rows

    def _stretches_pass(
        self, rows: Floats, new: Floats, stretch: Floats, after: int, budget_s: float
    ) -> npt.NDArray[np.bool_]:
        """Returns which rows pass the paths whose trips between first and last microbatch go up the last stages."""
        schedule, num = self._space.schedule, self._num
        ahead = schedule.forwards_ahead(after, num)
        passes = np.ones(len(new), dtype=bool)
        room = num - 2 - ahead
        if schedule is ScheduleKind.GPIPE or room < 0:
            return passes
        ways = rows[new[:, _PARENT].astype(np.int64), _WAY] + 2.0 * new[:, _REST]
        own = new[:, _STAGE.start] + new[:, _STAGE.start + 1]
        for back in range(STRETCH_STAGES):
            up = schedule.forwards_ahead(after + 1 + back, num) - ahead
            trips = (room + 1) // (up + 1)
            if trips > 0:
                passes &= ways + (num - ahead - trips * up) * own + trips * stretch[:, back] <= budget_s
        return passes


_LENGTHS = [_WAY, *range(_STAGE.start, _STAGE.start + STRETCH_STAGES)]
"""Columns of a beginning's path length and of its stretches."""


def _first(rows: Floats) -> npt.NDArray[np.bool_]:
    """Returns which rows differ from the one before."""
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return first


def _undominated(rows: Floats, column: int) -> Floats:
    """Returns the beginnings without those that are in no length shorter than the first at the same boundary."""
    keys = (rows[:, _PARENT], *rows[:, _LENGTHS].T, rows[:, column], rows[:, _LAYER], rows[:, _USED])
    rows = rows[np.lexsort(keys)]
    first = _first(rows[:, [_USED, _LAYER]])
    best = rows[np.flatnonzero(first)[np.cumsum(first) - 1]]
    better = (rows[:, _LENGTHS] < best[:, _LENGTHS]).any(axis=1)
    return np.asarray(rows[first | better])
