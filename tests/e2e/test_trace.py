"""What workers write down for benchmarks: what they did when."""

from __future__ import annotations

from pathlib import Path

from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.instruction_trace import read_trace as read_entries
from tests.e2e.jobs import make_job


def test_every_worker_writes_what_it_did_when(tmp_path: Path, text: Path, nodes: LocalNodes) -> None:
    folder = RunFolder.create(tmp_path, "run")
    train_job(TrainRequest(job=make_job(text, cluster__nodes=4), folder=folder, traces=True), nodes)
    for node in range(4):
        entries = list(read_entries(folder.logs / f"trace-{node}.jsonl"))
        assert {entry.op for entry in entries} >= {"forward", "backward", "vote"}
        assert all(entry.began_s <= entry.ended_s for entry in entries)
        assert {1, 2, 3, 4} <= {entry.step for entry in entries}
