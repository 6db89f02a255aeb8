"""Grids: symmetric, as wide as the nodes allow, every microbatch once; and against a search over all shares."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from planaria.plan.costs.pipeline_time import step_times
from planaria.plan.plan import NodeId, Pipeline, PlanError
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.grids import grids, is_grid, shape
from planaria.planner.instantiation.microbatch_shares import distribute
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8)


def settings(nodes: int, microbatches: int = 16, devices: int = 1, smallest: int = 1) -> PlannerSettings:
    return PlannerSettings(
        num_microbatches=microbatches, fault_tolerance=0, num_nodes=nodes, devices_per_node=devices, min_nodes=smallest
    )


def nodes(count: int) -> list[NodeId]:
    return [NodeId(node) for node in range(count)]


@pytest.mark.parametrize("seed", range(25))
def test_one_grid_for_each_depth_as_wide_as_can_be(seed: int) -> None:
    draw = random.Random(seed)
    devices = draw.choice([1, 1, 2])
    most = draw.randint(2, 13)
    smallest = draw.randint(1, min(most, 8 // devices))
    wanted = settings(most, draw.randint(1, 24), devices, smallest)
    templates = make_templates(PROFILE, wanted)
    live = draw.sample(nodes(most), draw.randint(1, most))
    speeds = {node: draw.choice([0.5, 1.0]) for node in live} if draw.random() < 0.5 else None
    found = [grid.plan for grid in grids(PROFILE, templates, wanted, live, 3, speeds=speeds)]
    depths = [template.num_nodes for template in templates if template.num_nodes <= len(live)]
    assert [shape(plan) for plan in found] == [
        f"{min(len(live) // depth, wanted.num_microbatches)} x {depth}" for depth in depths
    ]
    for plan in found:
        validate(plan)
        assert is_grid(plan)
        assert plan.generation == 3
        assert set(plan.nodes) <= set(live)
        if speeds is not None:  # whoever is idle is none of the fast ones, unless all in the grid are
            idle = [speeds[node] for node in live if node not in plan.nodes]
            assert max(idle, default=0.0) <= min(speeds[node] for node in plan.nodes)


def test_microbatches_that_do_not_divide_are_dealt_out_as_evenly_as_can_be() -> None:
    wanted = settings(7, microbatches=10, smallest=2)
    templates = make_templates(PROFILE, wanted)
    (two, three, *_) = grids(PROFILE, templates, wanted, nodes(7), 1)
    assert sorted(len(route.microbatches) for route in two.plan.routes) == [3, 3, 4]
    assert sorted(len(route.microbatches) for route in three.plan.routes) == [5, 5]
    assert [two.step_time_s, three.step_time_s] == [templates[0].time_s(4), templates[1].time_s(5)]


def test_a_pipeline_of_slow_nodes_gets_fewer_microbatches() -> None:
    """The best of all ways to share: the shortest step."""
    wanted = settings(4, microbatches=9, smallest=2)
    speeds = {NodeId(0): 0.5, NodeId(2): 0.5}
    (template, *_) = make_templates(PROFILE, wanted)
    grid = next(grids(PROFILE, [template], wanted, nodes(4), 1, speeds=speeds)).plan
    rows = [sorted(grid.node_of(worker) for worker in pipeline.workers) for pipeline in grid.pipelines]
    assert rows == [[1, 3], [0, 2]]
    fast, slow = (len(route.microbatches) for route in grid.routes)
    times = step_times(template, 9)
    best = min(range(1, 9), key=lambda share: max(times[share - 1], 2 * times[8 - share]))
    assert (fast, slow) == (best, 9 - best)


def test_state_stays_in_its_place_when_nodes_come() -> None:
    wanted = settings(8, smallest=2)
    templates = make_templates(PROFILE, wanted)
    before = next(grids(PROFILE, templates, wanted, [NodeId(n) for n in (1, 4, 6, 7)], 1)).plan
    held = dict(before.groups_of)
    after = next(grids(PROFILE, templates, wanted, [NodeId(n) for n in (0, 1, 3, 4, 6, 7)], 2, holders=held)).plan
    kept = {stage for pipeline in before.pipelines for stage in pipeline.stages}
    assert kept <= {stage for pipeline in after.pipelines for stage in pipeline.stages}
    assert len(after.pipelines) == 3


def test_what_is_no_grid_is_told_from_one() -> None:
    wanted = settings(6, smallest=2)
    grid = next(grids(PROFILE, make_templates(PROFILE, wanted), wanted, nodes(6), 1)).plan
    first, *others = grid.pipelines
    uneven = tuple(msgspec.structs.replace(s, end_layer=s.end_layer) for s in first.stages[:1])
    assert not is_grid(msgspec.structs.replace(grid, pipelines=(Pipeline(stages=uneven), *others)))
    moved = Pipeline(
        stages=(
            msgspec.structs.replace(first.stages[0], end_layer=1),
            msgspec.structs.replace(first.stages[1], first_layer=1),
        )
    )
    assert not is_grid(msgspec.structs.replace(grid, pipelines=(moved, *others)))


def test_a_speed_that_is_none_is_refused() -> None:
    wanted = settings(2)
    with pytest.raises(PlanError, match="speed 0"):
        list(grids(PROFILE, make_templates(PROFILE, wanted), wanted, nodes(2), 1, speeds={NodeId(0): 0.0}))


def test_shares_are_those_of_the_shortest_step() -> None:
    """Against all ways to deal microbatches out."""
    wanted = settings(6, microbatches=7, smallest=2)
    (template, *_) = make_templates(PROFILE, wanted)
    times = step_times(template, 7)
    best = min(
        max(times[share - 1] for share in shares)
        for shares in itertools.product(range(1, 8), repeat=3)
        if sum(shares) == 7
    )
    assert max(times[share - 1] for share in distribute([times] * 3, 7)) == best
