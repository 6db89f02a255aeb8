"""A run's figures over a window: the work that stands at its end, not rounded to steps."""

from __future__ import annotations

import msgspec
import pytest

from planaria.policy.candidate_record import CandidateRecord
from planaria.protocol.messages.records import (
    AnyRecord,
    NodeJoined,
    NodeLost,
    PlanMeasured,
    Recovered,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
    Waiting,
)
from planaria.simulate.traces.tally import (
    RESTORED,
    WAITED,
    WARM_UP_STEPS,
    Advance,
    begin_of,
    end_of,
    live_nodes,
    tally,
    throughput,
)
from tests.runtime.run_folder.happenings import RECOVERY, committed, plan_taken

Told = list[tuple[AnyRecord, float]]


def steady(num_steps: int, step_s: float = 1.0) -> Told:
    return [(committed(step), step * step_s) for step in range(1, num_steps + 1)]


def samples_per_s(told: Told, began_s: float, ended_s: float) -> float:
    return tally(told, began_s, ended_s, global_batch=10, microbatch=2).samples_per_s


def lost(node: int) -> NodeLost:
    return NodeLost(node=node, step=5, cause="connection closed", live_nodes=3, detect_ms=1.0)


@pytest.mark.parametrize(("began_s", "ended_s"), [(3.0, 8.0), (3.0, 7.5), (3.3, 8.9), (2.5, 2.75)])
def test_a_steady_run_has_its_rate_in_any_window(began_s: float, ended_s: float) -> None:
    assert samples_per_s(steady(10), began_s, ended_s) == pytest.approx(10.0)


def test_a_run_that_stands_still_at_the_end_is_not_flattered() -> None:
    assert samples_per_s(steady(6), 2.0, 10.0) == pytest.approx(10.0 * 4 / 8)


def test_work_that_is_lost_with_a_restore_does_not_count() -> None:
    back = Restored(from_step=5, to_step=2, reason="a layer was lost")
    told: Told = [*steady(5), (back, 6.0), (committed(3), 7.0), (committed(4), 8.0)]
    figures = tally(told, 1.0, 8.0, global_batch=10, microbatch=2)
    assert figures.steps == pytest.approx(3.0)
    assert figures.committed == 6
    assert figures.restored_steps == 3


def test_what_is_under_way_when_a_checkpoint_is_loaded_counts_for_nothing() -> None:
    advance = Advance([*steady(5), (Restored(from_step=5, to_step=2, reason=""), 6.0), (committed(3), 7.0)])
    assert [advance.at(at_s) for at_s in (5.0, 5.9, 6.0, 6.5, 7.0, 99.0)] == [5.0, 5.0, 2.0, 2.5, 3.0, 3.0]


def candidate(name: str) -> CandidateRecord:
    return CandidateRecord(
        name=name, step_time_s=1.0, transition_s=0.0, transfer_bytes=0, memory_bytes=0, is_degraded=False, risk_s=0.0,
        samples_per_s=1.0,
    )  # fmt: skip


def test_recoveries_by_what_was_done() -> None:
    chosen = msgspec.structs.replace(plan_taken(4, "reconfigure"), candidates=(candidate("reroute (of 3)"),))
    told: Told = [
        (lost(1), 1.0),
        (plan_taken(2, "finish step"), 1.0),
        (plan_taken(3, "reconfigure"), 1.1),
        (Recovered(recovery=RECOVERY), 1.2),
        (lost(2), 2.0),
        (chosen, 2.0),
        (Recovered(recovery=RECOVERY), 2.1),
        (lost(0), 3.0),
        (Restored(from_step=3, to_step=2, reason=""), 3.0),
        (Recovered(recovery=RECOVERY), 3.1),
        (lost(3), 4.0),
        (Waiting(step=4, live_nodes=1, reason=""), 4.0),
        (Recovered(recovery=RECOVERY), 4.1),
    ]
    figures = tally(told, 0.0, 5.0, global_batch=8, microbatch=2)
    assert figures.recoveries == {"templates": 1, "reroute": 1, RESTORED: 1, WAITED: 1}
    assert figures.mean_pause_s == pytest.approx(0.0612)
    assert figures.rerun_microbatches == 4 * RECOVERY.microbatches_rerun
    assert (figures.lost, figures.waits) == (4, 1)


