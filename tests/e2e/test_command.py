"""The command as a user runs it: interrupts, exit codes, one-line errors, and no process left behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from planaria.ui.cli.main import cli
from tests.e2e.commands import DEADLINE_S, Command, descendants, summary, wait_until
from tests.proof import rest_in_proof


def test_every_process_writes_of_its_life(command: Command) -> None:
    command.write_emulated_job(steps=6)
    code, said = command.run("train", "job.toml", "--fail", "kill:node=2,step=3,at=backward")
    assert code == 0, said
    logs = {path.stem: path.read_text() for path in (command.folder / "runs" / "job" / "logs").iterdir()}
    assert set(logs) == {"launcher", "coordinator", *(f"worker-{worker}" for worker in range(4))}
    for words in ("worker 2 of node 2", "a coordinator", "(SIGKILL)"):
        assert words in logs["launcher"]
    for words in ("serves as number 1", "node 2 lost", "plan 2 finishes step 3", "the run is over: completed"):
        assert words in logs["coordinator"]
    for worker in range(4):
        log = logs[f"worker-{worker}"]
        for words in (f"worker {worker} of node {worker} begins", "joined, at 127.0.0.1:", "plan 1 from step 1"):
            assert words in log
        assert ("ends: completed" in log) == (worker != 2)


LATER = """
import sys
for module in list(sys.modules.values()):
    if module.__name__.startswith("planaria") and hasattr(module, "__version__"):
        module.__version__ = "99.0.0"
from planaria.ui.cli.main import main
main()
"""


@pytest.mark.proof
def test_a_later_release_of_the_same_protocol_goes_on(command: Command) -> None:
    command.write_emulated_job(steps=3, layer_s=0.01)
    assert command.run("train", "job.toml")[0] == 0
    script = command.folder / "later.py"
    script.write_text(LATER)
    arguments = ("train", "job.toml", "--resume", "--set", "train.steps=5")
    later = command.incubator.start(command.folder, *arguments, script=script)
    _, said = later.communicate(timeout=DEADLINE_S)
    assert later.returncode == 0, said
    assert summary(command)["steps"] == 5


def test_interrupt_saves_and_resume_ends_with_the_references_bits(command: Command) -> None:
    command.write_emulated_job(steps=12, layer_s=0.01)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert not descendants(command.folder)
    interrupted = summary(command)
    assert interrupted["status"] == "interrupted"
    steps = interrupted["steps"]
    assert isinstance(steps, int)
    assert 2 <= steps < 12
    assert command.run("train", "job.toml", "--resume")[0] == 0
    assert summary(command)["status"] == "completed"
    assert command.run("train", "job.toml", "--reference", "--name", "alone")[0] == 0
    alone = json.loads((command.folder / "runs" / "alone" / "summary.json").read_text())
    assert summary(command)["weights_sha256"] == alone["weights_sha256"]


def test_a_second_interrupt_ends_at_once(command: Command) -> None:
    command.write_emulated_job(steps=100_000)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert not descendants(command.folder)


def test_workers_do_not_outlive_the_command(command: Command) -> None:
    command.write_emulated_job(steps=100_000)
    process = command.start("train", "job.toml")
    command.wait_for_step(2)
    names = sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in descendants(command.folder))
    others = [name for name in names if not name.startswith("python")]
    assert others == ["coordinator", "standby"]
    assert len(names) == 8, "and the command, the forkserver, four workers"
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    assert wait_until(lambda: not descendants(command.folder))


@pytest.mark.parametrize(
    ("settings", "words"),
    rest_in_proof(
        [
            pytest.param(["data.source=nowhere.txt"], ["data.source", "nowhere.txt"]),
            pytest.param(["train.microbatch=3"], ["train.global_batch", "8", "microbatch", "3"]),
            pytest.param(["resilience.fault_tolerance=7"], ["nodes", "8"]),
            pytest.param(
                ["resilience.fault_tolerance=2", "resilience.min_nodes_per_pipeline=2"],
                ["6 nodes", "fault_tolerance = 1"],
            ),
            pytest.param(["model.type=gpt3"], ["model.type", "gpt2"]),
            pytest.param(["train.stepz=3"], ["train.stepz", "steps"]),
            pytest.param(["cluster.memory_gb=0.00001"], ["memory"]),
            pytest.param(["cluster.devices_per_node=9"], ["devices_per_node", "layers"]),
            pytest.param(["train.sequence_length=64"], ["sequence_length", "n_positions"]),
        ],
        kept=6,
    ),
)
def test_bad_input_is_one_line(
    settings: list[str], words: list[str], command: Command, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.write_job(text)
    monkeypatch.chdir(command.folder)
    result = CliRunner().invoke(cli, ["train", "job.toml", *(f"--set={setting}" for setting in settings)])
    said = result.output
    assert result.exit_code == 2, said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert all(word in said for word in words), said
    assert not (command.folder / "runs" / "job").exists(), "the name stays free"


def test_a_port_in_use_is_refused_in_one_line(command: Command, text: Path) -> None:
    import socket

    command.write_job(text)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = command.run("train", "job.toml", f"--set=cluster.port={port}")
    assert status == 2
    assert f"cluster.port = {port}" in said
    assert said.count("\n") == 1


@pytest.mark.tampers
def test_an_existing_run_folder_and_a_corrupt_checkpoint_are_refused(command: Command, text: Path) -> None:
    command.write_job(text)
    assert command.run("train", "job.toml", "--set=run.checkpoint_every=2", "--fail=kill:node=0,step=5,at=vote")[0] == 0
    status, said = command.run("train", "job.toml")
    assert status == 2
    assert "--resume" in said
    checkpoints = sorted((command.folder / "runs" / "job" / "checkpoints").iterdir())
    for folder in checkpoints:
        victim = next(folder.glob("*.safetensors"))
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
    status, said = command.run("train", "job.toml", "--resume")
    assert status == 2
    assert "corrupt" in said
    assert victim.name in said
    assert said.count("\n") == 1


FRAGILE = """
import torch
from torch import nn

