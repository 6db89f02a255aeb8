"""What a coordinator's process makes of a job file."""

from __future__ import annotations

import os

import msgspec
import pytest

from planaria import api
from planaria.job.parse import parse_job
from planaria.plan.costs.model_profile import Contention
from planaria.profile.presets.presets import preset
from planaria.protocol.membership.liveness import Limits
from planaria.runtime.component_settings import devices_at_work, job_profile, planner_settings
from planaria.runtime.coordinator.process import limits_of, run_settings
from planaria.runtime.coordinator.settings import CoordinatorSettings

TEXT = (
    '[model]\ntype = "gpt2"\n[train]\nsteps = 1\nglobal_batch = 6\nmicrobatch = 1\nsequence_length = 8\n'
    "[cluster]\nnodes = 4\ndevices_per_node = 2\n"
)


@pytest.mark.parametrize(
    ("num_cores", "overrides", "shares_cores"),
    [
        (7, (), True),
        (8, (), False),
        (1, ('cluster.launcher="agents"',), False),
        (1, ("cluster.device=cuda",), False),
        (1, ("cluster.device=emulated", "cluster.profile=a.json"), False),
    ],
)
def test_workers_share_cores_where_they_compute_on_fewer(
    num_cores: int, overrides: tuple[str, ...], shares_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_cores)))
    job = parse_job(TEXT, overrides=overrides, origin="test")
    settings = CoordinatorSettings(job=job, folder="runs/a", run_id="a", token="", resume=None, log="log")
    profile = preset("gpt2-345m", "a100")
    assert run_settings(settings, profile).shares_cores == shares_cores


@pytest.mark.parametrize(
    ("overrides", "at_work"),
    [
        ((), 8),
        (("cluster.devices_per_node=1",), 4),
        (("cluster.devices_per_node=1", "cluster.device=cuda"), 1),
        (('cluster.launcher="agents"',), 2),
        (("cluster.device=cuda",), 2),
        (("cluster.device=emulated", "cluster.profile=a.json"), 2),
    ],
)
def test_costs_are_those_of_a_host_whose_devices_are_all_at_work(overrides: tuple[str, ...], at_work: int) -> None:
    job = parse_job(TEXT, overrides=overrides, origin="test")
    assert devices_at_work(job) == at_work
    contention = tuple(Contention(num_devices=n, compute=float(n), update=float(n)) for n in (2, 8))
    profile = msgspec.structs.replace(preset("gpt2-345m", "a100"), contention=contention)
    found, alone = job_profile(job, profile).layers[1].on(1), profile.layers[1].on(1)
    assert found.forward_s == pytest.approx(at_work * alone.forward_s)


def test_how_many_devices_a_stage_is_on_may_be_left_to_the_planner() -> None:
    def devices(*overrides: str) -> int:
        return planner_settings(parse_job(TEXT, overrides=overrides, origin="test"), GPT3).devices_per_stage

    assert devices() == 1
    assert devices("cluster.devices_per_stage=2") == 2
    assert devices("cluster.devices_per_stage=auto") == 0


def test_the_devices_of_a_stage_may_spread_the_optimizers_state() -> None:
    def spreads(*overrides: str) -> bool:
        overrides = ("cluster.devices_per_stage=2", *overrides)
        return planner_settings(parse_job(TEXT, overrides=overrides, origin="test"), GPT3).spreads_optimizer

    assert not spreads()
    assert spreads("cluster.optimizer_state=spread")


def test_the_devices_of_a_stage_share_microbatches_where_the_job_says_so() -> None:
    overrides = ("cluster.devices_per_stage=2", "model.virtual_shards=2", "cluster.stage_parallelism=tensor")
    for known in (2, 3):
        settings = planner_settings(parse_job(TEXT, overrides=overrides[:known], origin="test"), GPT3)
        assert settings.share_microbatches == (known == 3)
        assert settings.most_sharing == 0


@pytest.mark.parametrize(
    ("other", "most"),
    [("", 4), ("cluster.device=cuda", 4), ("resilience.policy=redundancy", 4), ("model.virtual_shards=0", 0)],
)
def test_how_devices_use_microbatches_may_be_left_to_the_planner(other: str, most: int) -> None:
    overrides = ("cluster.devices_per_node=4", "model.virtual_shards=4", "cluster.stage_parallelism=auto")
    job = parse_job(TEXT, overrides=(*overrides, *([other] if other else [])), origin="test")
    settings = planner_settings(job, GPT3)
    assert (settings.share_microbatches, settings.most_sharing) == (False, most)


def test_who_opens_a_dataset_for_minutes_may_join_late() -> None:
    job = parse_job(TEXT, overrides=('cluster.launcher="agents"',), origin="test")
    assert limits_of(job, 0.0).join_s == Limits().join_s
    assert limits_of(job, 300.0).join_s > 3000


def test_pipelines_that_a_job_asks_for_are_as_many_as_its_nodes_make() -> None:
    def shape(*overrides: str) -> tuple[int, int] | None:
        job = parse_job(TEXT.replace("nodes = 4", "nodes = 9"), overrides=overrides, origin="test")
        return planner_settings(job, GPT3).shape

    assert shape() is None
    assert shape("resilience.nodes_per_pipeline=2") == (4, 2)
    assert shape("resilience.nodes_per_pipeline=2", "resilience.num_pipelines=3") == (3, 2)
    growing = "cluster.nodes={ least = 9, most = 11 }"
    assert shape(growing, "resilience.nodes_per_pipeline=2") == (5, 2)


GPT3 = preset("gpt3-6.7b", "a100", numerics="mixed")


@pytest.mark.parametrize(("memory_gb", "memory_bytes"), [(0, GPT3.device.memory_bytes), (75, 75_000_000_000)])
def test_plans_keep_to_what_a_device_has_unless_the_job_says_otherwise(memory_gb: int, memory_bytes: int) -> None:
    overrides = ("cluster.device=emulated", "cluster.profile=a.json", f"cluster.memory_gb={memory_gb}")
    job = parse_job(TEXT.replace("_node = 2", "_node = 1"), overrides=overrides, origin="test")
    assert planner_settings(job, GPT3).memory_bytes == memory_bytes
    report = api.plan(job, GPT3)
    assert report.templates[0].num_nodes == 2
    assert all(use.total <= memory_bytes for use in report.memory.values())
