"""The policy: its plans are those of the plan package, its sentences say what happened."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest

from planaria.estimate.memory import worker_memory_bytes
from planaria.estimate.step_time import step_time_s
from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId
from planaria.plan.settings import Objective, PlannerSettings
from planaria.plan.thresholds import OTHER_SET_CLEARLY, STEPS_AHEAD
from planaria.plan.validate import validate
from planaria.planner.instantiation.microbatch_shares import least_variance
from planaria.planner.reconfigure.reconfigure import best_of, reconfigure, searched
from planaria.planner.reconfigure.surviving_plan import SurvivingPlan
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.policy.templates import TemplatesPolicy, even_sets
from planaria.profile.presets.presets import preset
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(6)
SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)


def policy() -> Policy:
    return TemplatesPolicy.of(Planner(PROFILE, SETTINGS))


def test_the_first_plan_says_why_it_was_taken() -> None:
    proposal = policy().initial([NodeId(n) for n in range(5)], 1)
    assert proposal.reason == (
        "5 nodes make 2 pipelines: 1 of 2 nodes and 1 of 3 nodes. "
        "Of templates that is the fastest way to keep 2 replicas."
    )
    assert proposal.step_time_s > 0
    assert (proposal.how, proposal.transfer_bytes) == ("initial", 0)


def test_a_loss_between_steps_is_reconfigured() -> None:
    plan = policy().initial([NodeId(n) for n in range(5)], 1).plan
    holders = {w: groups for w, groups in plan.groups_of.items() if w != 1}
    proposal = policy().reconfigure(ReplanRequest(plan=plan, lost=[NodeId(1)], holders=holders, generation=2))
    validate(proposal.plan, fault_tolerance=1)
    assert proposal.reason == (
        "Pipeline 0 lost node 1. 1 pipeline is made again from the 2-node template. "
        "2 layers (2.4 MB) move from surviving replicas."
    )
    assert (proposal.how, proposal.transfer_bytes) == ("simple", 2_400_000)


def test_after_a_loss_within_a_step_what_is_missing_runs_again() -> None:
    plan = policy().initial([NodeId(n) for n in range(5)], 1).plan
    live = [WorkerId(w) for w in (0, 1, 2, 3)]
    proposal = policy().finish_step(
        FinishRequest(
            plan=plan, live=live, halted=[WorkerId(3)], counted=Ledger.empty(6), holders=plan.layers_of, generation=2
        )
    )
    assert proposal.reason == "Pipeline 1 lost node 4. 3 of 8 microbatches run again, where lost, on 3 live workers."
    assert proposal.how == "finish step"
    done = Ledger.from_bits([sum(1 << m for m in plan.routes[1].microbatches)] * 6)
    proposal = policy().finish_step(
        FinishRequest(plan=plan, live=live, halted=[WorkerId(3)], counted=done, holders=plan.layers_of, generation=2)
    )
    assert "Nothing runs again: " in proposal.reason


def test_the_same_question_has_the_same_answer() -> None:
    nodes = [NodeId(n) for n in range(5)]
    assert policy().initial(nodes, 1) == policy().initial(nodes, 1)


def test_nodes_of_other_speeds_get_plans_of_their_own() -> None:
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
    assert "The plan is for node 1 at 0.5 of the others' speed." in adapted.reason
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
    assert "Slow node 4 can be done without. The plan is for nodes of one speed." in proposal.reason
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
    request = ReplanRequest(plan=plan, lost=lost, holders=holders, generation=2)
    proposal = made.reconfigure(request)
    for templates in even_sets(made.planner.templates, 41, settings):
        try:
            left = SurvivingPlan(request.change(made.planner, templates))
            found = best_of(left, searched(left), STEPS_AHEAD)
        except PlanError:
            continue
        if len(found.plan.nodes) == 41:
            assert proposal.step_time_s <= step_time_s(found.plan, profile) / OTHER_SET_CLEARLY


# Links that differ

EIGHT = [NodeId(node) for node in range(8)]


def over_zones(output_bytes: int, across_bytes_per_s: float, kind: type[Policy] = TemplatesPolicy) -> Policy:
    """Eight nodes, every other one in the other zone."""
    profile = uniform_profile(8)
    layers = tuple(msgspec.structs.replace(layer, output_bytes=output_bytes) for layer in profile.layers)
    across = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=across_bytes_per_s)
    links = msgspec.structs.replace(profile.links, across_zones=across)
    settings = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=3)
    planner = Planner(msgspec.structs.replace(profile, layers=layers, links=links), settings)
    return kind.of(planner.with_zones({node: "ab"[node % 2] for node in EIGHT}))


def crossings(plan: Plan) -> int:
    """Messages' ways from zone to zone."""
    return sum(
        one.worker % 2 != other.worker % 2 for p in plan.pipelines for one, other in itertools.pairwise(p.stages)
    )


@pytest.mark.parametrize("kind", [TemplatesPolicy, AdaptivePolicy])
def test_pipelines_stay_in_a_zone_where_messages_are_dear_and_layers_where_sums_are(kind: type[Policy]) -> None:
    """Sums of 400 kB a layer over a slow link, under small messages; then messages of 1 MB."""
    sums_inside = over_zones(1_000, 1e7, kind).initial(EIGHT, 1).plan
    assert all(len({owner % 2 for owner in owners}) == 1 for owners in sums_inside.owners_of[:8])
    messages_inside = over_zones(1_000_000, 2e7, kind).initial(EIGHT, 1).plan
    assert crossings(messages_inside) == 0
    quick_links = over_zones(1_000, 1e9, kind).initial(EIGHT, 1).plan
    assert crossings(quick_links) == 0


