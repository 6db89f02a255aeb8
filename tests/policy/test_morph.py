"""The policy of checkpoint and morph: which grid, from the checkpoint or not, and when a larger one is worth it."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from planaria.estimate.restore_time import Storage
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import CHANGE_S
from planaria.plan.validate import lacking, validate
from planaria.planner.instantiation.grids import grids, is_grid, shape
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.morph import MorphPolicy
from planaria.policy.planner import Planner
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

PROFILE = uniform_profile(8)
GRID = PlannerSettings(num_microbatches=15, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=2)
LONG = FailureForecast(time_to_failure_s=1e6, checkpoint_every=10)


def nodes(*numbers: int) -> list[NodeId]:
    return [NodeId(number) for number in numbers]


def started(settings: PlannerSettings = GRID, forecast: FailureForecast = LONG) -> tuple[MorphPolicy, Plan]:
    policy = MorphPolicy.of(Planner(PROFILE, settings)).with_forecast(forecast)
    return policy, policy.initial(nodes(*range(settings.num_nodes)), 1).plan


def after(
    policy: MorphPolicy, plan: Plan, *lost: int, came: tuple[int, ...] = (), leaving: tuple[int, ...] = ()
) -> Candidate:
    per_node = plan.devices_per_node
    held: dict[WorkerId, tuple[int, ...]] = {
        worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) not in lost
    }
    held |= {WorkerId(node * per_node + device): () for node in came for device in range(per_node)}
    return policy.reconfigure(
        ReplanRequest(
            plan=plan, lost=nodes(*lost), holders=held, generation=plan.generation + 1, leaving=nodes(*leaving)
        )
    )


def test_the_first_plan_is_the_fastest_grid_with_f_plus_one_pipelines() -> None:
    policy, plan = started()
    validate(plan, fault_tolerance=1)
    assert is_grid(plan)
    every = [grid.plan for grid in grids(PROFILE, policy.planner.templates, GRID, nodes(*range(8)), 1)]
    allowed = [grid for grid in every if len(grid.pipelines) > 1]
    assert step_time_s(plan, PROFILE) == min(step_time_s(grid, PROFILE) for grid in allowed)
    assert policy.initial(nodes(*range(8)), 1).reason == (
        "8 nodes make a grid of 4 pipelines of 2 nodes. It is the fastest grid."
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_grid_is_faster_than_the_one_that_is_taken(seed: int) -> None:
    """Against all of them, with sums of gradients that take next to nothing, or most of a step."""
    draw = random.Random(seed)
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=draw.choice([1e6, 1e7, 1e8, 1e9]))
    profile = uniform_profile(8, link=link)
    settings = PlannerSettings(
        num_microbatches=draw.randint(3, 30),
        fault_tolerance=draw.choice([0, 1, 2]),
        num_nodes=draw.randint(6, 20),
        devices_per_node=1,
        min_nodes=1,
        schedule=draw.choice(list(ScheduleKind)),
    )
    policy, live = MorphPolicy.of(Planner(profile, settings)), nodes(*range(settings.num_nodes))
    every = [grid.plan for grid in grids(profile, policy.planner.templates, settings, live, 1)]
    allowed = [plan for plan in every if len(plan.pipelines) > settings.fault_tolerance]
    assert policy.initial(live, 1).step_time_s == min(step_time_s(plan, profile) for plan in allowed)


def test_a_loss_goes_back_to_the_checkpoint_and_leaves_nodes_idle() -> None:
    policy, plan = started(forecast=replace(LONG, steps_at_stake=7))
    proposal = after(policy, plan, 5)
    assert proposal.restores
    assert not policy.finishes(
        ReplanRequest(plan=plan, lost=nodes(5), holders={w: held for w, held in plan.groups_of.items() if w != 5})
    )
    assert not proposal.plan.transfers
    assert shape(proposal.plan) == "3 x 2"
    validate(proposal.plan, fault_tolerance=1)
    assert proposal.reason.startswith(
        "Node 5 is lost. Back to the last checkpoint on a grid of 3 pipelines of 2 nodes (1 node idle). "
        "7 steps are trained again. "
    )
    policy, plan = started(forecast=replace(LONG, steps_at_stake=0))
    assert " No step is trained again. " in after(policy, plan, 5).reason


def test_what_a_restore_costs_is_estimated_for_each_grid() -> None:
    """The load of the node with most state, the steps since the checkpoint under the new plan, and the change."""
    storage = Storage(node_bytes_per_s=1e6)
    policy, plan = started(forecast=replace(LONG, steps_at_stake=3, storage=storage))
    proposal = after(policy, plan, 0)
    best = proposal.candidates[0]
    most = max(sum(plan.groups[g].moved_bytes for g in groups) for groups in proposal.plan.groups_of.values())
    assert best.transition_s == pytest.approx(CHANGE_S + most / 1e6 + 3 * proposal.step_time_s)
    assert proposal.transition_s == best.transition_s
    assert {candidate.name for candidate in proposal.candidates} >= {"grid 3 x 2", "grid 2 x 3"}
    ranks = [(candidate.is_degraded, -candidate.samples_per_s) for candidate in proposal.candidates]
    assert ranks == sorted(ranks)


def test_fewer_than_f_plus_one_pipelines_only_where_there_is_no_more() -> None:
    policy, plan = started()
    degraded = after(policy, plan, 0, 1, 2, 3, 4)
    assert degraded.is_degraded
    assert degraded.restores
    assert degraded.reason.endswith("Degraded: it has 1 of 2 replicas.")
    assert len(degraded.plan.nodes) >= 2
    assert not after(policy, plan, 0, 1, 2, 3).is_degraded
    with pytest.raises(TooFewNodes, match=r"1 node is left, and one replica of 2 nodes needs 2\. Add 1 node\."):
        after(policy, plan, 0, 1, 2, 3, 4, 5, 6)


def test_a_degraded_grid_is_left_whatever_that_costs() -> None:
    """One pipeline of three would be as fast as two of two for so few microbatches; replicas come first."""
    policy, plan = started(forecast=replace(LONG, time_to_failure_s=1e-3))
    alone = after(policy, plan, 0, 1, 2, 3, 4, 5).plan
    proposal = after(policy, alone, came=(8, 9))
    assert not proposal.restores
    assert not proposal.is_degraded
    assert len(proposal.plan.pipelines) == 2
    assert proposal.plan.transfers


@pytest.mark.parametrize(("time_to_failure_s", "larger"), [(1e6, True), (0.01, False)])
def test_a_larger_grid_is_taken_where_it_is_worth_the_change(time_to_failure_s: float, larger: bool) -> None:
    policy, plan = started(forecast=replace(LONG, time_to_failure_s=time_to_failure_s, at_once=False))
    proposal = after(policy, plan, came=(8, 9, 10, 11))
    assert not proposal.restores
    assert len(proposal.plan.layers_of) == (12 if larger else 8)
    assert bool(proposal.plan.transfers) is larger
    if not larger:
        assert proposal.plan.pipelines == plan.pipelines
        shares = {route.key: len(route.microbatches) for route in plan.routes}
        assert {route.key: len(route.microbatches) for route in proposal.plan.routes} == shares


def test_a_node_that_leaves_hands_its_state_over_and_nobody_goes_back() -> None:
    policy, plan = started(forecast=replace(LONG, at_once=False))
    proposal = after(policy, plan, leaving=(3,))
    assert not proposal.restores
    assert 3 not in proposal.plan.nodes
    assert policy.finishes(ReplanRequest(plan=plan, lost=(), holders=plan.groups_of))
    assert shape(proposal.plan) == "3 x 2"


def test_who_only_gets_its_first_state_is_no_loss() -> None:
    """A newcomer that dies while its state is under way: the step goes on, and the grid stays."""
    policy, plan = started(forecast=replace(LONG, at_once=False))
    target = after(policy, plan, came=(8,))
    step = policy.warm_up(plan, target, 3)
    assert step is not None
    left = {worker: held for worker, held in step.plan.groups_of.items() if worker != 8}
    assert policy.finishes(ReplanRequest(plan=step.plan, lost=nodes(8), holders=left))
    proposal = policy.with_forecast(LONG).reconfigure(
        ReplanRequest(plan=step.plan, lost=nodes(8), holders=plan.groups_of, generation=4)
    )
    assert not proposal.restores
    assert proposal.plan.pipelines == plan.pipelines


def test_state_that_is_still_under_way_is_sent_again() -> None:
    """A step that is begun anew for damage, before the plan's own state had come."""
    policy, plan = started()
    stage = plan.pipelines[0].stages[0]
    held = dict(plan.groups_of) | {stage.worker: ()}
    again = policy.reconfigure(ReplanRequest(plan=plan, lost=[], holders=held, generation=2))
    assert again.plan.pipelines == plan.pipelines
    assert {move.target for move in again.plan.transfers} == {stage.worker}
    with pytest.raises(NoReplica):
        policy.reconfigure(ReplanRequest(plan=plan, lost=[], holders=dict.fromkeys(plan.workers, ()), generation=2))


