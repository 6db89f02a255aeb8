"""The policy of redundant computation: takeovers, standby nodes, and when pipelines are made whole again."""

from __future__ import annotations

import msgspec
import pytest

from planaria.estimate.memory import memory_use
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LinkCost, StepCosts
from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.plan import NodeId, Plan, PlanError, Redundancy, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import lacking, validate
from planaria.planner.placement.placement import Holders
from planaria.planner.rings import conflicts
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.redundancy import RedundancyPolicy
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8, link=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30))
NODES = [NodeId(number) for number in range(12)]


def settings(**changes: object) -> PlannerSettings:
    """Three pipelines of four stages of two layers."""
    given = {"num_microbatches": 24, "fault_tolerance": 1, "num_nodes": 12, "devices_per_node": 1, "min_nodes": 4}
    return PlannerSettings(**{**given, **changes})  # type: ignore[arg-type]


def started(**changes: object) -> tuple[RedundancyPolicy, Plan]:
    policy = RedundancyPolicy.of(Planner(PROFILE, settings(**changes)))
    return policy, policy.initial([NodeId(n) for n in range(settings(**changes).num_nodes)], 1).plan


def after(policy: TemplatesPolicy, plan: Plan, *lost: int, came: tuple[int, ...] = ()) -> Candidate:
    holders: Holders = {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) not in lost}
    holders = {**holders, **{WorkerId(node): () for node in came}}
    proposal = policy.reconfigure(
        ReplanRequest(plan=plan, lost=[NodeId(n) for n in lost], holders=holders, generation=plan.generation + 1)
    )
    validate(proposal.plan, fault_tolerance=1, arrived=proposal.plan.redundancy is not None)
    return proposal


def nodes_of(plan: Plan) -> list[list[int]]:
    return [[plan.node_of(worker) for worker in pipeline.workers] for pipeline in plan.pipelines]


def test_the_users_depth_and_as_many_pipelines_as_that_makes() -> None:
    policy, plan = started(num_nodes=14)
    assert (policy.depth, policy.most_pipelines) == (4, 3)
    assert nodes_of(plan) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(plan.shadows) == 12
    assert "2 nodes wait in the standby queue" in policy.initial([NodeId(n) for n in range(14)], 1).reason


def test_the_depth_of_the_shortest_step_where_the_user_names_none() -> None:
    _, plan = started(min_nodes=0, num_nodes=8)
    best = step_time_s(plan, PROFILE)
    for depth in (2, 4):
        other = RedundancyPolicy.of(Planner(PROFILE, settings(min_nodes=depth, num_nodes=8)))
        assert best <= step_time_s(other.initial([NodeId(n) for n in range(8)], 1).plan, PROFILE)


def test_one_pipeline_and_its_shadows_are_two_replicas() -> None:
    policy, plan = started(num_nodes=4)
    assert nodes_of(plan) == [[0, 1, 2, 3]]
    assert not lacking(plan, 1)
    with pytest.raises(TooFewNodes):
        after(policy, plan, 0)


def test_a_loss_is_taken_over_and_nothing_moves() -> None:
    policy, plan = started()
    proposal = after(policy, plan, 5)
    assert (proposal.how, proposal.transfer_bytes, proposal.is_degraded) == ("takeover", 0, False)
    assert nodes_of(proposal.plan) == [[0, 1, 2, 3], [4, 4, 6, 7], [8, 9, 10, 11]]
    assert "Node 4, which shadowed its successor, has both stages. No state moves." in proposal.reason
    assert "2 of 12 stages have no shadow until pipelines are whole" in proposal.reason
    shares = [len(route.microbatches) for route in proposal.plan.routes]
    assert shares[1] < min(shares[0], shares[2])  # who does the work of two gets less of it
    assert len(proposal.plan.shadows) == 10  # nobody holds a copy of the merged stage's second half, or of its next


