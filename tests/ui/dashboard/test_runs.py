"""What the page is told of a run: all of it in bounded memory, also while the run is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import AnyRecord, Restored, StepCommitted, StepSkipped
from planaria.runtime.run_folder.recorder import read_events
from planaria.ui.dashboard.runs import RunReader, Runs
from planaria.ui.dashboard.series import MOST_POINTS
from planaria.ui.dashboard.view import view_of
from tests.runtime.run_folder.happenings import JOB
from tests.ui.dashboard.made_up import committed, happenings, made_up_run


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
    view = view_of(JOB, ((committed(step, 1, 8), step) for step in range(1, 10_001)))
    rows = view.series.rows()
    assert MOST_POINTS / 2 <= len(rows) <= MOST_POINTS
    assert rows[-1][0] == 10_000
    losses = [committed(step, 1, 8).loss for step in range(1, 10_001)]
    assert min(row[3] for row in rows) == pytest.approx(min(losses), rel=1e-5)
    assert max(row[4] for row in rows) == pytest.approx(max(losses), rel=1e-5)
    view.add(Restored(from_step=10_000, to_step=5_000, reason="all replicas were lost"), 10_001)
    assert view.series.rows()[-1][0] <= 5_000


def test_what_is_read_in_large_pieces_is_what_the_records_say_one_by_one(tmp_path: Path) -> None:
    """A step that is skipped, and some that are trained again, among 20,000."""

    def told() -> Iterator[AnyRecord]:
        for record in happenings(16, 20_000, 100, replaces=True):
            is_step = isinstance(record, StepCommitted)
            yield skipped(15_050) if is_step and record.step == 15_050 else record
            if is_step and record.step == 9_000:
                yield Restored(from_step=9_000, to_step=8_990, reason="all replicas were lost")
                yield from (committed(step, 1, 16) for step in range(8_991, 9_001))

    folder = made_up_run(tmp_path, "long", told())
    one_by_one = view_of(JOB, read_events(folder.events))
    found = RunReader(folder).whole()
    rows = one_by_one.series.rows()
    assert MOST_POINTS / 2 <= len(rows) <= MOST_POINTS
    assert found["series"]["rows"] == [pytest.approx(row) for row in rows]
    assert (found["now"]["step"], found["details"]["num_recoveries"], found["unknown"]) == (20_000, 100, 0)
    split, expected = found["now"].pop("split"), one_by_one.now()
    assert split == pytest.approx(expected.pop("split"))
    assert found["now"] == expected
    assert found["details"] == one_by_one.details()
    reader = RunReader(folder)
    looks = [reader.look()]
    while looks[-1][0]["read"] < 1:
        looks.append(reader.look(looks[-1][1]))
    assert all(len(look["series"]["rows"]) <= MOST_POINTS for look, _ in looks)
    with folder.events.open("ab") as events:
        events.write(b'{"time":1000009999.000000,"event":"step_of_the_future"}\n' * 9)
    assert reader.look()[0]["unknown"] == 9


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
