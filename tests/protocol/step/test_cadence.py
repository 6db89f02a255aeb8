"""When checkpoints are due: by steps, by time, as the run chooses, and under plans that lack replicas."""

from __future__ import annotations

import math

import pytest

from planaria.protocol.step.cadence import Cadence
from planaria.protocol.thresholds import (
    CHECKPOINT_SHARE,
    COSTS_KEPT,
    FIRST_CHECKPOINT_S,
    LONGEST_INTERVAL_S,
    UNMEASURED_INTERVAL_S,
)

RARELY_S = 3 * 3600.0


def due(cadence: Cadence, step: int, now: float, *, is_degraded: bool = False, failure_s: float = RARELY_S) -> bool:
    return cadence.is_due(step, now, failure_s, is_degraded=is_degraded)


def measured(cost_s: float, *, step_s: float = 1.0, takes_s: float = 0.0) -> Cadence:
    """After some checkpoints, each of which made a step so much longer."""
    cadence, now = Cadence(None, None), 0.0
    cadence.begin(now)
    for _ in range(COSTS_KEPT):
        cadence.committed(step_s)
        cadence.ordered(now)
        cadence.committed(step_s + cost_s)
        cadence.written(now + takes_s)
    return cadence


def test_checkpoints_are_due_by_steps() -> None:
    for is_degraded in (False, True):
        every = Cadence(2, None)
        assert [step for step in range(1, 7) if due(every, step, 0.0, is_degraded=is_degraded)] == [2, 4, 6]


@pytest.mark.parametrize("off", [Cadence(0, None), Cadence(None, 0.0), Cadence(0, 0.0)])
def test_with_zero_no_checkpoint_is_due_on_the_way(off: Cadence) -> None:
    off.begin(0.0)
    assert not off.is_on
    assert not any(due(off, step, 1e6) for step in range(1, 7))


def test_checkpoints_are_due_by_seconds() -> None:
    cadence = Cadence(None, 30.0)
    cadence.begin(0.0)
    assert not due(cadence, 1, 29.0)
    assert due(cadence, 2, 30.0)
    cadence.ordered(30.0)
    cadence.written(31.0)
    assert not due(cadence, 3, 59.0)
    assert due(cadence, 4, 60.0)


def test_of_steps_and_seconds_whichever_is_first() -> None:
    cadence = Cadence(10, 30.0)
    cadence.begin(0.0)
    assert due(cadence, 10, 1.0)
    assert due(cadence, 11, 30.0)


def test_the_run_begins_soon_and_doubles_the_interval_while_nothing_is_measured() -> None:
    cadence, moments, now = Cadence(None, None), [], 0.0
    cadence.begin(now)
    assert cadence.is_on
    while now < 40.0:
        now += 0.5
        if due(cadence, 1, now):
            moments.append(now)
            cadence.ordered(now)
            cadence.written(now)
    assert moments == [FIRST_CHECKPOINT_S, 3.0, 7.0, 15.0, 31.0]
    assert cadence.interval_s(RARELY_S) == UNMEASURED_INTERVAL_S


def test_the_interval_is_young_and_dalys() -> None:
    assert measured(0.5).interval_s(RARELY_S) == pytest.approx(math.sqrt(2 * 0.5 * RARELY_S))


def test_where_nodes_are_lost_often_one_percent_of_the_time_is_the_limit() -> None:
    assert measured(0.5).interval_s(60.0) == pytest.approx(0.5 / CHECKPOINT_SHARE)


def test_fifteen_minutes_win_over_one_percent_and_that_is_told_once() -> None:
    dear = measured(30.0)
    assert dear.interval_s(RARELY_S) == LONGEST_INTERVAL_S
    assert measured(1.0).excess() is None
    told = dear.excess()
    assert told is not None
    assert "30 s longer, 3.3% of the time" in told
    assert "run.checkpoint_every_s" in told
    assert dear.excess() is None


def test_writing_has_a_twentieth_of_the_time_at_most() -> None:
    assert measured(0.001, takes_s=10.0).interval_s(60.0) == 200.0


def test_writing_has_a_twentieth_of_the_time_from_the_first_checkpoint_on() -> None:
    cadence = Cadence(None, None)
    cadence.begin(0.0)
    cadence.ordered(1.0)
    cadence.written(3.0)
    assert not due(cadence, 2, 40.9)
    assert due(cadence, 2, 41.0)


def test_what_the_first_one_cost_spaces_the_second_but_not_by_much_more_than_a_minute() -> None:
    for cost_s, waits_s in ((0.3, 30.0), (9.0, UNMEASURED_INTERVAL_S)):
        cadence = Cadence(None, None)
        cadence.begin(0.0)
        cadence.committed(1.0)
        cadence.ordered(1.0)
        cadence.committed(1.0 + cost_s)
        cadence.written(1.1)
        assert not due(cadence, 3, waits_s + 0.9)
        assert due(cadence, 3, waits_s + 1.1)


def test_noise_is_no_cost() -> None:
    assert measured(-0.2).cost_s == 0.0


def test_what_is_given_up_is_due_again() -> None:
    cadence = Cadence(None, 30.0)
    cadence.begin(0.0)
    cadence.ordered(30.0)
    cadence.given_up()
    assert due(cadence, 3, 31.0)
    cadence.written(31.0)
    assert due(cadence, 3, 31.5), "one that all waited for, in its place, does not move the next"


@pytest.mark.parametrize(("cost_s", "is_told"), [(8.9, False), (9.0, False), (9.1, True)])
def test_a_cost_is_told_where_a_hundredth_of_the_longest_interval_is_less(cost_s: float, is_told: bool) -> None:
    cadence = measured(cost_s)
    assert (cadence.excess() is not None) == is_told
    assert cadence.excess() is None, "once"


def test_the_next_coordinator_knows_what_was_learnt() -> None:
    cadence, again = measured(0.5), Cadence(None, None)
    again.recall(cadence.learnt)
    assert again.interval_s(RARELY_S) == cadence.interval_s(RARELY_S)
    assert again.learnt == cadence.learnt


@pytest.mark.parametrize(("took_s", "rests_s"), [(0.5, 60.0), (30.0, 600.0)])
def test_a_degraded_plan_has_the_state_saved_at_once_and_again_after_many_times_what_that_took(
    took_s: float, rests_s: float
) -> None:
    cadence = Cadence(0, None)
    assert due(cadence, 4, 1.0, is_degraded=True)
    cadence.ordered(1.0)
    cadence.written(1.0 + took_s)
    assert not due(cadence, 6, 1.0 + took_s, is_degraded=True)
    assert not due(cadence, 7, 0.9 + rests_s, is_degraded=True)
    assert due(cadence, 8, 1.0 + rests_s, is_degraded=True)
    assert not due(cadence, 8, 1.0 + rests_s)
