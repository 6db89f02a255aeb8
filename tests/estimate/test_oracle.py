"""The estimate of a step's time against an event simulation that was written without looking at it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings

from planaria.estimate.conditions import Conditions
from planaria.estimate.step_time import EstimateCache, outline, simulate, step_time_s
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Route, Stage, WorkerId
from planaria.plan.validate import validate
from tests.estimate.oracle import Oracle
from tests.estimate.plans import cases
from tests.proof import examples

Case = tuple[Plan, ModelProfile, Conditions]


@settings(max_examples=examples(250), deadline=None)
@given(case=cases())
def test_the_estimate_is_the_event_simulations(case: Case) -> None:
    """All schedules, detours, devices, links, speeds, sums; overlap or not."""
    plan, profile, conditions = case
    validate(plan)
    expected = Oracle(plan, profile, conditions).step_time_s()
    assert step_time_s(plan, profile, conditions) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert simulate(plan, profile, conditions).step_time_s == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=examples(100), deadline=None)
@given(case=cases())
def test_an_outline_is_what_the_timeline_comes_to(case: Case) -> None:
    """And what was known of a plan's pipelines before changes nothing."""
    plan, profile, conditions = case
    timeline = simulate(plan, profile, conditions)
    known = EstimateCache()
    first = outline(plan, profile, conditions, known)
    later = msgspec.structs.replace(
        plan,
        generation=plan.generation + 5,
        routes=tuple(msgspec.structs.replace(route, born=route.born + 5) for route in plan.routes),
        sync_epochs=tuple(epoch + 5 for epoch in plan.sync_epochs),
    )
    num_known = len(known)
    assert outline(later, profile, conditions, known) == first
    assert len(known) == num_known
    assert first.step_time_s == pytest.approx(timeline.step_time_s)
    alone = simulate(plan, profile, replace(conditions, num_cores=None))
    longer = timeline.step_time_s / alone.step_time_s if alone.step_time_s else 1.0
    assert first.longest_instruction_s == pytest.approx(longer * timeline.longest_instruction_s)


@settings(max_examples=examples(60), deadline=None)
@given(case=cases(irregular=True))
def test_an_outline_of_routes_that_cross_is_what_the_timeline_comes_to(case: Case) -> None:
    plan, profile, conditions = case
    expected = Oracle(plan, profile, conditions).step_time_s()
    assert step_time_s(plan, profile, conditions) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(case=cases(exact=False))
def test_an_outline_with_times_that_round_is_what_the_timeline_comes_to(case: Case) -> None:
    plan, profile, conditions = case
    expected = Oracle(plan, profile, conditions).step_time_s()
    assert step_time_s(plan, profile, conditions) == pytest.approx(expected, rel=1e-9, abs=1e-12)


LAYER = LayerCost(
    name="layer",
    times=(LayerTimes(forward_s=0.25, backward_input_s=0.25, backward_weight_s=0.25),),
    parameter_bytes=1024,
    gradient_bytes=1024,
    optimizer_bytes=2048,
    activation_bytes=1,
    recompute_activation_bytes=1,
    output_bytes=0,
)
WIDE = msgspec.structs.replace(LAYER, output_bytes=1024)
PROFILE = ModelProfile(
    layers=(WIDE, LAYER, LAYER),
    groups=tuple(Group(layers=(layer,), size_bytes=1024) for layer in range(3)),
    links=Links(
        within_node=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=2.0**20),
        between_nodes=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=2.0**12),
    ),
    device=DeviceKind(name="test"),
)
EVERYTHING = (0, 1, 2)


def alike(devices_per_node: int, *turns: tuple[str, ...], also: tuple[Stage, ...] = ()) -> Plan:
    """Pipelines of three stages. A pipeline's turns say which of its microbatches count all layers, "a", and which
    only the last, "b" (for the others there is a second route)."""
    pipelines, routes, number = [], [], 0
    for at, turn in enumerate(turns):
        stages = tuple(Stage(worker=WorkerId(3 * at + k), first_layer=k, end_layer=k + 1) for k in range(3))
        extra = tuple(stage for stage in also if stage.worker // 3 == at)
        pipelines.append(Pipeline(stages=stages + extra))
        for letter, counted, rest in (("a", EVERYTHING, ()), ("b", (2,), (0, 1))):
            some = tuple(number + m for m, mine in enumerate(turn) if mine == letter)
            if some:
                routes.append(Route(hops=stages, microbatches=some, born=1, counted=counted))
            if some and rest:
                routes.append(Route(hops=stages, microbatches=some, born=2, counted=rest))
        number += len(turn)
    return Plan(
        generation=2,
        num_layers=3,
        num_microbatches=number,
        devices_per_node=devices_per_node,
        groups=PROFILE.groups,
        pipelines=tuple(pipelines),
        routes=tuple(routes),
        sync_epochs=(1, 1, 1),
    )


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(alike(1, ("a", "a"), ("a", "a")), id="alike"),
        pytest.param(alike(2, ("a", "a"), ("a", "a")), id="other nodes"),
        pytest.param(alike(1, ("a", "b", "a"), ("b", "a", "a")), id="other turns"),
        pytest.param(alike(1, ("b", "a", "a"), ("a", "b", "a")), id="other turns, the other way round"),
        pytest.param(
            alike(1, ("a",), ("a",), also=(Stage(worker=WorkerId(5), first_layer=0, end_layer=1),)), id="owns more"
        ),
    ],
)
def test_pipelines_alike_are_run_once_and_others_not(plan: Plan) -> None:
    validate(plan)
    conditions = Conditions()
    expected = Oracle(plan, PROFILE, conditions).step_time_s()
    assert step_time_s(plan, PROFILE, conditions) == pytest.approx(expected)
    assert simulate(plan, PROFILE, conditions).step_time_s == pytest.approx(expected)


def test_a_slow_nodes_pipeline_is_not_the_like_of_another() -> None:
    plan = alike(1, ("a", "a"), ("a", "a"))
    conditions = Conditions(node_speeds={NodeId(4): 0.5})
    expected = Oracle(plan, PROFILE, conditions).step_time_s()
    assert step_time_s(plan, PROFILE, conditions) == pytest.approx(expected) != step_time_s(plan, PROFILE)
