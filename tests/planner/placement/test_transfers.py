"""Transfers: everybody gets exactly what he lacks, from whoever has it, and no node is busier than it must be."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from planaria.plan.errors import NoReplica
from planaria.plan.plan import Group, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.plan.thresholds import WORTH_SPLITTING_BYTES
from planaria.plan.validate import validate
from planaria.planner.placement.transfers import transfers
from tests.plan.shapes import Scene, least_sent, random_crowd, random_scene
from tests.proof import batches

SEEDS = batches(range(1200), size=900, kept=300)
MIB = 1 << 20


def random_plan(scene: Scene, seed: int) -> Plan:
    """Roles on the scene's nodes as it happens: more has to move than after an assignment."""
    draw = random.Random(seed)
    nodes = draw.sample(scene.nodes, len(scene.nodes))
    pipelines = []
    for made_of in scene.templates:
        stages = []
        for part in range(made_of.num_nodes):
            worker = nodes.pop() * scene.devices_per_node
            for stage in made_of.stages_of(part):
                stages.append(
                    Stage(
                        worker=WorkerId(worker),
                        first_layer=stage.first_layer,
                        end_layer=stage.end_layer,
                        num_devices=stage.num_devices,
                    )
                )
                worker += stage.num_devices
        pipelines.append(Pipeline(stages=tuple(stages)))
    plan = scene.plan(pipelines)
    route = Route(hops=pipelines[0].stages, microbatches=(0,), born=1, counted=tuple(range(plan.num_layers)))
    return msgspec.structs.replace(plan, routes=(route,))


