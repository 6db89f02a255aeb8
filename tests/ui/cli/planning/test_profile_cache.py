"""Profiles are measured once for what they depend on, and again when that changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.ui.cli.main import cli
from planaria.ui.cli.planning.profile_cache import ProfileCache, cache_folder
from tests.plan.profiles import uniform_profile

PROFILE = msgspec.structs.replace(uniform_profile(8, tied=False), microbatch_size=2)
JOB = """
[model]
type = "gpt2"
[train]
steps = 3
global_batch = 8
microbatch = 2
sequence_length = 16
[cluster]
nodes = 3
"""


SHARED = (
    "model.virtual_shards=2",
    "cluster.devices_per_node=2",
    "cluster.devices_per_stage=2",
    'cluster.stage_parallelism="tensor"',
)


def job(*overrides: str) -> Job:
    return parse_job(JOB, overrides=overrides, origin="job.toml")


def test_a_profile_is_found_again_for_what_it_was_measured_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.runtime.measure.dependencies.num_cores", lambda: 2.0)
    cache = ProfileCache(tmp_path / "profiles")
    assert cache.find(job()) is None
    cache.keep(job(), PROFILE)
    for same in (job(), job("cluster.nodes=4"), job("train.global_batch=16"), job("train.seed=7")):
        found = cache.find(same)
        assert found is not None
        assert found[0] == PROFILE
        assert found[1] >= 0
    for other in (
        job("train.microbatch=4"),
        job("train.sequence_length=32"),
        job("model.config.n_layer=2"),
        job('train.numerics="fast"'),
        job('cluster.device="cuda"'),
        job('train.optimizer="sgd"'),
        job("train.compile=true"),
        job("resilience.compare_replicas=false"),
        job("cluster.nodes=1", "resilience.fault_tolerance=0"),
    ):
        assert cache.find(other) is None


def test_a_changed_tokenizer_file_is_another(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    cache, mine = ProfileCache(tmp_path / "profiles"), job(f"data.tokenizer={str(tokenizer)!r}")
    cache.keep(mine, PROFILE)
    assert cache.find(mine) is not None
    tokenizer.write_text('{"version": "1.0"}')
    assert cache.find(mine) is None


@pytest.mark.parametrize("model", ['model.type="layers:transformer"', 'model.weights="folder"'])
def test_what_may_change_behind_the_job_is_not_kept(tmp_path: Path, model: str) -> None:
    cache = ProfileCache(tmp_path / "profiles")
    cache.keep(job(model), PROFILE)
    assert cache.find(job(model)) is None
    assert not (tmp_path / "profiles").exists()


def test_a_damaged_profile_is_measured_again(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    cache.keep(job(), PROFILE)
    (kept,) = tmp_path.iterdir()
    kept.write_text("{}")
    assert cache.find(job()) is None


def test_profiles_lie_in_the_users_cache() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/planaria/profiles")
    for environment in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(environment) == Path.home() / ".cache" / "planaria" / "profiles"


class Measuring:
    """Stands for the measurement: counts how often it was asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, *arguments: Any, **options: Any) -> ModelProfile:
        self.times += 1
        return PROFILE


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measuring:
    import planaria.runtime.launch.training.profiling

    measuring = Measuring()
    monkeypatch.setattr(planaria.runtime.launch.training.profiling, "profile_job", measuring)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    return measuring


def plan(*options: str) -> Result:
    return CliRunner().invoke(cli, ["plan", "job.toml", *options])


def test_plan_measures_a_job_once(measuring: Measuring) -> None:
    assert "measured on this machine now" in plan().stdout
    assert "ago; --measure does it again" in plan().stdout
    assert measuring.times == 1
    first, second = (json.loads(plan("--json").stdout) for _ in range(2))
    assert first.pop("planning_ms") > 0 < second.pop("planning_ms")
    assert first == second
    assert measuring.times == 1
    assert "measured on this machine now" in plan("--measure").stdout
    assert measuring.times == 2


def test_measure_and_profile_exclude_each_other(measuring: Measuring) -> None:
    refused = plan("--measure", "--profile", "profile.json")
    assert refused.exit_code == 2
    assert "exclude each other" in refused.stderr


def test_a_cache_in_the_place_of_a_file_is_a_warning(measuring: Measuring, tmp_path: Path) -> None:
    tmp_path.joinpath("cache").write_text("")
    shown = plan()
    assert shown.exit_code == 0
    assert "could not be kept" in shown.stderr


def test_the_profile_of_a_run_folder(measuring: Measuring, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(PROFILE))
    assert f"layer costs: from {path.name}" in plan("--profile", path.name).stdout
    assert measuring.times == 0


def test_whether_microbatches_are_shared_is_measured_anew(tmp_path: Path) -> None:
    """Of one model: devices that take microbatches in turn were measured, and no exchanges."""
    cache, apart = ProfileCache(tmp_path), job(*SHARED[:3])
    cache.keep(apart, PROFILE)
    assert cache.find(apart) is not None
    assert cache.find(job(*SHARED)) is None
