"""When the next loss is expected."""

from __future__ import annotations

import pytest

from planaria.protocol.failures import Failures


def test_before_anything_is_seen_it_is_what_the_owner_says() -> None:
    failures = Failures(100.0)
    assert failures.time_to_next_s(5.0) == 100
    failures.begin(5.0)
    failures.begin(8.0)
    assert failures.time_to_next_s(25.0) == 120, "nothing was lost in 20 seconds"


def test_what_is_seen_counts_more_and_more() -> None:
    """A loss every 10 seconds, where one in 1000 was expected."""
    failures = Failures(1000.0)
    failures.begin(0.0)
    expected = []
    for number in range(1, 1001):
        failures.lost(number, 10.0 * number)
        expected.append(failures.time_to_next_s(10.0 * number))
    assert expected[:2] == [505, 340]
    assert all(9 < seconds < 30 for seconds in expected[4:])
    assert expected[-1] == pytest.approx(10, rel=0.1)


def test_losses_in_one_step_are_one() -> None:
    failures = Failures(100.0)
    failures.begin(0.0)
    for step in (3, 3, 3, 7):
        failures.lost(step, 10.0 * step)
    assert failures.time_to_next_s(200.0) == 300 / 3


def test_a_storm_is_believed_at_once_and_forgotten() -> None:
    """Where a loss in three hours was expected, three within seconds are no chance; an hour later they are past."""
    failures = Failures(3 * 3600.0)
    failures.begin(0.0)
    for step, at in enumerate((100.0, 101.5, 103.0), start=1):
        failures.lost(step, at)
    assert failures.time_to_next_s(103.0) == pytest.approx(1.5)
    assert failures.time_to_next_s(106.0) == pytest.approx(3.0)
    later = [failures.time_to_next_s(103.0 + seconds) for seconds in (10, 60, 600, 3600)]
    assert later == sorted(later)
    assert later[-1] > 1000


def test_rare_losses_are_no_storm() -> None:
    failures = Failures(100.0)
    failures.begin(0.0)
    for step, at in enumerate((90.0, 150.0, 280.0), start=1):
        failures.lost(step, at)
    assert failures.time_to_next_s(300.0) == (100 + 300) / 4
