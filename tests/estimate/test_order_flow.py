"""Order flow: what the programs come to, to the last bit, of routes that cross, and of shadows that compute."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.flow import run
from planaria.estimate.order_flow import run_orders
from planaria.estimate.outline import Known
from planaria.estimate.step_time import outline, simulate
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, Stage, WorkerId
from planaria.plan.program.instructions import COMPUTING
from planaria.plan.program.programs import programs
from planaria.planner.finish_step.shadow_takeover import resume
from tests.estimate.plans import cases
from tests.estimate.test_pipeline_flow import rings

Case = tuple[Plan, ModelProfile, Conditions]


@settings(max_examples=75, deadline=None)
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
    all_programs = programs(plan)
    flow = run(all_programs, durations, overlap=conditions.overlap)
    parts = run_orders(plan, plan.workers, durations, overlap=conditions.overlap).parts
    for worker, told in zip(plan.workers, parts, strict=True):
        seconds = [durations.compute_s(worker, i) for i in all_programs[worker] if i.op in COMPUTING]
        assert told.end_s == flow.ends_s[worker]
        assert told.compute_s == flow.compute_s[worker]
        assert told.due_s == {group: flow.due_s[worker, group] for group in plan.groups_of[worker]}
        assert told.longest_s == max(seconds, default=0.0)


@settings(max_examples=50, deadline=None)
@given(case=cases(exact=False, irregular=True), data=st.data())
def test_what_is_known_of_routes_that_cross_holds_for_other_shadows(case: Case, data: st.DataObject) -> None:
    plan, profile, conditions = case
    late = {worker: data.draw(st.sampled_from([0.0, 0.0, 0.05])) for worker in plan.workers}
    conditions = Conditions(overlap=conditions.overlap, node_speeds=conditions.node_speeds, late_s=late)
    shadowing = data.draw(st.sets(st.sampled_from(plan.workers), max_size=2))
    shadows = tuple(Stage(worker=WorkerId(w), first_layer=0, end_layer=plan.num_layers) for w in sorted(shadowing))
    known = Known()
    for one in (plan, msgspec.structs.replace(plan, shadows=shadows), plan):
        found, timeline = outline(one, profile, conditions, known), simulate(one, profile, conditions)
        assert found.step_time_s == timeline.step_time_s
        assert found.compute_s.keys() == timeline.compute_s.keys()
