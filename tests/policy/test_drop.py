"""The policy of sample dropping: what is left out, who goes on undisturbed, and how pipelines become whole again."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.errors import TooFewNodes
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, Stage, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.dropped_samples import combined, shares
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.placement.placement import Holders
from planaria.planner.reconfigure.rebalance_layers import pipeline_times
from planaria.policy.drop import DropPolicy
from planaria.policy.interface import Candidate, FinishRequest, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8, link=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30))
GRID = PlannerSettings(
    num_microbatches=64, fault_tolerance=1, num_nodes=16, devices_per_node=1, min_nodes=4, may_drop=True
)
"""Four pipelines of four stages of two layers: node 4 p + s has stage s of pipeline p."""


def started(settings: PlannerSettings = GRID) -> tuple[DropPolicy, Plan]:
    policy = DropPolicy.of(Planner(PROFILE, settings))
    return policy, policy.initial([NodeId(n) for n in range(settings.num_nodes)], 1).plan


def held(plan: Plan, *lost: int, came: tuple[int, ...] = ()) -> Holders:
    holders = {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) not in lost}
    return holders | {WorkerId(node): () for node in came}


def after(policy: TemplatesPolicy, plan: Plan, *lost: int, came: tuple[int, ...] = ()) -> Candidate:
    proposal = policy.reconfigure(
        ReplanRequest(
            plan=plan,
            lost=[NodeId(n) for n in lost],
            holders=held(plan, *lost, came=came),
            generation=plan.generation + 1,
        )
    )
    needed = None if proposal.is_degraded else GRID.fault_tolerance
    validate(proposal.plan, fault_tolerance=needed, dropped=proposal.dropped)
    return proposal


def work(plan: Plan) -> dict[tuple[int, ...], tuple[int, ...]]:
    """workers of a route -> its microbatches."""
    return {tuple(hop.worker for hop in route.hops): route.microbatches for route in plan.routes}


def test_a_broken_pipeline_is_suspended_and_nobody_else_is_disturbed() -> None:
    policy, plan = started()
    before = work(plan)
    proposal = after(policy, plan, 5)
    lost = before.pop((4, 5, 6, 7))
    assert work(proposal.plan) == before
    assert proposal.plan.dropped == lost
    assert (proposal.transfer_bytes, proposal.is_degraded, proposal.how) == (0, False, "drop")
    assert "16 of 64 microbatches of every step are left out (learning rate x 0.75)" in proposal.reason
    survivors = {4, 6, 7}
    assert survivors <= set(proposal.plan.workers), "they stay replicas"
    assert proposal.batch_s == pytest.approx(proposal.step_time_s / 0.75)


def test_parts_of_two_broken_pipelines_make_a_whole_one() -> None:
    policy, plan = started()
    first = after(policy, plan, 5).plan
    second = after(policy, first, 10)
    whole = [p.workers for p in second.plan.pipelines if p.is_whole(8)]
    assert sorted(whole)[:2] == [(0, 1, 2, 3), (4, 9, 6, 7)]
    assert (second.transfer_bytes, len(second.plan.dropped)) == (0, 16)
    assert work(second.plan)[4, 9, 6, 7] == work(plan)[4, 5, 6, 7], "the lowest of what nobody had"
    assert {8, 11} <= set(second.plan.workers), "what is left over stays up to date"


def test_a_node_that_comes_completes_a_pipeline() -> None:
    policy, plan = started()
    broken = after(policy, after(policy, plan, 5).plan, 14).plan
    proposal = after(policy, msgspec.structs.replace(broken, transfers=()), came=(16,))
    assert all(pipeline.is_whole(8) for pipeline in proposal.plan.pipelines), "the rest of two pipelines, and the node"
    assert 0 < len(proposal.plan.dropped) < 16, "of a stage of twice the layers"
    assert {move.target for move in proposal.plan.transfers} == {16}


def test_with_as_many_nodes_as_at_the_start_nothing_is_left_out() -> None:
    policy, plan = started()
    proposal = after(policy, after(policy, plan, 5).plan, came=(16,))
    assert proposal.plan.dropped == ()
    assert sorted(map(len, work(proposal.plan).values())) == [16] * 4


def test_where_no_pipeline_is_whole_new_ones_are_made() -> None:
    """Every layer has an owner, and a way over all of them would have to visit one twice."""
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=3, devices_per_node=1, min_nodes=1)
    policy, plan = started(settings)
    halves = [
        Pipeline(
            stages=tuple(
                Stage(worker=WorkerId(worker), first_layer=first, end_layer=first + 2)
                for first in (2 * worker, 2 * worker + 4)
            )
        )
        for worker in range(2)
    ]
    broken = msgspec.structs.replace(plan, pipelines=tuple(halves), routes=(), dropped=())
    proposal = after(policy, broken, 2)
    assert proposal.plan.dropped == ()
    assert [pipeline.is_whole(8) for pipeline in proposal.plan.pipelines] == [True, True]
    with pytest.raises(TooFewNodes):
        after(policy, msgspec.structs.replace(broken, pipelines=broken.pipelines[:1]), 1, 2)


def test_one_whole_pipeline_that_runs_all_goes_on() -> None:
    """A step in which all pipelines but one were lost was finished by that one: nothing is left out, nothing broken."""
    policy, plan = started()
    last = max(plan.pipelines, key=lambda pipeline: pipeline.workers)
    route = msgspec.structs.replace(plan.routes[0], hops=last.stages, microbatches=tuple(range(plan.num_microbatches)))
    alone = msgspec.structs.replace(plan, pipelines=(last,), routes=(route,))
    proposal = after(policy, alone)
    assert work(proposal.plan) == work(alone)
    assert (proposal.plan.dropped, proposal.is_degraded) == ((), True)


def test_a_pipeline_that_waits_for_state_goes_on_where_another_has_it() -> None:
    """Two pipelines of two nodes, one lost its last node; the other one's last has no state yet, which its first still
    holds from before: too few nodes for templates."""
    policy, plan = started(replace(GRID, num_nodes=4, min_nodes=2))
    (first, last), (_, other) = (pipeline.workers for pipeline in plan.pipelines)
    holders = {worker: groups for worker, groups in plan.groups_of.items() if worker != other}
    holders |= {first: tuple(range(len(plan.groups))), last: ()}
    proposal = policy.reconfigure(ReplanRequest(plan=plan, lost=[plan.node_of(other)], holders=holders, generation=2))
    validate(proposal.plan, dropped=proposal.dropped)
    assert {move.target for move in proposal.plan.transfers} == {last}
    assert work(proposal.plan).keys() == {(first, last)}
    nobody = dict.fromkeys(holders, ())
    with pytest.raises(PlanError):
        policy.reconfigure(ReplanRequest(plan=plan, lost=[plan.node_of(other)], holders=nobody, generation=2))


def test_a_loss_inside_a_step_leaves_out_what_the_pipeline_did() -> None:
    policy, plan = started()
    live = [w for w in plan.workers if w != 5]
    halted = to_halt(plan, live)
    layers = {w: plan.layers_held(plan.groups_of[w]) for w in live}
    partly = Ledger.of([[], [], [], [], [16, 17], [16, 17], [16, 17, 18], [16, 17, 18]])
    first = policy.finish_step(
        FinishRequest(plan=plan, live=live, halted=halted, counted=partly, holders=layers, generation=2)
    )
    validate(first.plan, already=partly, dropped=first.dropped)
    assert first.plan.dropped == work(plan)[4, 5, 6, 7]
    assert [route.born for route in first.plan.routes] == [1, 1, 1], "nothing runs again, nothing is disturbed"
    assert first.plan.sync_epochs == (2,) * len(plan.groups), "what was sent of an accumulator may have some of them"
    live.remove(WorkerId(0))
    second = policy.finish_step(
        FinishRequest(
            plan=first.plan,
            live=live,
            halted=to_halt(first.plan, live),
            counted=Ledger.empty(8),
            holders=layers,
            generation=3,
        )
    )
    assert second.plan.dropped == tuple(sorted((*work(plan)[0, 1, 2, 3], *work(plan)[4, 5, 6, 7])))


def test_a_step_of_which_nothing_would_be_left_is_finished_as_for_templates() -> None:
    policy, plan = started()
    live = [w for w in plan.workers if w not in (0, 5, 10)]
    layers = {w: plan.layers_held(plan.groups_of[w]) for w in live}
    first = policy.finish_step(
        FinishRequest(
            plan=plan, live=live, halted=to_halt(plan, live), counted=Ledger.empty(8), holders=layers, generation=2
        )
    )
    last = [w for w in live if w != 15]
    proposal = policy.finish_step(
        FinishRequest(
            plan=first.plan,
            live=last,
            halted=to_halt(first.plan, last),
            counted=Ledger.empty(8),
            holders=layers,
            generation=3,
        )
    )
    validate(proposal.plan, already=Ledger.empty(8), dropped=proposal.dropped)
    assert proposal.plan.dropped == first.plan.dropped, "what is left out stays so"
    assert {m for route in proposal.plan.routes for m in route.microbatches} == set(work(plan)[12, 13, 14, 15])


def test_only_a_policy_that_means_it_may_leave_samples_out() -> None:
    policy, plan = started()
    dropped = after(policy, plan, 5).plan
    with pytest.raises(PlanError, match="it leaves out microbatches"):
        validate(dropped)
    for other in (TemplatesPolicy.of(Planner(PROFILE, GRID)), ReroutePolicy.of(Planner(PROFILE, GRID))):
        assert after(other, dropped).plan.dropped == ()


def test_a_worker_runs_a_part_of_what_it_has_where_that_makes_a_whole() -> None:
    def pipeline(*stages: tuple[int, int, int]) -> Pipeline:
        return Pipeline(stages=tuple(Stage(worker=WorkerId(w), first_layer=a, end_layer=b) for w, a, b in stages))

    parts = combined([pipeline((0, 0, 5)), pipeline((3, 3, 8)), pipeline((4, 0, 3))], PROFILE)
    (whole, rest) = parts.pipelines
    assert [(s.worker, s.first_layer, s.end_layer) for s in whole.stages] == [(0, 0, 3), (3, 3, 8)] or [
        (s.worker, s.first_layer, s.end_layer) for s in whole.stages
    ] == [(4, 0, 3), (3, 3, 8)]
    assert whole.is_whole(8)
    assert not rest.is_whole(8)
    owned = {(s.worker, layer) for s in (*whole.stages, *rest.stages, *parts.shadows) for layer in s.layers}
    assert owned == {(0, layer) for layer in range(5)} | {(3, layer) for layer in range(3, 8)} | {
        (4, layer) for layer in range(3)
    }


def test_what_is_new_takes_no_more_than_does_not_make_the_step_longer() -> None:
    even = Pipeline(stages=tuple(Stage(worker=WorkerId(w), first_layer=2 * w, end_layer=2 * w + 2) for w in range(4)))
    slow = Pipeline(stages=(Stage(worker=WorkerId(4), first_layer=0, end_layer=8),))
    times = {at: pipeline_times(p, PROFILE, {}, 1, 16) for at, p in enumerate((even, slow))}
    given = shares({0: tuple(range(8))}, times, 16, 2)
    assert given[0] == tuple(range(8))
    assert times[1][len(given[1]) - 1] <= times[0][7] < times[1][len(given[1])]
    alone = shares({}, {1: times[1]}, 16, 2)
    assert alone == {1: tuple(range(8))}, "one of two pipelines: half of the batch"
