"""What a recovery costs and says, and what happens when replicas or nodes run out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord, PlanTaken, StepCommitted
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.e2e.conftest import Pipelines, Reference, Run
from tests.e2e.jobs import Outcome, make_job
from tests.proof import rest_in_proof

RECOVERY_FIELDS = {
    "step",
    "cause",
    "lost_nodes",
    "lost_devices",
    "policy",
    "reason",
    "detect_ms",
    "decide_ms",
    "ready_ms",
    "steps_redone",
    "transfer_bytes",
    "resume_ms",
    "microbatches_rerun",
    "microbatches_per_step",
}


@pytest.mark.parametrize("at", rest_in_proof(["backward", "forward", "sync", "vote"]))
def test_only_the_broken_pipelines_microbatches_run_again(at: str, text: Path, run: Run) -> None:
    """And the recovery is told in full."""
    outcome = run(make_job(text), f"kill:node=0,step=3,at={at}")
    plans = outcome.events("plan_taken")
    share = {
        worker: count
        for pipeline, count in zip(plans[0]["pipelines"], plans[0]["microbatches"], strict=True)
        for worker, _, _ in pipeline
    }
    (recovery,) = outcome.summary["recoveries"]
    assert set(recovery) == RECOVERY_FIELDS
    assert recovery["step"] == 3
    assert recovery["lost_nodes"] == [0]
    assert recovery["policy"] == "templates"
    assert recovery["detect_ms"] >= 0
    assert recovery["resume_ms"] > 0
    assert recovery["reason"].endswith(".")
    assert recovery["microbatches_per_step"] == 9
    assert 0 < recovery["microbatches_rerun"] <= share[0]
    assert [plan["purpose"] for plan in plans] == ["start", "finish step", "reconfigure"]
    assert recovery["transfer_bytes"] == plans[-1]["transfer_bytes"]


def test_with_all_replicas_lost_the_job_goes_back_to_its_checkpoint(
    text: Path, run: Run, reference: Reference, first_pipelines: Callable[[Job], Pipelines]
) -> None:
    """All holders of the first layer die at once: back to the checkpoint, and on to the same bits."""
    job = make_job(text, run__checkpoint_every=2)
    holders = [pipeline[0][0] for pipeline in first_pipelines(job)]
    assert len(holders) == 3, "four of seven nodes are left, enough for two pipelines"
    outcome = run(job, *(f"kill:node={node},step=4,at=backward" for node in holders))
    outcome.assert_same_bits(reference(job))
    (restored,) = outcome.events("restored")
    assert (restored["from_step"], restored["to_step"]) == (3, 2)


def test_with_all_replicas_lost_and_no_checkpoint_the_run_fails_and_says_so(
    text: Path, run: Run, first_pipelines: Callable[[Job], Pipelines]
) -> None:
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=0)
    outcome = run(job, *(f"kill:node={pipeline[0][0]},step=3,at=backward" for pipeline in first_pipelines(job)))
    assert outcome.summary["status"] == "failed"
    assert "run.checkpoint_every" in outcome.summary["message"]


class Killer:
    """Kills a process of the run, by pid, when a record says so."""

    def __init__(self, when: Callable[[AnyRecord], bool], pids: Callable[[], list[int]]) -> None:
        self._when = when
        self._pids = pids
        self.killed: int | None = None

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if self.killed is None and self._when(record):
            self.killed = self._pids()[-1]
            os.kill(self.killed, signal.SIGKILL)


def test_a_kill_from_outside_changes_no_bit(
    text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    job = make_job(text, cluster__nodes=5)
    killer = Killer(lambda record: isinstance(record, StepCommitted) and record.step == 2, worker_pids)
    outcome = run(job, observers=[killer])
    outcome.assert_same_bits(reference(job))
    (recovery,) = outcome.summary["recoveries"]
    assert recovery["detect_ms"] is None, "nobody knows when the node died"


@pytest.mark.proof
def test_a_kill_before_the_first_step_changes_no_bit(
    text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    job = make_job(text, cluster__nodes=5)
    killer = Killer(lambda record: isinstance(record, PlanTaken), worker_pids)
    run(job, observers=[killer]).assert_same_bits(reference(job))


@pytest.mark.proof
def test_a_kill_while_the_last_checkpoint_is_written_changes_no_bit(
    text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    job = make_job(text, cluster__nodes=5)
    killer = Killer(lambda record: isinstance(record, StepCommitted) and record.step == 5, worker_pids)
    run(job, observers=[killer]).assert_same_bits(reference(job))


@pytest.mark.proof
def test_a_kill_before_all_have_joined_changes_no_bit(
    text: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    job = make_job(text, cluster__nodes=5)
    killer = Killer(lambda record: type(record).__name__ == "NodeJoined", worker_pids)
    outcome = run(job, observers=[killer])
    outcome.assert_same_bits(reference(job))
    assert outcome.summary["live_nodes"] == 4


def test_periodic_checkpoints_are_kept_by_count(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, run__checkpoint_every=1, run__keep_checkpoints=2)
    outcome = run(job, "kill:node=1,step=2,at=apply", "kill:node=4,step=4,at=apply")
    outcome.assert_same_bits(reference(job))
    folders = sorted(path.name for path in (outcome.result.folder / "checkpoints").iterdir())
    assert len(folders) == 2  # one that is due while another is still being written is left out
    assert folders[-1] == "step-00000005"


BAD_IN_PLACES = """
import torch
from torch import nn

class Fragile(nn.Module):
    \"\"\"Now and then its output is NaN.\"\"\"

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = self.inner(x)
        return x * float("nan") if float(torch.rand(())) < 0.03 else x

def layers():
    return [nn.Embedding(259, 8), Fragile(), nn.Linear(8, 8), nn.Linear(8, 259)]
"""


def test_steps_that_are_not_finite_are_skipped(text: Path, tmp_path: Path, run: Run) -> None:
    """Under two kills, and by the reference too."""
    (tmp_path / "bad_in_places.py").write_text(BAD_IN_PLACES)
    job = make_job(
        text,
        model__type="bad_in_places:layers",
        model__config={},
        train__steps=12,
        train__when_not_finite="skip",
        cluster__nodes=5,
        resilience__min_nodes_per_pipeline=1,
    )
    outcome = run(job, "kill:node=2,step=3,at=backward", "kill:node=4,step=8,at=sync", import_path=tmp_path)
    alone = Outcome(train_reference(job, RunFolder.create(tmp_path, "alone"), import_path=tmp_path))
    outcome.assert_same_bits(alone)
    skipped = [event["step"] for event in outcome.events("step_skipped")]
    assert skipped == [event["step"] for event in alone.events("step_skipped")]
    assert 0 < len(skipped) < 12
    assert outcome.summary["skipped_steps"] == alone.summary["skipped_steps"] == len(skipped)
    assert outcome.summary["steps"] == len(outcome.losses) == 12


@pytest.mark.proof
def test_a_loss_that_is_not_a_number_is_never_applied(text: Path, run: Run, reference: Reference) -> None:
    steps = {"train__learning_rate": 1e30, "train__warmup_steps": 0, "train__clip_norm": 0.0}
    job = make_job(text, cluster__nodes=4, **steps)
    outcome = run(job)
    assert outcome.summary["status"] == "failed"
    assert "train.learning_rate" in outcome.summary["message"]
    assert outcome.result.steps == reference(job).result.steps < 5
    assert outcome.summary["weights_sha256"] == reference(job).summary["weights_sha256"]
