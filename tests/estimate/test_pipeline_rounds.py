"""Pipeline rounds: all forms answer the same, to the last bit, whatever was run before."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from planaria.estimate import pipeline_rounds
from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.pipeline_flow import is_plain, rounds_of
from planaria.estimate.pipeline_rounds import MOST_AT_FRONT
from planaria.estimate.pipeline_stages import Stages
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, Route, ScheduleKind
from planaria.plan.program.routes import sorted_routes
from tests.estimate.plans import cases, profiles
from tests.estimate.test_pipeline_flow import rings
from tests.plan.profiles import uniform_profile
from tests.plan.shadowed import ring_plan


@settings(max_examples=50, deadline=None)
@given(case=cases(exact=False, irregular=False) | rings())
def test_both_forms_answer_the_same(case: tuple[Plan, ModelProfile, Conditions]) -> None:
    pytest.importorskip("numba")
    pipeline_rounds.load()
    plan, profile, conditions = case
    durations = Durations(plan, profile, conditions)
    for path in sorted_routes(plan).pipelines:
        if is_plain(plan, path):
            rounds = rounds_of(plan, path, durations, Stages(plan, path.hops, durations))
            plain = rounds.run(overlap=conditions.overlap, compiled=False)
            assert rounds.run(overlap=conditions.overlap, compiled=True) == plain


@settings(max_examples=25, deadline=None)
@given(data=st.data(), overlap=st.booleans(), kind=st.sampled_from(ScheduleKind))
def test_what_was_run_before_changes_nothing(data: st.DataObject, overlap: bool, kind: ScheduleKind) -> None:
    """Steps of any numbers of microbatches, old ones and new ones that count less, one after the other."""
    depth = data.draw(st.integers(1, 5))
    layers = data.draw(st.integers(depth, 8))
    profile = data.draw(profiles(layers, exact=False))
    usual = ring_plan(None, pipelines=1, depth=depth, layers=layers, microbatches=1, schedule=kind)
    usual = msgspec.structs.replace(usual, groups=profile.groups, sync_epochs=(1,) * len(profile.groups))
    stages: Stages | None = None
    for _ in range(4):
        numbers = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=1 if kind.splits_backward else 3))
        routes, given_out = [], 0
        for at, number in enumerate(numbers):
            counted = data.draw(st.frozensets(st.sampled_from(range(layers)), min_size=1)) if at else range(layers)
            route = Route(
                hops=usual.routes[0].hops,
                microbatches=tuple(range(given_out, given_out + number)),
                born=min(at, 1),
                counted=tuple(sorted(counted)),
            )
            routes.append(route)
            given_out += number
        plan = msgspec.structs.replace(usual, num_microbatches=given_out, routes=tuple(routes))
        durations = Durations(plan, profile, Conditions(overlap=overlap))
        (path,) = sorted_routes(plan).pipelines
        stages = stages or Stages(plan, path.hops, durations)
        alone = rounds_of(plan, path, durations, Stages(plan, path.hops, durations))
        going_on = rounds_of(plan, path, durations, stages)
        assert going_on.run(overlap=overlap, compiled=False) == alone.run(overlap=overlap, compiled=False)
        event(f"{kind}, begins from a front: {going_on.front is not None and bool(going_on.front.after)}")


def test_a_front_takes_so_much_room_and_no_more() -> None:
    """However many microbatches a pipeline carries: forms are many, and each has a front."""
    depth, conditions = 4, Conditions()
    profile = uniform_profile(8, tied=False)
    most = MOST_AT_FRONT // depth
    usual = ring_plan(None, pipelines=1, depth=depth, layers=8, microbatches=1)
    usual = msgspec.structs.replace(usual, groups=profile.groups, sync_epochs=(1,) * 8)
    stages: Stages | None = None
    for number in (most // 2, 2 * most, most + 1, 3 * most):
        route = msgspec.structs.replace(usual.routes[0], microbatches=tuple(range(number)))
        plan = msgspec.structs.replace(usual, num_microbatches=number, routes=(route,))
        durations = Durations(plan, profile, conditions)
        (path,) = sorted_routes(plan).pipelines
        stages = stages or Stages(plan, path.hops, durations)
        going_on = rounds_of(plan, path, durations, stages).run(overlap=True, compiled=False)
        alone = replace(rounds_of(plan, path, durations, stages), front=None)
        assert going_on == alone.run(overlap=True, compiled=False)
    assert stages is not None
    assert len(stages.front.after) == most
    assert max(map(len, stages.front.arrived)) <= most + depth
