"""Knapsack over nodes: the multiset of pipeline sizes that fills a number of nodes exactly and is worth most.

Exact, in time that grows with the square of the largest size and the logarithm of the number of pipelines, not with
the number of nodes: a multiset of k sizes can be cut into two of k / 2 whose sums differ by at most the largest size
(deal it out in descending order), so the table for k follows from the table for k / 2, and only near its middle is
needed. The argument is the balancing one of Eisenbrand and Weismantel (SODA 2018) and Jansen and Rohwedder (ITCS 2019).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planaria.planner.instantiation.microbatch_shares import Undistributable

_NONE = -np.inf
_CHUNK = 1 << 20
"""Cells of a sum of two tables that are processed at once, so that memory stays small."""


class _Table(NamedTuple):
    """The best value for each sum of nodes from `low` on."""

    low: int
    values: npt.NDArray[np.float64]


class Knapsack:
    """Fills `num_nodes` nodes exactly, with between `least` and `most` pipelines of the given sizes.

    What a size is worth is given with each question: whole numbers; 0 or less forbids the size.
    """

    def __init__(self, sizes: Sequence[int], num_nodes: int, least: int, most: int) -> None:
        """Prepares the tables. Args: sizes: ascending, different. num_nodes: at least one. least, most: pipelines."""
        self._sizes = np.array(sizes)
        self._num_nodes = num_nodes
        fewest, most_fit = -(-num_nodes // sizes[-1]), num_nodes // sizes[0]
        self._is_possible = max(least, fewest) <= min(most, most_fit)
        # Where so many nodes make `least` pipelines anyway, no items need to be real ones.
        self._least = least if least >= fewest else 0
        self._num_spare = min(most, most_fit) - self._least
        if not self._least and most >= most_fit:
            self._num_spare = 1 << max(0, self._num_spare - 1).bit_length()  # No odd level; the nodes are the bound.

    def most(self, values: Sequence[int]) -> float:
        """Returns the most that exactly the nodes can be worth; -inf where no multiset fills them."""
        if not self._is_possible:
            return _NONE
        spare, real = self._chains(values)
        return _cut(spare.whole, real.whole, self._num_nodes)[1]

    def counts(self, values: Sequence[int]) -> tuple[int, ...] | None:
        """Returns how many of each size are worth `most(values)`; None where no multiset fills the nodes."""
        if not self._is_possible:
            return None
        spare, real = self._chains(values)
        first, most = _cut(spare.whole, real.whole, self._num_nodes)
        if most == _NONE:
            return None
        counts = spare.counts(first) + real.counts(self._num_nodes - first)
        return tuple(counts[size] for size in self._sizes.tolist())

    def _chains(self, values: Sequence[int]) -> tuple[_Chain, _Chain]:
        """Returns the tables of the items that may be left out, which then have size 0, and of the `least` others."""
        smallest, largest = int(self._sizes[0]), int(self._sizes[-1])
        items = np.full(largest + 1, _NONE)
        items[self._sizes] = [value if value > 0 else _NONE for value in values]
        leavable = items.copy()
        leavable[0] = 0
        nodes, real = self._num_nodes, self._least
        spare = _Chain(leavable, 0, self._num_spare, nodes - real * largest, nodes - real * smallest)
        low, high = spare.whole.low, spare.whole.low + len(spare.whole.values) - 1
        return spare, _Chain(items, smallest, real, nodes - high, nodes - low)


class _Chain:
    """The best value of exactly `number` items, for each sum from `low` to `high` that so many can have."""

    def __init__(self, items: npt.NDArray[np.float64], smallest: int, number: int, low: int, high: int) -> None:
        """Prepares the tables. Args: items: value of an item of each size. smallest: size of an item."""
        self._items, self._number = _Table(0, items), number
        largest, odd = len(items) - 1, number % 2
        low, high = max(low, number * smallest), min(high, number * largest)
        if number <= 1:
            self.whole = _Table(low, items[low : high + 1] if number else np.zeros(1))
            return
        low_paired, high_paired, apart = max(0, low - odd * largest), high - odd * smallest, largest - smallest
        self._half = _Chain(items, smallest, number // 2, (low_paired - apart + 1) // 2, (high_paired + apart) // 2)
        self._paired = _sums(self._half.whole, self._half.whole, low_paired, high_paired)
        self.whole = _sums(self._items, self._paired, low, high) if odd else self._paired

    def counts(self, nodes: int) -> Counter[int]:
        """Returns how many items of each size reach the value for so many nodes."""
        found, wanted, chain = Counter[int](), Counter({nodes: 1}), self
        while chain._number > 1:
            parts = Counter[int]()
            for total, times in wanted.items():
                item = _cut(self._items, chain._paired, total)[0] if chain._number % 2 else 0
                first, _ = _cut(chain._half.whole, chain._half.whole, total - item)
                found[item] += times
                parts[first] += times
                parts[total - item - first] += times
            wanted, chain = parts, chain._half
        return found + wanted


def usable_nodes(sizes: Sequence[int], num_nodes: int, least: int, most: int) -> int:
    """Returns the most of `num_nodes` nodes that `least` to `most` pipelines of these sizes can use; 0 if none.

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
    """Returns how many nodes can be used.

    Raises:
        Undistributable: not all, for want of microbatches.
    """
    usable = usable_nodes(sizes, num_nodes, least, most)
    if usable == num_nodes:
        return usable
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


def _sums(a: _Table, b: _Table, low: int, high: int) -> _Table:
    """Returns the best of a[i] + b[s - i] for every sum s from `low` to `high` (a max-plus convolution)."""
    width, terms = high - low + 1, len(a.values)
    # Row s of a sliding window over b backwards holds b[s - i] for each i.
    start = b.low + len(b.values) - 1 - (high - a.low)
    backwards = np.full(width + terms - 1, _NONE)
    source = b.values[::-1][max(0, start) : start + len(backwards)]
    backwards[max(0, -start) : max(0, -start) + len(source)] = source
    rows = np.ndarray((width, terms), np.float64, backwards, strides=2 * backwards.strides)
    step = max(1, _CHUNK // terms)
    best = [(rows[at : at + step] + a.values).max(axis=1) for at in range(0, width, step)]
    return _Table(low, (best[0] if len(best) == 1 else np.concatenate(best))[::-1])


def _cut(a: _Table, b: _Table, nodes: int) -> tuple[int, float]:
    """Returns an i with the best a[i] + b[nodes - i], the lowest, and that sum."""
    first = max(a.low, nodes - b.low - len(b.values) + 1)
    last = min(a.low + len(a.values) - 1, nodes - b.low)
    left = a.values[first - a.low : last - a.low + 1]
    right = b.values[nodes - last - b.low : nodes - first - b.low + 1][::-1]
    sums = left + right
    at = int(sums.argmax())
    return first + at, float(sums[at])