def test_a_lost_worker_and_its_shadow_are_a_reconfiguration() -> None:
    policy, plan = started()
    proposal = after(policy, plan, 5, 6)
    assert proposal.how == "redundancy"
    assert nodes_of(proposal.plan) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert "2 nodes wait in the standby queue" in proposal.reason
    assert proposal.transfer_bytes == 0


def test_the_shadow_of_what_was_taken_over_is_lost() -> None:
    policy, plan = started()
    once = after(policy, plan, 5).plan
    assert after(policy, once, 4).how == "redundancy"
    assert after(policy, once, 6).how == "redundancy"  # its shadow is gone since the first loss
    assert after(policy, once, 7).how == "takeover"


def test_who_waits_fills_the_gaps_when_enough_do() -> None:
    """Appendix A: with J >= F nodes that wait all pipelines are whole again; the rest waits on."""
    policy, plan = started()
    once = after(policy, after(policy, plan, 5).plan, 9).plan
    assert nodes_of(once) == [[0, 1, 2, 3], [4, 4, 6, 7], [8, 8, 10, 11]]
    assert after(policy, once, came=(12,)).how == "takeover"
    filled = after(policy, once, came=(12, 13, 14))
    assert nodes_of(filled.plan) == [[0, 1, 2, 3], [4, 12, 6, 7], [8, 13, 10, 11]]
    assert "1 node waits in the standby queue" in filled.reason
    moved = {move.target for move in filled.plan.transfers}
    assert {12, 13} <= moved <= {4, 6, 8, 10, 12, 13, 5, 9}


def test_who_waits_makes_a_new_pipeline_and_never_more_than_at_the_start() -> None:
    policy, plan = started()
    fewer = after(policy, plan, 5, 6).plan
    assert after(policy, fewer, came=(12,)).plan.pipelines == fewer.pipelines
    more = after(policy, fewer, came=(4, 7, 12, 13, 14)).plan
    assert len(more.pipelines) == 3
    assert after(policy, more, came=tuple(range(20, 28))).plan.pipelines == more.pipelines


def test_a_shallower_pipeline_when_the_nodes_are_too_few_for_the_depth() -> None:
    """And the depth of the start again as soon as it can be had."""
    slow = uniform_profile(8, link=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30), group_bytes=5 * 10**9)
    slow = msgspec.structs.replace(slow, step=StepCosts(sum_s_per_byte=1e-10))
    policy = RedundancyPolicy.of(Planner(slow, settings(min_nodes=0, num_nodes=6)))
    plan = policy.initial(NODES[:6], 1).plan
    assert policy.depth > 2
    every = tuple(range(len(plan.groups)))
    holders: Holders = dict.fromkeys((WorkerId(0), WorkerId(1)), every)
    fewer = policy.reconfigure(ReplanRequest(plan=plan, lost=NODES[2:6], holders=holders, generation=2)).plan
    assert len(fewer.nodes) == 2
    assert not lacking(fewer, 1)
    came = {**holders, **{WorkerId(node): () for node in range(6, 10)}}
    again = policy.reconfigure(ReplanRequest(plan=fewer, lost=(), holders=came, generation=3)).plan
    assert [len(pipeline.stages) for pipeline in again.pipelines] == [len(p.stages) for p in plan.pipelines]


def test_a_layer_without_a_replica_is_refused() -> None:
    policy, plan = started(num_nodes=8, fault_tolerance=1)
    with pytest.raises(NoReplica):
        after(policy, plan, 1, 2, 5, 6)


