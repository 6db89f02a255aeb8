"""A run that is made longer: what was trained stays, the schedule goes on to the new end, one process repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.job.history import schedule_ends
from planaria.job.settings import Job
from planaria.protocol.step.schedule import learning_rate
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.launch.training.resumption import history_of
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job, make_job


def longer(job: Job, steps: int) -> Job:
    return msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, steps=steps))


def rates(outcome: Outcome) -> list[float]:
    lines = (outcome.result.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["learning_rate"] for line in lines]


def test_steps_are_raised_and_the_reference_repeats_it(run: Run, text: Path, tmp_path: Path) -> None:
    job = make_job(text, cluster__nodes=5, train__steps=4)
    folder = run(job).result.folder
    with pytest.raises(UserError, match=r"all 4 steps are done. Raise train.steps to go on"):
        run(job, resume=folder)
    run(longer(job, 7), resume=folder)
    third = run(longer(job, 9), "kill:node=1,step=8,at=backward", resume=folder)
    assert rates(third) == (
        [learning_rate(longer(job, end).train, step) for end, steps in ((4, range(1, 5)), (7, range(5, 8)), (9, (8, 9)))
         for step in steps]
    )  # fmt: skip
    assert any("train.steps was 7; from step 8 on" in note["text"] for note in third.events("note"))
    history = history_of(RunFolder.open(folder), longer(job, 9))
    assert schedule_ends(history) == ((0, 4), (4, 7), (7, 9))
    alone = Outcome(train_reference(longer(job, 9), RunFolder.create(tmp_path, "alone"), history=history))
    third.assert_same_bits(alone)
    unlike = train_reference(longer(job, 9), RunFolder.create(tmp_path, "unlike"))
    assert unlike.weights_sha256 != third.result.weights_sha256


def test_steps_are_not_lowered(run: Run, text: Path) -> None:
    job = make_job(text, cluster__nodes=4, train__steps=4, run__checkpoint_every=2)
    folder = run(job).result.folder
    manifest = folder / "checkpoints" / "step-00000004" / "manifest.json"
    manifest.unlink()
    with pytest.raises(UserError, match=r"train.steps = 3 is less than the 4"):
        run(longer(job, 3), resume=folder)


def test_a_budget_that_is_spent_saves_and_a_higher_one_goes_on(
    slow_layers: Path, run: Run, reference: Reference
) -> None:
    """At a million dollars an hour no step fits the budget; the first one is begun, as nothing is counted yet."""
    job = make_emulated_job(slow_layers, budget__price=1e6, budget__total=0.001)
    first = run(job)
    assert (first.summary["status"], first.summary["steps"]) == ("exhausted", 1)
    assert "of budget.total = 0.001 dollars" in first.summary["message"]
    cost = first.summary["cost"]
    richer = make_emulated_job(slow_layers, budget__price=1e6, budget__total=1e9)
    second = run(richer, resume=first.result.folder)
    assert second.summary["status"] == "completed"
    assert second.summary["cost"] > cost > 0.001
    second.assert_same_bits(reference(job))
