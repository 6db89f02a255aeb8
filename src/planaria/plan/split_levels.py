"""The two inner loops of the searches over splits, compiled and plain. Planes are (devices used + 1) x (layers + 1).

`advance`: from all splits of the first i stages to those of the first i + 1, keeping for each state the shortest way,
under the condition that no path through the stage is longer than a budget. `relax`: the shortest ways of any number of
stages, each counted as `slope * compute + constant_s` and `share` messages over the boundary at its end, whose period
(compute and `charge` messages over either boundary) is above `above_s` and at most `cap_s`. `after` is how many
stages follow at least, for the stages' memory; where it is negative, the ways are themselves numbers of stages.

Both write, for each state that they improve, the stage that leads there as `start layer * MAX_COUNTS + place of the
device count`. Among equal ways the first is kept, in the same order in both forms.
"""

from __future__ import annotations

import numpy as np

from planaria.plan.chain import Floats, Ints
from planaria.plan.compiled import Kernel

MAX_COUNTS = 64
"""Different numbers of devices of a stage, at most."""


def _advance_loops(
    source: Floats,
    target: Floats,
    parent: Ints,
    other: Floats,
    forward_s: Floats,
    backward_s: Floats,
    link_s: Floats,
    limit: Ints,
    counts: Ints,
    weights: Floats,
    per_node: int,
    after: int,
    back: bool,
    overlap: bool,
    budget_s: float,
) -> None:
    """Numba's form of `advance`."""
    rows, columns = source.shape
    passes = weights[0, 2]
    for used in range(rows):
        for start in range(columns):
            here = source[used, start]
            if here == np.inf:
                continue
            near = link_s[1 if used % per_node != 0 else 0, start]
            for place in range(len(counts)):
                devices = counts[place]
                if used % per_node + devices > per_node:
                    break
                then = used + devices
                for end in range(start + 1, columns):
                    forward = forward_s[place, end] - forward_s[place, start]
                    backward = backward_s[place, end] - backward_s[place, start]
                    if (0.0 if back else here) + passes * (forward + backward) > budget_s:
                        break
                    if after > limit[place, start, end]:
                        break
                    there = other[then, end]
                    if there == np.inf:
                        continue
                    far = link_s[1 if then % per_node != 0 else 0, end]
                    link = far
                    if not overlap:
                        forward += near if back else far
                        backward += far if back else near
                        link = 0.0
                    before = there if back else here
                    behind = here if back else there
                    fits = True
                    for w in range(len(weights)):
                        length = weights[w, 0] * before + weights[w, 1] * behind
                        length += weights[w, 2] * forward + weights[w, 3] * backward
                        if length + weights[w, 4] * link > budget_s:
                            fits = False
                            break
                    if not fits:
                        continue
                    way = here + (forward + backward) + 2.0 * link
                    if way < target[then, end]:
                        target[then, end] = way
                        parent[then, end] = start * MAX_COUNTS + place


def _advance_arrays(
    source: Floats,
    target: Floats,
    parent: Ints,
    other: Floats,
    forward_s: Floats,
    backward_s: Floats,
    link_s: Floats,
    limit: Ints,
    counts: Ints,
    weights: Floats,
    per_node: int,
    after: int,
    back: bool,
    overlap: bool,
    budget_s: float,
) -> None:
    """The plain form of `advance`: every state and every layer count of one device count at a time."""
    states = np.argwhere(source < np.inf)
    if not len(states):
        return
    columns = source.shape[1]
    ways, targets, parents, orders = [], [], [], []
    for place, devices in enumerate(counts.tolist()):
        used, start = states[states[:, 0] % per_node + devices <= per_node].T
        if not len(used):
            break
        width = longest_range(forward_s[place] + backward_s[place], budget_s / weights[0, 2])
        end = start[:, None] + np.arange(1, width + 1)
        at = np.flatnonzero((end < columns).ravel())
        row, end = at // max(width, 1), end.ravel()[at]
        used, start = used[row], start[row]
        then = used + devices
        here, there = source[used, start], other[then, end]
        forward = forward_s[place, end] - forward_s[place, start]
        backward = backward_s[place, end] - backward_s[place, start]
        keep = (there < np.inf) & (after <= limit[place, start, end])
        keep &= (0.0 if back else here) + weights[0, 2] * (forward + backward) <= budget_s
        used, start, end, then = used[keep], start[keep], end[keep], then[keep]
        here, there, forward, backward = here[keep], there[keep], forward[keep], backward[keep]
        link = far = link_s[(then % per_node != 0).astype(np.int64), end]
        if not overlap:
            near = link_s[(used % per_node != 0).astype(np.int64), start]
            forward = forward + (near if back else far)
            backward = backward + (far if back else near)
            link = np.zeros_like(far)
        before, behind = (there, here) if back else (here, there)
        fits = np.ones(len(here), dtype=bool)
        for weight in weights:
            length = weight[0] * before + weight[1] * behind
            length += weight[2] * forward + weight[3] * backward
            fits &= ~(length + weight[4] * link > budget_s)
        way = here + (forward + backward) + 2.0 * link
        ways.append(way[fits])
        targets.append((then * columns + end)[fits])
        parents.append((start * MAX_COUNTS + place)[fits])
        orders.append(((used * columns + start) * MAX_COUNTS + place)[fits])
    way, to, by = np.concatenate(ways), np.concatenate(targets), np.concatenate(parents)
    order = np.lexsort((np.concatenate(orders), way, to))
    way, to, by = way[order], to[order], by[order]
    first = np.ones(len(to), dtype=bool)
    first[1:] = to[1:] != to[:-1]
    way, to, by = way[first], to[first], by[first]
    better = way < target.ravel()[to]
    target.ravel()[to[better]] = way[better]
    parent.ravel()[to[better]] = by[better]


