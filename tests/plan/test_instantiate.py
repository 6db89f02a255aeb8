"""Instantiation: batches and pipelines are the best of all, every node is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.costs import PipelineCost
from planaria.plan.batch import Times, distribute
from planaria.plan.instantiate import initial_plan, instantiate
from planaria.plan.plan import NodeId, PlanError
from planaria.plan.profile import ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.plan.templates import Template, make_templates
from planaria.plan.validate import validate
from tests.plan.profiles import random_jobs, uniform_profile

COSTS = st.builds(
    lambda period, more: PipelineCost(period_s=period / 8, path_s=(period + more) / 8),
    st.integers(1, 40),
    st.integers(0, 80),
)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def times_of(cost: PipelineCost, total: int) -> Times:
    return np.array([cost.time_s(number) for number in range(1, total + 1)])


def slowest(costs: Sequence[PipelineCost], counts: Sequence[int]) -> float:
    return max(cost.time_s(count) for cost, count in zip(costs, counts, strict=True))


@settings(max_examples=80, deadline=None)
@given(costs=st.lists(COSTS, min_size=1, max_size=4), extra=st.integers(0, 6))
def test_distribution_is_the_best_of_all(costs: list[PipelineCost], extra: int) -> None:
    total = len(costs) + extra
    counts = distribute([times_of(cost, total) for cost in costs], total)
    assert sum(counts) == total
    assert min(counts) >= 1
    best = min(slowest(costs, other) for other in compositions(total, len(costs)))
    assert slowest(costs, counts) == best


def test_too_few_microbatches_recommend_the_nearest_batch() -> None:
    with pytest.raises(PlanError, match=r"3 pipelines need at least 3 .* nearest global batch .* 3 micro"):
        distribute([np.array([1.0, 2.0])] * 3, 2)


def step_time(templates: Sequence[Template], counts: Sequence[int], num_microbatches: int) -> float:
    chosen = [t.cost for t, count in zip(templates, counts, strict=True) for _ in range(count)]
    return slowest(chosen, distribute([times_of(cost, num_microbatches) for cost in chosen], num_microbatches))


@settings(max_examples=60, deadline=None)
@given(job=random_jobs(), scarce=st.booleans())
def test_instantiation_is_the_best_of_all(job: tuple[ModelProfile, PlannerSettings], scarce: bool) -> None:
    profile, planner = job
    templates = make_templates(profile, planner)
    if scarce:
        planner = PlannerSettings(
            num_microbatches=planner.fault_tolerance + 1,
            fault_tolerance=planner.fault_tolerance,
            num_nodes=planner.num_nodes,
            devices_per_node=planner.devices_per_node,
            min_nodes=planner.min_nodes,
        )
    options = [
        counts
        for counts in product(*(range(planner.num_nodes // t.num_nodes + 1) for t in templates))
        if planner.fault_tolerance + 1 <= sum(counts) <= planner.num_microbatches
    ]
    used = {counts: sum(c * t.num_nodes for c, t in zip(counts, templates, strict=True)) for counts in options}
    most = max(nodes for nodes in used.values() if nodes <= planner.num_nodes)
    best = min(
        step_time(templates, counts, planner.num_microbatches) for counts, nodes in used.items() if nodes == most
    )
    try:
        counts = instantiate(templates, planner.num_nodes, planner)
    except PlanError:
        assert most < planner.num_nodes
        return
    assert used[counts] == most
    assert step_time(templates, counts, planner.num_microbatches) == best


@settings(max_examples=60, deadline=None)
@given(job=random_jobs())
def test_a_first_plan_is_valid_and_uses_every_node(job: tuple[ModelProfile, PlannerSettings]) -> None:
    profile, planner = job
    templates = make_templates(profile, planner)
    nodes = [NodeId(3 * n + 1) for n in range(planner.num_nodes)]
    plan = initial_plan(profile, templates, planner, nodes[::-1], 7)
    validate(plan, fault_tolerance=planner.fault_tolerance)
    assert plan == initial_plan(profile, templates, planner, nodes, 7)
    assert plan.generation == 7
    assert set(plan.sync_epochs) == {7}
    largest = templates[-1].num_nodes
    if largest >= 2 * templates[0].num_nodes - 1:  # then sums of template sizes have no gap
        assert plan.nodes == tuple(nodes)


def test_a_thousand_nodes() -> None:
    profile = uniform_profile(24)
    planner = PlannerSettings(num_microbatches=2048, fault_tolerance=2, num_nodes=1021, devices_per_node=1, min_nodes=5)
    templates = make_templates(profile, planner)
    counts = instantiate(templates, 1021, planner)
    assert sum(count * t.num_nodes for count, t in zip(counts, templates, strict=True)) == 1021


def test_too_few_nodes_or_microbatches() -> None:
    profile = uniform_profile(4)
    planner = PlannerSettings(num_microbatches=2, fault_tolerance=1, num_nodes=9, devices_per_node=1, min_nodes=2)
    templates = make_templates(profile, planner)
    with pytest.raises(PlanError, match=r"3 nodes cannot hold 2 replicas of 2 nodes each \(4 needed\)"):
        instantiate(templates, 3, planner)
    with pytest.raises(PlanError, match=r"9 nodes make at least 3 pipelines .* is 3 microbatches"):
        instantiate(templates, 9, planner)


def test_fewer_nodes_than_the_largest_template_has() -> None:
    """After losses, the templates made for the whole cluster still serve what is left of it."""
    profile = uniform_profile(8)
    planner = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=1)
    templates = make_templates(profile, planner)
    assert templates[-1].num_nodes == 7
    for left in range(2, 8):
        plan = initial_plan(profile, templates, planner, [NodeId(n) for n in range(left)], 1)
        validate(plan, fault_tolerance=1)
        assert len(plan.nodes) == left
