"""Closed forms: equal to the simulation where they claim to be exact, and on the side where they claim to err."""

from __future__ import annotations

import formulas as forms
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LayerTimes, LinkCost, ModelProfile
from planaria.plan.plan import Pipeline, Plan, PlanError, Route, ScheduleKind, Stage, WorkerId
from tests.plan.profiles import uniform_profile
from tests.plan.reroutes import ideal, rerouted
from tests.proof import examples

FREE = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30)


def simulated_s(
    stages: list[tuple[float, float]], number: int, kind: ScheduleKind = ScheduleKind.ONE_F_ONE_B, weight: float = 0.5
) -> float:
    """One pipeline of one-layer stages of (forward, backward) seconds, without messages or sums."""
    profile = timed(stages, weight)
    hops = tuple(Stage(worker=WorkerId(k), first_layer=k, end_layer=k + 1) for k in range(len(stages)))
    counted = tuple(range(len(stages)))
    plan = Plan(
        generation=1,
        num_layers=len(stages),
        num_microbatches=number,
        devices_per_node=1,
        groups=(),
        pipelines=(Pipeline(stages=hops),),
        routes=(Route(hops=hops, microbatches=tuple(range(number)), born=1, counted=counted),),
        sync_epochs=(),
        schedule=kind,
    )
    return step_time_s(plan, profile)


def timed(stages: list[tuple[float, float]], weight: float) -> ModelProfile:
    profile = uniform_profile(len(stages), link=FREE, tied=False)
    layers = [
        msgspec.structs.replace(
            layer,
            times=(LayerTimes(forward_s=f, backward_input_s=(1 - weight) * b, backward_weight_s=weight * b),),
        )
        for layer, (f, b) in zip(profile.layers, stages, strict=True)
    ]
    return msgspec.structs.replace(profile, layers=tuple(layers), groups=())


TIMES = st.integers(1, 50).map(lambda n: n * 1e-3)


@settings(max_examples=examples(100), deadline=None)
@given(forwards=st.lists(TIMES, min_size=1, max_size=6), more=st.integers(0, 12))
def test_oobleck_never_says_too_much_at_one_ratio(forwards: list[float], more: int) -> None:
    stages = [(f, 2 * f) for f in forwards]
    number = len(stages) + more
    said = forms.oobleck_s([f + b for f, b in stages], number)
    assert said <= simulated_s(stages, number) * (1 + 1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(depth=st.integers(1, 8), number=st.integers(1, 20), stage=st.tuples(TIMES, TIMES))
def test_even_pipelines_are_exact(depth: int, number: int, stage: tuple[float, float]) -> None:
    simulated = simulated_s([stage] * depth, number)
    assert forms.symmetric_s(depth, number, sum(stage)) == pytest.approx(simulated)
    assert forms.oobleck_s([sum(stage)] * depth, number) == pytest.approx(simulated)


@settings(max_examples=examples(100), deadline=None)
@given(
    pipelines=st.lists(
        st.tuples(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(1, 9)), min_size=1, max_size=3
    )
)
def test_the_recurrence_is_the_simulation_without_messages(
    pipelines: list[tuple[list[tuple[float, float]], int]],
) -> None:
    expected = max(simulated_s(stages, number) for stages, number in pipelines)
    assert forms.asymmetric_s(pipelines) == pytest.approx(expected)


PIPELINES = given(
    depth=st.integers(1, 7),
    more=st.integers(0, 9),
    forward=TIMES,
    backward=TIMES,
    share=st.floats(0.0, 0.5),
)
"""Of even stages; the weights' share of the backward."""


@settings(max_examples=examples(60), deadline=None)
@PIPELINES
def test_a_zero_bubble_step_where_weights_are_short(
    depth: int, more: int, forward: float, backward: float, share: float
) -> None:
    """N (F + B + W) + (S - 1) (F + B - W): ZB-H1 (Qi et al., 2024)."""
    number = depth + more
    share = min(share, forward / backward)
    simulated = simulated_s([(forward, backward)] * depth, number, ScheduleKind.ZERO_BUBBLE_H1, share)
    period, weights = forward + backward, share * backward
    assert simulated == pytest.approx(number * period + (depth - 1) * (period - 2 * weights))


@settings(max_examples=examples(60), deadline=None)
@PIPELINES
def test_a_longer_warm_up_fills_more(depth: int, more: int, forward: float, backward: float, share: float) -> None:
    """N (F + B + W) + (S - 1) max(F, F + B - 2 W): ZB-H2 (Qi et al., 2024) up to the end of the step."""
    number = 2 * depth - 1 + more
    share = min(share, forward / backward)
    simulated = simulated_s([(forward, backward)] * depth, number, ScheduleKind.ZERO_BUBBLE_H2, share)
    period, weights = forward + backward, share * backward
    bubble = max(forward, period - 3 * weights)
    assert simulated == pytest.approx(number * period + (depth - 1) * bubble)


def test_rerouting_takes_what_is_computed_by_hand() -> None:
    """4 pipelines of 3 stages and 6 microbatches, two places lost a worker, 30 ms a stage."""
    assert forms.one_failure_s(4, 3, 6, 0.03) == pytest.approx(0.03 * (3 + 6 - 1 + 2))
    assert forms.failures_s(4, [1, 0, 1], 6, 0.03) == pytest.approx(0.03 * (8 + 4))
    assert forms.busiest_s(4, [1, 0, 1], 6, 0.03) == pytest.approx(0.03 * (2 + 8))
    assert forms.failures_s(4, [0, 1, 0], 6, 0.03) == pytest.approx(forms.one_failure_s(4, 3, 6, 0.03))
    plan = rerouted(4, 3, 6, {(0, 0), (1, 2)}, ScheduleKind.GPIPE)
    profile = uniform_profile(3, link=FREE, tied=False)
    assert step_time_s(plan, profile) == pytest.approx(0.03 * ideal(4, 3, 6, {(0, 0), (1, 2)}), rel=0.1)


@pytest.mark.parametrize("failed", [4, 5])
def test_a_place_without_anybody_is_refused(failed: int) -> None:
    for form in (forms.failures_s, forms.busiest_s):
        with pytest.raises(PlanError, match=f"{failed} of 4 workers failed at place 1"):
            form(4, [0, failed], 6, 0.03)
    with pytest.raises(PlanError, match="nobody is left"):
        forms.one_failure_s(1, 3, 6, 0.03)


def test_a_pipeline_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="0 stages"):
        forms.oobleck_s([], 4)
