"""The rest of a struck step: survivors of broken pipelines take part where that is clearly quicker, nowhere else."""

from __future__ import annotations

import pytest

from planaria.estimate.conditions import AS_PROFILED
from planaria.estimate.step_remainder import PlanInterval, StepProgress
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import FINISHING_SPARE
from planaria.plan.validate import validate
from planaria.planner.finish_step.salvage import finish_step, to_halt
from planaria.policy import finishing
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.interface import Candidate, FinishRequest, Policy
from planaria.policy.planner import Planner
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8)
SETTINGS = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=16, devices_per_node=1, min_nodes=4)
POLICY = TemplatesPolicy.of(Planner(PROFILE, SETTINGS))
PLAN = POLICY.planner.instantiated(POLICY.planner.templates[:1], [NodeId(node) for node in range(16)], 1)
"""Four pipelines of four stages."""
STEP_S = POLICY.estimated(PLAN).step_time_s
ACROSS = (1, 6, 11)
"""A node each of three pipelines, in different stages."""
SURVIVORS = {worker for pipeline in PLAN.pipelines[:3] for worker in pipeline.workers} - set(ACROSS)


def finished(
    *lost: int,
    policy: Policy = POLICY,
    counted: Ledger | None = None,
    so_far: tuple[PlanInterval, ...] = (),
    plan: Plan = PLAN,
) -> Candidate:
    """The rest of a step in which workers that were halted had counted so much."""
    counted = counted or Ledger.empty(8)
    live = [worker for worker in plan.workers if worker not in lost]
    halted = to_halt(plan, live)
    holders = {worker: plan.layers_of[worker] for worker in live}
    proposal = policy.finish_step(
        FinishRequest(
            plan=plan,
            live=live,
            halted=halted,
            counted=counted,
            holders=holders,
            generation=plan.generation + 1,
            so_far=so_far,
        )
    )
    validate(proposal.plan, already=counted, dropped=proposal.dropped)
    return proposal


def usual_rest_s(*lost: int) -> float:
    live = [worker for worker in PLAN.workers if worker not in lost]
    holders = {worker: PLAN.layers_of[worker] for worker in live}
    plan = finish_step(PLAN, live, to_halt(PLAN, live), Ledger.empty(8), holders, 2, PROFILE)
    return StepProgress(PROFILE, AS_PROFILED).rest_s(plan)


def carriers(proposal: Candidate) -> set[WorkerId]:
    added = [route for route in proposal.plan.routes if route.born == proposal.plan.generation]
    return {hop.worker for route in added for hop in route.hops}


@pytest.mark.parametrize("kind", [TemplatesPolicy, ReroutePolicy, AdaptivePolicy])
def test_survivors_take_part_where_several_pipelines_are_broken(
    kind: type[TemplatesPolicy | ReroutePolicy | AdaptivePolicy],
) -> None:
    proposal = finished(*ACROSS, policy=kind.of(Planner(PROFILE, SETTINGS)))
    assert proposal.rest_s is not None
    assert proposal.rest_s < 0.7 * usual_rest_s(*ACROSS)
    assert carriers(proposal) >= SURVIVORS
    assert "Survivors of broken pipelines are among them." in proposal.reason


def test_what_goes_on_is_kept_and_nothing_moves() -> None:
    proposal = finished(*ACROSS)
    kept = [route for route in proposal.plan.routes if route.born == 1]
    assert kept == [PLAN.routes[3]]
    assert not proposal.plan.transfers


def test_whole_pipelines_are_enough_where_survivors_spare_nothing() -> None:
    """At the step's end: the peers of the lost stage are what holds the rest up, whoever does the other stages."""
    late = (PlanInterval(plan=PLAN, seconds=STEP_S),)
    own = PLAN.routes[0].microbatches
    all_but_the_lost = [0 if layer in PLAN.layers_of[WorkerId(1)] else sum(1 << m for m in own) for layer in range(8)]
    proposal = finished(1, counted=Ledger.from_bits(all_but_the_lost), so_far=late)
    assert carriers(proposal) == {worker for pipeline in PLAN.pipelines[1:] for worker in pipeline.workers}
    assert proposal.rest_s is not None
    assert proposal.rest_s < STEP_S


def test_the_rest_is_shorter_the_later_the_loss() -> None:
    rests = [finished(1, so_far=(PlanInterval(plan=PLAN, seconds=share * STEP_S),)).rest_s for share in (0.0, 0.4, 0.8)]
    assert rests == sorted(rests, reverse=True)  # type: ignore[type-var]
    assert len(set(rests)) == 3


def test_a_second_loss_in_the_step_does_not_count_what_its_predecessor_undid() -> None:
    """What the first plan was to do again is not under way for as long as the step."""
    first = finished(1, so_far=(PlanInterval(plan=PLAN, seconds=0.9 * STEP_S),))
    so_far = (PlanInterval(plan=PLAN, seconds=0.9 * STEP_S), PlanInterval(plan=first.plan, seconds=0.01))
    second = finished(1, 6, plan=first.plan, so_far=so_far)
    assert first.rest_s is not None
    assert second.rest_s is not None
    assert second.rest_s > 0.9 * first.rest_s


def test_the_same_question_has_the_same_answer() -> None:
    assert finished(*ACROSS) == finished(*ACROSS)


def test_ways_that_do_not_fit_the_memory_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = finished(*ACROSS).plan.spare_in_flight
    assert roomy == FINISHING_SPARE
    monkeypatch.setattr(Planner, "fits", lambda self, plan: not plan.spare_in_flight)
    assert finished(*ACROSS).plan.spare_in_flight == 0
    assert carriers(finished(*ACROSS)) >= SURVIVORS
    monkeypatch.setattr(Planner, "fits", lambda self, plan: False)
    assert carriers(finished(*ACROSS)) == set(PLAN.pipelines[3].workers)


def test_a_large_rest_is_done_in_the_usual_way_and_estimated_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "FINISHING_BUDGET", 10)
    proposal = finished(*ACROSS, so_far=(PlanInterval(plan=PLAN, seconds=0.5 * STEP_S),))
    assert carriers(proposal) == set(PLAN.pipelines[3].workers)
    assert proposal.rest_s == pytest.approx(proposal.step_time_s - 0.5 * STEP_S)


def test_a_large_rest_is_estimated_from_few_kinds_of_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lost worker's layers alone run again, for half of its microbatches: what that takes is not counted whole."""
    own = PLAN.routes[0].microbatches
    done = sum(1 << m for m in own[: len(own) // 2])
    counted = Ledger.from_bits(0 if layer in PLAN.layers_of[WorkerId(1)] else done for layer in range(8))
    monkeypatch.setattr(finishing, "FINISHING_BUDGET", 10)
    large = finished(1, counted=counted)
    closely = POLICY.planner.estimate(large.plan).step_time_s
    assert closely <= large.step_time_s < 1.25 * closely
    assert set(large.compute_s) == set(large.plan.workers)


def test_what_is_simulated_stays_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = StepProgress._left

    def counting(self: StepProgress, plan: Plan) -> object:
        seen.append(finishing.num_units(plan))
        return original(self, plan)

    monkeypatch.setattr(StepProgress, "_left", counting)
    for budget in (1_000, 3_000):
        seen.clear()
        monkeypatch.setattr(finishing, "FINISHING_BUDGET", budget)
        finished(*ACROSS, so_far=tuple(PlanInterval(plan=PLAN, seconds=0.01) for _ in range(50)))
        assert sum(seen) <= budget
