"""Pipeline flow: what the workers' programs come to, to the last bit."""

from __future__ import annotations

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.flow import run
from planaria.estimate.pipeline_flow import is_plain, run_pipeline
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, Redundancy, Route, ScheduleKind
from planaria.plan.program.instructions import COMPUTING
from planaria.plan.program.programs import programs
from planaria.plan.program.routes import sorted_routes
from tests.estimate.plans import cases, profiles
from tests.plan.shadowed import ring_plan


@settings(max_examples=37, deadline=None)
@given(case=cases(exact=False, irregular=False))
def test_a_pipeline_is_what_its_workers_programs_come_to(case: tuple[Plan, ModelProfile, Conditions]) -> None:
    """Ends, compute, when gradients are whole, and the longest instruction; equal, not nearly so."""
    plan, profile, conditions = case
    assert all(
        is_plain(plan, path) != (plan.schedule.splits_backward and len(path.routes) > 1)
        for path in sorted_routes(plan).pipelines
    )
    assert_equal(plan, profile, conditions)


@st.composite
def rings(draw: st.DrawFn) -> tuple[Plan, ModelProfile, Conditions]:
    """Pipelines whose workers shadow each other, or nobody; of all schedules; each with microbatches of one kind, as
    many as it likes."""
    depth = draw(st.integers(1, 5))
    layers = draw(st.integers(depth, 8))
    number = draw(st.integers(1, 3))
    profile = draw(profiles(layers, exact=False))
    shares = [draw(st.integers(1, 12)) for _ in range(number)]
    plan = ring_plan(
        draw(st.sampled_from([None, *Redundancy])),
        pipelines=number,
        depth=depth,
        layers=layers,
        microbatches=number,
        schedule=draw(st.sampled_from(ScheduleKind)),
    )
    counted = tuple(range(layers))
    if draw(st.booleans()):
        counted = tuple(sorted(draw(st.frozensets(st.sampled_from(counted), min_size=1))))
    routes = tuple(
        Route(
            hops=route.hops,
            microbatches=tuple(range(sum(shares[:at]), sum(shares[: at + 1]))),
            born=1,
            counted=counted,
        )
        for at, route in enumerate(plan.routes)
    )
    plan = msgspec.structs.replace(
        plan,
        groups=profile.groups,
        sync_epochs=(1,) * len(profile.groups),
        num_microbatches=sum(shares),
        routes=routes,
    )
    speeds = draw(st.dictionaries(st.sampled_from(plan.nodes), st.sampled_from([0.25, 0.7, 2.0]), max_size=2))
    late = draw(st.dictionaries(st.sampled_from(plan.workers), st.floats(0.0, 0.1), max_size=2))
    return plan, profile, Conditions(overlap=draw(st.booleans()), node_speeds=speeds, late_s=late)


@settings(max_examples=75, deadline=None)
@given(case=rings())
def test_shadows_and_split_backwards_are_what_the_programs_come_to(case: tuple[Plan, ModelProfile, Conditions]) -> None:
    plan, profile, conditions = case
    event(f"{plan.redundancy} {plan.schedule}")
    eager = plan.redundancy is Redundancy.EAGER_EAGER
    assert all(is_plain(plan, path) != eager for path in sorted_routes(plan).pipelines)
    assert_equal(plan, profile, conditions)


def assert_equal(plan: Plan, profile: ModelProfile, conditions: Conditions) -> None:
    durations = Durations(plan, profile, conditions)
    all_programs = programs(plan)
    flow = run(all_programs, durations, overlap=conditions.overlap)
    for path in sorted_routes(plan).pipelines:
        if not is_plain(plan, path):
            continue
        parts = run_pipeline(plan, path, durations, overlap=conditions.overlap).parts
        for hop, told in zip(path.hops, parts, strict=True):
            worker = hop.worker
            seconds = [durations.compute_s(worker, i) for i in all_programs[worker] if i.op in COMPUTING]
            assert told.end_s == flow.ends_s[worker]
            assert told.compute_s == flow.compute_s[worker]
            assert told.due_s == {group: flow.due_s[worker, group] for group in plan.groups_of[worker]}
            assert told.longest_s == max(seconds, default=0.0)
