"""Instantiation: the step is the shortest over all sets of pipelines, every node is used."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Template, TemplateStage, Times, step_times
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import NodeId, PlanError
from planaria.plan.settings import Objective, PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.instantiate import fewest_seconds, initial_plan, instantiate, place
from planaria.planner.instantiation.microbatch_shares import Undistributable
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import random_jobs, uniform_profile
from tests.proof import examples


def step_time(times: Sequence[Times], num_microbatches: int) -> float:
    """The shortest step of these pipelines: the least time within which they do all microbatches."""
    ends = sorted({float(end) for time in times for end in time})
    return next(
        end
        for end in ends
        if all(time[0] <= end for time in times) and sum(int((time <= end).sum()) for time in times) >= num_microbatches
    )


def multisets(sizes: Sequence[int], num_nodes: int) -> Iterator[tuple[int, ...]]:
    """Every way to fill up to `num_nodes` nodes: how many of each size."""
    yield from (
        counts
        for counts in product(*(range(num_nodes // size + 1) for size in sizes))
        if sum(count * size for count, size in zip(counts, sizes, strict=True)) <= num_nodes
    )


def expanded(times: Sequence[Times], counts: Sequence[int]) -> list[Times]:
    return [time for time, count in zip(times, counts, strict=True) for _ in range(count)]


def test_instantiation_is_the_best_of_all_sets() -> None:
    """2,000 instances: sizes with and without gaps, any times that do not fall, pipelines that stay beside."""
    rng = random.Random(5)
    solved = 0
    for _ in range(2000):
        smallest = rng.randint(1, 4)
        sizes = sorted(rng.sample(range(smallest, smallest + 5), rng.randint(1, 4)))
        num_nodes, least, total = rng.randint(smallest, 14), rng.randint(0, 3), rng.randint(3, 9)
        times = [rng.randint(0, 9) + np.cumsum([rng.choice([0, 1, 2, 3]) for _ in range(total)]) / 4 for _ in sizes]
        kept = [rng.randint(0, 9) + np.arange(total) / 2.0 for _ in range(rng.choice([0, 0, 1, 2]))]
        options = [
            counts
            for counts in multisets(sizes, num_nodes)
            if least <= sum(counts) <= total - len(kept) and sum(counts) + len(kept)
        ]
        used = {c: sum(count * size for count, size in zip(c, sizes, strict=True)) for c in options}
        most = max(used.values(), default=0)
        try:
            counts = fewest_seconds(sizes, times, num_nodes, least, total, kept)
        except Undistributable:
            assert most < num_nodes
            continue
        if not any(counts):
            assert most == 0
            continue
        solved += 1
        assert used[counts] == most
        best = min(step_time(expanded(times, c) + kept, total) for c, nodes in used.items() if nodes == most)
        assert step_time(expanded(times, counts) + kept, total) == best
    assert solved > 1000


@settings(max_examples=examples(50), deadline=None)
@given(job=random_jobs(), scarce=st.booleans())
def test_templates_are_instantiated_best(job: tuple[ModelProfile, PlannerSettings], scarce: bool) -> None:
    profile, planner = job
    templates = make_templates(profile, planner)
    total = planner.fault_tolerance + 1 if scarce else planner.num_microbatches
    planner = PlannerSettings(
        num_microbatches=total,
        fault_tolerance=planner.fault_tolerance,
        num_nodes=planner.num_nodes,
        devices_per_node=planner.devices_per_node,
        min_nodes=planner.min_nodes,
    )
    times = [step_times(template, total) for template in templates]
    sizes = [template.num_nodes for template in templates]
    options = [
        counts for counts in multisets(sizes, planner.num_nodes) if planner.fault_tolerance < sum(counts) <= total
    ]
    used = {counts: sum(c * size for c, size in zip(counts, sizes, strict=True)) for counts in options}
    most = max(used.values())
    try:
        counts = instantiate(templates, planner.num_nodes, planner)
    except PlanError:
        assert most < planner.num_nodes
        return
    assert used[counts] == most
    best = min(step_time(expanded(times, c), total) for c, nodes in used.items() if nodes == most)
    assert step_time(expanded(times, counts), total) == best


@settings(max_examples=examples(50), deadline=None)
@given(job=random_jobs())
def test_step_times_are_the_templates(job: tuple[ModelProfile, PlannerSettings]) -> None:
    profile, planner = job
    for template in make_templates(profile, planner):
        times = step_times(template, planner.num_microbatches)
        assert list(times) == pytest.approx([template.time_s(m) for m in range(1, planner.num_microbatches + 1)])


def test_times_that_are_no_line_are_instantiated_best() -> None:
    """They are used as they are: for the sets of pipelines and for the shares."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Bent(Template):
        def time_s(self, num_microbatches: int) -> float:
            return self.cost.path_s + self.cost.period_s * (num_microbatches - num_microbatches // 3)

    profile = uniform_profile(6)
    planner = PlannerSettings(num_microbatches=12, fault_tolerance=1, num_nodes=7, devices_per_node=1, min_nodes=2)
    templates = [
        Bent(num_nodes=t.num_nodes, stages=t.stages, step_time_s=t.step_time_s, cost=t.cost)
        for t in make_templates(profile, planner)
    ]
    times = [np.array([template.time_s(m) for m in range(1, 13)]) for template in templates]
    assert all((step_times(t, 12) == time).all() for t, time in zip(templates, times, strict=True))
    sizes = [template.num_nodes for template in templates]
    sets = [c for c in multisets(sizes, 7) if sum(n * k for n, k in zip(sizes, c, strict=True)) == 7 and sum(c) >= 2]
    best = min(step_time(expanded(times, counts), 12) for counts in sets)
    assert step_time(expanded(times, instantiate(templates, 7, planner)), 12) == best
    plan = initial_plan(profile, templates, planner, [NodeId(n) for n in range(7)], 1)
    by_size = dict(zip(sizes, templates, strict=True))
    assert max(by_size[len(r.hops)].time_s(len(r.microbatches)) for r in plan.routes) == best


def test_pipelines_that_stay_count_as_replicas() -> None:
    """One stays, so the rest may be one pipeline: the larger template, which is faster than two of the smaller."""
    planner = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=6, devices_per_node=1, min_nodes=2)
    templates = [
        dataclasses.replace(template, cost=PipelineCost(path_s=seconds, period_s=seconds))
        for template, seconds in zip(make_templates(uniform_profile(4), planner)[::2], (1.0, 0.1), strict=True)
    ]
    assert [template.num_nodes for template in templates] == [2, 4]
    assert instantiate(templates, 4, planner, kept=[np.arange(1.0, 9.0)]) == (0, 1)
    assert instantiate(templates, 4, planner) == (2, 0)


