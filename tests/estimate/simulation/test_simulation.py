"""Simulation: units of work, and pipelines that are known, come to what the programs come to, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.outline import EstimateCache
from planaria.estimate.simulation.simulation import PipelineRun, is_whole, run_orders, run_programs
from planaria.estimate.simulation.times import JointTimes
from planaria.estimate.step_time import outline, simulate
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, Stage, WorkerId
from planaria.plan.program.instructions import COMPUTING
from planaria.plan.program.programs import programs
from planaria.plan.program.routes import sorted_routes
from planaria.planner.finish_step.shadow_takeover import resume
from tests.estimate.plans import cases, rings
from tests.proof import examples

Case = tuple[Plan, ModelProfile, Conditions]


@settings(max_examples=examples(300), deadline=None)
@given(case=cases(exact=False) | rings(), data=st.data())
def test_orders_are_what_the_programs_come_to(case: Case, data: st.DataObject) -> None:
    """Whole plans, and what is left of them when shadows go on in the places of the lost."""
    plan, profile, conditions = case
    if plan.redundancy is not None and data.draw(st.booleans()):
        lost = data.draw(st.sampled_from(plan.workers))
        live = [worker for worker in plan.workers if worker != lost]
        nothing = Ledger.from_bits([0] * plan.num_layers)
        holders = {worker: plan.layers_held(groups) for worker, groups in plan.groups_of.items() if worker != lost}
        plan = resume(plan, live, live, nothing, holders, plan.generation + 1) or plan
    durations = Durations(plan, profile, conditions)
    times = run_orders(plan, plan.workers, durations, overlap=conditions.overlap)
    assert_as_programs(plan, plan.workers, times, durations, conditions)


@settings(max_examples=examples(300), deadline=None)
@given(case=cases(exact=False, irregular=False) | rings())
def test_a_pipeline_is_what_its_workers_programs_come_to_whatever_it_carried_before(case: Case) -> None:
    plan, profile, conditions = case
    durations = Durations(plan, profile, conditions)
    for own in sorted_routes(plan).pipelines:
        if not is_whole(plan, own.routes):
            continue
        run = PipelineRun(plan, own.hops, durations, overlap=conditions.overlap)
        longer = [
            msgspec.structs.replace(route, microbatches=(*route.microbatches, 10_000 + at), born=1)
            for at, route in enumerate(own.routes)
        ]
        workers = [hop.worker for hop in own.hops]
        first = run.times(own.routes)
        assert_as_programs(plan, workers, first, durations, conditions)
        run.times(longer)
        assert run.times(own.routes) == first


def assert_as_programs(
    plan: Plan, workers: Sequence[WorkerId], told: JointTimes, durations: Durations, conditions: Conditions
) -> None:
    """Ends, compute, when gradients are whole, and the longest instruction."""
    all_programs = programs(plan)
    times = run_programs(all_programs, durations, overlap=conditions.overlap)
    for worker, part in zip(workers, told.parts, strict=True):
        seconds = [durations.compute_s(worker, i) for i in all_programs[worker] if i.op in COMPUTING]
        assert part.end_s == times.ends_s[worker]
        assert part.compute_s == pytest.approx(times.compute_s[worker], rel=1e-12)
        assert part.due_s == {group: times.due_s[worker, group] for group in plan.groups_of[worker]}
        assert part.longest_s == max(seconds, default=0.0)


@settings(max_examples=examples(200), deadline=None)
@given(case=cases(exact=False, irregular=True), data=st.data())
def test_what_is_known_of_routes_that_cross_holds_for_other_shadows(case: Case, data: st.DataObject) -> None:
    plan, profile, conditions = case
    late = {worker: data.draw(st.sampled_from([0.0, 0.0, 0.05])) for worker in plan.workers}
    conditions = Conditions(overlap=conditions.overlap, node_speeds=conditions.node_speeds, late_s=late)
    shadowing = data.draw(st.sets(st.sampled_from(plan.workers), max_size=2))
    shadows = tuple(Stage(worker=WorkerId(w), first_layer=0, end_layer=plan.num_layers) for w in sorted(shadowing))
    known = EstimateCache()
    for one in (plan, msgspec.structs.replace(plan, shadows=shadows), plan):
        found, timeline = outline(one, profile, conditions, known), simulate(one, profile, conditions)
        assert found.step_time_s == timeline.step_time_s
        assert found.compute_s.keys() == timeline.compute_s.keys()
