"""What a plan took, beside what it was thought to take."""

from __future__ import annotations

import pytest

from planaria.protocol.planning.step_times import StepTimes
from planaria.protocol.thresholds import CALIBRATED_AFTER, MEASURED_STEPS


def measured(timing: StepTimes, *durations_s: float) -> float | None:
    for seconds in durations_s:
        timing.committed(seconds)
    record = timing.close(1)
    assert record is not None
    return record.measured_transition_s


def test_the_first_step_tells_of_the_transition() -> None:
    timing = StepTimes()
    timing.expect(1.0, 0.1, is_weighed=True)
    timing.decided(0.25)
    assert measured(timing, 2.0, 1.0, 1.25, 1.0) == pytest.approx(2.0 - 1.0 - 0.125 - 0.25)
    assert timing.decision_s == 0.25


def test_nothing_is_said_of_a_transition_that_cannot_be_seen() -> None:
    timing = StepTimes()
    assert measured(timing, 2.0, 1.0) is None
    assert measured(timing, *[2.0] + [1.0] * MEASURED_STEPS) is None, "the first step is no longer known"
    assert measured(timing, 1.0, 1.0, 2.0) == 0


def test_only_decisions_that_weigh_plans_tell_how_long_one_takes() -> None:
    timing = StepTimes()
    timing.expect(1.0, 0.1)
    timing.decided(0.25)
    assert timing.decision_s is None


def test_the_step_beside_which_state_moved_is_a_part_of_the_transition() -> None:
    timing = StepTimes()
    timing.expect(1.5, 0.1, is_weighed=True, transition_s=0.7, is_beside=True)
    timing.decided(0.25)
    assert measured(timing, 1.75) is None
    timing.expect(1.0, 0.1, is_weighed=True, transition_s=0.1)
    timing.decided(0.125)
    for seconds in (1.25, 1.0, 1.0):
        timing.committed(seconds)
    record = timing.close(2)
    assert record is not None
    assert record.estimated_transition_s == 0.7
    assert record.measured_transition_s == pytest.approx(1.75 - 0.25 - 1.0 + 0.25)
    assert timing.late_s == pytest.approx(0.125), "its own first step, without the decision"


def test_after_a_loss_in_between_the_step_before_counts_no_more() -> None:
    timing = StepTimes()
    timing.expect(1.5, 0.1, transition_s=0.7, is_beside=True)
    timing.committed(1.75)
    timing.close(1)
    timing.expect(1.0, 0.1)
    timing.close(2)
    timing.expect(1.0, 0.1, transition_s=0.1)
    assert measured(timing, 1.25, 1.0, 1.0) == pytest.approx(0.25)


def test_some_steps_tell_how_far_estimates_are_off() -> None:
    """From then on what is expected is what was measured; what was estimated at first is what is told."""
    timing = StepTimes()
    timing.expect(1.0, 0.1)
    for _ in range(CALIBRATED_AFTER - 1):
        timing.committed(3.0)
        assert timing.calibration() is None
    timing.committed(3.0)
    assert timing.calibration() == 3.0
    assert (timing.stretch, timing.expected_step_s) == (1.0, 3.0)
    assert timing.expectation.instruction_s == pytest.approx(0.3)
    record = timing.close(1)
    assert record is not None
    assert (record.estimated_step_s, record.measured_step_s) == (1.0, 3.0)
