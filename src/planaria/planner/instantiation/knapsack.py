"""Knapsack over nodes: the multiset of pipeline sizes that fills a number of nodes exactly and is worth most.

Exact, in time that grows with the square of the largest size and the logarithm of the number of pipelines, not with
the number of nodes: a multiset of k sizes can be cut into two of k / 2 whose sums differ by at most the largest size
(deal it out in descending order), so the table for k follows from the table for k / 2, and only near its middle is
needed. The argument is the balancing one of Eisenbrand and Weismantel (SODA 2018) and Jansen and Rohwedder (ITCS 2019).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planaria.planner.instantiation.microbatch_shares import Undistributable

Values = npt.NDArray[np.floating]
_Counts = npt.NDArray[np.int64]
_Tables = list[tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]]
_NONE = -np.inf
_CHUNK = 1 << 20
"""Cells of a sum of two tables that are looked at at once, so that memory stays small."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Sums of nodes from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Level:
    """Tables of `num_items` items: of all of them, and without the odd one (the same where there is none)."""

    num_items: int
    whole: _Span
    paired: _Span


class _Chain:
    """The best value of exactly `num_items` items for each sum in a span, by halving."""

    def __init__(self, num_items: int, span: _Span, smallest: int, largest: int) -> None:
        """Args: smallest: size of an item, 0 where an item may be left out."""
        self._levels: list[_Level] = []
        while True:
            span = _Span(max(span.low, num_items * smallest), min(span.high, num_items * largest))
            odd = num_items % 2
            paired = _Span(max(0, span.low - odd * largest), span.high - odd * smallest)
            self._levels.append(_Level(num_items, span, paired if num_items > 1 else span))
            if num_items <= 1:
                return
            num_items //= 2
            apart = largest - smallest
            span = _Span(max(0, (paired.low - apart + 1) // 2), (paired.high + apart) // 2)

    @property
    def span(self) -> _Span:
        return self._levels[0].whole

    def tables(self, items: Values) -> _Tables:
        """For each level, its whole and its paired table; items[s] is the value of an item of size s."""
        last = self._levels[-1]
        if last.num_items:
            table = _slice(items, last.whole)
        else:
            table = np.zeros(1, dtype=items.dtype)
        tables = [(table, table)]
        for level, below in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            paired = _sum(table, below.whole.low, table, below.whole.low, level.paired)
            table = _sum(items, 0, paired, level.paired.low, level.whole) if level.num_items % 2 else paired
            tables.append((table, paired))
        return tables[::-1]

    def count(self, tables: _Tables, items: Values, nodes: int) -> _Counts:
        """How many items of each size reach the table's value at `nodes`."""
        return self._count(0, nodes, tables, items, {})

    def _count(
        self,
        at: int,
        nodes: int,
        tables: _Tables,
        items: Values,
        known: dict[tuple[int, int], _Counts],
    ) -> _Counts:
        if (at, nodes) in known:
            return known[at, nodes]
        level, key = self._levels[at], (at, nodes)
        counts = np.zeros(len(items), dtype=np.int64)
        if level.num_items <= 1:
            counts[nodes] = level.num_items
            return counts
        paired = tables[at][1]
        if level.num_items % 2:
            item = _cut(items, 0, paired, level.paired.low, nodes)
            counts[item] += 1
            nodes -= item
        half, low = tables[at + 1][0], self._levels[at + 1].whole.low
        first = _cut(half, low, half, low, nodes)
        for part in (first, nodes - first):
            counts += self._count(at + 1, part, tables, items, known)
        known[key] = counts
        return counts


class Knapsack:
    """Fills `num_nodes` nodes exactly, with between `least` and `most` pipelines of the given sizes.

    What a size is worth is given with each question: whole numbers; 0 or less forbids the size.
    """

    def __init__(self, sizes: Sequence[int], num_nodes: int, least: int, most: int) -> None:
        """Args: sizes: ascending, different. num_nodes: at least one. least, most: pipelines."""
        self._sizes = np.array(sizes)
        self._num_nodes = num_nodes
        smallest, largest = int(sizes[0]), int(sizes[-1])
        fewest = max(least, -(-num_nodes // largest))
        self._possible = fewest <= min(most, num_nodes // smallest)
        # Where so many nodes make `least` pipelines anyway, no items need to be real ones.
        self._least = least if fewest == least > 0 else 0
        num_spare = min(most, num_nodes // smallest) - self._least
        if not self._least and most >= num_nodes // smallest:
            num_spare = 1 << max(0, num_spare - 1).bit_length()  # No odd level; the nodes are the bound.
        if not self._possible:
            return
        rest = _Span(max(0, num_nodes - self._least * largest), num_nodes - self._least * smallest)
        self._spare = _Chain(num_spare, rest, 0, largest)
        rest = self._spare.span
        self._real = _Chain(self._least, _Span(num_nodes - rest.high, num_nodes - rest.low), smallest, largest)
        # Sums of whole numbers are exact in float32 up to 2^24.
        self._exact_in_float32 = (1 << 24) // (max(1, num_spare) + self._least)

    def most(self, values: Sequence[int]) -> float:
        """The most that exactly the nodes can be worth; -inf where no multiset fills them."""
        if not self._possible:
            return _NONE
        return float(self._whole(*self._tables(*self._items(values)))[0])

    def counts(self, values: Sequence[int]) -> tuple[int, ...] | None:
        """How many of each size are worth `most(values)`; None where no multiset fills the nodes."""
        if not self._possible:
            return None
        spare_items, real_items = self._items(values)
        spare, real = self._tables(spare_items, real_items)
        if self._whole(spare, real)[0] == _NONE:
            return None
        first = _cut(spare[0][0], self._spare.span.low, real[0][0], self._real.span.low, self._num_nodes)
        counts = self._spare.count(spare, spare_items, first)
        counts += self._real.count(real, real_items, self._num_nodes - first)
        return tuple(int(count) for count in counts[self._sizes])

    def _items(self, values: Sequence[int]) -> tuple[Values, Values]:
        """By size: the value of an item that may be left out (size 0), and of one that may not."""
        dtype = np.dtype(np.float32 if max(values) <= self._exact_in_float32 else np.float64)
        real: Values = np.full(int(self._sizes[-1]) + 1, _NONE, dtype=dtype)
        real[self._sizes] = [value if value > 0 else _NONE for value in values]
        spare = real.copy()
        spare[0] = 0
        return spare, real

    def _tables(self, spare: Values, real: Values) -> tuple[_Tables, _Tables]:
        return self._spare.tables(spare), self._real.tables(real)

    def _whole(self, spare: _Tables, real: _Tables) -> Values:
        nodes = _Span(self._num_nodes, self._num_nodes)
        return _sum(spare[0][0], self._spare.span.low, real[0][0], self._real.span.low, nodes)


def usable_nodes(sizes: Sequence[int], num_nodes: int, least: int, most: int) -> int:
    """The most of `num_nodes` nodes that `least` to `most` pipelines of these sizes can use; 0 where none can be made.

    It is all of them from (f + 1) n0 on where the sizes run from n0 to N - f n0 without a gap (Oobleck, appendix A);
    the number of layers, or memory, can cut them shorter.
    """
    mask = (1 << num_nodes + 1) - 1
    sums, best = 1, 0
    for number in range(1, min(most, num_nodes // sizes[0]) + 1):
        longer = 0
        for size in sizes:
            longer |= sums << size
        sums = longer & mask
        if number >= least:
            best = max(best, sums.bit_length() - 1)
        if best == num_nodes or not sums:
            break
    return best


def fewer_nodes(sizes: Sequence[int], num_nodes: int, least: int, most: int, num_kept: int = 0) -> int:
    """How many can be used, where all cannot.

    Raises:
        Undistributable: for want of microbatches.
    """
    usable = usable_nodes(sizes, num_nodes, least, most)
    unbounded = usable_nodes(sizes, num_nodes, least, num_nodes)
    if unbounded > usable:
        needed = bisect_left(
            range(num_nodes), unbounded, lo=most + 1, key=lambda k: usable_nodes(sizes, num_nodes, least, k)
        )
        raise Undistributable(
            f"{num_nodes} nodes make at least {needed} pipelines of up to {sizes[-1]} nodes each, and a step has "
            f"{most + num_kept} microbatches{f', {num_kept} of them for pipelines that stay' if num_kept else ''}.",
            num_microbatches=most + num_kept,
            below=None,
            above=needed + num_kept,
            remedy="or make the microbatch smaller, or use fewer nodes.",
        )
    return usable


def _slice(items: Values, span: _Span) -> Values:
    return items[span.low : span.high + 1]


def _sum(a: Values, low_a: int, b: Values, low_b: int, span: _Span) -> Values:
    """The best of a[i] + b[s - i] for every sum s in the span (a max-plus convolution)."""
    width = span.high - span.low + 1
    # Row s of a sliding window over b backwards holds b[s - i] for each i.
    start = low_b + len(b) - 1 - (span.high - low_a)
    backwards = np.full(width + len(a) - 1, _NONE, dtype=b.dtype)
    source = b[::-1][max(0, start) : start + len(backwards)]
    backwards[max(0, -start) : max(0, -start) + len(source)] = source
    rows = np.lib.stride_tricks.sliding_window_view(backwards, len(a))
    step = max(1, _CHUNK // len(a))
    best = [(rows[at : at + step] + a).max(axis=1) for at in range(0, width, step)]
    return (np.concatenate(best) if len(best) > 1 else best[0])[::-1]


def _cut(a: Values, low_a: int, b: Values, low_b: int, nodes: int) -> int:
    """An i with the best a[i] + b[nodes - i]: the lowest."""
    first = max(low_a, nodes - low_b - len(b) + 1)
    last = min(low_a + len(a) - 1, nodes - low_b)
    left = a[first - low_a : last - low_a + 1]
    right = b[nodes - last - low_b : nodes - first - low_b + 1][::-1]
    return first + int(np.argmax(left + right))
