"""First plans of the adaptive policy: nothing that others would begin with, or that it comes to later, is faster."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import lacking, validate
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import ReplanRequest
from planaria.policy.morph import MorphPolicy
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy, even_sets
from planaria.profile.presets.presets import preset
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

ROUTED = 1.01
"""Detours have schedules of their own, which can be a little shorter than those of whole pipelines: no first plan is
made with them."""


@pytest.mark.parametrize("seed", rest_in_proof(range(8), kept=2))
def test_no_other_first_plan_is_faster(seed: int) -> None:
    draw = random.Random(seed)
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=draw.choice([1e9, 1e10]))
    profile = uniform_profile(draw.randint(6, 12), link=link, group_bytes=draw.choice([4_000, 40_000_000]))
    of = PlannerSettings(
        num_microbatches=draw.choice([16, 24, 32]), fault_tolerance=1, num_nodes=draw.randint(6, 14),
        devices_per_node=1, min_nodes=draw.randint(1, 2),
    )  # fmt: skip
    nodes = [NodeId(n) for n in range(of.num_nodes)]
    policy = AdaptivePolicy.of(Planner(profile, of))
    first = policy.initial(nodes, 1)
    validate(first.plan)
    assert not lacking(first.plan, 1)
    assert first.step_time_s == min(one.step_time_s for one in first.candidates)
    assert first == AdaptivePolicy.of(Planner(profile, of)).initial(nodes, 1)
    for other in (TemplatesPolicy, MorphPolicy):
        assert first.step_time_s <= other.of(Planner(profile, of)).initial(nodes, 1).step_time_s
    plan = first.plan
    for lost in draw.sample(nodes, 2):
        holders = {worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) != lost}
        later = policy.with_forecast(FailureForecast(time_to_failure_s=1e5)).reconfigure(
            ReplanRequest(plan=plan, lost=[lost], holders=holders, generation=plan.generation + 1)
        )
        assert first.step_time_s <= ROUTED * later.step_time_s
        plan = later.plan


def test_the_quickest_set_of_a_number_of_pipelines_is_tried() -> None:
    """25 nodes of BERT-Large: five pipelines are the quickest, and an uneven set of four that uses all is told."""
    profile = preset("bert-large", "v100", network_gbit_s=8.0)
    of = PlannerSettings(
        num_microbatches=64, fault_tolerance=1, num_nodes=25, devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
    )  # fmt: skip
    policy = AdaptivePolicy.of(Planner(profile, of))
    first = policy.initial([NodeId(node) for node in range(25)], 1)
    assert [len(pipeline.stages) for pipeline in first.plan.pipelines] == [5] * 5
    step_of = {told.name: told.step_time_s for told in first.candidates}
    assert first.step_time_s < step_of["search (7+6+6+6), zb-h2"] < step_of["grid (3 x 7), zb-h2"]


def test_an_instantiation_has_as_many_pipelines_as_asked_for() -> None:
    profile = uniform_profile(12)
    of = PlannerSettings(num_microbatches=24, fault_tolerance=1, num_nodes=12, devices_per_node=1, min_nodes=2)
    templates = make_templates(profile, of)
    for number in range(2, 7):
        plan = initial_plan(profile, templates, of, [NodeId(node) for node in range(12)], 1, number=number)
        assert len(plan.pipelines) == number
        assert len(plan.nodes) == 12
        validate(plan)


def test_even_sets_share_the_nodes_out() -> None:
    of = PlannerSettings(num_microbatches=32, fault_tolerance=1, num_nodes=12, devices_per_node=1, min_nodes=2)
    sets = even_sets(make_templates(uniform_profile(8), of), 12, of)
    assert sorted([t.num_nodes for t in one] for one in sets) == [[2], [2, 3], [3], [4], [6]]


@pytest.mark.parametrize(("nodes", "lost"), [(12, 1), (16, 3)])
def test_uneven_sets_are_found_after_a_loss_too(nodes: int, lost: int) -> None:
    """Of 11 nodes 7 + 4 for BERT-Large, of 13 9 + 4: up to 4% quicker than the evenest."""
    profile = preset("bert-large", "v100")
    of = PlannerSettings(
        num_microbatches=32, fault_tolerance=1, num_nodes=nodes, devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
    )  # fmt: skip
    policy = AdaptivePolicy.of(Planner(profile, of)).with_forecast(FailureForecast(time_to_failure_s=1e9))
    plan = policy.initial([NodeId(node) for node in range(nodes)], 1).plan
    gone = [NodeId(5 * at) for at in range(lost)]
    holders = {worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) not in gone}
    later = policy.reconfigure(ReplanRequest(plan=plan, lost=gone, holders=holders, generation=2))
    anew = policy.initial(sorted(set(plan.nodes).difference(gone)), 3)
    assert min(one.step_time_s for one in later.candidates) <= 1.001 * anew.step_time_s


def of_few_replicas(nodes: int, smallest: int, microbatches: int) -> AdaptivePolicy:
    of = PlannerSettings(
        num_microbatches=microbatches, fault_tolerance=0, num_nodes=nodes, devices_per_node=1, min_nodes=smallest
    )
    return AdaptivePolicy.of(Planner(uniform_profile(8), of))


FREQUENT = FailureForecast(time_to_failure_s=30.0, checkpoint_every=100, steps_left=1000)
RARE = FailureForecast(time_to_failure_s=1e7, checkpoint_every=1, steps_left=1000)


def test_a_job_begins_with_a_ring_where_any_loss_would_be_the_last() -> None:
    """One pipeline is all that there can be of four nodes; few microbatches leave bubbles for what shadows compute."""
    nodes = [NodeId(node) for node in range(4)]
    policy = of_few_replicas(4, 4, 4)
    near = policy.with_forecast(FREQUENT).initial(nodes, 1)
    assert near.plan.redundancy is not None
    assert "shadows its successor" in near.reason
    assert near.candidates[0].name.startswith("redundancy (ring, 4)")
    assert near.candidates[0].risk_s == 0
    validate(near.plan, fault_tolerance=0)
    assert not lacking(near.plan, 1), "no node has a last replica"
    bare = next(one for one in near.candidates if not one.name.startswith("redundancy"))
    assert bare.step_time_s < near.step_time_s
    assert bare.samples_per_s < near.candidates[0].samples_per_s
    far = policy.with_forecast(RARE).initial(nodes, 1)
    assert far.plan.redundancy is None
    assert not [one for one in far.candidates if one.name.startswith("redundancy")], "nobody looked for one"
    assert far.step_time_s < near.step_time_s


def test_what_was_committed_before_is_not_at_stake_again() -> None:
    """A first plan begins at a checkpoint, whatever was lost before it."""
    nodes = [NodeId(node) for node in range(4)]
    policy = of_few_replicas(4, 4, 4)
    lost = replace(FREQUENT, steps_at_stake=99)
    assert policy.with_forecast(lost).initial(nodes, 1) == policy.with_forecast(FREQUENT).initial(nodes, 1)


def test_replicas_count_where_nodes_go_together() -> None:
    """Of plans of nearly the same step the one with more replicas."""
    profile = uniform_profile(12)
    of = PlannerSettings(num_microbatches=24, fault_tolerance=1, num_nodes=12, devices_per_node=1, min_nodes=2)
    policy, nodes = AdaptivePolicy.of(Planner(profile, of)), [NodeId(node) for node in range(12)]
    alone = policy.with_forecast(RARE).initial(nodes, 1)
    bulks = policy.with_forecast(replace(FREQUENT, nodes_together=3.0)).initial(nodes, 1)
    assert alone.step_time_s <= bulks.step_time_s
    best = max(bulks.candidates, key=lambda one: one.samples_per_s)
    assert bulks.candidates[0] == best
    assert sorted(bulks.candidates, key=lambda one: -one.samples_per_s) == list(bulks.candidates)
    assert any(one.risk_s > best.risk_s and one.step_time_s < best.step_time_s for one in bulks.candidates)
