"""Each number comes once in an order, whatever the size, and no array is kept for it."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.data.order import ORDER, dealt, permuted
from planaria.job.history import KEYED, SHUFFLED


@pytest.mark.parametrize("order", [KEYED, SHUFFLED])
@given(size=st.integers(1, 3000), seed=st.integers(-(2**63), 2**64 - 1), epoch=st.integers(0, 2**40))
def test_each_number_comes_once(order: str, size: int, seed: int, epoch: int) -> None:
    assert sorted(dealt(order, np.arange(size), size, seed, epoch).tolist()) == list(range(size))


@given(size=st.integers(1, 2**62), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_places_are_computed_apart(size: int, seed: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    together = permuted(np.array(places), size, seed, ORDER, 1).tolist()
    assert len(set(together)) == len(places)
    assert all(0 <= number < size for number in together)
    assert together == [int(permuted(np.array([place]), size, seed, ORDER, 1)[0]) for place in places]


def test_a_large_order_takes_no_memory() -> None:
    tracemalloc.start()
    first = permuted(np.arange(8), 2 * 10**12, 0, ORDER, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(first.tolist())) == 8
    assert peak < 1_000_000


@pytest.mark.parametrize("size", [2, 3, 7, 16, 100])
def test_all_numbers_are_as_likely_at_the_first_place(size: int) -> None:
    expected = 200 if size < 100 else 50
    num_orders = expected * size
    found = Counter(int(permuted(np.array([0]), size, seed, ORDER, seed % 7)[0]) for seed in range(num_orders))
    chi_square = sum((found[number] - expected) ** 2 / expected for number in range(size))
    assert chi_square < size + 6 * (2 * size) ** 0.5  # six standard deviations


def test_neighbours_do_not_stay_neighbours() -> None:
    numbers = permuted(np.arange(100_000), 100_000, 5, ORDER, 0)
    assert np.mean(np.abs(np.diff(numbers)) == 1) < 1e-4
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(100_000), numbers)[0, 1]) < 0.02


def test_the_order_stays_as_it_is() -> None:
    """These numbers are those of every run that is kept: they never change."""
    assert permuted(np.arange(10), 10, 7, ORDER, 3).tolist() == [2, 6, 9, 3, 1, 8, 5, 7, 4, 0]
    assert permuted(np.arange(3), 10**12, 7, ORDER, 3).tolist() == [465238140837, 82904436391, 333200186506]
    assert dealt(SHUFFLED, np.arange(10), 10, 7, 3).tolist() == [5, 2, 8, 1, 6, 4, 0, 7, 3, 9]
