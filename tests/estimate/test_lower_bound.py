"""The lower bound: never above the simulation, and near it where it should be."""

from __future__ import annotations

from hypothesis import given, settings

from planaria.estimate.conditions import Conditions
from planaria.estimate.lower_bound import lower_bound_s
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan
from tests.estimate.plans import cases
from tests.proof import examples

Case = tuple[Plan, ModelProfile, Conditions]


@settings(max_examples=examples(300), deadline=None)
@given(case=cases())
def test_a_step_takes_at_least_the_bound(case: Case) -> None:
    plan, profile, conditions = case
    bound = lower_bound_s(plan, profile, conditions)
    assert 0 < bound <= step_time_s(plan, profile, conditions)


@settings(max_examples=examples(100), deadline=None)
@given(case=cases(exact=False, irregular=False))
def test_the_bound_holds_with_times_that_round(case: Case) -> None:
    plan, profile, conditions = case
    assert lower_bound_s(plan, profile, conditions) <= step_time_s(plan, profile, conditions)
