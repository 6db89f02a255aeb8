"""The batch scripts of a launch on SLURM, and what is said where it cannot be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from planaria.ui.cli.main import cli
from tests.runtime.coordinator.test_remote_nodes import TOKEN

JOB = """
[model]
type = "gpt2"
[train]
steps = 1
global_batch = 6
microbatch = 1
sequence_length = 8
[cluster]
nodes = 3
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = folder / "job.toml"
    path.write_text(JOB)
    return path


def launch(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["launch", "slurm", "job.toml", *arguments])
    return done.exit_code, done.output


def test_printed_scripts_are_all_that_is_made(job: Path) -> None:
    arguments = ("--nodes", "4", "--spares", "2", "--partition", "gpu", "--time", "1:00:00", "--sbatch=--gres=gpu:8")
    tls = ("--set", 'cluster.tls="tls"')
    code, said = launch(*arguments, *tls, "--print")
    assert code == 0, said
    for line in ("--array=0-5%4", "--partition=gpu", "--time=1:00:00", "--gres=gpu:8", "--signal=B:USR1@120"):
        assert f"#SBATCH {line}\n" in said
    assert f'#SBATCH --chdir="{job.parent}"\n' in said
    assert f"--tls '{job.parent}/tls'" in said
    assert TOKEN not in said
    assert [path.name for path in job.parent.iterdir()] == ["job.toml"]
    code, grows = launch("--nodes", "2-4", "--spares", "1", "--print")
    assert "#SBATCH --array=0-4%2\n" in grows, "the coordinator lets in more"
    assert "requeuehold" in grows, "what it gives back may be wanted again"
    assert "requeuehold" not in said
    for script in (said, grows):
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "sbatch is not there"),
        (("--nodes", "8-4"), "'8-4' is not a number of nodes, as 16, or the fewest and the most, as 8-32."),
        (("--sbatch", "gres=gpu:8"), "no option of sbatch"),
        (("--name", "a/b"), "cannot be a folder's name"),
        (("--set", "train.steps=0"), "train.steps"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: tuple[str, ...], words: str, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(job.parent))
    code, said = launch("--nodes", "4", *arguments)
    assert code == 2
    (line,) = said.splitlines()
    assert words in line


def test_a_run_that_exists_is_not_begun_again(job: Path) -> None:
    (job.parent / "runs" / "job").mkdir(parents=True)
    code, said = launch("--nodes", "4")
    assert code == 2
    assert "--resume" in said
