"""Marks are there, and are noted when they are reached."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.testkit.promises import marks
from tests.testkit.promises.marks import MARKS, Mark, watch
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.search import error_of

CORPUS = Path(__file__).parents[2] / "simulate" / "corpus"


def test_each_mark_has_a_name_of_its_own_and_a_reason() -> None:
    assert len({mark.name for mark in MARKS}) == len(MARKS)
    assert all(mark.why for mark in MARKS)


def test_what_a_run_reaches_is_noted() -> None:
    reached = watch()
    which = msgspec.json.decode((CORPUS / "damage-of-state.json").read_bytes(), type=Schedule)
    assert error_of(which) is None
    assert "damaged state comes again" in reached
    assert "no replica and no checkpoint" not in reached


def test_a_mark_on_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Mark("gone", "protocol.handlers.losses", "lost_in_step", "no such line", "it was moved")
    monkeypatch.setattr(marks, "MARKS", (gone,))
    with pytest.raises(LookupError, match="gone"):
        watch()
