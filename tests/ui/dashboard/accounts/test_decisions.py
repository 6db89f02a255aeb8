"""Regret: what a decision cost beside the best of its candidates, from what was trained under it."""

from __future__ import annotations

import msgspec
import pytest

from planaria.policy.candidate_record import CandidateRecord
from planaria.protocol.messages.records import NodeLost, PlanMeasured, PlanTaken, Restored, StepCommitted
from planaria.ui.dashboard.accounts.decisions import MOST_CANDIDATES, MOST_DECISIONS, Decisions, regret
from tests.runtime.run_folder.happenings import JOB

BATCH = JOB.train.global_batch


def candidate(name: str, step_s: float, transition_s: float = 0.0, samples: int = BATCH) -> CandidateRecord:
    return CandidateRecord(
        name=name, step_time_s=step_s, transition_s=transition_s, transfer_bytes=0, memory_bytes=1, is_degraded=False,
        risk_s=0.0, samples_per_s=samples / step_s, samples=samples,
    )  # fmt: skip


def taken(generation: int, *weighed: CandidateRecord, purpose: str = "reconfigure") -> PlanTaken:
    return PlanTaken(
        generation=generation, step=1, purpose=purpose, policy="adaptive", reason="", pipelines=(), microbatches=(),
        estimated_step_s=0.1, transfer_bytes=0, plan_hash="", candidates=weighed,
    )  # fmt: skip


def step(number: int, duration_s: float, *, generation: int = 1, dropped: tuple[int, ...] = ()) -> StepCommitted:
    return StepCommitted(
        step=number, loss=1.0, grad_norm=1.0, learning_rate=1e-3, clip_factor=1.0, generation=generation, live_nodes=3,
        duration_s=duration_s, tokens_per_s=1.0, dropped=dropped,
    )  # fmt: skip


SLOW_CHANGE = candidate("moves", 0.1, transition_s=2.0)
AT_ONCE = candidate("at once", 0.125)


def test_a_decision_is_judged_over_the_time_that_its_plan_stood() -> None:
    decisions = Decisions(JOB.train)
    decisions.note(taken(1, SLOW_CHANGE, AT_ONCE), 5.0)
    for number in range(1, 11):
        decisions.note(step(number, 2.1 if number == 1 else 0.1), 5.0)
    (row,) = decisions.rows()
    assert (row["steps"], row["seconds"], row["samples"]) == (10, pytest.approx(3.0), 10 * BATCH)
    # 3 s: 10 steps after a transition of 2 s, or 24 steps at once
    assert row["regret"] == {"factor": 1.0, "lost": 14.0 * BATCH, "best": "at once"}
    assert [one["would_give"] for one in row["candidates"]] == [10 * BATCH, 24 * BATCH]
    for number in range(11, 201):  # the next loss is long in coming: the transition has paid
        decisions.note(step(number, 0.1), 5.0)
    assert decisions.rows()[0]["regret"]["lost"] == 0.0
    assert decisions.total() == {"num": 1, "weighed": 1, "judged": 1, "lost": 0.0, "trained": 200 * BATCH}


def test_estimates_are_corrected_by_what_was_measured_of_the_one_taken() -> None:
    found = regret((candidate("taken", 0.1), candidate("other", 0.08)), samples=5 * BATCH, seconds=1.0, batch=BATCH)
    assert found is not None
    assert found.factor == pytest.approx(0.5)
    assert found.samples == pytest.approx((5 * BATCH, 6.25 * BATCH))
    assert found.lost == pytest.approx(1.25 * BATCH)


