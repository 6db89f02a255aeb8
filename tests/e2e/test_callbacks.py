"""Callbacks: they hear of every record, may end the run, and cannot hurt it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from planaria.job.errors import UserError
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job

MODULE = """
from planaria import records

def listen(record, run):
    with (run.folder / "heard.txt").open("a") as file:
        print(type(record).__name__, getattr(record, "step", ""), file=file)

def stop_after_three(record, run):
    if isinstance(record, records.StepCommitted) and record.step >= 3:
        run.stop("three are enough")

def broken(record, run):
    if isinstance(record, records.StepCommitted):
        raise ValueError("no such metric")

def leave(record, run):
    raise SystemExit(3)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "callbacks_of_mine.py").write_text(MODULE)
    return folder


def heard(outcome: Outcome) -> list[str]:
    return (outcome.result.folder / "heard.txt").read_text().splitlines()


@pytest.mark.proof
def test_a_callback_stops_a_run_that_goes_on_later(
    run: Run, slow_layers: Path, mine: Path, reference: Reference
) -> None:
    names = [f"callbacks_of_mine:{name}" for name in ("leave", "broken", "listen", "stop_after_three")]
    job = make_emulated_job(slow_layers, train__steps=8, run__callbacks=names)
    outcome = run(job, "kill:node=2,step=2,at=backward", import_path=mine)
    assert outcome.result.status == "stopped"
    assert outcome.result.message.startswith("stopped by a callback: three are enough")
    assert 3 <= outcome.result.steps < 8
    told = heard(outcome)
    assert [line for line in told if line.startswith("StepCommitted")] == [
        f"StepCommitted {step}" for step in range(1, outcome.result.steps + 1)
    ]
    assert told[-1] == "RunEnded "
    left, note = (note for note in outcome.events("note") if "callback" in note["text"])
    assert "callbacks_of_mine:leave failed on a " in left["text"]
    assert "callbacks_of_mine:broken failed on a StepCommitted with ValueError: no such metric in " in note["text"]
    assert "callbacks_of_mine.py, line 14" in note["text"]
    without = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, callbacks=()))
    run(without, resume=outcome.result.folder).assert_same_bits(reference(job))


def test_a_callback_that_is_not_there_is_refused(run: Run, slow_layers: Path, mine: Path) -> None:
    job = make_emulated_job(slow_layers, run__callbacks=["callbacks_of_mine:nothing"])
    with pytest.raises(UserError, match=r"run.callbacks = 'callbacks_of_mine:nothing': .* has no function 'nothing'"):
        run(job, import_path=mine)
    with pytest.raises(UserError, match=r"run.callbacks = 'listen' is not module:function"):
        make_emulated_job(slow_layers, run__callbacks=["listen"])