@pytest.mark.parametrize(("output_bytes", "across"), [(1_000, 1e7), (1_000_000, 2e7)])
def test_after_a_loss_nodes_are_arranged_by_links_as_well(output_bytes: int, across: float) -> None:
    policy = over_zones(output_bytes, across)
    plan = policy.initial(EIGHT, 1).plan
    holders = {worker: groups for worker, groups in plan.groups_of.items() if worker != 3}
    after = policy.reconfigure(ReplanRequest(plan=plan, lost=[NodeId(3)], holders=holders, generation=2))
    validate(after.plan, fault_tolerance=1)
    assert crossings(after.plan) == crossings(plan)


def test_sums_are_read_in_shared_memory_where_nodes_share_a_host() -> None:
    """Nodes of a host hold the same layers: only messages, which are small, go over the wire."""
    profile = uniform_profile(8, link=LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e7))
    layers = tuple(msgspec.structs.replace(layer, output_bytes=1_000) for layer in profile.layers)
    within = LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=1e10)
    links = msgspec.structs.replace(profile.links, within_node=within)
    profile = msgspec.structs.replace(profile, layers=layers, links=links)
    settings = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=3)
    planner = Planner(profile, settings).with_links(profile, {node: "ab"[node % 2] for node in EIGHT}, {})
    plan = TemplatesPolicy.of(planner).initial(EIGHT, 1).plan
    assert all(len({owner % 2 for owner in owners}) == 1 for owners in plan.owners_of[:8])


def test_sums_are_weighed_after_a_loss() -> None:
    """A loss that leaves every pipeline a template: fewer pipelines are made where the wire is slow."""
    nodes = [NodeId(node) for node in range(12)]
    settings = PlannerSettings(num_microbatches=24, fault_tolerance=1, num_nodes=12, devices_per_node=1)

    def after(link: LinkCost) -> Candidate:
        planner = Planner(uniform_profile(12, link=link), settings)
        first = planner.instantiated(planner.templates[1:2], nodes, 1)
        holders = {worker: groups for worker, groups in first.groups_of.items() if worker != 3}
        request = ReplanRequest(plan=first, lost=[NodeId(3)], holders=holders, generation=2)
        found = TemplatesPolicy.of(planner).reconfigure(request)
        least = reconfigure(planner.profile, planner.templates, settings, first, [NodeId(3)], holders, 2)
        assert found.step_time_s <= planner.step_s(least.plan)
        return found

    quick = after(LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=1e10))
    assert (quick.how, len(quick.plan.pipelines)) == ("simple", 6)
    slow = after(LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=5e6))
    assert (slow.how, len(slow.plan.pipelines)) == ("instantiate", 2)


@pytest.mark.parametrize(
    ("device", "bytes_per_s", "sizes"),
    [
        ("a100", 12.5e9, [4, 4, 4, 4]),
        # 24 bytes a parameter leave pipelines of four no even split in 64 GB: the same plan with links that are free.
        ("ascend-910b", 12.5e9, [11, 5]),
        ("ascend-910b", 1e15, [11, 5]),
    ],
)
def test_sums_do_not_force_two_uneven_pipelines(device: str, bytes_per_s: float, sizes: list[int]) -> None:
    """Llama-2 7B on 16 devices at 100 Gbit/s, Odyssey's largest batch: where each owner read all the others' sums, that
    was a pipeline of 11 and one of 5."""
    nodes = [NodeId(node) for node in range(16)]
    link = LinkCost(latency_s=3e-5, bandwidth_bytes_per_s=bytes_per_s)
    profile = preset("llama2-7b", device, microbatch_size=1)
    profile = msgspec.structs.replace(profile, links=msgspec.structs.replace(profile.links, between_nodes=link))
    settings = PlannerSettings(
        num_microbatches=64,
        fault_tolerance=1,
        num_nodes=16,
        devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
    )
    plan = TemplatesPolicy.of(Planner(profile, settings)).initial(nodes, 1).plan
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == sizes


def test_oobleck_s_plans_are_the_papers_before_and_after_a_loss() -> None:
    settings = dataclasses.replace(SETTINGS, num_microbatches=24, objective=Objective.OOBLECK)
    policy = make_policy(PolicyName.TEMPLATES, Planner(PROFILE, settings))
    plan = policy.initial([NodeId(n) for n in range(5)], 1).plan
    holders = {w: groups for w, groups in plan.groups_of.items() if w != 1}
    after = policy.reconfigure(ReplanRequest(plan=plan, lost=[NodeId(1)], holders=holders, generation=2))
    assert after.how == "simple"
    by_size = {template.num_nodes: template for template in policy.planner.templates}
    for found in (plan, after.plan):
        validate(found, fault_tolerance=1)
        latencies = [by_size[len(pipeline.stages)].time_s(1) for pipeline in found.pipelines]
        assert tuple(len(route.microbatches) for route in found.routes) == least_variance(latencies, 24)


def test_oobleck_s_plans_do_not_heed_speeds() -> None:
    planner = Planner(PROFILE, dataclasses.replace(SETTINGS, objective=Objective.OOBLECK))
    nodes = [NodeId(n) for n in range(5)]
    slow = planner.with_speeds({NodeId(0): 0.3})
    assert TemplatesPolicy(slow).initial(nodes, 1).plan == TemplatesPolicy(planner).initial(nodes, 1).plan


@pytest.mark.parametrize("name", [name for name in PolicyName if name is not PolicyName.TEMPLATES])
def test_other_policies_make_no_plans_of_oobleck_s(name: PolicyName) -> None:
    planner = Planner(PROFILE, dataclasses.replace(SETTINGS, objective=Objective.OOBLECK))
    with pytest.raises(PlanError, match=f"The policy {name} makes no plans of Oobleck's"):
        make_policy(name, planner)
