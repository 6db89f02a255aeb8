"""`planaria ls` and `planaria logs`: read run folders, whoever writes them meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from planaria.job.parse import job_json
from planaria.runtime.run_folder.claim import claimed, say
from planaria.runtime.run_folder.process_logs import LogReader
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli.folder_commands import list_runs, logs
from tests.runtime.run_folder.happenings import JOB, short_run


def made(root: Path, name: str, num_records: int | None = None) -> RunFolder:
    folder = RunFolder.create(root, name)
    folder.job.write_bytes(job_json(JOB))
    with Recorder(folder, JOB) as recorder:
        for place, happening in enumerate(short_run()[:num_records]):
            recorder(happening, 1e9 + place)
    return folder


def listed(place: Path) -> dict[str, dict[str, object]]:
    found = CliRunner().invoke(list_runs, [str(place), "--json"], catch_exceptions=False)
    return {Path(run["run"]).name: run for run in json.loads(found.stdout)}


def test_runs_are_listed_with_how_they_ended(tmp_path: Path) -> None:
    made(tmp_path, "whole")
    made(tmp_path, "killed", 5)
    (tmp_path / "no run").mkdir()
    runs = listed(tmp_path)
    assert set(runs) == {"whole", "killed"}
    assert runs["whole"] | {"changed_s": 0, "run": ""} == {
        "run": "", "state": "completed", "step": 3, "steps": 3, "loss": 2.5, "nodes": 2,
        "policy": JOB.resilience.policy.value, "changed_s": 0,
    }  # fmt: skip
    assert (runs["killed"]["state"], runs["killed"]["step"]) == ("gone", 1)
    text = CliRunner().invoke(list_runs, [str(tmp_path)], catch_exceptions=False).stdout
    assert "completed" in text
    assert "3 of 3" in text


def test_a_run_that_is_written_is_told_by_what_it_does(tmp_path: Path) -> None:
    folder = made(tmp_path, "alive", 5)
    with claimed(folder.claim):
        say(folder.claim, "starting: the data are read")
        assert listed(folder.path)["alive"]["state"] == "starting"
        folder.contact.write_text("{}")
        assert listed(folder.path)["alive"]["state"] == "training"


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    assert "planaria train" in CliRunner().invoke(list_runs, [str(tmp_path)], catch_exceptions=False).stdout


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        CliRunner().invoke(list_runs, [str(tmp_path / "none")], catch_exceptions=False)


def test_logs_are_shown_by_process_and_node(tmp_path: Path) -> None:
    folder = made(tmp_path, "run")
    (folder.logs / "coordinator.log").write_text("one\ntwo\nthree\n")
    (folder.logs / "worker-10.log").write_text("ten\n")
    (folder.logs / "worker-2.log").write_text("here\nhalf a li")
    whole = CliRunner().invoke(logs, [str(folder.path), "--lines", "2"], catch_exceptions=False).stdout
    assert whole == "== coordinator.log ==\ntwo\nthree\n== worker-2.log ==\nhere\n== worker-10.log ==\nten\n"
    node = 2 // JOB.cluster.devices_per_node
    alone = CliRunner().invoke(logs, [str(folder.path), "--node", str(node), "-f"], catch_exceptions=False).stdout
    assert alone == "== worker-2.log ==\nhere\n"
    with pytest.raises(ValueError, match="no worker of it"):
        CliRunner().invoke(logs, [str(folder.path), "--node", "99"], catch_exceptions=False)


def test_a_long_log_is_shown_whole_in_parts(tmp_path: Path) -> None:
    folder = made(tmp_path, "run")
    lines = [f"{number} {'x' * (number % 90)}" for number in range(60_000)]
    lines[40_000] = "y" * (3 << 20)
    (folder.logs / "coordinator.log").write_text("\n".join(lines) + "\nhalf a li")
    whole = CliRunner().invoke(logs, [str(folder.path), "--lines", "0"], catch_exceptions=False).stdout
    assert whole.splitlines() == ["== coordinator.log ==", *lines]
    assert max(len("".join(part)) for _, part in LogReader(folder, None).new_lines()) < 5 << 20
    last = CliRunner().invoke(logs, [str(folder.path), "--lines", "2"], catch_exceptions=False).stdout
    assert last.splitlines() == ["== coordinator.log ==", *lines[-2:]]


def test_what_comes_is_given_once(tmp_path: Path) -> None:
    folder = made(tmp_path, "run")
    log = folder.logs / "launcher.log"
    log.write_text("old\nnew\nhal")
    reader = LogReader(folder, None)
    assert list(reader.new_lines(last=1)) == [("launcher.log", ["new"])]
    assert list(reader.new_lines()) == []
    with log.open("a") as file:
        file.write("f\n")
    assert list(reader.new_lines()) == [("launcher.log", ["half"])]
