"""Callbacks: what is told of one that hangs, and of one whose checkpoint is removed under its hands."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, Note
from planaria.runtime.launch import callbacks as callbacks_module
from planaria.runtime.launch.callbacks import Callbacks, LiveRun
from tests.runtime.run_folder.happenings import JOB


def make(tmp_path: Path, callback: callbacks_module.Callback) -> Callbacks:
    live = LiveRun(job=JOB, folder=tmp_path, stop=lambda reason: None)
    return Callbacks({"mine": callback}, live, lambda: False)


def test_what_the_end_waits_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks_module, "_TOLD_AFTER_S", 0.0)
    goes_on = threading.Event()
    own = make(tmp_path, lambda record, run: goes_on.wait(60))
    own(Note(level="info", text="a record"), 0.0)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        own(Note(level="info", text=text), 0.0)  # it is a record too
        goes_on.set()

    own.catch_up(tell)
    own.close()
    assert told == ["the end waits for the callback mine, at a Note; Ctrl-C twice ends the run without it"]


def test_a_checkpoint_that_is_removed_meanwhile_is_named_and_the_callback_stays(tmp_path: Path) -> None:
    seen: list[AnyRecord] = []

    def export(record: AnyRecord, run: LiveRun) -> None:
        seen.append(record)
        assert isinstance(record, CheckpointSaved)
        (Path(record.folder) / "manifest.json").read_bytes()

    own = make(tmp_path, export)
    for step in (1, 2):
        own(CheckpointSaved(step=step, folder=str(tmp_path / f"step-{step}"), seconds=0.1), 0.0)
    own.catch_up(pytest.fail)
    assert [note.text.partition(" when newer")[0] for note in own.notes()] == [
        f"the callback mine was not done with the checkpoint of step {step}" for step in (1, 2)
    ]
    assert len(seen) == 2
    own.close()
