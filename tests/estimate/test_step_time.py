"""Step time: by hand where it can be, and never beyond the closed form it should agree with."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given, settings

from planaria.estimate.conditions import Conditions
from planaria.estimate.step_time import audit_s, simulate, step_time_s
from planaria.plan.costs.model_profile import LayerTimes, LinkCost, ModelProfile, StepCosts
from planaria.plan.costs.stage_costs import pipeline_cost
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId
from planaria.plan.program.instructions import Op
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import random_jobs, uniform_profile
from tests.proof import examples

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


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 9), (8, 20)])
def test_split_backwards_leave_bubbles_of_one_phase(stages: int, microbatches: int) -> None:
    """N (F + B + W) + (S - 1) (F + B - W); 1F1B has (S - 1) (F + B + W)."""
    layer = uniform_profile(1).layers[0]
    times = LayerTimes(forward_s=0.010, backward_input_s=0.012, backward_weight_s=0.008)
    profile = uniform_profile(stages, link=FREE)
    profile = msgspec.structs.replace(profile, layers=(msgspec.structs.replace(layer, times=(times,)),) * stages)
    plan = plan_for(profile, stages, microbatches, stages)
    split = msgspec.structs.replace(plan, schedule=ScheduleKind.ZERO_BUBBLE_H1)
    assert step_time_s(plan, profile) == pytest.approx(0.030 * microbatches + (stages - 1) * 0.030)
    assert step_time_s(split, profile) == pytest.approx(0.030 * microbatches + (stages - 1) * 0.014)


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


def test_what_a_step_costs_beside_its_layers_is_counted() -> None:
    """Two replicas of two layers of 400 kB: each adds half of the other's, votes and applies."""
    costs = StepCosts(vote_s=0.005, apply_s_per_byte=1e-7, sum_s_per_byte=2e-8)
    profile = msgspec.structs.replace(uniform_profile(2, link=FREE, tied=False), step=costs)
    timeline = simulate(plan_for(profile, 2, 2, 1, f=1), profile)
    spans = {i.op: (start, end) for i, start, end in timeline.spans[WorkerId(1)]}
    assert spans[Op.VOTE] == pytest.approx((0.060 + 0.008, 0.060 + 0.008 + 0.005))
    assert spans[Op.APPLY] == pytest.approx((0.073, 0.153))
    assert timeline.step_time_s == pytest.approx(0.153)


def test_without_overlap_a_sender_waits() -> None:
    """Two stages, two microbatches, messages of 10 ms: each stage's 60 ms, the first's forward, three messages in
    turn with its compute."""
    link = LinkCost(latency_s=0.010, bandwidth_bytes_per_s=1e30)
    profile = uniform_profile(2, link=link, tied=False)
    plan = plan_for(profile, 2, 2, 2)
    # F0 10 | send 20 || F0 20-30, B0 30-50, send 60, F1 60-70, B1 70-90, send 100 || B1 100-120
    assert step_time_s(plan, profile, Conditions(overlap=False)) == pytest.approx(0.120)
    assert step_time_s(plan, profile) == pytest.approx(0.110)


def test_a_slow_node_and_shared_cores_lengthen_the_step() -> None:
    profile = uniform_profile(2, link=FREE, tied=False)
    plan = plan_for(profile, 2, 4, 1, f=1)
    assert step_time_s(plan, profile) == pytest.approx(0.120)
    assert step_time_s(plan, profile, Conditions(node_speeds={NodeId(1): 0.5})) == pytest.approx(0.240)
    assert step_time_s(plan, profile, Conditions(num_cores=2)) == pytest.approx(0.120)
    assert step_time_s(plan, profile, Conditions(num_cores=1)) == pytest.approx(0.240)
    with pytest.raises(PlanError, match="Node 1 has speed 0"):
        Conditions(node_speeds={NodeId(1): 0.0})
    with pytest.raises(PlanError, match="num_cores is 0"):
        Conditions(num_cores=0)


def test_audits_take_what_the_worker_runs_that_has_drawn_most() -> None:
    profile = uniform_profile(4, link=FREE)
    plan = plan_for(profile, 2, 8, 1, f=1)
    step_s, busiest_s = step_time_s(plan, profile), 4 * 4 * 0.030
    assert step_time_s(plan, profile, Conditions(audit=1.0)) == pytest.approx(step_s + busiest_s)
    at_most = [sum(math.comb(4, k) * 0.1**k * 0.9 ** (4 - k) for k in range(drawn + 1)) for drawn in range(4)]
    most = sum(1 - chance**2 for chance in at_most)  # of two workers that may draw four
    assert step_time_s(plan, profile, Conditions(audit=0.1)) == pytest.approx(step_s + most * busiest_s / 4)
    cores = Conditions(num_cores=1.0)
    longer_s = step_time_s(plan, profile, Conditions(num_cores=1.0, audit=0.1)) - step_time_s(plan, profile, cores)
    assert longer_s == pytest.approx(0.1 * 2 * busiest_s)


def test_audits_wait_for_nobody_who_has_time_to_spare() -> None:
    """The second of two stages is done a backward, two thirds of an audit, before the first."""
    profile = uniform_profile(4, link=FREE, tied=False)
    plan = plan_for(profile, 4, 4, 2, f=1)
    compute_s = dict.fromkeys(plan.workers, 2 * 0.060)
    drawn = [0.25, 0.5, 0.25]  # of two turns at even chances: none, one, both
    expected = sum(
        max(0.0, a, b, c - 2 / 3, d - 2 / 3) * drawn[a] * drawn[b] * drawn[c] * drawn[d]
        for a, b, c, d in itertools.product(range(3), repeat=4)
    )
    assert audit_s(plan, profile, compute_s, Conditions(audit=0.5)) == pytest.approx(0.060 * expected)


def test_an_auditor_runs_alone_what_several_devices_compute_together() -> None:
    profile = uniform_profile(4, link=FREE, tied=False)
    plan = plan_for(profile, 2, 4, 1, f=1)
    compute_s, half = dict.fromkeys(plan.workers, 4 * 0.060), Conditions(audit=0.5)
    expected = 2 - 0.25**2 - 0.75**2  # of two workers that may draw two
    assert audit_s(plan, profile, compute_s, half) == pytest.approx(0.120 * expected)
    shared = msgspec.structs.replace(plan, devices_per_stage=2, devices_per_node=2, shares_microbatches=True)
    assert audit_s(shared, profile, compute_s, half) == pytest.approx(2 * 0.060 * expected)
    slow = (LayerTimes(num_devices=2, forward_s=0.008, backward_input_s=0.008, backward_weight_s=0.008),)
    layers = tuple(msgspec.structs.replace(layer, times=(*layer.times, *slow)) for layer in profile.layers)
    dear = msgspec.structs.replace(profile, layers=layers)
    assert audit_s(shared, dear, compute_s, half) == pytest.approx(0.060 * 30 / 24 * expected)


def test_a_device_count_that_was_not_profiled_is_named() -> None:
    profile = uniform_profile(2, tied=False)
    plan = plan_for(profile, 1, 1, 1)
    stage = msgspec.structs.replace(plan.pipelines[0].stages[0], num_devices=4)
    plan = msgspec.structs.replace(plan, pipelines=(msgspec.structs.replace(plan.pipelines[0], stages=(stage,)),))
    with pytest.raises(PlanError, match="stage of 4 devices, and the profile has times for stages of 1"):
        step_time_s(plan, profile)


@settings(max_examples=examples(80), deadline=None)
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
