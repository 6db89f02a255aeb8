"""The run folder's files: what the recorder writes, appends and survives."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import (
    Note,
    PolicySwitched,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
    StepSkipped,
)
from planaria.runtime.run_folder.recorder import (
    AnotherFile,
    Recorder,
    read_drops,
    read_events,
    take_over,
    told_but_steps,
)
from planaria.runtime.run_folder.run_folder import RunFolder, free_name
from planaria.runtime.run_folder.sentences import sentence
from tests.runtime.run_folder.happenings import JOB, committed, short_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "short")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def record(folder: RunFolder, start_s: float = 1e9) -> None:
    with Recorder(folder, JOB) as recorder:
        for place, happening in enumerate(short_run()):
            recorder(happening, start_s + place)
        recorder.finish(weights_sha256="ab", extra={"note": 1})


def test_a_summary_that_finds_no_room_is_a_warning(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder.summary.with_name(".summary.json.partial").mkdir()
    record(folder)
    assert f"{folder.summary} could not be written: " in caplog.text
    assert lines(folder.events)[-1]["event"] == "run_ended"


def test_a_run_leaves_its_files(folder: RunFolder) -> None:
    record(folder)
    events = lines(folder.events)
    assert [event["event"] for event in events][3:6] == ["plan_taken", "step_committed", "node_lost"]
    assert events[0]["time"] == 1e9
    metrics = lines(folder.metrics)
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert '"loss": 0.30000000000000004' in folder.metrics.read_text()
    assert set(metrics[0]) == {
        "step", "loss", "grad_norm", "learning_rate", "tokens_per_s", "step_s", "live_nodes", "generation",
    }  # fmt: skip
    summary = json.loads(folder.summary.read_text())
    assert summary["status"] == "completed"
    assert summary["steps"] == 3
    assert summary["final_loss"] == 2.5
    assert summary["weights_sha256"] == "ab"
    assert (summary["skipped_microbatches"], summary["duplicated_microbatches"]) == (0, 0)
    assert summary["recoveries"][0]["lost_nodes"] == [1]
    assert summary["recoveries"][0]["microbatches_rerun"] == 4
    assert summary["steps_redone"] == 0
    assert set(summary["time_s"]) == {"useful", "redone", "recovering", "waiting", "other"}
    assert sum(summary["time_s"].values()) == pytest.approx(len(short_run()) - 1)
    assert summary["started"] == "2001-09-09T01:46:40.000+00:00"
    assert summary["step_time_median_s"] == 0.25
    assert summary["live_nodes"] == 2
    assert summary["checkpoint"] == "runs/short/checkpoints/3"
    assert summary["note"] == 1
    assert not list(folder.path.glob("*.partial"))


def test_a_record_that_a_stopped_process_writes_late_is_told_once(folder: RunFolder) -> None:
    """Another process has taken the files over, and tells it."""
    before = Recorder(folder, JOB)
    before(committed(1), 1e9)
    take_over(folder)
    with Recorder(folder, JOB) as recorder:
        before(committed(2), 1e9 + 1)
        recorder(committed(2), 1e9 + 2)
        before(Note(level="info", text="late"), 1e9 + 3)
        recorder(committed(3), 1e9 + 4)
    before.close()
    assert [(line["event"], line["step"]) for line in lines(folder.events)] == [
        ("step_committed", step) for step in (1, 2, 3)
    ]
    assert [line["step"] for line in lines(folder.metrics)] == [1, 2, 3]
    assert not list(folder.path.glob(".*.partial"))


def test_a_process_that_waits_reads_what_another_one_writes(folder: RunFolder, tmp_path: Path) -> None:
    told: list[object] = []
    waiting = Recorder(folder, JOB, told.append, waits=True)
    waiting.read_on()
    happenings = short_run()
    with Recorder(folder, JOB) as before:
        for place, happening in enumerate(happenings[:6]):
            before(happening, 1e9 + place)
            waiting.read_on(1)
        assert told == happenings[:6]
        take_over(folder)
        waiting.open()
        before(happenings[6], 1e9)
    with waiting:
        for place, happening in enumerate(happenings[6:], 6):
            waiting(happening, 1e9 + place)
    other = RunFolder.create(tmp_path / "other", "short")
    record(other)
    assert folder.events.read_bytes() == other.events.read_bytes()
    assert folder.metrics.read_bytes() == other.metrics.read_bytes()
    summary, whole = (json.loads(one.summary.read_text()) for one in (folder, other))
    assert all(summary[name] == whole[name] for name in ("steps", "recoveries", "time_s", "started", "policy"))


def test_a_process_that_waits_notices_another_file(folder: RunFolder) -> None:
    record(folder)
    waiting = Recorder(folder, JOB, waits=True)
    waiting.read_on()
    folder.events.write_bytes(folder.events.read_bytes()[:-2])
    with pytest.raises(AnotherFile):
        waiting.open()


@pytest.mark.parametrize("num_written", [0, 1, 2, 3])
def test_metrics_that_a_killed_process_had_not_written_follow_from_the_events(
    folder: RunFolder, num_written: int
) -> None:
    record(folder)
    whole = folder.metrics.read_bytes()
    folder.metrics.write_bytes(b"".join(whole.splitlines(keepends=True)[:num_written]))
    Recorder(folder, JOB).close()
    assert folder.metrics.read_bytes() == whole


def test_metrics_that_look_otherwise_are_left_as_they_are(folder: RunFolder) -> None:
    record(folder)
    folder.metrics.write_bytes(b'{"step": 1, "loss": 2.0}\n')
    Recorder(folder, JOB).close()
    assert folder.metrics.read_bytes() == b'{"step": 1, "loss": 2.0}\n'


def test_skipped_steps_count_once_and_go_with_the_steps_that_a_restore_undoes(folder: RunFolder) -> None:
    def skipped(step: int) -> StepSkipped:
        return StepSkipped(
            step=step, loss=None, grad_norm=2.0, learning_rate=1e-3, generation=1, live_nodes=3, duration_s=0.25,
            tokens_per_s=1.0,
        )  # fmt: skip

    happenings = [committed(1), skipped(2), skipped(3), Restored(from_step=3, to_step=2, reason="why"), *short_run()]
    with Recorder(folder, JOB) as recorder:
        for happening in happenings:
            recorder(happening, 1.0)
    assert json.loads(folder.summary.read_text())["skipped_steps"] == 1
    second = lines(folder.metrics)[1]
    assert (second["step"], second["loss"], second["grad_norm"], second["applied"]) == (2, None, 2.0, False)
    assert [happening for happening, _ in read_events(folder.events)] == happenings
    assert sentence(skipped(2)) == "step 2 is not applied: its loss is not finite"


def test_events_read_back_as_records(folder: RunFolder) -> None:
    record(folder)
    assert [happening for happening, _ in read_events(folder.events)] == short_run()


def test_of_a_long_run_the_steps_between_are_passed_over(folder: RunFolder) -> None:
    told = [*short_run()[:4], *(committed(step) for step in range(1, 5000)), *short_run()[5:]]
    with Recorder(folder, JOB) as recorder:
        for place, happening in enumerate(told):
            recorder(happening, 1e9 + place)
    with folder.events.open("ab") as events:
        events.write(b'{"time":1000000000.000000,"event":"step_comm' + b"x" * 70_000)  # a crash cut it short
    found = list(told_but_steps(folder))
    assert found[:4] == told[:4]
    assert found[-len(short_run()[4:]) :] == told[-len(short_run()[4:]) :]
    assert len(found) < 50
    with Recorder(folder, JOB):
        assert [record for record, _ in read_events(folder.events)] == told, "the last line is whole again"


def test_a_resumed_run_appends_and_sums_up_both_parts(folder: RunFolder) -> None:
    record(folder)
    with folder.events.open("ab") as file:
        file.write(b'{"time":1,"event":"no')  # a crash in the middle of a line
    record(folder, start_s=2e9)
    assert len(lines(folder.events)) == 2 * len(short_run())
    summary = json.loads(folder.summary.read_text())
    assert len(summary["recoveries"]) == 2
    assert summary["started"].startswith("2001")
    assert summary["ended"].startswith("2033")


def test_no_summary_before_the_end_and_finish_may_come_first(folder: RunFolder) -> None:
    with Recorder(folder, JOB) as recorder:
        recorder(committed(1), 1.0)
        recorder.finish(weights_sha256="cd")
        assert not folder.summary.exists()
        recorder(
            RunEnded(
                status=RunStatus.FAILED,
                steps=1,
                message="why",
                skipped_microbatches=0,
                duplicated_microbatches=0,
            ),
            2.0,
        )
    summary = json.loads(folder.summary.read_text())
    assert (summary["status"], summary["message"], summary["weights_sha256"]) == ("failed", "why", "cd")


def test_lines_are_on_disk_at_once_and_are_json_whatever_the_loss(folder: RunFolder) -> None:
    with Recorder(folder, JOB) as recorder:
        recorder(committed(1, loss=math.nan), 1.0)
        recorder(Note(level="info", text="two\nlines"), 1.0)
        assert lines(folder.metrics)[0]["loss"] is None
        assert lines(folder.events)[1]["text"] == "two\nlines"


def test_run_folders_are_never_overwritten(folder: RunFolder, tmp_path: Path) -> None:
    folder.job.write_text("{}")
    with pytest.raises(UserError, match=r"exists already.*--resume.*--name"):
        RunFolder.create(tmp_path / "runs", "short")
    assert RunFolder.open(folder.path) == folder


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        found.append(free_name(tmp_path, "job-drill"))
        (tmp_path / found[-1]).mkdir()
    assert found == ["job-drill", "job-drill-2", "job-drill-3"]


def test_run_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be used"):
        RunFolder.create(tmp_path / "file", "a")
    with pytest.raises(UserError, match="folder's name"):
        RunFolder.create(tmp_path, "../a")


def test_what_is_dropped_is_counted_step_by_step(folder: RunFolder) -> None:
    """A step done again counts as it was done the last time; microbatches are of two samples."""

    def dropping(step: int, *dropped: int) -> StepCommitted:
        return msgspec.structs.replace(committed(step), dropped=dropped, scale=1 - len(dropped) / 4)

    switched = PolicySwitched(policy="templates", before="drop", step=3)
    happenings = [
        dropping(1, 0, 1),
        dropping(2, 1),
        dropping(3, 2),
        Restored(from_step=3, to_step=1, reason="why"),
        dropping(2),
        switched,
        *short_run()[-3:],
    ]
    with Recorder(folder, JOB) as recorder:
        for happening in happenings:
            recorder(happening, 1.0)
    summary = json.loads(folder.summary.read_text())
    assert (summary["dropped_microbatches"], summary["dropped_samples"]) == (2, 4)
    assert summary["policy"] == "templates"
    assert summary["policy_switches"] == [{"step": 3, "policy": "templates", "before": "drop"}]
    first, *_, last = lines(folder.metrics)
    assert (first["dropped"], first["scale"]) == (2, 0.5)
    assert "dropped" not in last
    assert read_drops(folder.events) == {1: (0, 1)}
    assert sentence(switched) == "step 3: policy templates makes the plans from now on (before: drop)"
