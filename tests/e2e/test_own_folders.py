"""Agents on hosts that do not see the coordinator's run folder, which is hidden from them: to the reference's bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from planaria.job.parse import load_job
from planaria.job.sections.run import RunSection
from tests.e2e.agents import Agent, Hosts, end_all, family
from tests.e2e.commands import DEADLINE_S, Command, summary, wait_until
from tests.e2e.conftest import Reference
from tests.e2e.incubator import Incubator
from tests.s3_server import S3, serving


class FarHosts(Hosts):
    """A real job, whose weights are in a store; each agent runs in a folder of its own, with a copy of the data."""

    def __init__(self, folder: Path, incubator: Incubator, text: Path, s3: S3) -> None:
        self.root = folder
        self.weights = folder / "weights"
        (folder / "coordinator").mkdir()
        super().__init__(folder / "coordinator", incubator)
        self.environment = s3.environment
        config = GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=16, vocab_size=259)
        GPT2LMHeadModel(config).save_pretrained(self.weights)
        s3.put(self.weights, "weights")
        shutil.copy(text, self.folder / "text.txt")
        (self.folder / "job.toml").write_text(
            f"""
[model]
type = "gpt2"
weights = "s3://bucket/weights"
[data]
source = "text.txt"
[train]
steps = 100_000
global_batch = 6
microbatch = 1
sequence_length = 16
lr_schedule = "constant"
[cluster]
nodes = 3
launcher = "agents"
port = {self.address.rpartition(":")[2]}
[run]
checkpoint_every = 8
checkpoint_folder = "s3://bucket/runs"
[resilience]
heartbeat_timeout_s = 2.0
"""
        )

    def node_folder(self, text: str | None = None) -> Path:
        """A host's folder, with the token and the data, or other data."""
        folder = self.root / f"host-{len(self.agents)}"
        folder.mkdir()
        shutil.copy(self.folder / "token", folder / "token")
        (folder / "text.txt").write_text((self.folder / "text.txt").read_text() if text is None else text)
        return folder

    def start_far(self, text: str | None = None) -> Agent:
        return self.start_agent("--folder", "own", folder=self.node_folder(text))

    @property
    def num_saved(self) -> int:
        return len(self.events("checkpoint_saved"))


@pytest.fixture
def far(tmp_path: Path, incubator: Incubator, text: Path) -> Iterator[FarHosts]:
    with serving() as s3:
        yield FarHosts(tmp_path, incubator, text, s3)
        for folder in tmp_path.iterdir():
            end_all(folder)


def worker_pid(log: Path) -> int:
    """Of the worker that wrote this log."""
    return int(log.read_text().split()[2])


@pytest.mark.proof
def test_nodes_without_the_run_folder_train_to_the_same_bits(
    far: FarHosts, reference: Reference, incubator: Incubator
) -> None:
    train = far.train()
    agents = [far.start_far() for _ in range(3)]
    other = far.start_far("Other data. " * 2000)
    assert other.wait() == 2
    assert "its data or weights are not the run's, though the job names the same. Put the same files" in other.said
    far.wait_for("checkpoint_saved")
    assert (far.root / "host-0" / "own" / "job" / "data" / "tokens.bin").exists()
    assert [*(far.root / "host-0" / "own").rglob("model.safetensors")], "the weights were not fetched to the host"

    ended = agents[0].node  # its worker: the agent stays, and offers the host again
    name = f"worker-{ended}.log"
    assert not (far.run.logs / name).exists()
    os.kill(worker_pid(far.root / "host-0" / "own" / "job" / "logs" / name), signal.SIGKILL)
    far.wait_for("recovered")
    assert wait_until(lambda: (far.run.logs / name).exists())
    assert f"worker {ended} of node {ended} begins" in (far.run.logs / name).read_text()
    far.wait_for("node_joined", 4)

    for pid in family(agents[1].process.pid):  # a host as a whole, and another one comes
        os.kill(pid, signal.SIGKILL)
    far.wait_for("recovered", 2)
    far.start_far()
    far.wait_for("node_joined", 5)
    far.wait_for("checkpoint_saved", far.num_saved + 1)

    train.kill()  # all state is read from the store then
    train.wait(DEADLINE_S)
    before = far.last_step
    resumed = far.train("--resume")
    assert wait_until(lambda: far.last_step > before), far.said
    command = Command(far.folder, incubator)
    save = command.start("save", "runs/job", "--to", str(far.root / "saved"))
    assert "name a URL" in save.communicate(DEADLINE_S)[1]
    assert save.returncode != 0
    resumed.send_signal(signal.SIGINT)
    assert resumed.wait(DEADLINE_S) == 130, far.said
    assert [agent.wait() for agent in far.agents if agent not in (agents[1], other)] == [75] * 3

    shown = command.start("logs", "runs/job", "--node", "0", "--lines", "0")
    assert "worker 0 of node 0 begins" in shown.communicate(DEADLINE_S)[0]
    steps = summary(command)["steps"]
    given = load_job(far.folder / "job.toml", [f"train.steps={steps}"])
    data = msgspec.structs.replace(given.data, source=str(far.folder / "text.txt"))
    model = msgspec.structs.replace(given.model, weights=str(far.weights))
    alone = reference(msgspec.structs.replace(given, model=model, data=data, run=RunSection()))
    lines = map(json.loads, (far.run.metrics).read_text().splitlines())
    assert {entry["step"]: entry["loss"] for entry in lines} == alone.losses
    assert summary(command)["weights_sha256"] == alone.summary["weights_sha256"]


def test_without_a_place_for_checkpoints_such_a_host_is_refused(far: FarHosts) -> None:
    far.train("--set", "run.checkpoint_folder=")
    agent = far.start_far()
    assert agent.wait() == 2
    assert agent.said.splitlines()[-1] == (
        f"planaria: error: the coordinator at {far.address} refuses this node: with a run folder of its own (--folder) "
        "it needs checkpoints where every node reads and writes them, and run.checkpoint_folder = ''. Set it to the "
        "URL of a store, for instance s3://bucket/folder."
    )
    missing = far.start_agent(folder=far.node_folder())
    assert missing.wait() == 2
    assert "give this node one of its own by --folder FOLDER" in missing.said