def loads(plan: Plan, moves: Sequence[Transfer]) -> tuple[Counter[int], Counter[int]]:
    """Bytes of parameters that each node sends to other nodes and gets from them."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for move in moves:
        size = move.moved_bytes(plan.groups[move.group])
        assert size % 3 == 0
        if plan.node_of(move.source) != plan.node_of(move.target):
            sent[plan.node_of(move.source)] += size // 3
            received[plan.node_of(move.target)] += size // 3
    return sent, received


def busiest(plan: Plan, moves: Sequence[Transfer]) -> int:
    return max([0, *(size for load in loads(plan, moves) for size in load.values())])


def check(plan: Plan, scene: Scene, moves: Sequence[Transfer]) -> Counter[int]:
    """Returns how often each group comes from another node."""
    validate(msgspec.structs.replace(plan, transfers=tuple(moves)))
    outer: Counter[int] = Counter()
    for move in moves:
        assert move.group in scene.holders[move.source]
    for worker, groups in plan.groups_of.items():
        lacking = set(groups) - set(scene.holders.get(worker, ()))
        assert {move.group for move in moves if move.target == worker} == lacking
        node = plan.node_of(worker)
        near = {g for other, held in scene.holders.items() if plan.node_of(other) == node for g in held}
        for move in moves:
            if move.target == worker:
                assert (plan.node_of(move.source) == node) == (move.group in near)
        outer.update(lacking - near)
    return outer


def best_of_all(plan: Plan, scene: Scene, outer: Counter[int]) -> int:
    """What the busiest node receives or sends at least, in parts of groups or otherwise."""
    _, received = loads(plan, transfers(plan, scene.holders))
    return max([least_sent(scene, outer), 0, *received.values()])


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_the_busiest_is_as_little_busy_as_can_be(seeds: range) -> None:
    """If splitting costs nothing; else within what it is worth. No choice of whole groups is better than that."""
    split = 0
    for seed in seeds:
        scene = random_crowd(seed) if seed % 2 else random_scene(seed)
        plan = random_plan(scene, seed)
        for worth in (2, 0):
            moves = transfers(plan, scene.holders, worth_splitting_bytes=worth)
            best = best_of_all(plan, scene, check(plan, scene, moves))
            assert best <= busiest(plan, moves) <= best + worth, (seed, worth)
        split += any(move.part for move in moves)
    assert split > len(seeds) / 20


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_no_choice_of_whole_groups_is_better(seeds: range) -> None:
    """The same against an oracle that knows nothing of bounds: every choice of sources."""
    tried = 0
    for seed in seeds:
        scene = random_crowd(seed) if seed % 2 else random_scene(seed)
        if scene.devices_per_node > 1:
            continue
        plan = random_plan(scene, seed)
        needs = [(g, w) for w, groups in plan.groups_of.items() for g in groups if g not in scene.holders.get(w, ())]
        options = [[w for w, held in scene.holders.items() if group in held] for group, _ in needs]
        if sum(map(len, options)) > 14:
            continue
        tried += 1
        least = min(
            busiest(plan, [Transfer(group=g, source=s, target=w) for (g, w), s in zip(needs, chosen, strict=True)])
            for chosen in itertools.product(*options)
        )
        for worth in (0, 3):
            assert busiest(plan, transfers(plan, scene.holders, worth_splitting_bytes=worth)) <= least + worth, seed
    assert tried > 100


def plan_of(owners: Sequence[range], size_bytes: int) -> Plan:
    """Worker i owns the layers owners[i], each a group of that size."""
    stages = [
        Stage(worker=WorkerId(worker), first_layer=layers.start, end_layer=layers.stop)
        for worker, layers in enumerate(owners)
    ]
    num_layers = max(layers.stop for layers in owners)
    return Plan(
        generation=1,
        num_layers=num_layers,
        num_microbatches=1,
        devices_per_node=1,
        groups=tuple(Group(layers=(layer,), size_bytes=size_bytes) for layer in range(num_layers)),
        pipelines=tuple(Pipeline(stages=(stage,)) for stage in stages),
        routes=(),
        sync_epochs=(1,) * num_layers,
    )


def test_three_newcomers_and_two_holders() -> None:
    """Whole, one holder sends two times; split, both send one and a half."""
    plan = plan_of([range(1)] * 5, 10 * MIB)
    holders = {WorkerId(0): (0,), WorkerId(1): (0,)}
    moves = transfers(plan, holders)
    assert busiest(plan, moves) == 15 * MIB
    assert [(move.source, move.target, move.part) for move in moves] == [
        (0, 2, None),
        (0, 3, (0, 5 * MIB)),
        (1, 3, (5 * MIB, 10 * MIB)),
        (1, 4, None),
    ]


def test_small_groups_stay_whole() -> None:
    """What splitting would spare the busiest is not worth a message."""
    plan = plan_of([range(1)] * 5, 2 * WORTH_SPLITTING_BYTES)
    holders = {WorkerId(0): (0,), WorkerId(1): (0,)}
    assert all(move.part is None for move in transfers(plan, holders))
    assert any(move.part for move in transfers(plan, holders, worth_splitting_bytes=WORTH_SPLITTING_BYTES // 2))


def test_a_newcomer_alone_gets_whole_groups() -> None:
    """It is the busiest itself; parts would not help."""
    plan = plan_of([range(4)] * 3, 100 * MIB)
    moves = transfers(plan, {WorkerId(0): (0, 1, 2, 3), WorkerId(1): (0, 1, 2, 3)})
    assert [move.part for move in moves] == [None] * 4
    assert Counter(move.source for move in moves) == {0: 2, 1: 2}


def test_weightless_groups_move_too() -> None:
    plan = plan_of([range(2)] * 5, 10 * MIB)
    groups = (plan.groups[0], Group(layers=(1,), size_bytes=0))
    plan = msgspec.structs.replace(plan, groups=groups)
    moves = transfers(plan, {WorkerId(0): (0, 1), WorkerId(1): (0, 1)})
    assert any(move.part for move in moves)
    assert {(move.group, move.target) for move in moves if move.group == 1} == {(1, 2), (1, 3), (1, 4)}


def test_a_group_that_nobody_holds_has_no_replica() -> None:
    with pytest.raises(NoReplica, match="group 1"):
        transfers(plan_of([range(2)], 1), {WorkerId(0): (0,)})
