"""One worker's gradient sums in a step: what it reads of other owners, how long that takes, and when all is added up.

Each owner adds up one slice of a group and hands it back (`planaria.plan.sums.slices`). Messages of sums are read one
after another, whoever sent them, while their latencies pass side by side.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from planaria.plan.costs.byte_counts import read_from_hosts, read_in_memory, read_spread
from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.plan import WorkerId
from planaria.plan.sums.slices import Slices


class SumTimes(NamedTuple):
    """Seconds of one group's sum at one owner.

    Attributes:
        read_s: reading others' counts of its slice and the totals of theirs, if nothing else is read.
        delay_s: latencies that pass meanwhile, or after.
        add_s: adding up its slice.
    """

    read_s: float
    delay_s: float
    add_s: float


NO_SUM = SumTimes(0.0, 0.0, 0.0)


def spread_sum(num_owners: int, num_others: int, sent_bytes: float, link: LinkCost, sum_s_per_byte: float) -> SumTimes:
    """Returns the times of a sum whose owners are all on different hosts.

    Args:
        num_owners: of the group.
        num_others: owners but this one that counted something.
        sent_bytes: of the group's vector as it travels, or of the share of it that a device has.
        link: between hosts.
        sum_s_per_byte: of adding one more part.
    """
    if num_owners == 1:
        return NO_SUM
    read_s = read_spread(num_owners, num_others, sent_bytes) / link.bandwidth_bytes_per_s
    return SumTimes(read_s, 2 * link.latency_s, num_others * (sent_bytes / num_owners) * sum_s_per_byte)


def sum_by_hosts(
    slices: Slices,
    worker: WorkerId,
    counting: frozenset[WorkerId],
    sent_bytes: float,
    counted_bytes: float,
    link: Callable[[WorkerId], LinkCost],
    sum_s_per_byte: float,
) -> SumTimes:
    """Returns the times of a sum with several owners on a host, or links that differ.

    Args:
        slices: of the group.
        worker: the owner, or giver, whose times are wanted.
        counting: those that counted something.
        sent_bytes: of the group's vector as it travels, or of the share of it that a device has.
        counted_bytes: of an accumulator, or of the share of it that a device has.
        link: the link from another owner to this one.
        sum_s_per_byte: seconds of adding one more part.
    """
    own, all_carried = slices.share(worker), sum(map(slices.share, slices.carried_by(worker)))
    seconds = near_s = far_s = 0.0
    for mate, size_bytes in read_in_memory(slices, worker, counting, sent_bytes, counted_bytes):
        seconds += size_bytes / link(mate).bandwidth_bytes_per_s
        near_s = max(near_s, link(mate).latency_s)
    for owner, size_bytes in read_from_hosts(slices, worker, counting, sent_bytes):
        seconds += size_bytes / link(owner).bandwidth_bytes_per_s
        far_s = max(far_s, link(owner).latency_s)
    counts = len(counting.intersection(slices.on_host_of(worker)))
    carriers = slices.carriers(worker) if own else ()
    others = sum(not counting.isdisjoint(slices.on_host_of(carrier)) for carrier in carriers)
    added = max(0, counts + others - 1) * own + max(0, counts - 1) * all_carried
    return SumTimes(seconds, 2 * (near_s + far_s), sent_bytes * added * sum_s_per_byte)


def summed(
    groups: Sequence[int],
    whole: Sequence[float],
    rounds: Sequence[int],
    times: Sequence[SumTimes],
    *,
    reads_from: float,
    sums_from: float,
) -> tuple[float, list[tuple[float, float]]]:
    """Returns the end of the last sum, and of each group the start of its reading and the end of its sum.

    Of the groups whose gradients are whole at all owners, the lowest round is read first.

    Args:
        groups: the groups that the worker owns.
        whole: of all groups, when they are whole everywhere.
        rounds: the rounds of all groups.
        times: what the sum of each of its groups takes.
        reads_from: when it begins to read.
        sums_from: when it begins to add.
    """
    coming = sorted([(whole[group], rounds[group], place) for place, group in enumerate(groups)])
    here: list[tuple[int, int]] = []
    read: list[tuple[float, int, float]] = []
    now, at, num = reads_from, 0, len(coming)
    while at < num or here:
        if not here:
            now = max(now, coming[at][0])
        while at < num and coming[at][0] <= now:
            heapq.heappush(here, coming[at][1:])
            at += 1
        place = heapq.heappop(here)[1]
        start = now
        now += times[place].read_s
        read.append((now + times[place].delay_s, place, start))
    spans = [(0.0, 0.0)] * len(groups)
    added = last = sums_from
    for end, place, start in sorted(read):
        if seconds := times[place].add_s:
            end = added = max(added, end) + seconds
        spans[place] = start, end
        last = max(last, end)
    return last, spans
