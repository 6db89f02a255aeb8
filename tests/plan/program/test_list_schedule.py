"""Orders of routes that cross: how long they take, and how much they keep."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.plan import ScheduleKind
from planaria.plan.program.hops import route_hops
from planaria.plan.program.list_schedule import list_schedule
from planaria.plan.program.units import Phase, Unit
from tests.plan.machine import Machine
from tests.plan.profiles import layer_cost, uniform_profile
from tests.plan.reroutes import ideal, rerouted
from tests.proof import examples

FREE = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30)


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, int, int, frozenset[tuple[int, int]]]:
    """Pipelines, stages, microbatches of each, and the dead, who leave somebody in every place."""
    num_pipelines, num_stages = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    everybody = [(p, place) for p in range(num_pipelines) for place in range(num_stages)]
    spared = {(draw(st.integers(0, num_pipelines - 1)), place) for place in range(num_stages)}
    mortal = sorted(set(everybody) - spared)
    dead = draw(st.frozensets(st.sampled_from(mortal), min_size=1, max_size=4))
    return num_pipelines, num_stages, draw(st.integers(1, 8)), dead


def most_kept(units: tuple[Unit, ...]) -> int:
    kept = most = 0
    for phase, hop, _, _ in units:
        if phase is Phase.FORWARD and hop.keeps:
            kept += hop.num_layers
        elif phase is Phase.WEIGHT_GRADIENTS or (phase is Phase.INPUT_GRADIENT and not hop.has_weight):
            kept -= hop.num_layers
        most = max(most, kept)
    assert kept == 0
    return most


@settings(max_examples=examples(60), deadline=None)
@given(loss=losses(), kind=st.sampled_from(ScheduleKind), seed=st.integers(0, 9))
def test_peers_carry_the_work_of_the_dead_in_the_memory_of_their_own_place(
    loss: tuple[int, int, int, frozenset[tuple[int, int]]], kind: ScheduleKind, seed: int
) -> None:
    num_pipelines, num_stages, each, _ = loss
    spare, units = seed % 4, tuple((1 + seed * n % 5, 1, n % 3) for n in range(num_stages))
    plan = msgspec.structs.replace(rerouted(*loss, kind), spare_in_flight=spare, layer_units=units)
    hops = [route_hops(route, split=kind.splits_backward) for route in plan.routes]
    for worker, order in list_schedule(plan.routes, hops, kind, spare, units).items():
        place = worker % num_stages
        assert most_kept(order) <= kind.in_flight(num_stages - 1 - place, num_pipelines * each, place) + spare
    machine = Machine(plan, seed)
    machine.run()
    assert not machine.messages


def over_ideal(kind: ScheduleKind) -> list[float]:
    """Of a fixed sample of losses, by how much the step is longer than the formula says."""
    draw = random.Random(1)
    found = []
    for _ in range(30):
        num_pipelines, num_stages = draw.randint(3, 5), draw.randint(2, 6)
        each = draw.choice([2, 3]) * num_stages
        dead = {(draw.randrange(num_pipelines), draw.randrange(num_stages)) for _ in range(draw.randint(1, 3))}
        if any(sum(at == place for _, at in dead) == num_pipelines for place in range(num_stages)):
            continue
        profile = uniform_profile(num_stages, link=FREE, tied=False)
        step = step_time_s(rerouted(num_pipelines, num_stages, each, dead, kind), profile)
        found.append(step / (0.030 * ideal(num_pipelines, num_stages, each, dead)) - 1)
    return found


@pytest.mark.parametrize(
    ("kind", "mean", "worst"),
    [
        (ScheduleKind.GPIPE, -0.02, 0.05),
        (ScheduleKind.EAGER_ONE_F_ONE_B, 0.03, 0.15),
        (ScheduleKind.ZERO_BUBBLE_H1, -0.08, 0.0),
        (ScheduleKind.ZERO_BUBBLE_H2, -0.10, 0.0),
        (ScheduleKind.ONE_F_ONE_B, 0.20, 0.45),
    ],
)
def test_rerouted_steps_are_near_the_formula(kind: ScheduleKind, mean: float, worst: float) -> None:
    """Less memory makes longer steps: 1F1B's leaves a busy stage no room for what is held up above it."""
    found = over_ideal(kind)
    assert statistics.fmean(found) <= mean, found
    assert max(found) <= worst, found


def test_weight_gradients_fill_what_would_be_bubbles() -> None:
    times = []
    for kind in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE_H1):
        times.append(step_time_s(rerouted(3, 4, 8, {(0, 1)}, kind), uniform_profile(4, link=FREE, tied=False)))
    assert times[1] < 0.9 * times[0]


def test_a_busy_stage_is_faster_with_spare_microbatches() -> None:
    """Three of four first stages are lost: the fourth feeds four pipelines."""
    plan = rerouted(4, 4, 8, {(0, 0), (1, 0), (2, 0)}, ScheduleKind.ZERO_BUBBLE_H1)
    profile = uniform_profile(4, link=FREE, tied=False)
    times = [step_time_s(msgspec.structs.replace(plan, spare_in_flight=spare), profile) for spare in (0, 2, 8)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.98 * times[0]


def test_orders_go_by_the_layers_times() -> None:
    """Where one layer takes three times as long, knowing it shortens the step."""
    draw = random.Random(4)
    gains = []
    for _ in range(20):
        units = tuple((n, n, n) for n in (draw.randint(1, 6) for _ in range(4)))
        plan = rerouted(4, 4, 12, {(draw.randrange(4), 1), (draw.randrange(4), 2)}, ScheduleKind.ZERO_BUBBLE_H1)
        profile = uneven([unit[0] * 1e-3 for unit in units])
        blind, seeing = (
            step_time_s(msgspec.structs.replace(plan, layer_units=known, spare_in_flight=4), profile)
            for known in ((), units)
        )
        gains.append(blind / seeing - 1)
    assert statistics.fmean(gains) > 0.005, gains
    assert min(gains) > -0.02, gains


def uneven(forwards_s: list[float]) -> ModelProfile:
    """Layers whose three phases take the same."""
    layers = tuple(layer_cost(forward_s=s, backward_s=2 * s, parameter_bytes=0) for s in forwards_s)
    return msgspec.structs.replace(uniform_profile(4, link=FREE, tied=False), layers=layers, groups=())
