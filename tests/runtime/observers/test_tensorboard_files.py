"""TensorBoard's files, read back by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planaria.protocol.messages.records import AnyRecord, Restored
from planaria.runtime.observers.tensorboard_files import TensorBoardFiles
from planaria.runtime.observers.view import ViewedRun
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB, committed, plan_taken, short_run

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
)


def show(folder: Path, records: list[AnyRecord], step: int = 0) -> None:
    view = TensorBoardFiles()
    view.start(ViewedRun(name="short", job=JOB, folder=RunFolder(folder), step=step))
    view.show([(record, 100.0 + at) for at, record in enumerate(records)])
    view.close()


def read(folder: Path) -> Any:
    found = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def curve(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, pytest.approx(event.value, rel=1e-6)) for event in found.Scalars(tag)]


def texts(found: Any, tag: str) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found.Tensors(tag)]


def test_a_run_is_read_back(tmp_path: Path) -> None:
    show(tmp_path, short_run())
    found = read(tmp_path)
    assert curve(found, "train/loss") == [(1, 0.3), (2, 0.3), (3, 2.5)]
    assert curve(found, "cluster/live_nodes") == [(1, 3.0), (2, 2.0), (3, 2.0)]
    assert curve(found, "throughput/tokens_per_s") == [(step, 41_234.0) for step in (1, 2, 3)]
    estimate = 41_234.0 * 0.25 / 0.12
    assert curve(found, "throughput/estimated_tokens_per_s") == [(step, estimate) for step in (1, 2, 3)]
    assert curve(found, "cluster/recovery_s") == [(2, 0.0612)]
    told = dict(texts(found, "events"))  # of a step the last
    assert told[0].splitlines()[:2] == ["- node 0 joined, 1 node live", "- node 1 joined, 2 nodes live"]
    assert told[1] == "- step 2: node 1 lost (connection closed, seen after 8 ms), 2 nodes live"
    assert told[3] == "- completed after step 3"
    assert "train.sequence_length = 16" in texts(found, "job")[0][1]
    plugin = found.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert plugin.plugin_name == "hparams"


def test_steps_that_are_trained_again_replace_those_of_before(tmp_path: Path) -> None:
    back = Restored(from_step=4, to_step=2, reason="all replicas of layer 3 were lost")
    steps = [committed(step) for step in range(1, 5)]
    show(tmp_path, [plan_taken(1, "start"), *steps, back, committed(3, loss=7.0), committed(4, loss=8.0)])
    assert curve(read(tmp_path), "train/loss") == [(1, 0.3), (2, 0.3), (3, 7.0), (4, 8.0)]


def test_a_run_that_goes_on_is_one_curve(tmp_path: Path) -> None:
    """What was trained after the checkpoint, and lost, is left out."""
    show(tmp_path, [committed(step) for step in range(1, 5)])
    show(tmp_path, [committed(step, loss=9.0) for step in range(3, 7)], step=2)
    assert curve(read(tmp_path), "train/loss") == [(1, 0.3), (2, 0.3), *((step, 9.0) for step in range(3, 7))]
