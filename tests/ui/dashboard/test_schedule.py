"""What the page draws of steps: the last ones that workers have written of, in bounded time and size."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.instruction_trace import Entry
from planaria.ui.dashboard import recorded_steps, schedule
from planaria.ui.dashboard.recorded_steps import RecordedSteps
from planaria.ui.dashboard.runs import RunReader
from tests.ui.dashboard.made_up import happenings, made_up_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return made_up_run(tmp_path, "one", happenings(8, 10, 0))


def write(folder: RunFolder, worker: int, steps: list[int], attempt: int = 0) -> None:
    """Two instructions for each step, in the microbatch of the attempt's number."""
    with (folder.logs / f"trace-{worker}.jsonl").open("ab") as file:
        for step in steps:
            for op in ("forward", "backward"):
                file.write(msgspec.json.encode(Entry(step, op, attempt, 1, 0, 10.0 * step, 10.0 * step + 1, 2)) + b"\n")


def test_steps_are_found_and_of_one_that_was_trained_again_the_last_time(folder: RunFolder) -> None:
    write(folder, 0, [1, 2, 3, 4])
    write(folder, 1, [1, 2])  # it was killed then
    recorded = RecordedSteps(folder)
    recorded.look()
    assert recorded.steps == (1, 2, 3, 4)
    write(folder, 0, [3], attempt=1)
    recorded.look()
    assert recorded.steps == (1, 2, 3)
    assert [entry.microbatch for entry in recorded.entries(3)[0]] == [1, 1]
    assert set(recorded.entries(2)) == {0, 1}
    assert recorded.newest == 2


def test_of_a_long_run_only_the_last_steps_are_read(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 0, list(range(1, 1001)))
    with (folder.logs / "trace-0.jsonl").open("ab") as file:
        file.write(b'[1001,"forw')
    monkeypatch.setattr(recorded_steps, "MOST_TRACE_BYTES", 1000)
    recorded = RecordedSteps(folder)
    recorded.look()
    assert recorded.steps[-1] == recorded.newest == 1000
    assert 5 < len(recorded.steps) < 20
    assert all(len(recorded.entries(step)[0]) == 2 for step in recorded.steps)
    with (folder.logs / "trace-0.jsonl").open("ab") as file:
        file.write(b'ard",0,1,0,0.0,1.0]\n')
    write(folder, 0, [1002])
    recorded.look()
    assert recorded.steps[-2:] == (1001, 1002)
    assert [len(recorded.entries(step)[0]) for step in recorded.steps[-3:]] == [2, 1, 2]
    found = RunReader(folder).schedules.of_step(7)
    assert (found.step, found.measured) == (None, None)
    assert "Nothing of step 7 is recorded here. planaria trace-steps reads those of long ago." in found.notes


def test_traces_of_before_and_workers_without_a_plan_are_drawn(folder: RunFolder) -> None:
    old = b'[5,"forward",3,1,4,0.0,1.0]\n[5,"of_the_future",3,1,4,1.0,2.0]\nnot json\n'
    (folder.logs / "trace-6.jsonl").write_bytes(old)
    found = RunReader(folder).schedules.of_step(None)
    assert found.planned is None
    assert found.notes == (
        "The plan of step 5 is not in the journal, or that cannot be read: nothing can be said of what was planned.",
    )
    assert found.measured is not None
    (others,) = found.measured.pipelines
    assert (others.number, [row.name for row in others.rows]) == (None, ["worker 6"])
    assert list(others.rows[0].cells) == [("forward", 3, 4, 5, 0.0, 1.0)]


def test_no_more_boxes_are_drawn_than_a_page_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.ui.plots.test_schedule_picture import PLAN, TIMELINE

    whole = schedule._picture(PLAN, TIMELINE.spans, TIMELINE.step_time_s)
    assert (len(whole.pipelines), whole.num_left_out) == (2, 0)
    monkeypatch.setattr(schedule, "MOST_CELLS", 10)
    part = schedule._picture(PLAN, TIMELINE.spans, TIMELINE.step_time_s)
    assert (list(part.pipelines), part.num_left_out) == (list(whole.pipelines[:1]), 1)
