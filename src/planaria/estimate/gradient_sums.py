"""One worker's gradient sums in a step: it reads the others' gradients group by group, and adds what it has read.

Of the groups whose gradients are whole at all owners, the lowest round is read first.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence


def summed(
    groups: Sequence[int],
    whole: Sequence[float],
    rounds: Sequence[int],
    read_s: Mapping[int, float] | Sequence[float],
    sum_s: Mapping[int, float] | Sequence[float],
    *,
    reads_from: float,
    sums_from: float,
) -> tuple[float, dict[int, tuple[float, float]]]:
    """Returns the end of the last sum, and of each group the start of its reading and the end of its sum.

    Args:
        groups: of the worker.
        whole: of all groups, when they are whole everywhere.
        rounds: of all groups.
        read_s: of each of its groups, seconds that reading it takes.
        sum_s: seconds that adding it takes.
        reads_from: when it begins to read.
        sums_from: when it begins to add.
    """
    if len(groups) == 1:
        (group,) = groups
        start = max(reads_from, whole[group])
        now, seconds = start + read_s[group], sum_s[group]
        added = max(sums_from, now) + seconds if seconds else sums_from
        return max(added, now), {group: (start, added if seconds else now)}
    coming = sorted([(whole[group], rounds[group], group) for group in groups])
    here: list[tuple[int, int]] = []
    spans: dict[int, tuple[float, float]] = {}
    now, added = reads_from, sums_from
    at, num = 0, len(coming)
    while at < num or here:
        if not here:
            now = max(now, coming[at][0])
        while at < num and coming[at][0] <= now:
            heapq.heappush(here, coming[at][1:])
            at += 1
        group = heapq.heappop(here)[1]
        start = now
        now += read_s[group]
        seconds = sum_s[group]
        if seconds:
            added = max(added, now) + seconds
        spans[group] = start, added if seconds else now
    return max(added, now), spans
