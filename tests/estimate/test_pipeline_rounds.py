"""Pipeline rounds: the compiled form answers what the plain one does, to the last bit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from planaria.estimate import pipeline_rounds
from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.pipeline_flow import is_plain, rounds_of
from planaria.plan.plan import Plan
from planaria.plan.profile import ModelProfile
from planaria.plan.schedule import paths
from tests.estimate.plans import cases
from tests.estimate.test_pipeline_flow import rings


@settings(max_examples=200, deadline=None)
@given(case=cases(exact=False, irregular=False) | rings())
def test_both_forms_answer_the_same(case: tuple[Plan, ModelProfile, Conditions]) -> None:
    pytest.importorskip("numba")
    pipeline_rounds.load()
    plan, profile, conditions = case
    durations = Durations(plan, profile, conditions)
    for path in paths(plan):
        if is_plain(plan, path):
            rounds = rounds_of(plan, path, durations)
            plain = rounds.run(overlap=conditions.overlap, compiled=False)
            assert rounds.run(overlap=conditions.overlap, compiled=True) == plain
