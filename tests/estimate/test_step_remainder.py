"""The rest of a step: what was done so far is not done again, and the rest takes what is left of the whole."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.conditions import AS_PROFILED, Conditions
from planaria.estimate.step_remainder import PlanInterval, StepProgress
from planaria.estimate.step_time import COMPUTING, simulate, step_time_s
from planaria.plan.costs.model_profile import ModelProfile, StepCosts
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Op
from tests.estimate.plans import cases
from tests.estimate.test_step_time import plan_for
from tests.plan.profiles import uniform_profile
from tests.proof import examples

Case = tuple[Plan, ModelProfile, Conditions]


@settings(max_examples=examples(100), deadline=None)
@given(case=cases(), share=st.floats(0.0, 1.0))
def test_the_rest_is_what_is_left_of_the_whole(case: Case, share: float) -> None:
    """But for what is half done, which counts as not done, messages on their way, which count as come, and what follows
    the computing: sums, votes and the optimizer's step, of which nothing counts as done."""
    plan, profile, conditions = case
    timeline = simulate(plan, profile, conditions)
    whole_s = timeline.step_time_s
    spans = [span for of_worker in timeline.spans.values() for span in of_worker]
    longest_s = max((end - start for i, start, end in spans if i.op in COMPUTING), default=0.0)
    wires_s = sum(end - start for i, start, end in spans if i.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT))
    after_s = sum(end - start for i, start, end in spans if i.op in (Op.SYNC, Op.APPLY)) + profile.step.vote_s
    rest_s = StepProgress(profile, conditions, [PlanInterval(plan=plan, seconds=share * whole_s)]).rest_s(plan)
    left_s = (1 - share) * whole_s
    if conditions.num_cores is None:
        assert left_s - wires_s - 1e-9 <= rest_s <= left_s + longest_s + wires_s + after_s + 1e-9
    assert rest_s <= whole_s + 1e-9


@settings(max_examples=examples(50), deadline=None)
@given(case=cases())
def test_of_a_step_that_has_not_begun_it_is_the_whole(case: Case) -> None:
    plan, profile, conditions = case
    whole_s = step_time_s(plan, profile, conditions)
    assert StepProgress(profile, conditions).rest_s(plan) == pytest.approx(whole_s)


def test_what_goes_on_is_not_done_again_and_what_is_new_is() -> None:
    """Two pipelines of one stage; one is gone when the other is half done."""
    profile = msgspec.structs.replace(uniform_profile(1, tied=False), step=StepCosts())
    plan = plan_for(profile, 2, 8, 1, f=1)
    mine, other = plan.routes
    assert len(mine.microbatches) == len(other.microbatches) == 4
    again = msgspec.structs.replace(other, hops=mine.hops, born=2)
    left = msgspec.structs.replace(plan, generation=2, pipelines=plan.pipelines[:1], routes=(mine, again))
    progress = StepProgress(profile, AS_PROFILED, [PlanInterval(plan=plan, seconds=2 * 0.030)])
    assert progress.rest_s(left) == pytest.approx(6 * 0.030)
    assert progress.busy_s(left) == {WorkerId(0): pytest.approx(6 * 0.030)}


def test_a_second_plan_of_the_step_began_when_it_was_taken() -> None:
    profile = msgspec.structs.replace(uniform_profile(1, tied=False), step=StepCosts())
    plan = plan_for(profile, 2, 8, 1, f=1)
    mine, other = plan.routes
    again = msgspec.structs.replace(other, hops=mine.hops, born=2)
    left = msgspec.structs.replace(plan, generation=2, pipelines=plan.pipelines[:1], routes=(mine, again))
    so_far = [PlanInterval(plan=plan, seconds=4 * 0.030), PlanInterval(plan=left, seconds=0.030)]
    assert StepProgress(profile, AS_PROFILED, so_far).rest_s(left) == pytest.approx(3 * 0.030)
