"""Nodes of different speed: against every way to group them, and every way to place them in a pipeline."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from itertools import permutations

import msgspec
import numpy as np
import pytest

from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.costs.pipeline_time import Template, TemplateSlowdown, Times, slowed, step_times
from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.instantiation.knapsack import usable_nodes
from planaria.planner.instantiation.microbatch_shares import distribute
from planaria.planner.instantiation.speed_groups import Group, group_nodes
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import layer_cost, uniform_profile


def partitions(items: Sequence[NodeId]) -> Iterator[list[list[NodeId]]]:
    """Every way to split the items into groups."""
    if not items:
        yield []
        return
    for groups in partitions(items[1:]):
        yield [[items[0]], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [items[0], *group], *groups[at + 1 :]]


def time_of(profile: ModelProfile, template: Template, speeds: Sequence[float], num_microbatches: int) -> float:
    """The model's step time, from the profile alone: path, and a period for each further microbatch."""
    path, periods = 0.0, []
    stages = template.stages
    links = [
        profile.links.between_nodes.time_s(profile.layers[stage.end_layer - 1].output_bytes) for stage in stages[:-1]
    ]
    for at, stage in enumerate(stages):
        layers = profile.layers[stage.first_layer : stage.end_layer]
        compute = sum(layer.on(1).forward_s + layer.on(1).backward_s for layer in layers) / speeds[stage.node]
        path += compute
        periods.append(compute + sum(links[max(0, at - 1) : at + 1]))
    return path + 2 * sum(links) + (num_microbatches - 1) * max(periods)


def step_of(times: Sequence[Times], num_microbatches: int) -> float:
    shares = distribute(times, num_microbatches)
    return max(float(time[share - 1]) for time, share in zip(times, shares, strict=True))


class Job:
    """A small job on nodes of different speed, and its groups by brute force."""

    def __init__(self, rng: random.Random, *, uneven: bool) -> None:
        num_layers = rng.randint(3, 6)
        layers = [
            layer_cost(
                forward_s=(rng.randint(1, 20) if uneven else 10) * 1e-3,
                backward_s=(rng.randint(1, 40) if uneven else 20) * 1e-3,
                output_bytes=rng.randint(0, 3) * 100_000,
            )
            for _ in range(num_layers)
        ]
        link = LinkCost(latency_s=rng.choice([0.0, 1e-4, 5e-3]), bandwidth_bytes_per_s=1e8)
        self.profile = msgspec.structs.replace(uniform_profile(num_layers, link=link, tied=False), layers=tuple(layers))
        smallest, fault_tolerance = rng.randint(1, 2), rng.randint(0, 1)
        num_nodes = rng.randint(smallest * (fault_tolerance + 1), 5)
        self.planner = PlannerSettings(
            num_microbatches=rng.randint(num_nodes, 9),
            fault_tolerance=fault_tolerance,
            num_nodes=num_nodes,
            devices_per_node=1,
            min_nodes=smallest,
        )
        self.templates = make_templates(self.profile, self.planner)
        sizes = [template.num_nodes for template in self.templates]
        self.covered = usable_nodes(sizes, num_nodes, fault_tolerance + 1, self.planner.num_microbatches) == num_nodes
        self.nodes = [NodeId(node) for node in range(num_nodes)]
        self.speeds = {node: rng.choice([0.25, 0.5, 0.8, 1.0, 1.0, 1.5]) for node in self.nodes}

    def found(self, exact: bool | None) -> float:
        groups = group_nodes(self.profile, self.templates, self.planner, self.nodes, self.speeds, exact=exact)
        self.check(groups)
        return step_of([times for _, _, times in groups], self.planner.num_microbatches)

    def check(self, groups: Sequence[Group]) -> None:
        assert sorted(node for _, nodes, _ in groups for node in nodes) == self.nodes
        assert len(groups) > self.planner.fault_tolerance
        for template, nodes, times in groups:
            speeds = [self.speeds[node] for node in nodes]
            ones = [1.0] * len(nodes)
            for number, seconds in enumerate(times, 1):
                longer = time_of(self.profile, template, speeds, number) - time_of(self.profile, template, ones, number)
                assert seconds == pytest.approx(template.time_s(number) + longer)

    def best(self, *, any_place: bool) -> float:
        """Over every way to group the nodes; `any_place`: and, for each number of microbatches, to place them."""
        by_size = {template.num_nodes: template for template in self.templates}
        least, most = self.planner.fault_tolerance + 1, self.planner.num_microbatches
        best = np.inf
        known: dict[tuple[NodeId, ...], Times] = {}
        for groups in partitions(self.nodes):
            if least <= len(groups) <= most and all(len(group) in by_size for group in groups):
                for group in map(tuple, groups):
                    if group not in known:
                        known[group] = self.times(by_size[len(group)], group, any_place)
                best = min(best, step_of([known[tuple(group)] for group in groups], most))
        return float(best)

    def times(self, template: Template, group: Sequence[NodeId], any_place: bool) -> Times:
        pace, times = TemplateSlowdown(template, self.profile), step_times(template, self.planner.num_microbatches)
        if any_place:
            ways = [slowed(times, pace.on_parts([self.speeds[node] for node in way])) for way in permutations(group)]
            return np.minimum.reduce(ways)
        placed = dict(zip(pace.parts, sorted(group, key=lambda node: (-self.speeds[node], node)), strict=True))
        return slowed(times, pace.on_parts([self.speeds[placed[part]] for part in range(len(group))]))


