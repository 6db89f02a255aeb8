"""The planner comes to an end: no job of a size that people have keeps it for long."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time

import msgspec
import pytest

from planaria import api
from planaria.job.registry import PolicyName
from planaria.plan.plan import PlanError
from planaria.plan.settings import PlannerSettings
from planaria.planner.templates.splits import Space, make_space
from tests.plan.large_jobs import large_job
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

GUARD_S = 60.0
"""Of processor time; on a quiet machine a case takes a second or two, and the worst known less than five."""


def space(num_layers: int, per_node: int) -> Space:
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=0, num_nodes=1, devices_per_node=per_node)
    return make_space(uniform_profile(num_layers), settings)


@pytest.mark.timeout(60)
def test_no_walk_is_begun_that_does_not_come_to_the_end() -> None:
    """Stages of one device on nodes of eight: 32 stages share 34 layers, in few ways beside all that begin."""
    splits = space(34, 8).splits(4, 2_000)
    assert splits is not None
    assert len(splits) == math.comb(33, 31) == space(34, 8).num_splits(4)
    assert splits == sorted(set(splits))
    assert space(34, 8).splits(5, 2_000) == []


@pytest.mark.timeout(60)
def test_a_split_may_have_more_stages_than_python_calls_nest() -> None:
    assert space(1_200, 1).splits(1_200, 2_000) == [tuple((end, 1) for end in range(1, 1_201))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", rest_in_proof(range(16), kept=3))
def test_large_jobs_are_planned_or_refused_within_seconds(seed: int) -> None:
    profile, settings, policy = large_job(seed)
    began_s = time.process_time()
    with contextlib.suppress(PlanError):
        assert api.plan_for(profile, settings, policy=policy).step_time_s > 0
    assert time.process_time() - began_s < GUARD_S


def test_a_profile_without_times_for_one_device_is_planned_by_the_adaptive_policy() -> None:
    profile, settings, _ = large_job(0)
    layers = [
        msgspec.structs.replace(layer, times=(msgspec.structs.replace(layer.times[0], num_devices=2),))
        for layer in profile.layers
    ]
    profile = msgspec.structs.replace(profile, layers=tuple(layers))
    settings = dataclasses.replace(settings, devices_per_node=2, memory_bytes=0, min_nodes=0, fault_tolerance=1)
    report = api.plan_for(profile, settings, policy=PolicyName.ADAPTIVE)
    assert {stage.num_devices for pipeline in report.plan.pipelines for stage in pipeline.stages} == {2}