def dropping(step: int, num_dropped: int) -> StepCommitted:
    """`num_dropped` microbatches were left out up to this step."""
    return msgspec.structs.replace(committed(step), num_dropped=num_dropped)


def test_samples_that_a_policy_drops_do_not_count() -> None:
    """Of five microbatches, two in each of steps 3 and 4; then the job goes back behind step 4."""
    told: Told = [(dropping(step, (0, 0, 2, 4, 4)[step - 1]), float(step)) for step in range(1, 6)]
    figures = tally(told, 1.0, 5.0, global_batch=10, microbatch=2)
    assert figures.dropped_samples == 8
    assert figures.samples_per_s == pytest.approx((4 * 10 - 8) / 4)
    back = Restored(from_step=5, to_step=3, reason="")
    assert Advance([*told, (back, 6.0)], 5).at(6.0) == pytest.approx(3 - 2 / 5)


def test_a_defect_would_be_told() -> None:
    ended = RunEnded(
        status=RunStatus.INTERRUPTED, steps=3, message="", skipped_microbatches=5, duplicated_microbatches=1
    )
    figures = tally([*steady(3), (ended, 4.0)], 1.0, 3.0, global_batch=8, microbatch=2)
    assert (figures.skipped_samples, figures.duplicated_samples) == (10, 2)


def test_estimates_beside_what_was_measured() -> None:
    measured = PlanMeasured(
        generation=2,
        steps=4,
        estimated_step_s=0.9,
        measured_step_s=1.0,
        measured_transition_s=0.25,
        estimated_transition_s=0.2,
    )
    estimate = tally(
        [(plan_taken(2, "reconfigure"), 1.0), (measured, 2.0)], 0.0, 3.0, global_batch=8, microbatch=2
    ).estimate
    assert estimate.step_error == pytest.approx(0.1)
    assert (estimate.transitions_estimated_s, estimate.transitions_measured_s) == (0.2, 0.25)


def test_the_window_begins_after_the_warm_up() -> None:
    assert begin_of(steady(WARM_UP_STEPS - 1)) is None
    assert begin_of(steady(WARM_UP_STEPS + 3)) == WARM_UP_STEPS
    assert end_of(steady(WARM_UP_STEPS + 3), 2) == WARM_UP_STEPS + 2
    assert end_of(steady(WARM_UP_STEPS + 3), 99) == WARM_UP_STEPS + 3


def test_the_curve_of_a_steady_run_is_flat_and_falls_to_nothing_when_it_stops() -> None:
    flat = throughput(steady(100), 10.0, 90.0, global_batch=10, microbatch=2)
    assert flat.value == pytest.approx([10.0] * len(flat.value))
    stopped = throughput(steady(50), 10.0, 90.0, global_batch=10, microbatch=2)
    assert stopped.value[0] == pytest.approx(10.0)
    assert stopped.value[-1] == 0.0
    soon = throughput(steady(12), 10.0, 90.0, global_batch=10, microbatch=2)
    assert soon.value[-200:] == (0.0,) * 200, "two steps are not drawn over all of the time in which none follows"


def test_the_curve_of_nodes_begins_with_those_that_were_there() -> None:
    told: Told = [
        (NodeJoined(node=0, live_nodes=1), 0.0),
        (NodeJoined(node=1, live_nodes=4), 0.5),
        (lost(1), 3.0),
    ]
    curve = live_nodes(told, 1.0, 5.0)
    assert curve.at_s == (0.0, 2.0, 4.0)
    assert curve.value == (4.0, 3.0, 3.0)