@settings(max_examples=examples(60), deadline=None)
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


def test_eq6_gives_a_deep_pipeline_fewer_microbatches() -> None:
    """Nine nodes make a pipeline of five and two of two; Eq. 6 takes the deep one for slower than it is."""
    profile = uniform_profile(12)
    planner = PlannerSettings(num_microbatches=24, fault_tolerance=2, num_nodes=9, devices_per_node=1, min_nodes=2)
    templates = [t for t in make_templates(profile, planner) if t.num_nodes in (2, 5)]
    nodes = [NodeId(n) for n in range(9)]
    shares = {
        kind: [
            len(route.microbatches)
            for route in initial_plan(profile, templates, dataclasses.replace(planner, objective=kind), nodes, 1).routes
        ]
        for kind in Objective
    }
    assert sum(shares[Objective.OOBLECK]) == 24
    assert shares[Objective.OOBLECK][0] < shares[Objective.STEP_TIME][0]


@pytest.mark.parametrize("num_microbatches", [100, 512, 2048])
def test_a_thousand_nodes_are_all_used(num_microbatches: int) -> None:
    """Many nodes, and batches that bound the pipelines, or do not."""
    profile = uniform_profile(24)
    planner = PlannerSettings(
        num_microbatches=num_microbatches, fault_tolerance=2, num_nodes=1021, devices_per_node=1, min_nodes=5
    )
    templates = make_templates(profile, planner)
    counts = instantiate(templates, 1021, planner)
    assert sum(count * t.num_nodes for count, t in zip(counts, templates, strict=True)) == 1021
    assert 3 <= sum(counts) <= num_microbatches


def test_too_few_nodes_or_microbatches_are_refused() -> None:
    profile = uniform_profile(4)
    planner = PlannerSettings(num_microbatches=2, fault_tolerance=1, num_nodes=9, devices_per_node=1, min_nodes=2)
    templates = make_templates(profile, planner)
    with pytest.raises(PlanError, match=r"3 nodes cannot hold 2 replicas of 2 nodes each \(4 needed\)"):
        instantiate(templates, 3, planner)
    with pytest.raises(Undistributable, match=r"9 nodes make at least 3 pipelines .* is 3 microbatches"):
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


def test_a_stage_of_several_devices_is_driven_by_the_first() -> None:
    cost = make_templates(
        uniform_profile(4),
        PlannerSettings(num_microbatches=4, fault_tolerance=0, num_nodes=1, devices_per_node=1),
    )[0].cost
    ranges = [(0, 1, 0, 3), (1, 2, 0, 1), (2, 3, 1, 2), (3, 4, 1, 2)]
    stages = tuple(
        TemplateStage(first_layer=first, end_layer=end, node=node, num_devices=devices)
        for first, end, node, devices in ranges
    )
    template = Template(num_nodes=2, stages=stages, step_time_s=1.0, cost=cost)
    pipeline = place(template, [NodeId(5), NodeId(2)], 4)
    assert [(stage.worker, stage.num_devices) for stage in pipeline.stages] == [(20, 3), (23, 1), (8, 2), (10, 2)]
