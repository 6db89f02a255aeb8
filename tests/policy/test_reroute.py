"""The policy of rerouting: who carries what, without moving state, and when it does something else."""

from __future__ import annotations

import random

import msgspec
import pytest

from planaria.estimate.conditions import Conditions
from planaria.estimate.memory import worker_memory_bytes
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import lacking, num_replicas, validate
from planaria.planner.placement.placement import Holders
from planaria.planner.reroute.plans import carriers, left_over, shares
from planaria.policy.detour_search import detours_in_pieces
from planaria.policy.interface import Candidate, ReplanRequest, result_of
from planaria.policy.planner import Planner
from planaria.policy.reroute import ReroutePolicy
from tests.plan.profiles import uniform_profile

FREE = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30)
PROFILE = uniform_profile(8, link=FREE)
GRID = PlannerSettings(num_microbatches=64, fault_tolerance=1, num_nodes=16, devices_per_node=1, min_nodes=4)
"""Four pipelines of four stages of two layers."""


def started(settings: PlannerSettings = GRID, profile: ModelProfile = PROFILE) -> tuple[ReroutePolicy, Plan]:
    policy = ReroutePolicy.of(Planner(profile, settings))
    return policy, policy.initial([NodeId(n) for n in range(settings.num_nodes)], 1).plan


def held(plan: Plan, *lost: int, came: int | None = None) -> Holders:
    holders = {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) not in lost}
    per_node = plan.devices_per_node
    if came is not None:
        holders |= {WorkerId(came * per_node + device): () for device in range(per_node)}
    return holders


def after(policy: ReroutePolicy, plan: Plan, *lost: int, came: int | None = None) -> Candidate:
    return policy.reconfigure(
        ReplanRequest(
            plan=plan,
            lost=[NodeId(n) for n in lost],
            holders=held(plan, *lost, came=came),
            generation=plan.generation + 1,
        )
    )


def test_a_loss_is_carried_by_all_peers_and_nothing_moves() -> None:
    policy, plan = started()
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == [4] * 4
    proposal = after(policy, plan, 5)
    validate(proposal.plan, fault_tolerance=1)
    assert (proposal.how, proposal.transfer_bytes, proposal.is_degraded) == ("reroute", 0, False)
    assert set(carriers(proposal.plan)) == {1, 9, 13}
    loads = {
        w: sum(len(r.microbatches) for r in proposal.plan.routes if w in {h.worker for h in r.hops}) for w in (1, 9, 13)
    }
    assert sorted(loads.values()) == [21, 21, 22]
    assert "No state moves." in proposal.reason
    assert "Node 5 is gone" in proposal.reason
    assert proposal.plan.schedule is ScheduleKind.ZERO_BUBBLE_H1


@pytest.mark.parametrize("lost", range(4))
def test_one_failure_costs_less_than_the_closed_form(lost: int) -> None:
    """Odyssey, Eq. 12, (N_pp + N_m - 1 + N_m / (N_dp - 1)) (T_f + T_b), and that is with the ceiling of
    N_m N_dp / (N_dp - 1) that the formula leaves out."""
    policy, plan = started()
    assert after(policy, plan, lost).step_time_s < (4 + 16 - 1 + 16 / (4 - 1)) * 0.060


@pytest.mark.parametrize("seed", range(30))
def test_losses_are_rerouted_until_some_layer_has_no_owner(seed: int) -> None:
    """One after the other: valid plans that move nothing, estimated and bounded; then new pipelines, or no replica."""
    draw = random.Random(seed)
    settings = random_settings(draw)
    policy, plan = started(settings)
    order = draw.sample(range(settings.num_nodes), settings.num_nodes)
    for node in order:
        before = plan
        try:
            proposal = after(policy, plan, node)
        except NoReplica:
            layers = {layer for w, owned in before.layers_of.items() if before.node_of(w) != node for layer in owned}
            assert layers != set(range(8))
            return
        except TooFewNodes:
            return
        plan = proposal.plan
        validate(plan)
        assert proposal.is_degraded == bool(lacking(plan, settings.fault_tolerance))
        if proposal.how == "reroute":
            assert not plan.transfers
            assert set(plan.layers_of) == {w for w in before.layers_of if before.node_of(w) != node}
            assert ("Degraded" in proposal.reason) == proposal.is_degraded
        assert sum(shares(plan)) == settings.num_microbatches


