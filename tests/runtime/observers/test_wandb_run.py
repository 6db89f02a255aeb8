"""Weights & Biases: what its offline files hold, decoded by its own messages, and a server that is not there."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.protocol.messages.records import AnyRecord, Restored
from planaria.runtime.observers import wandb_run
from planaria.runtime.observers.view import ViewedRun
from planaria.runtime.observers.view_thread import Views
from planaria.runtime.observers.wandb_run import WandbRun
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB, committed, short_run

_HEADER_BYTES = 7
_BLOCK_BYTES = 32 * 1024


pytestmark = pytest.mark.proof  # which installs what this needs


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """It reads the environment once a process, or after this."""
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "of-wandb"))
    yield
    wandb.teardown()


def show(folder: Path, records: list[AnyRecord], step: int = 0) -> None:
    view = WandbRun("tests")
    view.start(ViewedRun(name="short", job=JOB, folder=RunFolder(folder), step=step))
    view.show([(record, 100.0 + at) for at, record in enumerate(records)])
    view.close()
    import wandb

    wandb.teardown()  # as the end of the process does: by then all is written


def stored(file: Path) -> Iterator[Any]:
    """Yields what an offline file holds: records in LevelDB's log format, each of them in pieces."""
    from wandb.proto import wandb_internal_pb2

    data = file.read_bytes()
    at, whole = _HEADER_BYTES, b""
    while at + _HEADER_BYTES <= len(data):
        if _BLOCK_BYTES - at % _BLOCK_BYTES < _HEADER_BYTES:
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEADER_BYTES])
        whole += data[at + _HEADER_BYTES : at + _HEADER_BYTES + length]
        at += _HEADER_BYTES + length
        if kind in (1, 4):  # whole, or the last piece
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def parts(folder: Path) -> list[list[Any]]:
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))  # by the time at which they begin
    return [list(stored(file)) for file in files]


def history(records: list[Any]) -> list[dict[str, Any]]:
    rows = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    named = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in named]


def test_a_run_is_read_back(tmp_path: Path) -> None:
    show(tmp_path, short_run())
    (records,) = parts(tmp_path)
    rows = history(records)
    steps = [row for row in rows if "train/loss" in row]
    assert [(row["step"], row["train/loss"]) for row in steps] == [(1, 0.1 + 0.2), (2, 0.1 + 0.2), (3, 2.5)]
    assert steps[1]["throughput/estimated_step_s"] == 0.12
    assert {"step": 2, "cluster/recovery_s": pytest.approx(0.0612)}.items() <= next(
        row for row in rows if "cluster/recovery_s" in row
    ).items()
    assert rows[-1] == {"step": 3, "event": "completed after step 3"}
    (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name) == ("tests", "short")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["train"]["sequence_length"] == 16
    assert "observe" not in config
    (ended,) = (record.exit for record in records if record.WhichOneof("record_type") == "exit")
    assert ended.exit_code == 0


def test_a_run_that_goes_on_has_its_id(tmp_path: Path) -> None:
    back = Restored(from_step=2, to_step=1, reason="all replicas of layer 3 were lost")
    show(tmp_path, [committed(1), committed(2), back, committed(2)])
    began = int(time.time())
    while int(time.time()) == began:  # a part's folder is named by its second
        time.sleep(0.01)
    show(tmp_path, [committed(3)], step=2)
    first, second = parts(tmp_path)
    assert [row["step"] for row in history(first) if "train/loss" in row] == [1, 2, 2]
    assert [row["step"] for row in history(second) if "train/loss" in row] == [3]
    ids = {record.run.run_id for part in (first, second) for record in part if record.HasField("run")}
    assert ids == {RunFolder(tmp_path).id_at("wandb").read_text().strip()}


@pytest.mark.parametrize(("key", "told"), [("", "No API key configured"), ("0" * 40, "CommError")])
def test_a_server_that_is_not_reached_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], key: str, told: str
) -> None:
    monkeypatch.setattr(wandb_run, "TRACKER_STARTS_S", 1.0)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    views = Views(
        [WandbRun("tests")], ViewedRun(name="short", job=JOB, folder=RunFolder(tmp_path), step=0), lambda: False
    )
    for record in short_run():
        views(record, 0.0)
    views.close()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("Weights & Biases failed: ")
    assert told in lines[0]
    assert "training goes on" in lines[0]
