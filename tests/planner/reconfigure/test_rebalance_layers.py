"""Recutting: no cut of the pipeline's layers over its own stages has a shorter period, as trying them all tells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import DeviceKind, LinkCost, Links, ModelProfile
from planaria.plan.plan import NodeId, Pipeline, Stage, WorkerId
from planaria.planner.reconfigure.rebalance_layers import pipeline_times, recut
from tests.plan.profiles import layer_cost, uniform_profile


def pipeline(ends: tuple[int, ...]) -> Pipeline:
    """Stage n on worker n."""
    first = (0, *ends[:-1])
    return Pipeline(
        stages=tuple(
            Stage(worker=WorkerId(n), first_layer=begin, end_layer=end)
            for n, (begin, end) in enumerate(zip(first, ends, strict=True))
        )
    )


@st.composite
def profiles(draw: st.DrawFn, num_layers: int) -> ModelProfile:
    costs = [
        layer_cost(
            forward_s=draw(st.integers(1, 9)) * 1e-3,
            backward_s=draw(st.integers(1, 18)) * 1e-3,
            output_bytes=draw(st.integers(0, 8)) * 1000,
        )
        for _ in range(num_layers)
    ]
    near, far = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e7), LinkCost(latency_s=1e-3, bandwidth_bytes_per_s=1e6)
    return ModelProfile(
        layers=tuple(costs), groups=(), links=Links(within_node=near, between_nodes=far), device=DeviceKind(name="any")
    )


@given(data=st.data(), layers=st.integers(3, 8), per_node=st.sampled_from([1, 2]))
def test_no_cut_has_a_shorter_period(data: st.DataObject, layers: int, per_node: int) -> None:
    costs = data.draw(profiles(layers))
    stages = data.draw(st.integers(1, min(4, layers)))
    speeds = {NodeId(n): data.draw(st.sampled_from([0.2, 0.5, 1.0, 1.5])) for n in range(stages)}

    def period_s(one: Pipeline) -> float:
        times = pipeline_times(one, costs, speeds, per_node, 3)
        return float(times[2] - times[1])

    every = [pipeline((*inner, layers)) for inner in itertools.combinations(range(1, layers), stages - 1)]
    found = recut(every[0], costs, speeds, per_node)
    assert found.is_whole(layers)
    assert found.workers == every[0].workers
    assert period_s(found) == pytest.approx(min(map(period_s, every)))


def test_a_slow_stage_gets_fewer_layers() -> None:
    speeds = {NodeId(1): 0.5}
    costs = uniform_profile(10, forward_s=0.010, link=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e12))
    found = recut(pipeline((4, 7, 10)), costs, speeds, 1)
    assert [stage.end_layer - stage.first_layer for stage in found.stages] == [4, 2, 4]
    times = pipeline_times(found, costs, speeds, 1, 4)
    assert np.diff(times) == pytest.approx(0.12)
    assert times[0] == pytest.approx(0.36)