def test_neighbours_are_in_different_zones() -> None:
    zones = {NodeId(n): "abc"[n // 4] for n in range(12)}
    policy, _ = started()
    plan = policy.with_planner(policy.planner.with_zones(zones)).initial([NodeId(n) for n in range(12)], 1).plan
    assert [conflicts([NodeId(n) for n in ring], zones) for ring in nodes_of(plan)] == [0, 0, 0]


def test_pure_data_parallelism_shares_the_lost_ones_work() -> None:
    policy, plan = started(min_nodes=1, num_nodes=3)
    assert nodes_of(plan) == [[0], [1], [2]]
    proposal = after(policy, plan, 1)
    assert nodes_of(proposal.plan) == [[0], [2]]
    assert proposal.transfer_bytes == 0


def test_the_more_is_eager_the_longer_is_a_step_and_the_more_is_kept() -> None:
    plans = {mode: started(redundancy=mode)[1] for mode in Redundancy}
    seconds = {mode: step_time_s(plan, PROFILE) for mode, plan in plans.items()}
    assert seconds[Redundancy.LAZY_LAZY] < seconds[Redundancy.EAGER_LAZY] < seconds[Redundancy.EAGER_EAGER]
    kept = {mode: memory_use(plan, PROFILE, WorkerId(1)).activations for mode, plan in plans.items()}
    assert kept[Redundancy.LAZY_LAZY] < kept[Redundancy.EAGER_LAZY]


def test_what_does_not_fit_is_refused_with_a_remedy() -> None:
    """What eager forwards keep stays in the memory of a device that has no other."""
    profile = msgspec.structs.replace(PROFILE, device=msgspec.structs.replace(PROFILE.device, is_host=True))
    plans = {
        mode: RedundancyPolicy.of(Planner(profile, settings(redundancy=mode))).initial(NODES, 1).plan
        for mode in Redundancy
    }
    most = {
        mode: max(memory_use(plan, profile, worker).total for worker in plan.workers) for mode, plan in plans.items()
    }
    assert most[Redundancy.LAZY_LAZY] + 200_000 < most[Redundancy.EAGER_LAZY]
    tight = most[Redundancy.EAGER_LAZY] - 1
    with pytest.raises(PlanError, match=r'resilience.redundancy = "lazy-lazy", which keeps least'):
        RedundancyPolicy.of(Planner(profile, settings(memory_bytes=tight)))
    assert (
        RedundancyPolicy.of(Planner(profile, settings(memory_bytes=tight, redundancy=Redundancy.LAZY_LAZY))).depth == 4
    )


def test_templates_go_on_where_no_ring_fits_and_a_ring_again_when_one_does() -> None:
    """What eager forwards keep is much of a deep stage; six nodes hold three pipelines of two without it."""
    profile = msgspec.structs.replace(PROFILE, device=msgspec.structs.replace(PROFILE.device, is_host=True))
    policy = RedundancyPolicy.of(Planner(profile, settings(num_nodes=8, min_nodes=0, memory_bytes=8_500_000)))
    plan = policy.initial(NODES[:8], 1).plan
    assert plan.redundancy is not None
    fewer = after(policy, plan, 3, 6)
    assert (fewer.plan.redundancy, len(fewer.plan.pipelines)) == (None, 3)
    assert fewer.reason.endswith("Workers shadow nobody until rings fit again.")
    assert policy.planner.fits(fewer.plan)
    assert policy.initial(NODES[:6], 1).plan.redundancy is None
    again = after(policy, fewer.plan, came=(8, 9))
    assert again.plan.redundancy is Redundancy.EAGER_LAZY
    with pytest.raises(TooFewNodes, match="2 nodes are left"):
        policy.initial(NODES[:2], 1)


@pytest.mark.parametrize("other", [TemplatesPolicy, ReroutePolicy, AdaptivePolicy])
def test_other_policies_go_on_from_its_plans_and_it_from_theirs(
    other: type[TemplatesPolicy | ReroutePolicy | AdaptivePolicy],
) -> None:
    policy, plan = started()
    theirs = other.of(Planner(PROFILE, settings()))
    taken = after(theirs, after(policy, plan, 5).plan, 9)
    validate(taken.plan, fault_tolerance=1)
    assert taken.plan.redundancy is None
    back = after(policy, taken.plan, came=(12, 13))
    assert back.how == "redundancy"
    assert back.plan.redundancy is Redundancy.EAGER_LAZY
