"""Checkpoint and morph on real processes: the reference's bits, after steps that were trained twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from planaria.protocol.messages.records import AnyRecord, Restored
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_job


def assert_went_back(outcome: Outcome, times: int) -> None:
    """So often at least, with all of it in the account of the recoveries and of the time."""
    restored = outcome.events("restored")
    assert len(restored) >= times
    redone = sum(event["from_step"] - event["to_step"] for event in restored)
    assert redone == outcome.summary["steps_redone"]
    assert redone == sum(recovery["steps_redone"] for recovery in outcome.summary["recoveries"])
    time_s = outcome.summary["time_s"]
    assert time_s["redone"] >= 0
    assert time_s["recovering"] > 0
    assert time_s["useful"] > 0
    for plan in outcome.events("plan_taken"):
        assert plan["policy"] == "morph"
        cuts = {tuple((first, end) for _, first, end in stages) for stages in plan["pipelines"]}
        assert len(cuts) == 1


@pytest.mark.proof
@pytest.mark.parametrize("at", ["backward", "apply"])
def test_a_kill_at_each_kind_of_instruction_changes_no_bit(at: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__policy="morph", run__checkpoint_every=2, train__steps=8)
    outcome = run(job, f"kill:node=1,step=6,at={at}")
    outcome.assert_same_bits(reference(job))
    assert_went_back(outcome, 1)
    first, *others = [plan["purpose"] for plan in outcome.events("plan_taken")]
    assert first == "start"
    assert set(others) == {"restore"}
    for recovery in outcome.summary["recoveries"]:
        assert 0 < recovery["ready_ms"] <= recovery["resume_ms"]


class KillAt:
    """Kills a worker as soon as the job goes back for the first time."""

    def __init__(self, pids: Callable[[], list[int]], place: int) -> None:
        self._pids, self._place, self.is_done = pids, place, False

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, Restored) and not self.is_done:
            self.is_done = True
            os.kill(self._pids()[self._place], signal.SIGKILL)


@pytest.mark.proof
@pytest.mark.parametrize("place", [3, 0])
def test_a_kill_during_the_restore_changes_no_bit(
    place: int, text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    job = make_job(text, resilience__policy="morph", run__checkpoint_every=2, train__steps=8)
    killer = KillAt(worker_pids, place)
    outcome = run(job, "kill:node=1,step=6,at=backward", observers=[killer])
    assert killer.is_done
    outcome.assert_same_bits(reference(job))
    assert_went_back(outcome, 1)
    assert len({node for recovery in outcome.summary["recoveries"] for node in recovery["lost_nodes"]}) == 2


def test_kills_change_no_bit_while_every_step_is_saved_or_before_the_first_is(
    text: Path, run: Run, reference: Reference
) -> None:
    """The checkpoint under way is given up, or is whole in time; the first loss begins the job anew."""
    job = make_job(text, resilience__policy="morph", run__checkpoint_every=1, train__steps=8, cluster__nodes=8)
    outcome = run(job, "kill:node=1,step=1,at=backward", "kill:node=4,step=3,at=apply", "kill:node=6,step=5,at=apply")
    outcome.assert_same_bits(reference(job))
    assert_went_back(outcome, 3)
    assert outcome.events("restored")[0]["to_step"] == 0


def test_one_pipeline_is_left_and_the_user_is_told(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__policy="morph", run__checkpoint_every=2, train__steps=8, cluster__nodes=4)
    outcome = run(job, "kill:node=1,step=3,at=backward", "kill:node=2,step=6,at=send")
    outcome.assert_same_bits(reference(job))
    assert_went_back(outcome, 2)
    assert any("the plan is degraded" in note["text"] for note in outcome.events("note"))
    assert len(outcome.events("plan_taken")[-1]["pipelines"]) == 1
