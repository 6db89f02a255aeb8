"""Kinds of pipelines: what is found from one of each is what all of them do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.outline import EstimateCache, outline_of_pipelines
from planaria.estimate.step_time import simulate
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan
from tests.estimate.plans import cases
from tests.proof import examples


@settings(max_examples=examples(200), deadline=None)
@given(case=cases(exact=False, irregular=False))
def test_kinds_of_pipelines_tell_what_the_programs_come_to(case: tuple[Plan, ModelProfile, Conditions]) -> None:
    plan, profile, drawn = case
    conditions = Conditions(overlap=drawn.overlap)
    durations = Durations(plan, profile, conditions)
    known = EstimateCache()
    found = outline_of_pipelines(plan, durations, conditions, known)
    each_once = all(len(pipeline.owned) == len(pipeline.stages) for pipeline in plan.pipelines)
    assert (found is not None) == (durations.is_spread and plan.is_apart and each_once)
    if found is None:
        return
    timeline = simulate(plan, profile, conditions)
    assert found.step_time_s == pytest.approx(timeline.step_time_s, rel=1e-12)
    assert found.compute_s == pytest.approx(timeline.compute_s)
    assert found.longest_instruction_s == pytest.approx(timeline.longest_instruction_s)
    assert outline_of_pipelines(plan, durations, conditions, known) == found
