"""Lower bounds of a pipeline's step time, one for each stage: paths through the graph of the step's events.

The step time is the longest path of that graph, so every path is a lower bound. The paths used here stay on one stage
except for whole trips: down to the last stage and back (a dip, between a microbatch's forward and its backward), and up
to the first stage and back (from a backward to the forward that follows it there). Their lengths are sums

    w0 * before + w1 * after + w2 * forward + w3 * backward + w4 * link

with `before` the stages before this one, each with its two messages to the next, `after` those after it, `forward` and
`backward` the stage's own, and `link` the message to the next stage. All weights are non-negative, which is what lets a
search keep only the smallest `before` and `after`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planaria.plan.chain import Floats
from planaria.plan.plan import ScheduleKind


@lru_cache(maxsize=4096)
def path_weights(schedule: ScheduleKind, num_microbatches: int, after: int | None, stages: int | None) -> Floats:
    """The weights of every path, one a row.

    A stage runs g forwards ahead. Its order is F_0 .. F_g-1, then F_g+t B_t in turn, then the other backwards.

    - No trip: all forwards and backwards in turn.
    - One dip, of the first microbatch (it spares the g forwards meanwhile) or of the last (g backwards).
    - Both, and between them trips down, each of which replaces g forwards and g backwards and takes g + 1
      microbatches, and trips up, each of which replaces as many as the first stage runs further ahead, and takes one
      microbatch more.
    - The link: all messages one after another, between the way there and the way back.

    Args:
        schedule: order of forwards and backwards.
        num_microbatches: m.
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
    """How many trips down and up there is room for between the first microbatch's backward and the last's forward."""
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
    """Seconds that chains with equally many stages, one a row, take at least: their longest paths.

    Arguments as `planaria.plan.chain.times_s`. Sums are rounded otherwise than there.
    """
    stages = forward_s.shape[1]
    weights = _weights(schedule, num_microbatches, stages)
    nothing = np.zeros((len(forward_s), 1))
    both = forward_s + backward_s
    before = np.hstack([nothing, np.cumsum(both[:, :-1] + 2 * link_s, axis=1)])
    after = np.hstack([np.cumsum((both[:, 1:] + 2 * link_s)[:, ::-1], axis=1)[:, ::-1], nothing])
    lengths = np.stack([before, after, forward_s, backward_s, np.hstack([link_s, nothing])], axis=2)
    longest = np.zeros(len(forward_s))
    for place in range(stages):
        np.maximum(longest, (lengths[:, place] @ weights[place].T).max(axis=1), out=longest)
    return longest


@lru_cache(maxsize=64)
def _weights(schedule: ScheduleKind, num_microbatches: int, stages: int) -> tuple[Floats, ...]:
    return tuple(path_weights(schedule, num_microbatches, stages - 1 - place, stages) for place in range(stages))
