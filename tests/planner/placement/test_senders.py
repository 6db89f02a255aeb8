"""Senders: how busy the busiest must be, and the bound by which a large cluster need not ask."""

from __future__ import annotations

import numpy as np

from planaria.plan.plan import WorkerId
from planaria.planner.placement.senders import Sources, unheld


def test_equal_shares_of_all_holders_are_never_better_than_the_best() -> None:
    draw = np.random.default_rng(3)
    for _ in range(500):
        num_groups, likely = int(draw.integers(1, 9)), draw.random()
        held = [np.flatnonzero(draw.random(num_groups) < likely).tolist() for _ in range(int(draw.integers(1, 20)))]
        holders = {WorkerId(worker): tuple(groups) for worker, groups in enumerate(held)}
        sources = Sources(holders, int(draw.integers(1, 3)), num_groups)
        wanted = draw.integers(0, 10 ** int(draw.integers(1, 12)), num_groups)
        needed = np.where(sources.holds.any(axis=0), wanted, 0)
        assert sources.busiest(needed).size_bytes <= sources.most_bytes(needed) == sources.most_bytes(wanted)


def test_one_holder_sends_all() -> None:
    sources = Sources({WorkerId(0): (0, 1), WorkerId(1): (1,)}, 1, 2)
    assert sources.most_bytes(np.array([100, 50])) == 126  # a byte more than 125, for what is rounded


def test_groups_are_found_that_nobody_holds() -> None:
    assert unheld(range(4), [(0, 2), (2,)]) == [1, 3]
    assert unheld((2, 0), iter([(0,), (2,)])) == []
    assert unheld((1,), []) == [1]