def test_a_candidate_that_leaves_samples_out_gains_fewer_a_step() -> None:
    weighed = (candidate("taken", 0.1), candidate("drop", 0.08, samples=BATCH // 2))
    found = regret(weighed, samples=10 * BATCH, seconds=1.0, batch=BATCH)
    assert found is not None
    assert found.lost == 0.0
    older = tuple(msgspec.structs.replace(one, samples=0) for one in weighed)  # which did not tell
    assert regret(older, samples=10 * BATCH, seconds=1.0, batch=BATCH).lost > 0  # type: ignore[union-attr]


def test_the_steps_that_finish_after_a_loss_are_nobodys_and_a_spare_node_ends_nothing() -> None:
    decisions = Decisions(JOB.train)
    decisions.note(taken(1, SLOW_CHANGE, AT_ONCE, purpose="start"), 0.0)
    decisions.note(NodeLost(node=9, step=1, cause="", live_nodes=3, detect_ms=None), 0.0)
    decisions.note(step(1, 0.1), 0.0)
    decisions.note(taken(2, purpose="finish step"), 0.0)
    decisions.note(step(2, 0.1, generation=2), 0.0)
    assert decisions.rows()[0]["steps"] == 1
    decisions.note(taken(3, AT_ONCE), 0.0)
    decisions.note(step(3, 0.1, generation=3), 0.0)
    assert [row["steps"] for row in decisions.rows()] == [1, 1]


@pytest.mark.parametrize(("name", "purpose"), [("moves", "warm up"), ("one step rerouted, then moves", "reconfigure")])
def test_a_plan_for_which_state_moved_beside_a_step_is_one_decision_with_that_step(name: str, purpose: str) -> None:
    decisions = Decisions(JOB.train)
    decisions.note(taken(1, candidate(name, 0.1), AT_ONCE, purpose=purpose), 1.0)
    decisions.note(step(1, 0.3), 1.3)
    decisions.note(taken(2, SLOW_CHANGE, AT_ONCE), 1.3)
    decisions.note(step(2, 0.1, generation=2), 1.4)
    (row,) = decisions.rows()
    assert (row["generation"], row["time_s"], row["steps"], row["candidates"][0]["name"]) == (2, 1.0, 2, name)
    assert decisions.total()["num"] == 1


def test_a_decision_without_a_step_is_not_judged_and_undone_steps_count_against_who_went_back() -> None:
    decisions = Decisions(JOB.train)
    decisions.note(taken(1, SLOW_CHANGE, AT_ONCE, purpose="start"), 0.0)
    decisions.note(Restored(from_step=4, to_step=1, reason=""), 0.0)
    decisions.note(taken(2, AT_ONCE, SLOW_CHANGE, purpose="restore"), 0.0)
    for number in range(2, 8):
        decisions.note(step(number, 0.1, generation=2), 0.0)
    first, second = decisions.rows()
    assert first["regret"] is None
    assert second["samples"] == 3 * BATCH
    assert {**decisions.total(), "lost": 0} == {"num": 2, "weighed": 2, "judged": 1, "lost": 0, "trained": 3 * BATCH}


def test_measured_times_find_their_plan_although_evaluations_have_generations_too() -> None:
    decisions = Decisions(JOB.train)
    decisions.note(taken(1, SLOW_CHANGE, purpose="start"), 0.0)
    decisions.note(PlanMeasured(generation=3, steps=9, estimated_step_s=0.1, measured_step_s=0.2), 0.0)
    decisions.note(PlanMeasured(generation=4, steps=2, estimated_step_s=0.1, measured_step_s=0.9), 0.0)
    assert decisions.rows()[0]["measured_step_s"] == 0.2


def test_many_decisions_are_few_rows_with_the_sums_of_all_and_the_best_is_among_the_candidates() -> None:
    decisions = Decisions(JOB.train)
    poor = [candidate(f"poor {number}", 0.2) for number in range(2 * MOST_CANDIDATES)]
    for generation in range(1, 3 * MOST_DECISIONS + 1):
        decisions.note(taken(generation, candidate("taken", 0.1), *poor, candidate("best", 0.05)), 0.0)
        decisions.note(step(generation, 0.1, generation=generation), 0.0)
    rows = decisions.rows()
    assert len(rows) == MOST_DECISIONS
    assert [one["name"] for one in rows[-1]["candidates"]][-1] == "best"
    assert decisions.total()["lost"] == pytest.approx(3 * MOST_DECISIONS * BATCH)
