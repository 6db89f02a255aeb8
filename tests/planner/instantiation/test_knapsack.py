"""The knapsack over nodes, against a table of every number of pipelines and nodes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from planaria.planner.instantiation.knapsack import Knapsack, fewer_nodes, usable_nodes
from planaria.planner.instantiation.microbatch_shares import Undistributable

NONE = float("-inf")


def best_of_all(sizes: Sequence[int], values: Sequence[int], num_nodes: int, least: int, most: int) -> float:
    """Grown one pipeline at a time from nothing."""
    worth = {0: 0}
    best = NONE
    for number in range(1, most + 1):
        longer: dict[int, int] = {}
        for nodes, value in worth.items():
            for size, gain in zip(sizes, values, strict=True):
                if gain > 0 and nodes + size <= num_nodes:
                    longer[nodes + size] = max(longer.get(nodes + size, 0), value + gain)
        worth = longer
        if number >= least:
            best = max(best, worth.get(num_nodes, NONE))
    return best


def draw(rng: random.Random) -> tuple[list[int], int, int, int]:
    smallest = rng.randint(1, 6)
    sizes = sorted(rng.sample(range(smallest, smallest + 9), rng.randint(1, 8)))
    least = rng.randint(0, 6)
    return sizes, rng.randint(1, 40), least, rng.randint(max(1, least), 24)


def test_the_nodes_are_filled_in_the_most_valuable_way() -> None:
    rng = random.Random(3)
    filled = 0
    for _ in range(2000):
        sizes, num_nodes, least, most = draw(rng)
        values = [rng.randint(0, 12) for _ in sizes]
        knapsack = Knapsack(sizes, num_nodes, least, most)
        expected = best_of_all(sizes, values, num_nodes, least, most)
        assert knapsack.most(values) == expected
        counts = knapsack.counts(values)
        assert (counts is None) == (expected == NONE)
        if counts is not None:
            filled += 1
            assert sum(count * size for count, size in zip(counts, sizes, strict=True)) == num_nodes
            assert sum(count * value for count, value in zip(counts, values, strict=True)) == expected
            assert least <= sum(counts) <= most
    assert filled > 500


def test_values_beyond_single_precision_are_told_apart() -> None:
    knapsack = Knapsack([2, 3], 1000, 1, 1000)
    values = [(1 << 24) + 1, 3 << 22]
    assert knapsack.most(values) == 500 * values[0]
    assert knapsack.counts(values) == (500, 0)


def test_as_many_nodes_as_can_be_filled_are_usable() -> None:
    rng = random.Random(4)
    for _ in range(500):
        sizes, num_nodes, least, most = draw(rng)
        ones = [1] * len(sizes)
        usable = max((n for n in range(1, num_nodes + 1) if best_of_all(sizes, ones, n, least, most) > 0), default=0)
        assert usable_nodes(sizes, num_nodes, least, most) == usable


def test_the_nearest_batch_that_uses_the_nodes() -> None:
    """12 nodes in pipelines of 4 or 5 are three; a batch of two leaves nodes over, and is refused."""
    with pytest.raises(Undistributable, match="12 nodes make at least 3 pipelines of up to 5 nodes") as info:
        fewer_nodes([4, 5], 12, 1, 2)
    assert (info.value.below, info.value.above) == (None, 3)
    assert fewer_nodes([4, 5], 12, 1, 3) == 12
    assert fewer_nodes([4, 5], 11, 1, 3) == 10
    assert fewer_nodes([4, 5], 3, 1, 3) == 0