def random_settings(draw: random.Random) -> PlannerSettings:
    smallest = draw.randint(1, 3)
    fault_tolerance = draw.randint(0, 2)
    return PlannerSettings(
        num_microbatches=draw.choice([12, 24]),
        fault_tolerance=fault_tolerance,
        num_nodes=smallest * (fault_tolerance + 1) + draw.randint(0, 4),
        devices_per_node=draw.choice([1, 1, 2]),
        min_nodes=smallest,
    )


def test_a_route_hops_over_several_peers_of_other_shapes() -> None:
    """Pipelines of three and of two nodes: nobody owns all that was lost."""
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)
    policy, plan = started(settings, uniform_profile(6))
    two = next(p for p in plan.pipelines if len(p.stages) == 2)
    proposal = after(policy, plan, two.stages[0].worker)
    validate(proposal.plan)
    assert proposal.is_degraded
    assert "Degraded: layers 0-2 have 1 replica of 2." in proposal.reason
    carrying = [r for r in proposal.plan.routes if two.stages[1].worker in {hop.worker for hop in r.hops}]
    assert any(len(route.hops) == 3 for route in carrying)


def test_a_node_that_comes_takes_the_lost_place() -> None:
    policy, plan = started()
    broken = after(policy, plan, 5).plan
    proposal = after(policy, broken, came=16)
    assert proposal.plan.pipelines[1].stages[1].worker == 16
    assert proposal.plan.schedule is GRID.schedule
    assert proposal.plan.spare_in_flight == 0
    assert shares(proposal.plan) == (16, 16, 16, 16)
    assert {move.target for move in proposal.plan.transfers} == {16}
    assert proposal.transfer_bytes == sum(PROFILE.groups[g].moved_bytes for g in proposal.plan.groups_of[WorkerId(16)])
    warm = policy.warm_up(broken, proposal, 4)
    assert warm is not None
    validate(warm.plan, fault_tolerance=1)
    # What it holds then is what it is for.
    again = policy.reconfigure(
        ReplanRequest(plan=warm.plan, lost=[NodeId(5)], holders=warm.plan.groups_of, generation=5)
    )
    assert again.plan.pipelines == proposal.plan.pipelines
    assert not again.plan.transfers


def test_a_node_that_comes_goes_where_replicas_lack() -> None:
    policy, plan = started()
    for node in (1, 5, 10, 9):
        plan = after(policy, plan, node).plan
    assert min(num_replicas(plan)) == 1
    proposal = after(policy, plan, came=16)
    assert not proposal.is_degraded
    assert proposal.plan.layers_of[WorkerId(16)] == (2, 3)


def test_nodes_that_come_when_nothing_is_lost_are_for_the_templates() -> None:
    policy, plan = started()
    proposal = policy.reconfigure(
        ReplanRequest(
            plan=plan, lost=[], holders={**held(plan), **{WorkerId(w): () for w in range(16, 20)}}, generation=2
        )
    )
    assert proposal.how != "reroute"
    assert len(proposal.plan.pipelines) == 5


def test_more_nodes_than_were_lost_make_new_pipelines() -> None:
    """One takes the lost place; the others would stand idle, and steps are shorter with a pipeline of their own."""
    policy, plan = started()
    broken = after(policy, plan, 5).plan
    holders = held(broken) | {WorkerId(node): () for node in range(16, 21)}
    asked = ReplanRequest(plan=broken, lost=[NodeId(5)], holders=holders, generation=3)
    proposal = policy.reconfigure(asked)
    validate(proposal.plan, fault_tolerance=1)
    assert len(proposal.plan.nodes) == 20
    assert len(proposal.plan.pipelines) == 5
    filled = result_of(policy.on_what_is_left(asked))
    assert filled is not None
    assert proposal.step_time_s < 0.99 * filled.step_time_s
    assert after(policy, broken, came=16).how == "reroute", "where each has a place, nobody else's state moves"


