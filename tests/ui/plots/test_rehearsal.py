"""What a user sees of a rehearsal: lines or a bar while it runs, and pictures of what came of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved
from planaria.runtime.progress.rehearsal_progress import RehearsalProgress
from planaria.simulate.traces.scripts import Clock, Script
from planaria.simulate.traces.tally import Curve
from planaria.simulate.traces.trace import Change, Trace, TraceEvent
from planaria.ui.plots.rehearsal_plot import Line, Nodes, plot_rehearsal
from tests.runtime.run_folder.happenings import committed, short_run

TRACE = Trace(name="t", horizon_s=90.0, events=(TraceEvent(at_s=0.0, change=Change.ADD, node="a"),))


def shown(
    records: list[AnyRecord], *, clock: Clock = Clock.SECONDS, is_brief: bool = False, live: bool = False
) -> list[str]:
    """A record every second; what the script does is said at the end."""
    stream = io.StringIO()
    now = 0.0
    script = Script(trace=TRACE, clock=clock)
    with RehearsalProgress("job", script, 8, stream=stream, live=live, is_brief=is_brief, clock=lambda: now) as show:
        for record in records:
            now += 1.0
            show(record, 0.0)
        show.say("node 1 (b) is killed")
    return stream.getvalue().splitlines()


def test_what_happens_is_a_line_and_figures_come_now_and_then() -> None:
    lines = shown([*short_run()[:-1], *(committed(step) for step in range(4, 20))])
    assert lines[0] == "plan 1: 120 ms a step expected"
    assert [line.split() for line in lines[2:4]] == [["0", "3", "0,", "1", "0-3", "|", "4-7"], ["1", "1", "2", "0-7"]]
    assert "step 2: node 1 lost (connection closed, seen after 8 ms), 2 nodes live" in lines
    assert not any("checkpoint" in line for line in lines)
    assert not any("joined" in line for line in lines)
    figures = [line for line in lines if line.startswith("job ")]
    assert figures[0] == "job  0.00 s of 1:30  3 nodes, 1 step, 32 samples/s"
    assert figures[-1] == "job  15.0 s of 1:30  2 nodes, 17 steps, 32 samples/s"
    assert len(figures) == 5
    assert lines[-1] == "17.0 s of 1:30: node 1 (b) is killed"


class Pieces(io.StringIO):
    """Remembers what was written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return super().write(text)


def test_a_line_is_written_in_one_piece_so_that_threads_do_not_mix_theirs() -> None:
    stream = Pieces()
    with RehearsalProgress("job", Script(trace=TRACE), 8, stream=stream, live=False) as show:
        show.say("node 1 (b) is killed")
        for record in short_run():
            show(record, 0.0)
    assert len(stream.pieces) > 3
    assert all(piece.endswith("\n") for piece in stream.pieces)


def test_a_script_by_steps_is_told_in_steps() -> None:
    lines = shown([*short_run(), committed(9)], clock=Clock.STEPS)
    assert lines[-1].startswith("step 6.")
    assert lines[-1].endswith("of 90: node 1 (b) is killed")


def test_brief_is_figures_alone() -> None:
    lines = shown(short_run(), is_brief=True)
    assert lines
    assert all(line.startswith("job ") for line in lines)


def test_the_bar_is_drawn_and_lines_stay_above_it() -> None:
    lines = shown([*short_run(), CheckpointSaved(step=3, folder="f", seconds=0.1)], live=True)
    assert any("samples/s" in line for line in lines)
    assert any("node 1 (b) is killed" in line for line in lines)


LINE = Line(label="templates", throughput=Curve(at_s=(0.0, 1.0, 2.0), value=(1.0, 3.0, 2.0)), mean=2.0)
NODES = Nodes(label="of the job", count=Curve(at_s=(0.0, 2.0), value=(3.0, 3.0)))


def test_pictures_in_every_form_and_the_same_each_time(tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("a.png", "a.svg", "b.svg")]
    plot_rehearsal("title", [LINE], [NODES], targets)
    assert targets[0].read_bytes().startswith(b"\x89PNG")
    assert b"<!-- templates, 2 -->" in targets[1].read_bytes()
    assert targets[1].read_bytes() == targets[2].read_bytes()


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        plot_rehearsal("title", [LINE], [NODES], [tmp_path / "no" / "folder.png"])
