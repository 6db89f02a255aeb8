"""What the page is told of a run: all of it in bounded memory, also while the run is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.job.parse import job_json
from planaria.protocol.messages.records import AnyRecord, Recovered, Restored, StepCommitted, StepSkipped
from planaria.runtime.run_folder import step_blocks
from planaria.runtime.run_folder.recorder import Recorder, told_but_steps
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.dashboard.runs import RunReader, Runs
from planaria.ui.dashboard.series import MOST_POINTS
from planaria.ui.dashboard.view import RunView
from tests.runtime.run_folder.happenings import JOB
from tests.ui.dashboard.made_up import committed, happenings, made_up_run


def view_of(records: Iterable[tuple[AnyRecord, float]]) -> RunView:
    view = RunView(JOB)
    for record, time_s in records:
        view.add(record, time_s)
    return view


def skipped(step: int) -> StepSkipped:
    return StepSkipped(
        step=step, loss=None, grad_norm=None, learning_rate=1e-3, generation=1, live_nodes=16, duration_s=0.1,
        tokens_per_s=1e4,
    )  # fmt: skip


def test_the_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    found = RunReader(made_up_run(tmp_path, "one", happenings(9, 30, 2))).whole()
    assert (found["now"]["step"], found["now"]["loss"]) == (30, committed(30, 1, 1).loss)
    assert found["now"]["live_nodes"] == 7
    details = found["details"]
    assert [node["node"] for node in details["nodes"] if node["state"] == "lost"] == [1, 2]
    assert [node["node"] for node in details["nodes"] if node["state"] == "spare"] == [6, 7, 8]
    assert [recovery["lost_nodes"] for recovery in details["recoveries"]] == [(1,), (2,)]
    first = details["recoveries"][0]
    assert first["before"]["pipelines"][0][1][0] == 1
    assert first["after"]["pipelines"][0][1][0] == 2
    assert len(found["series"]["rows"]) == 30
    assert found["unknown"] == 0


def test_a_look_tells_only_what_is_new_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path, "one", happenings(8, 10, 0))
    data = folder.events.read_bytes()
    folder.events.write_bytes(data[:-5])
    reader = RunReader(folder)
    found, known = reader.look()
    assert found["now"]["step"] == 9
    assert found["details"]["nodes"]
    with folder.events.open("ab") as events:
        events.write(data[-5:])
    found, known = reader.look(known)
    assert found["now"]["step"] == 10
    assert "details" not in found
    assert [row[0] for row in found["series"]["rows"]] == [9, 10]
    folder.events.write_bytes(data[: len(data) // 2])  # written anew: read anew
    found, _ = reader.look(known)
    assert found["series"]["first"] == 0
    assert "details" in found


def test_many_steps_are_few_points_and_no_extreme_is_lost() -> None:
    view = view_of((committed(step, 1, 8), step) for step in range(1, 10_001))
    rows = view.series.rows()
    assert MOST_POINTS / 2 <= len(rows) <= MOST_POINTS
    assert rows[-1][0] == 10_000
    losses = [committed(step, 1, 8).loss for step in range(1, 10_001)]
    assert min(row[3] for row in rows) == pytest.approx(min(losses), rel=1e-5)
    assert max(row[4] for row in rows) == pytest.approx(max(losses), rel=1e-5)
    view.add(Restored(from_step=10_000, to_step=5_000, reason="all replicas were lost"), 10_001)
    assert view.series.rows()[-1][0] <= 5_000


def told() -> Iterator[AnyRecord]:
    """A step that is skipped, and some that are trained again, among 20,000."""
    for record in happenings(16, 20_000, 100, replaces=True):
        is_step = isinstance(record, StepCommitted)
        yield skipped(15_050) if is_step and record.step == 15_050 else record
        if is_step and record.step == 9_000:
            yield Restored(from_step=9_000, to_step=8_990, reason="all replicas were lost")
            yield from (committed(step, 1, 16) for step in range(8_991, 9_001))


@pytest.fixture
def long_run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "long")
    folder.job.write_bytes(job_json(JOB))
    with Recorder(folder, JOB) as recorder:
        for place, record in enumerate(told()):
            recorder(record, 1e9 + 0.1 * place)
    return folder


@pytest.mark.parametrize("index", ["none", "used", "of another file"])
def test_of_a_long_run_few_points_are_sent_and_they_are_what_its_records_say(
    long_run: RunFolder, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if index != "none":
        monkeypatch.setattr(step_blocks, "INDEXED_FROM_BYTES", 0)
    if index == "of another file":
        lines = long_run.events.read_bytes().splitlines(keepends=True)
        long_run.events.write_bytes(b"".join([*lines[:50], b'{"time":1.0,"event":"of_the_future"}\n', *lines[50:]]))
    blocks = list(step_blocks.passages(long_run.events, long_run.step_blocks))
    assert (len(blocks) > 100) == (index == "used")
    one_by_one = view_of(known_records(long_run))
    found = RunReader(long_run).whole()
    rows = found["series"]["rows"]
    assert 300 <= len(rows) <= MOST_POINTS
    for before, row in pairwise(rows):
        losses = [committed(step, 1, 16).loss for step in range(before[0] + 1, row[0] + 1) if step != 15_050]
        if not before[0] < 9_000 < row[0] + 100:  # of what was trained again, a point is forgotten whole
            assert row[2:5] == pytest.approx([sum(losses) / len(losses), min(losses), max(losses)], rel=1e-4)
    if index != "used":
        assert rows == [pytest.approx(row) for row in one_by_one.series.rows()]
    assert (found["now"]["step"], found["details"]["num_recoveries"]) == (20_000, 100)
    split, expected = found["now"].pop("split"), one_by_one.now()
    assert split == pytest.approx(expected.pop("split"), abs=0.5)
    assert found["now"] == expected
    assert found["details"] == one_by_one.details()
    reader = RunReader(long_run)
    looks = [reader.look()]
    while looks[-1][0]["read"] < 1:
        looks.append(reader.look(looks[-1][1]))
    assert all(len(look["series"]["rows"]) <= MOST_POINTS for look, _ in looks)
    assert (looks[-1][0]["now"], looks[-1][0]["series"]["rows"][-1]) == (found["now"] | {"split": split}, rows[-1])
    if index != "of another file":
        assert [record for record in told_but_steps(long_run) if isinstance(record, Recovered)] == [
            record for record in told() if isinstance(record, Recovered)
        ]


def known_records(folder: RunFolder) -> Iterator[tuple[AnyRecord, float]]:
    """Reads line by line, and leaves out what this Planaria does not know."""
    decode = msgspec.json.Decoder(AnyRecord).decode
    for line in folder.events.read_bytes().splitlines():
        with contextlib.suppress(msgspec.ValidationError):
            yield decode(line), float(line[8 : line.index(b",")])


def test_a_record_of_the_future_that_looks_like_a_step_is_passed_over(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path, "one", happenings(8, 300, 0))
    with folder.events.open("ab") as events:
        events.write(b'{"time":1000009999.000000,"event":"step_of_the_future"}\n' * 9)
    found = RunReader(folder).whole()
    assert (found["unknown"], found["now"]["step"]) == (9, 300)


def test_lines_that_are_no_records_are_counted_and_passed_over(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path, "one", happenings(8, 3, 0))
    with folder.events.open("ab") as events:
        events.write(b'{"time":1.0,"event":"of_the_future"}\nnot json\n')
    assert RunReader(folder).whole()["unknown"] == 2


def test_runs_are_found_by_name_and_by_nothing_else(tmp_path: Path) -> None:
    made_up_run(tmp_path / "runs", "one", happenings(8, 3, 0))
    runs = Runs(tmp_path / "runs")
    assert runs.reader("one") is runs.reader("one")
    assert [Path(run.run).name for run in runs.table()] == ["one"]
    for name in ("two", "../runs/one", "", "/etc"):
        with pytest.raises(UserError, match="there is no run"):
            runs.reader(name)
    assert Runs(tmp_path / "runs" / "one").reader("one")
