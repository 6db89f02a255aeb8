"""Matchings between classes, against every matching of single things."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planaria.planner.placement.matching import Bools, Ints, cheapest, fill


def random_classes(seed: int) -> tuple[np.random.Generator, Ints, Ints]:
    """At most six things in at most four rows and columns, some of them empty."""
    draw = np.random.default_rng(seed)
    things = int(draw.integers(0, 7))
    rows, columns = draw.integers(1, 5, 2)
    return (
        draw,
        np.bincount(draw.integers(0, rows, things), minlength=rows),
        np.bincount(draw.integers(0, columns, things), minlength=columns),
    )


def least(cost: Ints, supply: Ints, demand: Ints, allowed: Bools) -> int | None:
    """Of all ways to give each thing a place."""
    things = [row for row, count in enumerate(supply) for _ in range(count)]
    places = [column for column, count in enumerate(demand) for _ in range(count)]
    costs = [
        sum(int(cost[row, column]) for row, column in zip(things, order, strict=True))
        for order in set(itertools.permutations(places))
        if all(allowed[row, column] for row, column in zip(things, order, strict=True))
    ]
    return min(costs, default=None)


@pytest.mark.parametrize("most", [1, 3, 10**15])
def test_the_matching_is_the_cheapest_of_all(most: int) -> None:
    impossible = 0
    for seed in range(500):
        draw, supply, demand = random_classes(seed)
        cost = draw.integers(0, most, (len(supply), len(demand)), endpoint=True)
        allowed = draw.random(cost.shape) < draw.choice([0.6, 1.0])
        found, best = cheapest(cost, supply, demand, allowed), least(cost, supply, demand, allowed)
        if found is None or best is None:
            assert found is best, seed
            impossible += 1
            continue
        assert (found.flow.sum(axis=1) == supply).all()
        assert (found.flow.sum(axis=0) == demand).all()
        assert (found.flow >= 0).all()
        assert not found.flow[~allowed].any()
        assert (found.flow * cost).sum() == best, seed
        # Every matching within the tight cells costs the least too, and this one is within them.
        assert not found.flow[~found.tight].any()
        dearest = cheapest(most - cost, supply, demand, found.tight)
        assert dearest is not None
        assert (dearest.flow * cost).sum() == best, seed
    assert impossible > 50


def test_places_are_filled_or_it_is_said_why_not() -> None:
    stuck = 0
    for seed in range(1000):
        draw, supply, room = random_classes(seed)
        allowed = draw.random((len(supply), len(room))) < 0.7
        start = fill(supply, room, draw.random(allowed.shape) < 0.7).flow if seed % 2 else None
        filling = fill(supply, room, allowed, start)
        assert (filling.flow.sum(axis=0) <= room).all()
        assert not filling.flow[~allowed].any()
        possible = least(np.zeros_like(filling.flow), supply, room, allowed) is not None
        assert (filling.stuck is None) == possible, seed
        if filling.stuck is None:
            assert (filling.flow.sum(axis=1) == supply).all()
        else:
            assert supply[filling.stuck].sum() > room[allowed[filling.stuck].any(axis=0)].sum(), seed
            stuck += 1
    assert stuck > 100
