"""What a plan took, beside what it was thought to take."""

from __future__ import annotations

import pytest

from planaria.protocol.timing import MEASURED_STEPS, Timing


def measured(timing: Timing, *durations_s: float) -> float | None:
    for seconds in durations_s:
        timing.committed(seconds)
    record = timing.close(1)
    assert record is not None
    return record.measured_transition_s


def test_the_first_step_tells_of_the_transition() -> None:
    timing = Timing()
    timing.expect(1.0, 0.1, is_weighed=True)
    timing.decided(0.25)
    assert measured(timing, 2.0, 1.0, 1.25, 1.0) == pytest.approx(2.0 - 1.0 - 0.125 - 0.25)
    assert timing.decision_s == 0.25


def test_nothing_is_said_of_a_transition_that_cannot_be_seen() -> None:
    timing = Timing()
    assert measured(timing, 2.0, 1.0) is None
    assert measured(timing, *[2.0] + [1.0] * MEASURED_STEPS) is None, "the first step is no longer known"
    assert measured(timing, 1.0, 1.0, 2.0) == 0


def test_only_decisions_that_weigh_plans_tell_how_long_one_takes() -> None:
    timing = Timing()
    timing.expect(1.0, 0.1)
    timing.decided(0.25)
    assert timing.decision_s is None
