"""Shortest paths through the states (devices used, layers done) of a space of splits, and the bounds that they give.

The step time is the longest path of the graph of a step's events, so every path is a lower bound. The paths used here
stay on one stage except for whole trips: down to the last stage and back (a dip, between a microbatch's forward and its
backward), and up to the first stage and back (from a backward to the forward that follows it there). Their lengths are

    w0 * before + w1 * after + w2 * forward + w3 * backward + w4 * link

with `before` the stages before this one, each with its two messages to the next, `after` those after it, `forward` and
`backward` the stage's own, and `link` the message to the next stage. All weights are non-negative, which is what lets a
search keep only the smallest `before` and `after`.

A plane is (devices used + 1) x (layers + 1): for every state the length of the shortest path to it, and infinity where
there is none. `advance` goes from all splits of the first i stages to those of the first i + 1, under the condition
that no path through the stage is longer than a budget. `relax` finds the shortest ways of any number of stages, each
counted as `slope * compute + constant_s` and `share` messages over the boundary at its end, whose period (compute and
`charge` messages over either boundary) is above `above_s` and at most `cap_s`. `after` is how many stages follow at
least, for the stages' memory; where it is negative, the ways are themselves numbers of stages. Both write, for each
state that they improve, the stage that leads there as `start layer * MAX_COUNTS + place of the device count` (`relax`
twice that, and a tag). Among equal ways the first is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from planaria.plan.compiled import Kernel, Numbers, Work
from planaria.plan.costs.pipeline_time import Floats, Ints
from planaria.plan.plan import ScheduleKind
from planaria.plan.thresholds import INTERPRETED_STAGES_PER_S, MAX_COUNTS
from planaria.planner.templates.splits import PrefixCosts, Space, Split


def _advance(
    source: Numbers, target: Numbers, parent: Numbers, other: Numbers, forward_s: Numbers, backward_s: Numbers,
    link_s: Numbers, limit: Numbers, counts: Numbers, weights: Numbers, per_node: int, after: int, back: bool,
    overlap: bool, budget_s: float,
) -> int:  # fmt: skip
    """Advances splits by a stage. `weights`: of the paths, one a column. `other`: shortest paths from each state.

    Returns:
        How many stages were looked at.
    """
    columns, passes = len(source[0]), weights[2][0]
    looked = 0
    by_before, by_behind, by_forward, by_backward, by_link = weights[0], weights[1], weights[2], weights[3], weights[4]
    for used in range(len(source) - 1):
        here_s, near_s = source[used], link_s[1 if used % per_node != 0 else 0]
        for place in range(len(counts)):
            if used % per_node + counts[place] > per_node:
                break
            then = used + counts[place]
            there_s, far_s = other[then], link_s[1 if then % per_node != 0 else 0]
            forwards_s, backwards_s, limits = forward_s[place], backward_s[place], limit[place]
            targets_s, parents = target[then], parent[then]
            for start in range(columns - 1):
                here = here_s[start]
                if here == np.inf:
                    continue
                row, end = start * columns, start
                for end in range(start + 1, columns):
                    forward = forwards_s[end] - forwards_s[start]
                    backward = backwards_s[end] - backwards_s[start]
                    if (0.0 if back else here) + passes * (forward + backward) > budget_s or after > limits[row + end]:
                        break
                    there = there_s[end]
                    if there == np.inf:
                        continue
                    link = far_s[end]
                    if not overlap:
                        forward += near_s[start] if back else far_s[end]
                        backward += far_s[end] if back else near_s[start]
                        link = 0.0
                    before, behind = (there, here) if back else (here, there)
                    fits = True
                    for w in range(len(by_link)):
                        length = by_before[w] * before + by_behind[w] * behind
                        length += by_forward[w] * forward + by_backward[w] * backward
                        if length + by_link[w] * link > budget_s:
                            fits = False
                            break
                    way = here + (forward + backward) + 2.0 * link
                    if fits and way < targets_s[end]:
                        targets_s[end] = way
                        parents[end] = start * MAX_COUNTS + place
                looked += end - start
    return looked


def _relax(
    source: Numbers, target: Numbers, parent: Numbers, forward_s: Numbers, backward_s: Numbers, link_s: Numbers,
    limit_to: Numbers, counts: Numbers, per_node: int, slope: float, constant_s: float, share: float, charge: float,
    above_s: float, cap_s: float, after: int, tag: int,
) -> int:  # fmt: skip
    """Finds shortest paths. `source` may be `target`. `tag`: the lowest bit of what is written to `parent`.

    Returns:
        How many stages were looked at.
    """
    columns, looked = len(source[0]), 0
    for then in range(1, len(source)):
        far_s, targets_s, parents = link_s[1 if then % per_node != 0 else 0], target[then], parent[then]
        for place in range(len(counts)):
            if counts[place] > (then - 1) % per_node + 1:
                break
            used = then - counts[place]
            here_s, near_s = source[used], link_s[1 if used % per_node != 0 else 0]
            forwards_s, backwards_s, limits = forward_s[place], backward_s[place], limit_to[place]
            for end in range(1, columns):
                far, best, by = far_s[end], targets_s[end], -1
                row, start = end * columns, end
                for start in range(end - 1, -1, -1):
                    forward = forwards_s[end] - forwards_s[start]
                    compute = forward + (backwards_s[end] - backwards_s[start])
                    if compute > cap_s:
                        break
                    most = limits[row + start]
                    if after > most or most < 0:
                        break
                    here = here_s[start]
                    if here == np.inf or (after < 0 and here > most):
                        continue
                    period = compute + charge * (near_s[start] + far)
                    if period > cap_s or period <= above_s:
                        continue
                    way = here + (slope * compute + constant_s) + share * far
                    if way < best:
                        best, by = way, start
                if by >= 0:
                    targets_s[end] = best
                    parents[end] = (by * MAX_COUNTS + place) * 2 + tag
                looked += end - start
    return looked


def longest_range(prefix: Floats, most_s: float) -> int:
    """Returns the number of layers of the longest range that takes at most `most_s`."""
    ends = np.searchsorted(prefix, prefix + most_s * (1 + 1e-9), side="right") - 1
    return int(np.max(ends - np.arange(len(prefix))))


ADVANCE = Kernel(_advance, writes=(1, 2))
RELAX = Kernel(_relax, writes=(1, 2))


@lru_cache(maxsize=4096)
def path_weights(schedule: ScheduleKind, num_microbatches: int, after: int | None, stages: int | None) -> Floats:
    """Returns the weights of every path, one a row.

    A stage runs g forwards ahead. Its order is F_0 .. F_g-1, then F_g+t B_t in turn, then the other backwards.

    - No trip: all forwards and backwards in turn.
    - One dip, of the first microbatch (it spares the g forwards meanwhile) or of the last (g backwards).
    - Both, and between them trips down, each of which replaces g forwards and g backwards and takes g + 1
      microbatches, and trips up, each of which replaces as many as the first stage runs further ahead, and takes one
      microbatch more.
    - The link: all messages one after another, between the way there and the way back.

    Args:
        schedule: order of forwards and backwards.
        num_microbatches: m: microbatches in a step.
        after: stages after this one; None: not known.
        stages: of the pipeline; None: not known.
    """
    m = num_microbatches
    if schedule is ScheduleKind.GPIPE:
        return np.array([[1.0, 0, m, m, 0], [1, 1, m, m, 0], [1, 1, 1, 1, 2 * (m - 1)]])
    ahead = m if after is None else schedule.forwards_ahead(after, m)
    most = ahead if stages is None else schedule.forwards_ahead(stages - 1, m)
    spared = min(ahead, m - 1)
    rows = [[1, 0, m, m, 0], [1, 1, m - spared, m, 0], [1, 1, m, m - spared, 0], [1, 1, 1, 1, m - 1]]
    for down, up in sorted(_trips(m, ahead, most)):
        own = m - ahead - down * ahead - up * (most - ahead)
        rows.append([1 + up, 2 + down, own, own, 0])
    return np.array(rows, dtype=np.float64)


def _trips(m: int, ahead: int, most: int) -> set[tuple[int, int]]:
    """Returns how many trips down and up fit between the first microbatch's backward and the last's forward."""
    room, up = m - 2 - ahead, most - ahead
    if room < 0:
        return set()
    trips = {(0, 0), (room // (ahead + 1), 0)}
    if up:
        trips.add((0, (room + 1) // (up + 1)))
        both, rest = divmod(room, most + 1)
        trips |= {(both + rest // (ahead + 1), both), (both, both + (rest + 1) // (up + 1))}
    return trips


def bounds_s(
    forward_s: Floats, backward_s: Floats, link_s: Floats, num_microbatches: int, schedule: ScheduleKind
) -> Floats:
    """Returns the least seconds that chains with equally many stages, one a row, take: their longest paths.

    Arguments as `planaria.plan.costs.pipeline_time.times_s`. Sums are rounded otherwise than there.
    """
    stages = forward_s.shape[1]
    weights = _weights(schedule, num_microbatches, stages)
    nothing = np.zeros((len(forward_s), 1))
    both = forward_s + backward_s
    before = np.hstack([nothing, np.cumsum(both[:, :-1] + 2 * link_s, axis=1)])
    after = np.hstack([np.cumsum((both[:, 1:] + 2 * link_s)[:, ::-1], axis=1)[:, ::-1], nothing])
    lengths = np.stack([before, after, forward_s, backward_s, np.hstack([link_s, nothing])], axis=2)
    longest: Floats = (lengths.transpose(1, 0, 2) @ weights).max(axis=(0, 2))
    return longest


@lru_cache(maxsize=64)
def _weights(schedule: ScheduleKind, num_microbatches: int, stages: int) -> Floats:
    """Returns the weights of all paths through each stage, one a column; stages with fewer have one several times."""
    rows = [path_weights(schedule, num_microbatches, stages - 1 - place, stages) for place in range(stages)]
    most = max(map(len, rows))
    return np.stack([np.resize(row, (most, row.shape[1])).T for row in rows])


class DpTables:
    """Shortest-path tables of the splits over all devices of some nodes.

    Args:
        space: the splits that are searched.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        work: that this is part of.
    """

    def __init__(self, space: Space, nodes: int, num_microbatches: int, work: Work) -> None:
        self._space = space
        self._num = num_microbatches
        self._shape = (nodes * space.per_node + 1, space.num_layers + 1)
        self._stages = nodes * space.per_node if space.counts.tolist() == [1] else None
        self._work = work

    def _plane(self) -> Floats:
        plane = np.full(self._shape, np.inf)
        plane[0, 0] = 0.0
        return plane

    def relaxed(
        self, costs: PrefixCosts, *, slope: float = 1.0, constant_s: float = 0.0, share: float = 2.0,
        charge: float = 0.0, cap_s: float = np.inf, after: int = 0,
    ) -> tuple[Floats, Ints]:  # fmt: skip
        plane, parent = self._plane(), np.zeros(self._shape, dtype=np.int64)
        compiled = self._work.compiled
        forward_s, backward_s, link_s, _, limit_to = costs.tables(compiled=compiled)
        looked = RELAX.form(compiled=compiled)(
            plane, plane, parent, forward_s, backward_s, link_s, limit_to, self._space.counts, self._space.per_node,
            slope, constant_s, share, charge, -1.0, cap_s, after, 0,
        )  # fmt: skip
        self._work.add(looked / INTERPRETED_STAGES_PER_S)
        return plane, parent

    def fewest_stages(self) -> Split | None:
        """Returns a split that fits, if any does: one with the fewest stages, as stages that follow only add memory."""
        costs = self._space.back
        plane, parent = self.relaxed(costs, slope=0.0, constant_s=1.0, share=0.0, after=-1)
        return self._walk_back(parent) if plane[-1, -1] < np.inf else None

    def shortest(self, cap_s: float, hidden: bool) -> Split | None:
        """Returns the split with the shortest path under a period bound; of memory it knows what stages always need."""
        plane, parent = self.relaxed(self._space.ahead, charge=0.0 if hidden else 1.0, cap_s=cap_s)
        if plane[-1, -1] == np.inf:
            return None
        return tuple(reversed([(end, devices) for _, end, devices in self._stages_on_the_way(parent)]))

    def _walk_back(self, parent: Ints) -> Split:
        layers = self._space.num_layers
        return tuple((layers - start, devices) for start, _, devices in self._stages_on_the_way(parent))

    def _stages_on_the_way(self, parent: Ints) -> Iterator[tuple[int, int, int]]:
        """Yields start, end and devices of the stages that lead to the last state, the last one first."""
        used, end = self._shape[0] - 1, self._shape[1] - 1
        while used:
            start, place = divmod(int(parent[used, end]) // 2, MAX_COUNTS)
            devices = int(self._space.counts[place])
            yield start, end, devices
            used, end = used - devices, start

    def ways(self, costs: PrefixCosts, cap_s: float) -> Floats:
        """Returns the shortest paths to each state, of any number of stages that take at most `cap_s`."""
        plane, _ = self.relaxed(costs, cap_s=cap_s)
        if not self._space.overlap:
            # Of the two messages over a state's boundary, one is charged to the stage on its other side.
            within = (np.arange(len(plane)) % self._space.per_node != 0).astype(np.int64)
            plane = plane - costs.link_s[within]
        return plane

    def behind(self, budget_s: float, before: Sequence[Floats]) -> list[Floats]:
        """Returns, by number of stages to go, the shortest paths from a state to the end, seen from the end.

        Args:
            budget_s: that no path through a stage passes.
            before: the shortest ways to each state, by the number of stages to go; or one for any number.
        """
        planes = [self._plane()]
        parent = np.zeros(self._shape, dtype=np.int64)
        most = min(self._shape[0] - 1, self._space.num_layers) if len(before) == 1 else len(before) - 1
        other = np.ascontiguousarray(before[-1][::-1, ::-1])
        for after in range(most):
            weights = path_weights(self._space.schedule, self._num, after, self._stages)
            plane = np.full(self._shape, np.inf)
            if len(before) > 1:
                other = np.ascontiguousarray(before[after + 1][::-1, ::-1])
            self._step(planes[-1], plane, parent, other, self._space.back, weights, after, True, budget_s)
            if not (plane < np.inf).any():
                break
            planes.append(plane)
        return planes

    def before(self, budget_s: float, behind: Sequence[Floats]) -> tuple[list[Floats], Split | None]:
        """Returns the counterpart of `behind`, and the split that passes with the shortest path, if one does."""
        planes, parents = [np.full(self._shape, np.inf)], []
        for after in range(len(behind) - 2, -1, -1):
            if behind[after + 1][-1, -1] < np.inf:
                planes[-1][0, 0] = 0.0
            weights = path_weights(self._space.schedule, self._num, after, self._stages)
            plane, parent = np.full(self._shape, np.inf), np.zeros(self._shape, dtype=np.int64)
            other = np.ascontiguousarray(behind[after][::-1, ::-1])
            self._step(planes[-1], plane, parent, other, self._space.ahead, weights, after, False, budget_s)
            planes.append(plane)
            parents.append(parent)
        if planes[-1][-1, -1] == np.inf:
            return planes, None
        used, end = self._shape[0] - 1, self._shape[1] - 1
        found = []
        for parent in reversed(parents):
            if not used:
                break
            start, place = divmod(int(parent[used, end]), MAX_COUNTS)
            found.append((end, int(self._space.counts[place])))
            used, end = used - found[-1][1], start
        return planes[::-1], tuple(reversed(found))

    def _step(
        self, source: Floats, target: Floats, parent: Ints, other: Floats, costs: PrefixCosts, weights: Floats,
        after: int, back: bool, budget_s: float,
    ) -> None:  # fmt: skip
        compiled = self._work.compiled
        forward_s, backward_s, link_s, limit, _ = costs.tables(compiled=compiled)
        looked = ADVANCE.form(compiled=compiled)(
            source, target, parent, other, forward_s, backward_s, link_s, limit, self._space.counts,
            np.ascontiguousarray(weights.T), self._space.per_node, after, back, self._space.overlap, budget_s,
        )  # fmt: skip
        self._work.add(looked / INTERPRETED_STAGES_PER_S)


def fewest_stages(space: Space, nodes: int, work: Work) -> Floats:
    """Returns, for each number of nodes up to `nodes`, the fewest stages of a split that fits; infinite: none."""
    planes = DpTables(space, nodes, 1, work)
    plane, _ = planes.relaxed(space.back, slope=0.0, constant_s=1.0, share=0.0, after=-1)
    return plane[:: space.per_node, -1]


def expected_s(space: Space, nodes: int, num_microbatches: int) -> float:
    """Returns the rough seconds of an interpreted search: for its states, and for what is simulated for them."""
    devices = nodes * space.per_node
    state_s = 1e-5 if space.counts.tolist() == [1] else 2.5e-5
    return (state_s * space.num_layers + 7e-7 * num_microbatches) * devices * min(space.num_layers, devices)
