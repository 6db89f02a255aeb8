"""Step time: by hand where it can be, and never beyond the closed form it should agree with."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from planaria.estimate.step_time import simulate, step_time_s
from planaria.plan.costs import pipeline_cost
from planaria.plan.instantiate import initial_plan
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.profile import LinkCost, ModelProfile
from planaria.plan.program import Op
from planaria.plan.settings import PlannerSettings
from planaria.plan.templates import make_templates
from tests.plan.profiles import random_jobs, uniform_profile

FREE = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30)


def plan_for(profile: ModelProfile, nodes: int, microbatches: int, min_nodes: int, f: int = 0) -> Plan:
    planner = PlannerSettings(
        num_microbatches=microbatches,
        fault_tolerance=f,
        num_nodes=nodes,
        devices_per_node=1,
        min_nodes=min_nodes,
    )
    nodes_ = [NodeId(n) for n in range(nodes)]
    return initial_plan(profile, make_templates(profile, planner), planner, nodes_, 1)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (2, 4), (4, 4), (4, 9)])
def test_an_even_pipeline_without_messages_is_the_textbooks(stages: int, microbatches: int) -> None:
    """(S - 1 + N) (F + B)."""
    profile = uniform_profile(4, link=FREE)
    plan = plan_for(profile, stages, microbatches, stages)
    per_stage = 4 / stages * 0.030
    assert step_time_s(plan, profile) == pytest.approx((stages - 1 + microbatches) * per_stage)


def test_messages_lengthen_the_path() -> None:
    """Two stages, one microbatch, one replica: compute, an activation and a gradient of 10 ms each."""
    link = LinkCost(latency_s=0.010, bandwidth_bytes_per_s=1e30)
    profile = uniform_profile(2, link=link, tied=False)
    assert step_time_s(plan_for(profile, 2, 1, 2), profile) == pytest.approx(0.060 + 0.020)


def test_syncs_run_beside_compute_and_one_after_another() -> None:
    """Two one-worker replicas of two layers, 100 ms a group: the upper layer's sum starts first."""
    link = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=4e6)
    profile = uniform_profile(2, link=link, tied=False)
    plan = plan_for(profile, 2, 2, 1, f=1)
    timeline = simulate(plan, profile)
    syncs = {i.group: (start, end) for i, start, end in timeline.spans[WorkerId(0)] if i.op is Op.SYNC}
    assert syncs[1] == pytest.approx((0.040, 0.140))
    assert syncs[0] == pytest.approx((0.140, 0.240))
    assert timeline.step_time_s == pytest.approx(0.240)


@settings(max_examples=80, deadline=None)
@given(job=random_jobs())
def test_the_closed_form_is_a_near_upper_bound(job: tuple[ModelProfile, PlannerSettings]) -> None:
    """Of a step without syncs and with one ratio of backward to forward: never too low, exact for one stage."""
    profile, planner = job
    layers = tuple(
        msgspec.structs.replace(
            layer,
            times=tuple(
                msgspec.structs.replace(t, backward_input_s=t.forward_s, backward_weight_s=t.forward_s)
                for t in layer.times
            ),
        )
        for layer in profile.layers
    )
    profile = msgspec.structs.replace(profile, layers=layers)
    nodes = [NodeId(n) for n in range(planner.num_nodes)]
    plan = initial_plan(profile, make_templates(profile, planner), planner, nodes, 1)
    plan = msgspec.structs.replace(plan, groups=(), sync_epochs=())
    closed = max(
        pipeline_cost(profile, ((hop.first_layer, hop.end_layer) for hop in route.hops)).time_s(len(route.microbatches))
        for route in plan.routes
    )
    simulated = step_time_s(plan, profile)
    assert 0.6 * closed <= simulated <= closed * (1 + 1e-9)
    if all(len(route.microbatches) == 1 or len(route.hops) == 1 for route in plan.routes):
        assert simulated == pytest.approx(closed)


@settings(max_examples=40, deadline=None)
@given(job=random_jobs())
def test_compute_of_a_worker_never_overlaps(job: tuple[ModelProfile, PlannerSettings]) -> None:
    profile, planner = job
    nodes = [NodeId(n) for n in range(planner.num_nodes)]
    plan = initial_plan(profile, make_templates(profile, planner), planner, nodes, 1)
    timeline = simulate(plan, profile)
    for spans in timeline.spans.values():
        clock = 0.0
        for instruction, start, end in spans:
            assert 0 <= start <= end <= timeline.step_time_s
            if instruction.op in (Op.FORWARD, Op.BACKWARD):
                assert start >= clock
                clock = end
