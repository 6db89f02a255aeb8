"""Pipeline flow: what the workers' programs come to, to the last bit."""

from __future__ import annotations

from hypothesis import given, settings

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.flow import run
from planaria.estimate.pipeline_flow import is_plain, run_pipeline
from planaria.plan.plan import Plan
from planaria.plan.profile import ModelProfile
from planaria.plan.program import Op
from planaria.plan.schedule import paths, programs
from tests.estimate.plans import cases

COMPUTE = (Op.FORWARD, Op.BACKWARD)


@settings(max_examples=150, deadline=None)
@given(case=cases(exact=False, irregular=False))
def test_a_pipeline_is_what_its_workers_programs_come_to(case: tuple[Plan, ModelProfile, Conditions]) -> None:
    """Ends, compute, when gradients are whole, and the longest instruction; equal, not nearly so."""
    plan, profile, conditions = case
    durations = Durations(plan, profile, conditions)
    all_programs = programs(plan)
    flow = run(all_programs, durations, overlap=conditions.overlap)
    for path in paths(plan):
        if not is_plain(plan, path):
            assert plan.schedule.splits_backward
            continue
        parts = run_pipeline(plan, path, durations, overlap=conditions.overlap).parts
        for hop, told in zip(path.hops, parts, strict=True):
            worker = hop.worker
            seconds = [durations.compute_s(worker, i) for i in all_programs[worker] if i.op in COMPUTE]
            assert told.end_s == flow.ends_s[worker]
            assert told.compute_s == flow.compute_s[worker]
            assert told.due_s == {group: flow.due_s[worker, group] for group in plan.groups_of[worker]}
            assert told.longest_s == max(seconds, default=0.0)
