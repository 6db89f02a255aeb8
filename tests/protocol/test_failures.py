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
        failures.lost(number)
        expected.append(failures.time_to_next_s(10.0 * number))
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] == pytest.approx(10, rel=0.1)


def test_losses_in_one_step_are_one() -> None:
    failures = Failures(100.0)
    failures.begin(0.0)
    for step in (3, 3, 3, 7):
        failures.lost(step)
    assert failures.time_to_next_s(50.0) == 150 / 3
