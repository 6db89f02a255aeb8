"""Threads of views: what a view raises, and its stalls, change nothing else and are told once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from planaria.protocol.messages.records import RunEnded
from planaria.runtime.observers import view_thread
from planaria.runtime.observers.view import TimedRecord, View, ViewedRun
from planaria.runtime.observers.view_thread import Views
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB, committed, short_run

DEADLINE_S = 60.0


class Listening:
    """A view that notes what it is shown; its gate holds it up."""

    name = "Listening"

    def __init__(self) -> None:
        self.shown: list[TimedRecord] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_in = threading.Event()
        self.is_closed = False

    def start(self, run: ViewedRun) -> None:
        pass

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        self.is_in.set()
        assert self.gate.wait(DEADLINE_S)
        self.shown += records
        return ()

    def close(self) -> None:
        self.is_closed = True


class Broken(Listening):
    name = "Broken"

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        self.is_in.set()
        raise SystemExit("no space left\non the device")


def views(tmp_path: Path, *given: View, hurried: bool = False) -> Views:
    return Views(given, ViewedRun(name="short", job=JOB, folder=RunFolder(tmp_path), step=0), lambda: hurried)


def test_views_see_every_record_in_order_though_another_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, listening = Broken(), Listening()
    shown = views(tmp_path, broken, listening)
    records = [(record, float(at)) for at, record in enumerate(short_run())]
    for record, time_s in records:
        shown(record, time_s)
    shown.close()
    assert listening.shown == records
    assert listening.is_closed
    assert broken.is_closed
    assert capsys.readouterr().err == (
        "Broken failed: SystemExit: no space left. Nothing more is shown there; training goes on\n"
    )


def test_a_view_that_is_behind_misses_records_but_never_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_thread, "VIEW_QUEUE", 3)
    listening = Listening()
    listening.gate.clear()
    shown = views(tmp_path, listening)
    shown(committed(1), 0.0)
    assert listening.is_in.wait(DEADLINE_S)
    for step in range(2, 10):
        shown(committed(step), 0.0)
    (note,) = shown.notes()
    assert note.text == "Listening is 3 records behind: it misses what comes until it has caught up"
    ended = short_run()[-1]
    assert isinstance(ended, RunEnded)
    shown(ended, 1.0)
    assert shown.notes() == []
    listening.gate.set()
    shown.close()
    assert [record for record, _ in listening.shown] == [*map(committed, (1, 2, 3, 4)), ended]


@pytest.mark.parametrize("hurried", [True, False])
def test_a_view_that_stalls_at_the_end_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hurried: bool
) -> None:
    monkeypatch.setattr(view_thread, "VIEW_END_S", 600.0 if hurried else 0.0)
    listening = Listening()
    listening.gate.clear()
    shown = views(tmp_path, listening, hurried=hurried)
    shown(committed(1), 0.0)
    shown.close()
    assert capsys.readouterr().err == "Listening has not shown all by the end of the run, and is left behind\n"
    listening.gate.set()


def test_a_view_that_was_never_told_anything_is_not_started(tmp_path: Path) -> None:
    listening = Listening()
    views(tmp_path, listening).close()
    assert not listening.is_closed