def jobs(seed: int, count: int, *, uneven: bool) -> Iterator[Job]:
    rng = random.Random(seed)
    while count:
        job = Job(rng, uneven=uneven)
        if job.covered:
            count -= 1
            yield job


def test_the_exact_search_finds_the_best_of_all_groupings() -> None:
    """And the rule for who takes which part of a template is seldom, and little, off the best of all."""
    gaps = []
    for job in jobs(6, 120, uneven=True):
        best = job.best(any_place=False)
        assert job.found(True) == pytest.approx(best, rel=2e-6)
        gaps.append(best / job.best(any_place=True) - 1)
    assert max(gaps) < 0.08
    assert sum(gap < 1e-9 for gap in gaps) > 0.9 * len(gaps)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bent(Template):
    """Every second microbatch is free, so the time is no line."""

    def time_s(self, num_microbatches: int) -> float:
        return self.cost.path_s + self.cost.period_s * (num_microbatches // 2)


def test_times_that_are_no_line_are_grouped_on_fast_nodes_too() -> None:
    """What a fast node saves is no more than a further microbatch costs: times never fall."""
    for job in jobs(9, 60, uneven=True):
        job.templates = tuple(
            Bent(num_nodes=t.num_nodes, stages=t.stages, step_time_s=t.step_time_s, cost=t.cost) for t in job.templates
        )
        groups = group_nodes(job.profile, job.templates, job.planner, job.nodes, job.speeds, exact=True)
        assert all((np.diff(times) >= 0).all() for _, _, times in groups)
        found = step_of([times for _, _, times in groups], job.planner.num_microbatches)
        assert found == pytest.approx(job.best(any_place=False), rel=2e-6)


def test_neighbours_in_the_order_of_speed_are_close() -> None:
    """Where nodes are too many for the exact search; with so few of them as here, the gaps are at their widest."""
    for uneven, mean in ((True, 0.03), (False, 0.02)):
        gaps = [job.found(False) / job.found(True) - 1 for job in jobs(7, 60, uneven=uneven)]
        assert min(gaps) > -2e-6
        assert sum(gaps) / len(gaps) < mean
        assert sum(gap < 2e-6 for gap in gaps) > 0.7 * len(gaps)


def test_a_slow_node_takes_the_lightest_part_and_its_pipeline_gets_less() -> None:
    profile = uniform_profile(5)
    planner = PlannerSettings(num_microbatches=20, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
    templates = make_templates(profile, planner)
    nodes = [NodeId(node) for node in range(4)]
    plan = initial_plan(profile, templates, planner, nodes, 1, speeds={NodeId(1): 0.5})
    validate(plan, fault_tolerance=1)
    layers = {plan.node_of(stage.worker): len(stage.layers) for stage in plan.stages()}
    assert layers[NodeId(1)] == 2
    shares = {plan.node_of(route.hops[at].worker): len(route.microbatches) for route in plan.routes for at in (0, 1)}
    assert shares[NodeId(1)] < 10
    assert sum(len(route.microbatches) for route in plan.routes) == 20


def test_slow_nodes_go_together() -> None:
    """Two slow nodes in two pipelines hold both up; in one, one."""
    profile = uniform_profile(8)
    planner = PlannerSettings(num_microbatches=32, fault_tolerance=1, num_nodes=8, devices_per_node=1, min_nodes=4)
    templates = make_templates(profile, planner)
    speeds = {NodeId(0): 0.5, NodeId(7): 0.5}
    plan = initial_plan(profile, templates, planner, [NodeId(node) for node in range(8)], 1, speeds=speeds)
    (together,) = [pipeline for pipeline in plan.pipelines if 0 in pipeline.workers]
    assert 7 in together.workers


def test_nodes_that_are_all_as_slow_are_grouped_as_if_none_were() -> None:
    profile = uniform_profile(8)
    planner = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)
    templates = make_templates(profile, planner)
    nodes = [NodeId(node) for node in range(5)]
    slow = initial_plan(profile, templates, planner, nodes, 1, speeds=dict.fromkeys(nodes, 0.5))
    assert slow.pipelines == initial_plan(profile, templates, planner, nodes, 1).pipelines


@pytest.mark.parametrize(("num_microbatches", "num_slow"), [(128, 5), (20, 96)])
def test_many_nodes_of_other_speeds_are_all_used(num_microbatches: int, num_slow: int) -> None:
    """Every node is used, whether the batch bounds the pipelines or not."""
    profile = uniform_profile(12)
    planner = PlannerSettings(
        num_microbatches=num_microbatches, fault_tolerance=2, num_nodes=97, devices_per_node=1, min_nodes=3
    )
    rng = random.Random(8)
    speeds = {NodeId(node): rng.uniform(0.7, 1.1) for node in rng.sample(range(97), num_slow)}
    nodes = [NodeId(node) for node in range(97)]
    plan = initial_plan(profile, make_templates(profile, planner), planner, nodes, 1, speeds=speeds)
    validate(plan, fault_tolerance=2)
    assert plan.nodes == tuple(nodes)
