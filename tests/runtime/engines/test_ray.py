"""Ray is an extra: what is said where it is missing, and what a job asks of it. tests/engines trains on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import planaria
from planaria.job.parse import parse_job
from planaria.ui.cli.main import cli
from tests.runtime.engines.test_slurm import JOB


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[planaria.Job]:
    """The jobs that Ray is asked to train, which are not trained."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    jobs: list[planaria.Job] = []

    def train(job: planaria.Job, *_: object) -> planaria.TrainResult:
        jobs.append(job)
        raise planaria.UserError("asked")

    monkeypatch.setattr("planaria.api._train_on_ray", train)
    return jobs


def test_who_has_no_ray_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "planaria.runtime.engines.ray", raising=False)
    with pytest.raises(planaria.UserError, match="pip install ray"):
        planaria.launch_on_ray(parse_job(JOB, origin="test"), nodes=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--nodes", "4"), {"nodes": 4, "most_nodes": None}),
        (("--nodes", "2-4", "--spares", "1", "--gpus", "0.5"), {"most_nodes": 4, "spares": 1, "gpus": 0.5}),
        (
            ("--nodes", "4", "--address", "a:1", "--cpus", "2", "--wait", "9", "--set", "cluster.ray.spares=3"),
            {"address": "a:1", "cpus": 2.0, "wait_s": 9.0, "spares": 3},
        ),
    ],
)
def test_options_are_fields_of_the_job(
    options: tuple[str, ...], expected: dict[str, object], asked: list[planaria.Job]
) -> None:
    assert CliRunner().invoke(cli, ["launch", "ray", "job.toml", *options]).exit_code == 2
    (job,) = asked
    for field, value in expected.items():
        assert getattr(job.cluster, field, getattr(job.cluster.ray, field, None)) == value


def test_train_asks_ray_where_the_job_says_so(asked: list[planaria.Job]) -> None:
    train = ["train", "job.toml", "--set", "cluster.launcher=ray", "--set", "cluster.ray.spares=1"]
    assert CliRunner().invoke(cli, train).exit_code == 2
    (job,) = asked
    assert job.cluster.ray is not None
    assert job.cluster.ray.spares == 1
    with pytest.raises(planaria.UserError, match="asked"):
        planaria.launch_on_ray(job, nodes=(3, 5), cpus=2.0)
    assert asked[1].cluster.most_nodes == 5
    assert asked[1].cluster.ray is not None
    assert (asked[1].cluster.ray.spares, asked[1].cluster.ray.cpus) == (1, 2.0)
