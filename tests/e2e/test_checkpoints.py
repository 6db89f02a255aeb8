"""Checkpoints that are written beside training."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord, StepCommitted
from tests.e2e.conftest import Pipelines, Reference, Run
from tests.e2e.jobs import make_job


class BrokenDisk:
    """Between two steps, nothing can be written into the folder of checkpoints: a file is in its place."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        self._folder = folder
        self._aside = folder.with_name("aside")
        self._first, self._last = first, last

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if not isinstance(record, StepCommitted):
            return
        if record.step == self._first:
            self._folder.rename(self._aside)
            while not self._folder.is_file():  # a worker may be as quick, and begin the folder again
                shutil.rmtree(self._folder, ignore_errors=True)
                with contextlib.suppress(IsADirectoryError):
                    self._folder.touch()
        if record.step == self._last:
            self._folder.unlink()
            self._folder.mkdir(exist_ok=True)  # a worker may be as quick
            for checkpoint in self._aside.iterdir():
                checkpoint.rename(self._folder / checkpoint.name)


def test_a_disk_that_cannot_be_written_stops_nothing_and_is_said(
    tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4, train__steps=14, run__checkpoint_every=1)
    outcome = run(job, observers=[BrokenDisk(tmp_path / "run-0" / "checkpoints", 3, 8)])
    outcome.assert_same_bits(reference(job))
    assert any("is given up: " in note["text"] for note in outcome.events("note"))
    assert outcome.events("checkpoint_saved")[-1]["step"] == 14


@pytest.mark.proof
@pytest.mark.parametrize("at", ["forward", "vote"])
def test_kills_while_every_step_is_saved_change_no_bit(at: str, text: Path, run: Run, reference: Reference) -> None:
    """What is given up is never used, and what is saved is what the reference has."""
    job = make_job(text, run__checkpoint_every=1)
    outcome = run(job, f"kill:node=1,step=2,at={at}", f"kill:node=4,step=4,at={at}")
    outcome.assert_same_bits(reference(job))


@pytest.mark.proof
def test_every_replica_of_a_layer_is_lost_soon_after_a_save(
    text: Path, run: Run, reference: Reference, first_pipelines: Callable[[Job], Pipelines]
) -> None:
    job = make_job(text, train__steps=12, run__checkpoint_every=2)
    faults = [f"kill:node={stages[0][0]},step=9,at=backward" for stages in first_pipelines(job)]
    outcome = run(job, *faults)
    restored = outcome.events("restored")
    assert [event["from_step"] for event in restored] == [8]
    assert 0 < restored[0]["to_step"] <= 8
    outcome.assert_same_bits(reference(job))