def test_slow_nodes_are_idle_where_there_are_enough_others() -> None:
    policy, plan = started()
    proposal = after(policy.with_planner(policy.planner.with_speeds({NodeId(0): 0.4})), plan, 7)
    assert shape(proposal.plan) == "3 x 2"
    assert 0 not in proposal.plan.nodes


def test_a_plan_of_another_policy_becomes_a_grid() -> None:
    policy, plan = started()
    stages = plan.pipelines[0].stages
    cut = (
        msgspec.structs.replace(stages[0], end_layer=1),
        msgspec.structs.replace(stages[1], first_layer=1),
    )
    pipelines = (msgspec.structs.replace(plan.pipelines[0], stages=cut), *plan.pipelines[1:])
    other = msgspec.structs.replace(plan, pipelines=pipelines)
    proposal = after(policy, other)
    assert is_grid(proposal.plan)
    assert not proposal.restores


def test_memory_decides_which_grids_there_are() -> None:
    policy, _ = started()
    least = max(policy.initial(nodes(*range(8)), 1).candidates, key=lambda one: one.memory_bytes).memory_bytes
    tight = MorphPolicy.of(Planner(PROFILE, replace(GRID, memory_bytes=least - 1))).initial(nodes(*range(8)), 1)
    assert all(candidate.memory_bytes < least for candidate in tight.candidates)
    with pytest.raises(PlanError):
        MorphPolicy.of(Planner(PROFILE, replace(GRID, memory_bytes=1000)))


