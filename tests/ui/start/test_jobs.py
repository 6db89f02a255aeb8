"""`planaria init`: jobs that run as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from planaria.api import load_job, train
from planaria.runtime.launch.training.result import RunStatus
from planaria.ui.cli.main import cli
from planaria.ui.start.jobs import KINDS
from tests.proof import rest_in_proof

SHORT = ["train.steps=2", "train.global_batch=8", "train.warmup_steps=0", "eval.every=1", "cluster.nodes=2"]
SHORT += ["resilience.fault_tolerance=0"]


@pytest.mark.usefixtures("forked_forkservers")
@pytest.mark.parametrize("kind", rest_in_proof(["module", "text", "chats", "images"]))
def test_a_job_trains_as_it_is_written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = CliRunner().invoke(cli, ["init", kind])
    assert written.exit_code == 0
    assert "Try it: planaria train job.toml." in written.output
    result = train(load_job(Path("job.toml"), SHORT), name="run", import_path=tmp_path)
    assert result.status is RunStatus.COMPLETED


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_over(kind: str, tmp_path: Path) -> None:
    wanted = [str(tmp_path / name) for name in ("job.toml", *KINDS[kind].others)]
    assert CliRunner().invoke(cli, ["init", kind, str(tmp_path)]).exit_code == 0
    load_job(tmp_path / "job.toml")
    assert all(Path(name).exists() for name in wanted)
    again = CliRunner().invoke(cli, ["init", kind, str(tmp_path)])
    assert again.exit_code == 2
    assert f"{wanted[0]} is there already. Name another folder, or move it away." in again.output
