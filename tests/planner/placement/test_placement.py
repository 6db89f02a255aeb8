"""Placement against every placement there is: the fewest bytes move, and the busiest node is little busy."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from planaria.plan.costs.pipeline_time import TemplateStage
from planaria.plan.plan import NodeId, Pipeline, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.placement import placement
from planaria.planner.placement.placement import DeviceOrders, assign
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile
from tests.plan.shapes import Scene, least_sent, needed, random_scene, template

SEEDS = range(300)


@dataclass(frozen=True, order=True)
class Price:
    """Of a placement, in bytes of parameters: what moves, between nodes, and what the busiest node receives or sends
    at least."""

    moved: int
    between: int
    busiest: int


def orders(stages: Sequence[TemplateStage], per_node: int) -> Iterator[list[int]]:
    """Every way to lay stages on a node's devices without overlap: each stage's first device."""
    for starts in itertools.product(range(per_node), repeat=len(stages)):
        taken = [
            device
            for start, stage in zip(starts, stages, strict=True)
            for device in range(start, start + stage.num_devices)
        ]
        if len(set(taken)) == len(taken) and max(taken) < per_node:
            yield list(starts)


def lacked(scene: Scene, node: int, stages: Sequence[TemplateStage], starts: Sequence[int]) -> tuple[int, list[int]]:
    """Bytes that the devices lack, and the groups, once for each device, that the whole node lacks."""
    first = node * scene.devices_per_node
    on_node = {g for device in range(scene.devices_per_node) for g in scene.holders.get(WorkerId(first + device), ())}
    moved, outer = 0, []
    for start, stage in zip(starts, stages, strict=True):
        own = scene.holders.get(WorkerId(first + start), ())
        missing = [g for g in needed(scene.groups, stage.first_layer, stage.end_layer) if g not in own]
        moved += sum(scene.groups[g].size_bytes for g in missing)
        outer += [g for g in missing if g not in on_node]
    return moved, outer


def price(scene: Scene, moved: int, by_node: Sequence[Sequence[int]]) -> Price:
    received = [sum(scene.groups[g].size_bytes for g in outer) for outer in by_node]
    sent = least_sent(scene, Counter(g for outer in by_node for g in outer))
    return Price(moved, sum(received), max([sent, *received]))


def price_of(scene: Scene, pipelines: Sequence[Pipeline]) -> Price:
    per_node = scene.devices_per_node
    moved, by_node = 0, []
    for pipeline, made_of in zip(pipelines, scene.templates, strict=True):
        placed = iter(pipeline.stages)
        for part in range(made_of.num_nodes):
            stages = made_of.stages_of(part)
            workers = [next(placed).worker for _ in stages]
            (node,) = {worker // per_node for worker in workers}
            starts = [worker % per_node for worker in workers]
            assert starts in list(orders(stages, per_node))
            bytes_, outer = lacked(scene, node, stages, starts)
            moved += bytes_
            by_node.append(outer)
    return price(scene, moved, by_node)


def cheapest_of_all(scene: Scene) -> Price:
    roles = [made_of.stages_of(part) for made_of in scene.templates for part in range(made_of.num_nodes)]
    table = {
        (node, at): min(
            (lacked(scene, node, stages, starts) for starts in orders(stages, scene.devices_per_node)),
            key=lambda found: found[0],
        )
        for node in scene.nodes
        for at, stages in enumerate(roles)
    }
    options = [
        [table[node, at] for at, node in enumerate(nodes)] for nodes in itertools.permutations(scene.nodes, len(roles))
    ]
    fewest = min(sum(moved for moved, _ in option) for option in options)
    kept = [option for option in options if sum(moved for moved, _ in option) == fewest]
    return min(price(scene, fewest, [outer for _, outer in option]) for option in kept)


def test_fewest_bytes_move_and_fewest_between_nodes() -> None:
    """And of those placements one whose busiest node is the least busy: here always, beyond that not promised."""
    for seed in SEEDS:
        scene = random_scene(seed)
        pipelines = assign(scene.templates, scene.nodes, scene.devices_per_node, scene.groups, scene.holders)
        used = [worker // scene.devices_per_node for p in pipelines for worker in {s.worker for s in p.stages}]
        assert set(used) <= set(scene.nodes)
        best, found = cheapest_of_all(scene), price_of(scene, pipelines)
        assert found == best, seed


def test_devices_keep_their_layers() -> None:
    profile = uniform_profile(4, tied=False)
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=0, num_nodes=1, devices_per_node=2)
    (made,) = make_templates(profile, planner)
    holders = {WorkerId(6): (2, 3), WorkerId(7): (0, 1)}
    (pipeline,) = assign([made], [NodeId(3)], 2, profile.groups, holders)
    assert pipeline.workers == (7, 6)


def test_a_stage_of_several_devices_begins_where_its_state_is() -> None:
    """Devices 0 and 2 of four drove two stages of two; now there are stages of one, one and two."""
    groups = uniform_profile(4, tied=False).groups
    made = template([[(1, 1), (1, 1), (2, 2)]])
    (pipeline,) = assign([made], [NodeId(0)], 4, groups, {WorkerId(0): (2, 3), WorkerId(2): (0, 1)})
    assert pipeline.workers == (2, 3, 0)
    (pipeline,) = assign([made], [NodeId(0)], 4, groups, {WorkerId(0): (0, 1), WorkerId(2): (2, 3)})
    assert pipeline.workers == (0, 1, 2)


def test_where_nothing_is_held_everything_is_in_order() -> None:
    groups = uniform_profile(6, tied=False).groups
    assert assign([], [NodeId(0)], 2, groups, {}) == []
    made = [template([[(1, 1), (1, 1)], [(2, 1), (2, 1)]]), template([[(3, 1), (3, 1)]])]
    nodes = [NodeId(node) for node in (7, 2, 5, 9)]
    pipelines = assign(made, nodes, 2, groups, {})
    assert [pipeline.workers for pipeline in pipelines] == [(4, 5, 10, 11), (14, 15)]


def test_many_devices_are_matched() -> None:
    """A node of twelve devices whose stages are mixed up keeps everything, as the matching and the sets both see."""
    mixed = np.random.default_rng(0).permutation(12)
    overlap = np.zeros((2, 12, 12), np.int64)
    overlap[0, np.arange(12), mixed] = 5
    orders = DeviceOrders(overlap, [1] * 12)
    assert orders.kept.tolist() == [60, 0]
    assert [mixed[start] for start in orders.starts(0)] == list(range(12))
    assert sorted(orders.starts(1)) == list(range(12))


def test_many_stages_of_many_sizes_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table is made in pieces, with the same result."""
    overlap = np.random.default_rng(1).integers(0, 5, (6, 11, 10))
    whole = DeviceOrders(overlap, [2, *[1] * 9])
    monkeypatch.setattr(placement, "_TABLE_ENTRIES", 4 << 10)
    pieces = DeviceOrders(overlap, [2, *[1] * 9])
    assert pieces.kept.tolist() == whole.kept.tolist()
    for node in range(6):
        starts = pieces.starts(node)
        assert starts == whole.starts(node)
        assert sum(int(overlap[node, start, at]) for at, start in enumerate(starts)) == pieces.kept[node]
        assert sorted([*starts, starts[0] + 1]) == list(range(11))


def test_too_few_nodes_or_devices_are_refused() -> None:
    groups = uniform_profile(2).groups
    with pytest.raises(PlanError, match="need 2 nodes, and there are 1"):
        assign([template([[(1, 1)], [(1, 1)]])], [NodeId(0)], 1, groups, {})
    with pytest.raises(PlanError, match=r"Stages of 1, 2 devices need 3, and a node has 2"):
        assign([template([[(1, 1), (1, 2)]])], [NodeId(0)], 2, groups, {})