@pytest.mark.parametrize("seed", rest_in_proof(range(20), kept=4))
def test_losses_and_joins_one_after_the_other_leave_valid_grids(seed: int) -> None:
    """Valid symmetric plans, on live nodes, restored exactly when an owner was lost."""
    draw = random.Random(seed)
    settings = PlannerSettings(
        num_microbatches=draw.randint(4, 20),
        fault_tolerance=draw.choice([0, 1, 2]),
        num_nodes=draw.choice([6, 9, 12]),
        devices_per_node=draw.choice([1, 1, 2]),
        min_nodes=draw.choice([1, 2]),
    )
    policy, plan = started(settings, replace(LONG, steps_at_stake=draw.randint(0, 5)))
    live, newest = set(range(settings.num_nodes)), settings.num_nodes
    for generation in range(2, 14):
        placed = {plan.node_of(worker) for worker in plan.layers_of}
        lost = set(draw.sample(sorted(live), draw.choice([0, 1, 1, 2]))) if len(live) > 2 else set()
        came = set(range(newest, newest + draw.choice([0, 0, 1, 3])))
        newest, live = newest + len(came), (live - lost) | came
        held: dict[WorkerId, tuple[int, ...]] = {}
        for node in live:
            for device in range(plan.devices_per_node):
                worker = WorkerId(node * plan.devices_per_node + device)
                held[worker] = plan.groups_of.get(worker, ())
        try:
            proposal = policy.reconfigure(
                ReplanRequest(plan=plan, lost=nodes(*lost), holders=held, generation=generation)
            )
        except TooFewNodes:
            assert len(live) < policy.planner.templates[0].num_nodes
            return
        assert proposal.restores == bool(lost & placed)
        plan = proposal.plan
        validate(plan, fault_tolerance=None if proposal.is_degraded else settings.fault_tolerance)
        assert proposal.is_degraded == bool(lacking(plan, settings.fault_tolerance))
        assert is_grid(plan)
        assert {plan.node_of(worker) for worker in plan.layers_of} <= live