def longest_range(prefix: Floats, most_s: float) -> int:
    """Layers of the longest range that takes at most `most_s`."""
    ends = np.searchsorted(prefix, prefix + most_s * (1 + 1e-9), side="right") - 1
    return int(np.max(ends - np.arange(len(prefix))))


def _relax_loops(
    source: Floats,
    target: Floats,
    parent: Ints,
    forward_s: Floats,
    backward_s: Floats,
    link_s: Floats,
    limit: Ints,
    counts: Ints,
    per_node: int,
    slope: float,
    constant_s: float,
    share: float,
    charge: float,
    above_s: float,
    cap_s: float,
    after: int,
    tag: int,
) -> None:
    """Numba's form of `relax`."""
    rows, columns = source.shape
    for then in range(1, rows):
        inside = (then - 1) % per_node + 1
        for end in range(1, columns):
            far = link_s[1 if then % per_node != 0 else 0, end]
            best = target[then, end]
            by = -1
            for place in range(len(counts)):
                devices = counts[place]
                if devices > inside:
                    break
                used = then - devices
                for start in range(end - 1, -1, -1):
                    forward = forward_s[place, end] - forward_s[place, start]
                    compute = forward + (backward_s[place, end] - backward_s[place, start])
                    if compute > cap_s:
                        break
                    most = limit[place, start, end]
                    if after > most or most < 0:
                        break
                    here = source[used, start]
                    if here == np.inf or (after < 0 and here > most):
                        continue
                    near = link_s[1 if used % per_node != 0 else 0, start]
                    period = compute + charge * (near + far)
                    if period > cap_s or period <= above_s:
                        continue
                    way = here + (slope * compute + constant_s) + share * far
                    if way < best:
                        best = way
                        by = (start * MAX_COUNTS + place) * 2 + tag
            if by >= 0:
                target[then, end] = best
                parent[then, end] = by


def _relax_arrays(
    source: Floats,
    target: Floats,
    parent: Ints,
    forward_s: Floats,
    backward_s: Floats,
    link_s: Floats,
    limit: Ints,
    counts: Ints,
    per_node: int,
    slope: float,
    constant_s: float,
    share: float,
    charge: float,
    above_s: float,
    cap_s: float,
    after: int,
    tag: int,
) -> None:
    """The plain form of `relax`: all layers of one row at a time."""
    rows, columns = source.shape
    width = max(longest_range(forward_s[place] + backward_s[place], cap_s) for place in range(len(counts)))
    end = np.arange(columns)[:, None]
    start = end - np.arange(1, width + 1)
    valid, start = start >= 0, np.maximum(start, 0)
    forward = forward_s[:, end] - forward_s[:, start]
    compute = forward + (backward_s[:, end] - backward_s[:, start])
    most = limit[:, start, end]
    allowed = valid & (compute <= cap_s) & (most >= max(after, 0))
    nothing = np.full((columns, width), np.inf)
    for then in range(1, rows):
        inside = (then - 1) % per_node + 1
        far = link_s[int(then % per_node != 0)][:, None]
        ways = []
        for place, devices in enumerate(counts[counts <= inside].tolist()):
            here = source[then - devices]
            if not (here < np.inf).any():
                ways.append(nothing)
                continue
            near = link_s[int((then - devices) % per_node != 0)][start]
            period = compute[place] + charge * (near + far)
            way = here[start] + (slope * compute[place] + constant_s) + share * far
            keep = allowed[place] & (period <= cap_s) & (period > above_s)
            if after < 0:
                keep &= here[start] <= most[place]
            ways.append(np.where(keep, way, np.inf))
        if not ways or not width:
            continue
        way = np.concatenate(ways, axis=1)
        best = way.argmin(axis=1)
        least = way[np.arange(columns), best]
        better = least < target[then]
        place, first = np.divmod(best, width)
        target[then][better] = least[better]
        parent[then][better] = ((np.arange(columns) - 1 - first) * MAX_COUNTS + place)[better] * 2 + tag


ADVANCE = Kernel(_advance_loops, _advance_arrays)
RELAX = Kernel(_relax_loops, _relax_arrays)
