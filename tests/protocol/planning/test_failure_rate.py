"""When the next loss is expected."""

from __future__ import annotations

import pytest

from planaria.protocol.messages.records import AnyRecord, NodeLost, PlanTaken, RunEnded, RunStatus
from planaria.protocol.planning.failure_rate import Failures, Watch, Watched
from tests.protocol.told import committed


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
    assert failures.nodes_together == 5 / 3, "one of one before any is seen, then three and one"


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


def test_what_one_branch_of_a_run_sees_the_other_does_not() -> None:
    failures = Failures(3 * 3600.0)
    failures.begin(0.0)
    failures.lost(1, 100.0)
    expected_s = failures.time_to_next_s(103.0)
    branch = failures.fork()
    assert branch.seen == failures.seen
    for step, at in enumerate((101.5, 103.0), start=2):
        branch.lost(step, at)
    assert branch.time_to_next_s(103.0) == pytest.approx(1.5)
    assert failures.time_to_next_s(103.0) == expected_s
    failures.lost(2, 110.0)
    assert branch.seen.recent == (100.0, 101.5, 103.0)


def test_rare_losses_are_no_storm() -> None:
    failures = Failures(100.0)
    failures.begin(0.0)
    for step, at in enumerate((90.0, 150.0, 280.0), start=1):
        failures.lost(step, at)
    assert failures.time_to_next_s(300.0) == (100 + 300) / 4


def test_a_successor_goes_on_counting() -> None:
    """The same expectation, at once and later, as if nobody had died; a loss in the same step is no other loss."""
    failures, successor = Failures(1000.0), Failures(1000.0)
    failures.begin(0.0)
    for step, at in enumerate((100.0, 101.5, 103.0), start=1):
        failures.lost(step, at)
    successor.recall(failures.seen)
    for one in (failures, successor):
        one.begin(104.0)
        one.lost(3, 104.0)
    for now in (104.0, 110.0, 500.0, 5000.0):
        assert successor.time_to_next_s(now) == failures.time_to_next_s(now)
    assert successor.time_to_next_s(104.0) < 10, "the storm is known"


def test_a_clock_that_began_anew_does_no_harm() -> None:
    failures, successor = Failures(100.0), Failures(100.0)
    failures.begin(7000.0)
    failures.lost(1, 7001.0)
    failures.lost(2, 7002.0)
    successor.recall(failures.seen)
    assert 0 <= successor.time_to_next_s(5.0) <= 100


def test_losses_of_earlier_runs_count() -> None:
    failures = Failures(100.0, Watched(seconds=500.0, losses=2, nodes=5))
    assert failures.time_to_next_s(9.0) == 600 / 3
    assert failures.nodes_together == 6 / 3
    failures.begin(10.0)
    failures.lost(4, 20.0)
    assert failures.time_to_next_s(50.0) == (100 + 500 + 40) / 4
    assert failures.nodes_together == 7 / 4


def plan(purpose: str) -> PlanTaken:
    return PlanTaken(
        generation=1,
        step=1,
        purpose=purpose,
        policy="templates",
        reason="",
        pipelines=(),
        microbatches=(),
        estimated_step_s=1.0,
        transfer_bytes=0,
        plan_hash="",
    )


def lost(node: int, step: int) -> NodeLost:
    return NodeLost(node=node, step=step, cause="", live_nodes=3, detect_ms=None)


ENDED = RunEnded(status=RunStatus.INTERRUPTED, steps=2, message="", skipped_microbatches=0, duplicated_microbatches=0)


@pytest.mark.parametrize(
    ("told", "watched"),
    [
        ([], Watched()),
        ([(3, lost(0, 1)), (5, ENDED)], Watched(losses=1, nodes=1)),
        ([(10, plan("start")), (20, committed(1)), (31, ENDED)], Watched(seconds=21)),
        (
            [(10, plan("start")), (20, lost(0, 1)), (20, lost(1, 1)), (25, plan("reconfigure"))],
            Watched(seconds=15, losses=1, nodes=2),
        ),
        # the first run breaks off, the second is ended, the third has just begun
        (
            [
                *[(10, plan("start")), (20, committed(1)), (22, lost(0, 2))],
                *[(990, lost(1, 2)), (1000, plan("start")), (1005, committed(2)), (1007, ENDED)],
                (5000, plan("start")),
            ],
            Watched(seconds=10 + 7, losses=1, nodes=2),
        ),
    ],
)
def test_what_there_was_to_see_in_runs(told: list[tuple[float, AnyRecord]], watched: Watched) -> None:
    watch = Watch()
    for at, record in told:
        watch.note(record, at)
    assert watch.watched == watched