def test_a_degraded_plan_is_left_as_soon_as_nodes_that_come_allow_it() -> None:
    """The place that is free does not make it full, new pipelines do."""
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
    policy, plan = started(settings)
    plan = after(policy, plan, plan.pipelines[0].stages[0].worker).plan
    degraded = after(policy, plan, plan.pipelines[0].stages[0].worker)
    assert degraded.is_degraded
    assert degraded.how == "reroute"
    assert len(degraded.plan.nodes) == 2
    holders = {**held(degraded.plan), WorkerId(4): (), WorkerId(5): ()}
    full = policy.reconfigure(ReplanRequest(plan=degraded.plan, lost=[], holders=holders, generation=9))
    assert not full.is_degraded
    validate(full.plan, fault_tolerance=1)
    assert len(full.plan.nodes) == 4


def test_a_node_that_gave_notice_hands_its_state_over_where_that_keeps_the_replicas() -> None:
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)
    policy, plan = started(settings, uniform_profile(6))
    target = policy.reconfigure(
        ReplanRequest(plan=plan, lost=[], holders=plan.groups_of, generation=2, leaving=[NodeId(0)])
    )
    assert not target.is_degraded
    assert target.plan.transfers
    warm = policy.warm_up(plan, target, 3)
    assert warm is not None
    last = policy.reconfigure(
        ReplanRequest(plan=warm.plan, lost=[NodeId(0)], holders=warm.plan.groups_of, generation=4)
    )
    assert last.plan.pipelines == target.plan.pipelines
    assert not last.plan.transfers
    # A loss gives no choice.
    assert after(policy, plan, 0).is_degraded


def test_a_layer_that_nobody_owns_is_refused() -> None:
    policy, plan = started()
    with pytest.raises(NoReplica):
        after(policy, plan, 0, 4, 8, 12)


@pytest.mark.parametrize("schedule", list(ScheduleKind))
def test_rerouted_plans_fit_the_memory(schedule: ScheduleKind) -> None:
    """The less there is, the fewer microbatches are kept; where no order fits, pipelines are made again."""
    settings = GRID
    tight = []
    for microbatches in (100, 12, 8, 4, 2):
        limit = 2 * 4 * 400_000 + 5 * 123_456 + microbatches * 2 * 60_000
        settings = PlannerSettings(
            num_microbatches=64, fault_tolerance=1, num_nodes=16, devices_per_node=1, min_nodes=4,
            memory_bytes=limit, schedule=schedule,
        )  # fmt: skip
        try:
            policy, plan = started(settings)
        except PlanError:
            continue  # not even whole pipelines fit
        proposal = after(policy, plan, 5)
        assert all(worker_memory_bytes(proposal.plan, PROFILE, w) <= limit for w in proposal.plan.workers)
        tight.append(proposal.step_time_s)
    assert tight == sorted(tight)


def test_the_same_question_has_the_same_answer() -> None:
    policy, plan = started()
    one, two = after(policy, plan, 2, 7), after(policy, plan, 2, 7)
    assert msgspec.json.encode(one.plan) == msgspec.json.encode(two.plan)
    assert one.step_time_s == step_time_s(two.plan, PROFILE)


def test_a_slow_peer_carries_less() -> None:
    _, plan = started()
    left = left_over(plan, plan.groups_of, [NodeId(5)])
    slow = Conditions(node_speeds={NodeId(1): 0.5})
    found = result_of(detours_in_pieces(PROFILE, GRID, left, 2, conditions=slow))
    assert found is not None
    assert found.lower_bound_s <= found.step_time_s == step_time_s(found.plan, PROFILE, slow)
    served = {
        w: sum(len(r.microbatches) for r in found.plan.routes if w in {h.worker for h in r.hops}) for w in (1, 9, 13)
    }
    assert served[WorkerId(1)] < 0.6 * min(served[WorkerId(9)], served[WorkerId(13)])
    blind = result_of(detours_in_pieces(PROFILE, GRID, left, 2))
    assert blind is not None
    assert found.step_time_s < 0.8 * step_time_s(blind.plan, PROFILE, slow)
