"""Streams on real processes: the reference's bits after kills, and after a run that went on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import planaria
from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord, PlanTaken, StepCommitted
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof

OWN = """
import time
from itertools import count
from pathlib import Path
import torch
from torch import nn

class Points(torch.utils.data.IterableDataset):
    def __init__(self, size):
        self.size, self.at = size, 0

    def __iter__(self):
        while not self.size or self.at < self.size:
            self.at += 1
            yield {"input": torch.randn(4), "labels": (self.at - 1) % 2}

class Saving(Points):
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state): self.at = state["at"]

def points(size=0): return Points(size)
def saving(size=0): return Saving(size)

def failing():
    for number in count():
        if number == 150: raise OSError("the disk is full")
        yield torch.randn(4), number % 2

def stalling(at):
    for number in count():
        while number >= 64 and not Path(at).exists(): time.sleep(0.01)
        yield torch.full((4,), number % 7 / 7), number % 2

def stop_after_two(record, run):
    if type(record).__name__ == "StepCommitted" and record.step == 2: run.stop("enough")

def layers(): return [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)]
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tmp_path.joinpath("streaming.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("streaming", None)


def job_of(source: str, **data: Any) -> Job:
    lines = f"""
[model]
type = "streaming:layers"
[data]
source = "streaming:{source}"
shuffle_buffer = 50
[train]
steps = 8
global_batch = 24
microbatch = 2
learning_rate = 1e-2
[cluster]
nodes = 6
[resilience]
policy = "templates"
min_nodes_per_pipeline = 2
[run]
checkpoint_every = 4
"""
    return parse_job(
        lines,
        overrides=[f"data.{key.replace('__', '.')}={json.dumps(value)}" for key, value in data.items()],
        origin="test",
    )


def blocks_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "data" / "stream").glob("block-*.bin"))]


@pytest.mark.parametrize("source", rest_in_proof(["saving", "points"]))
def test_runs_with_kills_and_runs_that_go_on_have_the_references_bits(
    source: str, tmp_path: Path, run: Run, reference: Reference
) -> None:
    job = job_of(source)
    alone = reference(job)
    outcome = run(job, "kill:node=2,step=3,at=backward", "kill:node=0,step=6,at=sync", import_path=tmp_path)
    outcome.assert_same_bits(alone)
    assert len(outcome.events("node_lost")) == 2
    assert blocks_of(outcome.result.folder) == blocks_of(alone.result.folder)
    folder = outcome.result.folder
    shutil.rmtree(folder / "checkpoints" / "step-00000008")
    for path in sorted((folder / "data" / "stream").glob("block-*"))[8:]:
        path.unlink()  # as if the run had been cut off before it read so far
    resumed = run(job, resume=folder, import_path=tmp_path)
    resumed.assert_same_bits(alone)
    assert blocks_of(folder) == blocks_of(alone.result.folder)


@pytest.mark.proof
def test_a_recovery_does_not_wait_for_the_stream(
    tmp_path: Path, run: Run, reference: Reference, worker_pids: Callable[[], list[int]]
) -> None:
    """The stream goes on only when the plan of the nodes that are left is taken."""
    released = tmp_path / "released"
    job = job_of("stalling", config__at=str(released), shuffle_buffer=1)

    def kill_while_all_wait(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and record.step == 2:
            os.kill(worker_pids()[2], signal.SIGKILL)
        if isinstance(record, PlanTaken) and record.step == 3:
            released.touch()

    outcome = run(job, observers=[kill_while_all_wait], import_path=tmp_path)
    assert len(outcome.events("node_lost")) == 1
    outcome.assert_same_bits(reference(job))


def test_a_stop_does_not_wait_for_the_stream_and_the_run_goes_on_from_there(
    tmp_path: Path, run: Run, reference: Reference
) -> None:
    """The stream goes on only when the run is to go on."""
    released = tmp_path / "released"
    job = job_of("stalling", config__at=str(released), shuffle_buffer=1)
    section = msgspec.structs.replace(job.run, callbacks=("streaming:stop_after_two",))
    stopped = run(msgspec.structs.replace(job, run=section), import_path=tmp_path)
    assert stopped.summary["status"] == "stopped"
    assert stopped.summary["steps"] == 2
    assert any("step 3 waits for samples of the stream: it is given up" in e["text"] for e in stopped.events("note"))
    released.touch()
    run(job, resume=stopped.result.folder, import_path=tmp_path).assert_same_bits(reference(job))


def test_a_stream_that_ends_in_the_run_fails_it_with_a_line(tmp_path: Path, run: Run) -> None:
    outcome = run(job_of("points", config__size=130, shuffle_buffer=1), import_path=tmp_path)
    assert outcome.summary["status"] == "failed"
    assert "ends after 130 samples, and the run needs 192 (8 steps of 24)" in outcome.summary["message"]
    assert outcome.summary["steps"] == 5


def test_a_stream_that_is_short_or_fails_at_once_is_refused(tmp_path: Path, run: Run) -> None:
    for source, data, said in (
        ("points", {"config__size": 30}, "ends after 30 samples, and the run needs 192"),
        ("failing", {"shuffle_buffer": 200}, "sample 150 fails with OSError: the disk is full"),
    ):
        with pytest.raises(ValueError, match=said) as caught:
            run(job_of(source, **data), import_path=tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.proof
def test_a_stream_that_changed_is_refused_when_a_run_goes_on(tmp_path: Path, run: Run) -> None:
    job = job_of("points")
    outcome = run(job, import_path=tmp_path)
    folder = outcome.result.folder
    longer = msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, steps=10))
    other = msgspec.structs.replace(longer, data=msgspec.structs.replace(job.data, shuffle_buffer=60))
    with pytest.raises(ValueError, match=r"data.shuffle_buffer is 60, not 50.*--accept-changed-data"):
        run(other, resume=RunFolder(folder).path, import_path=tmp_path)
    assert run(longer, resume=folder, import_path=tmp_path).summary["steps"] == 10


@pytest.mark.proof
def test_text_of_the_hub_is_streamed(
    tmp_path: Path, run: Run, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library finds a dataset of this name in the working directory."""
    (tmp_path / "some" / "corpus").mkdir(parents=True)
    rows = [json.dumps({"text": f"{n} bottles of beer on the wall, {n**3} of milk"}) for n in range(300)]
    (tmp_path / "some" / "corpus" / "rows.jsonl").write_text("\n".join(rows) + "\n")
    code = str(Path(planaria.__file__).resolve().parents[1])
    monkeypatch.chdir(tmp_path)
    for name, value in (("HF_HOME", str(tmp_path / "hf")), ("HF_HUB_OFFLINE", "1"), ("PYTHONPATH", code)):
        monkeypatch.setenv(name, value)
    job = make_job(Path("text.txt"), cluster__nodes=5, data__source="hf://some/corpus?stream=true")
    outcome = run(job, "kill:node=1,step=3,at=backward", import_path=tmp_path)
    outcome.assert_same_bits(reference(job))
    assert len(outcome.events("node_lost")) == 1
