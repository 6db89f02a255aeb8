"""The two inner loops of the searches over splits. Planes are (devices used + 1) x (layers + 1).

`advance`: from all splits of the first i stages to those of the first i + 1, keeping for each state the shortest way,
under the condition that no path through the stage is longer than a budget. `relax`: the shortest ways of any number of
stages, each counted as `slope * compute + constant_s` and `share` messages over the boundary at its end, whose period
(compute and `charge` messages over either boundary) is above `above_s` and at most `cap_s`. `after` is how many
stages follow at least, for the stages' memory; where it is negative, the ways are themselves numbers of stages.

Both write, for each state that they improve, the stage that leads there as `start layer * MAX_COUNTS + place of the
device count`. Among equal ways the first is kept.
"""

from __future__ import annotations

import numpy as np

from planaria.plan.chain import Floats
from planaria.plan.compiled import Kernel, Numbers

STAGES_PER_S = 2e6
"""That are looked at, interpreted."""
MAX_COUNTS = 64
"""Different numbers of devices of a stage, at most."""


def _advance(
    source: Numbers, target: Numbers, parent: Numbers, other: Numbers, forward_s: Numbers, backward_s: Numbers,
    link_s: Numbers, limit: Numbers, counts: Numbers, weights: Numbers, per_node: int, after: int, back: bool,
    overlap: bool, budget_s: float,
) -> int:  # fmt: skip
    """`weights`: of the paths, one a column. `other`: the shortest ways from each state on.

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
    """`source` may be `target`. `tag`: the lowest bit of what is written to `parent`.

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
    """Layers of the longest range that takes at most `most_s`."""
    ends = np.searchsorted(prefix, prefix + most_s * (1 + 1e-9), side="right") - 1
    return int(np.max(ends - np.arange(len(prefix))))


ADVANCE = Kernel(_advance, writes=(1, 2))
RELAX = Kernel(_relax, writes=(1, 2))