backwards = 0

class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        global backwards
        backwards += 1
        if "AT" == "backward" and backwards > 20:
            raise RuntimeError("too fragile")
        return gradient

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.forwards = nn.Linear(8, 8), 0
    def forward(self, x):
        self.forwards += 1
        if "AT" == "forward" and self.forwards > 40:
            raise RuntimeError("too fragile")
        return Back.apply(self.inner(x))

def layers():
    return [nn.Embedding(259, 8), Fragile(), nn.Linear(8, 259)]
"""


@pytest.mark.parametrize("at", rest_in_proof(["forward", "backward"]))
def test_a_layer_that_raises_is_told_once(at: str, command: Command, text: Path) -> None:
    (command.folder / "mine.py").write_text(FRAGILE.replace("AT", at))
    command.write_job(text, 'type = "mine:layers"', steps=200)
    status, said = command.run("train", "job.toml")
    assert status == 1
    assert said.count("RuntimeError: too fragile\n") == 1, said
    assert said.count("Traceback") == 1
    assert "mine.py" in said
    assert "layer '1.Fragile'" in said
    assert summary(command)["status"] == "failed"


def test_a_model_that_cannot_be_cut_is_refused_in_one_line(command: Command, text: Path) -> None:
    (command.folder / "mine.py").write_text(
        "from torch import nn\n\ndef layers():\n    return [nn.Embedding(259, 8), nn.Linear(9, 259)]\n"
    )
    command.write_job(text, 'type = "mine:layers"')
    status, said = command.run("train", "job.toml")
    assert status == 2
    first, *rest = said.splitlines()
    assert "layer 1" in first
    assert "Traceback" not in said
    assert rest[-1].startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
