"""What transitions took is learnt from the workers' answers."""

from __future__ import annotations

import pytest

from planaria.plan.plan import WorkerId
from planaria.policy.outlook import CHANGE_S, RESTORE_S
from planaria.protocol.moving import Moving

WORKERS = (WorkerId(0), WorkerId(1))


def take(
    moving: Moving, seconds: float, moves_s: float = 0.0, *, decided_s: float = 0.0, restore: bool = False
) -> None:
    moving.begin(WORKERS, 100.0, moves_s, is_restore=restore)
    moving.decided(decided_s)
    moving.ready(WORKERS[0], 100.0 + seconds / 2)
    moving.ready(WORKERS[1], 100.0 + seconds)
    moving.ready(WORKERS[1], 200.0)


def test_constants_until_something_is_measured() -> None:
    moving = Moving()
    assert (moving.change_s, moving.transfer_stretch, moving.restore_s) == (CHANGE_S, 1.0, RESTORE_S)


def test_the_last_worker_counts_and_the_decision_does_not() -> None:
    moving = Moving()
    take(moving, 0.13, decided_s=0.1)
    assert moving.change_s == pytest.approx(0.03)


def test_links_are_as_slow_as_state_is_under_way() -> None:
    moving = Moving()
    take(moving, 0.02)
    for seconds in (0.22, 0.42, 0.42):
        take(moving, seconds, moves_s=0.1)
    assert moving.transfer_stretch == pytest.approx(4.0)
    assert moving.change_s == pytest.approx(0.02)
    take(moving, 3.0, moves_s=1e-4)
    assert moving.transfer_stretch == pytest.approx(4.0), "too little moved to tell"


def test_a_restore_is_another_thing() -> None:
    moving = Moving()
    take(moving, 7.0, restore=True)
    assert (moving.restore_s, moving.change_s) == (7.0, CHANGE_S)


def test_where_somebody_is_lost_nothing_is_measured() -> None:
    moving = Moving()
    moving.begin(WORKERS, 100.0, 0.0, is_restore=False)
    moving.ready(WORKERS[0], 100.1)
    moving.stop()
    moving.ready(WORKERS[1], 109.0)
    assert moving.change_s == CHANGE_S
