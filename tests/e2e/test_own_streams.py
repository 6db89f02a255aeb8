"""A stream whose blocks go to hosts that see neither the run folder nor the stream: to the reference's bits."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from planaria.job.parse import load_job
from planaria.job.sections.run import RunSection
from planaria.job.settings import Job
from tests.e2e.agents import Hosts, end_all
from tests.e2e.commands import DEADLINE_S
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import Outcome
from tests.e2e.test_own_folders import worker_pid
from tests.s3_server import serving

MODEL = """
import torch
from torch import nn

def layers(): return [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)]
"""
STREAM = """
def points():
    for number in range(200): yield torch.randn(4), number % 2
"""
STEPS = 25


class FarHosts(Hosts):
    """Each agent runs in a folder of its own, with the model's code; the stream's is the coordinator's alone."""

    def __init__(self, folder: Path, incubator: Incubator, environment: dict[str, str]) -> None:
        self.root = folder
        (folder / "coordinator").mkdir()
        super().__init__(folder / "coordinator", incubator)
        self.environment = environment
        (self.folder / "far_streaming.py").write_text(MODEL + STREAM)
        (self.folder / "job.toml").write_text(
            f"""
[model]
type = "far_streaming:layers"
[data]
source = "far_streaming:points"
shuffle_buffer = 50
repeat = true
[train]
steps = {STEPS}
global_batch = 12
microbatch = 2
[cluster]
nodes = 3
launcher = "agents"
port = {self.address.rpartition(":")[2]}
[run]
checkpoint_folder = "s3://bucket/streamed"
"""
        )

    def start_far(self) -> Path:
        """Starts an agent; returns its run folder."""
        folder = self.root / f"host-{len(self.agents)}"
        folder.mkdir()
        (folder / "token").write_text((self.folder / "token").read_text())
        (folder / "token").chmod(0o600)
        (folder / "far_streaming.py").write_text(MODEL)
        self.start_agent("--folder", "own", folder=folder)
        return folder / "own" / "job"


@pytest.fixture
def far(tmp_path: Path, incubator: Incubator, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarHosts]:
    with serving() as s3:
        hosts = FarHosts(tmp_path, incubator, s3.environment)
        monkeypatch.syspath_prepend(str(hosts.folder))
        yield hosts
        for folder in tmp_path.iterdir():
            end_all(folder)
        sys.modules.pop("far_streaming", None)


def test_a_stream_reaches_hosts_without_the_run_folder(far: FarHosts, reference: Callable[[Job], Outcome]) -> None:
    train = far.train()
    folders = [far.start_far() for _ in range(3)]
    far.wait_for("step_committed", 3)
    ended = far.agents[0].node
    os.kill(worker_pid(folders[0] / "logs" / f"worker-{ended}.log"), signal.SIGKILL)
    assert train.wait(DEADLINE_S) == 0, far.said
    assert [agent.wait() for agent in far.agents] == [0] * 3
    assert far.events("node_lost")
    read = far.run.path / "data" / "stream"
    for folder in folders:
        blocks = [*(folder / "data" / "stream").glob("block-*.bin")]
        assert blocks
        assert all(block.read_bytes() == (read / block.name).read_bytes() for block in blocks)
    job = msgspec.structs.replace(load_job(far.folder / "job.toml"), run=RunSection())
    alone = reference(job)
    lines = map(json.loads, far.run.metrics.read_text().splitlines())
    assert {entry["step"]: entry["loss"] for entry in lines} == alone.losses
    assert json.loads(far.run.summary.read_text())["weights_sha256"] == alone.summary["weights_sha256"]
