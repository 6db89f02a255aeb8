"""The estimate of a step's time against an event simulation that was written without looking at it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from planaria.estimate.conditions import Conditions
from planaria.estimate.step_time import simulate, step_time_s
from planaria.plan.plan import Plan
from planaria.plan.profile import ModelProfile
from planaria.plan.validate import validate
from tests.estimate.oracle import Oracle
from tests.estimate.plans import cases

Case = tuple[Plan, ModelProfile, Conditions]


@settings(max_examples=250, deadline=None)
@given(case=cases())
def test_the_estimate_is_the_event_simulations(case: Case) -> None:
    """All schedules, detours, devices, links, speeds, sums; overlap or not."""
    plan, profile, conditions = case
    validate(plan)
    expected = Oracle(plan, profile, conditions).step_time_s()
    assert step_time_s(plan, profile, conditions) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert simulate(plan, profile, conditions).step_time_s == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(case=cases(irregular=True))
def test_so_it_is_for_routes_that_cross(case: Case) -> None:
    plan, profile, conditions = case
    expected = Oracle(plan, profile, conditions).step_time_s()
    assert step_time_s(plan, profile, conditions) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(case=cases(exact=False))
def test_so_it_is_for_times_that_round(case: Case) -> None:
    plan, profile, conditions = case
    expected = Oracle(plan, profile, conditions).step_time_s()
    assert step_time_s(plan, profile, conditions) == pytest.approx(expected, rel=1e-9, abs=1e-12)
