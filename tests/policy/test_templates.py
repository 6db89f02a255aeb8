"""The policy: its plans are those of the plan package, its sentences say what happened."""

from __future__ import annotations

import dataclasses

import pytest

from planaria.estimate.memory import worker_memory_bytes
from planaria.estimate.step_time import step_time_s
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import OTHER_SET_CLEARLY
from planaria.plan.validate import validate
from planaria.planner.reconfigure.reconfigure import reconfigure
from planaria.policy.interface import FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy, even_sets
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(6)
SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)


def policy() -> Policy:
    return TemplatesPolicy.of(Planner(PROFILE, SETTINGS))


def test_the_first_plan() -> None:
    proposal = policy().initial([NodeId(n) for n in range(5)], 1)
    assert proposal.reason == (
        "5 nodes make 2 pipelines (1 of 2 nodes and 1 of 3 nodes), the fastest way to keep 2 replicas."
    )
    assert proposal.step_time_s > 0
    assert (proposal.how, proposal.transfer_bytes) == ("initial", 0)


def test_a_loss_between_steps() -> None:
    plan = policy().initial([NodeId(n) for n in range(5)], 1).plan
    holders = {w: groups for w, groups in plan.groups_of.items() if w != 1}
    proposal = policy().reconfigure(ReplanRequest(plan=plan, lost=[NodeId(1)], holders=holders, generation=2))
    validate(proposal.plan, fault_tolerance=1)
    assert proposal.reason == (
        "Pipeline 0 lost node 1; 1 pipeline is made again from the 2-node template; "
        "2 layers (2.4 MB) move from surviving replicas."
    )
    assert (proposal.how, proposal.transfer_bytes) == ("simple", 2_400_000)


def test_a_loss_within_a_step() -> None:
    plan = policy().initial([NodeId(n) for n in range(5)], 1).plan
    live = [WorkerId(w) for w in (0, 1, 2, 3)]
    proposal = policy().finish_step(
        FinishRequest(
            plan=plan, live=live, halted=[WorkerId(3)], counted=Ledger.empty(6), holders=plan.layers_of, generation=2
        )
    )
    assert proposal.reason == "Pipeline 1 lost node 4; 3 microbatches of 8 run again, where lost, on 3 live workers."
    assert proposal.how == "finish step"
    done = Ledger.from_bits([sum(1 << m for m in plan.routes[1].microbatches)] * 6)
    proposal = policy().finish_step(
        FinishRequest(plan=plan, live=live, halted=[WorkerId(3)], counted=done, holders=plan.layers_of, generation=2)
    )
    assert "nothing runs again" in proposal.reason


def test_the_same_question_has_the_same_answer() -> None:
    nodes = [NodeId(n) for n in range(5)]
    assert policy().initial(nodes, 1) == policy().initial(nodes, 1)


def test_plans_for_nodes_of_other_speeds() -> None:
    """A slow node is used with less to do, and as before when it is fast again."""
    nodes = [NodeId(n) for n in range(6)]
    settings = PlannerSettings(num_microbatches=24, fault_tolerance=1, num_nodes=6, devices_per_node=1, min_nodes=3)
    as_profiled = TemplatesPolicy.of(Planner(uniform_profile(12), settings))
    first = as_profiled.initial(nodes, 1)
    slow = as_profiled.with_planner(as_profiled.planner.with_speeds({NodeId(1): 0.5}))
    stay = slow.estimated(first.plan)
    assert stay.plan == first.plan
    assert stay.step_time_s > 1.7 * first.step_time_s
    assert stay.compute_s == pytest.approx(first.compute_s), "of a node as fast as the profile says"
    assert set(stay.compute_s) == set(first.plan.workers)
    adapted = slow.reconfigure(ReplanRequest(plan=first.plan, lost=(), holders=first.plan.groups_of, generation=2))
    validate(adapted.plan, fault_tolerance=1)
    assert adapted.plan.nodes == first.plan.nodes
    assert adapted.step_time_s < 1.2 * first.step_time_s, "five and a half nodes of six"
    assert "with node 1 at 0.5 of the others' speed" in adapted.reason
    restored = as_profiled.with_planner(as_profiled.planner.with_speeds({})).reconfigure(
        ReplanRequest(plan=adapted.plan, lost=(), holders=adapted.plan.groups_of, generation=3)
    )
    assert restored.step_time_s <= first.step_time_s
    assert "nodes of one speed" in restored.reason


def test_a_slow_node_that_is_done_without_is_told_of() -> None:
    slow = TemplatesPolicy.of(policy().planner.with_speeds({NodeId(4): 0.2}))
    plan = slow.initial([NodeId(n) for n in range(5)], 1).plan
    proposal = slow.reconfigure(
        ReplanRequest(plan=plan, lost=(), holders=plan.groups_of, generation=2, leaving=[NodeId(4)])
    )
    assert "slow node 4 can be done without; with nodes of one speed" in proposal.reason
    warming = slow.warm_up(plan, proposal, 3)
    assert warming is not None


def test_what_does_not_fit_into_memory_is_no_plan_for_slow_nodes() -> None:
    """The fast nodes of a pipeline cannot take over layers for which they have no memory."""
    nodes = [NodeId(n) for n in range(4)]
    settings = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
    roomy = TemplatesPolicy.of(Planner(uniform_profile(6), settings))
    plan = roomy.initial(nodes, 1).plan
    limit = max(worker_memory_bytes(plan, uniform_profile(6), worker) for worker in plan.workers)
    tight = TemplatesPolicy.of(Planner(uniform_profile(6), dataclasses.replace(settings, memory_bytes=limit)))
    speeds = {NodeId(0): 0.4}
    unlimited, limited = (
        policy.with_planner(policy.planner.with_speeds(speeds))
        .reconfigure(ReplanRequest(plan=plan, lost=(), holders=plan.groups_of, generation=2))
        .plan
        for policy in (roomy, tight)
    )
    assert all(worker_memory_bytes(limited, uniform_profile(6), worker) <= limit for worker in limited.workers)
    assert any(worker_memory_bytes(unlimited, uniform_profile(6), worker) > limit for worker in unlimited.workers)


def test_dealt_out_anew_nodes_make_even_pipelines_where_sums_are_long() -> None:
    """Of 41 nodes after a change; what is fastest as simulated lies between the sizes that doubling looks at."""
    settings = PlannerSettings(num_microbatches=32, fault_tolerance=1, num_nodes=38, devices_per_node=1, min_nodes=2)
    profile = uniform_profile(24, group_bytes=8_793_917)
    made = TemplatesPolicy.of(Planner(profile, settings))
    plan = made.initial([NodeId(n) for n in range(38)], 1).plan
    lost = (NodeId(0), NodeId(19), NodeId(21))
    holders: dict[WorkerId, tuple[int, ...]] = {w: g for w, g in plan.groups_of.items() if w not in lost}
    holders |= {WorkerId(n): () for n in range(38, 44)}
    proposal = made.reconfigure(ReplanRequest(plan=plan, lost=lost, holders=holders, generation=2))
    for templates in even_sets(made.planner.templates, 41, settings):
        try:
            found = reconfigure(profile, templates, settings, plan, lost, holders, 2, search=True)
        except PlanError:
            continue
        if len(found.plan.nodes) == 41:
            assert proposal.step_time_s <= step_time_s(found.plan, profile) / OTHER_SET_CLEARLY
