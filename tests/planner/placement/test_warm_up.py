"""Warm-ups in parts: what has room moves, whole layers at a time, until the next plan's workers lack nothing."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.plan.thresholds import WORTH_SPLITTING_BYTES
from planaria.plan.validate import validate
from planaria.planner.placement.transfers import transfers
from planaria.planner.placement.warm_up import Room, warm_up
from tests.plan.shapes import Scene, random_crowd, random_scene
from tests.proof import batches

SEEDS = batches(range(600), size=450, kept=150)


def random_plan(scene: Scene, seed: int) -> Plan:
    """Roles on the scene's nodes as it happens."""
    nodes = random.Random(seed).sample(scene.nodes, len(scene.nodes))
    pipelines = []
    for made_of in scene.templates:
        stages = [
            Stage(worker=WorkerId(nodes.pop()), first_layer=stage.first_layer, end_layer=stage.end_layer)
            for stage in made_of.stages
        ]
        pipelines.append(Pipeline(stages=tuple(stages)))
    plan = scene.plan(pipelines)
    route = Route(hops=pipelines[0].stages, microbatches=(0,), born=1, counted=tuple(range(plan.num_layers)))
    return msgspec.structs.replace(plan, routes=(route,))


def taken(plan: Plan) -> Counter[tuple[str, int]]:
    """Bytes that go out of each node, and into it."""
    ways: Counter[tuple[str, int]] = Counter()
    for move in plan.transfers:
        size = move.moved_bytes(plan.groups[move.group])
        ways["out", move.source] += size
        ways["into", move.target] += size
    return ways


def largest_layer(plan: Plan) -> int:
    """Bytes of state of the layer that has most."""
    layers: Counter[int] = Counter()
    for group in plan.groups:
        for layer in group.layers:
            layers[layer] += group.moved_bytes
    return max(layers.values())


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_less_is_lacking_after_each_step_and_nothing_in_the_end(seeds: range) -> None:
    """No link has more to carry than there is room for, but for one layer that is larger than that."""
    in_parts = 0
    for seed in seeds:
        scene = random_crowd(seed) if seed % 2 else random_scene(seed)
        if scene.devices_per_node > 1:
            continue
        plan, placed = random_plan(scene, seed), random_plan(scene, seed + 1)
        target = placed.renewed(transfers=transfers(placed, plan.groups_of))
        room_bytes = random.Random(seed).randint(0, max(1, target.moved_bytes))
        room = Room(
            seconds=lambda node, room=room_bytes: float(room),
            link_s=lambda move, plan=plan: float(move.moved_bytes(plan.groups[move.group])),
        )
        steps = 0
        while target.transfers:
            lacking = {(move.group, move.target) for move in target.transfers}
            step = warm_up(plan, target, 2 + steps, room)
            validate(step)
            assert (step.pipelines, step.routes) == (plan.pipelines, plan.routes)
            assert {(move.group, move.target) for move in step.transfers} <= lacking
            assert max(taken(step).values(), default=0) <= max(room_bytes, largest_layer(plan))
            target = target.renewed(transfers=transfers(target, step.groups_of))
            assert {(move.group, move.target) for move in target.transfers} < lacking
            steps += 1
        in_parts += steps > 1
    assert in_parts > len(seeds) / 20


def test_without_limits_all_moves_beside_one_step() -> None:
    plan, target = two_replicas_and_a_third()
    step = warm_up(plan, target, 2)
    assert step.transfers == target.transfers
    assert step.groups_of == {WorkerId(worker): (0, 1, 2, 3) for worker in range(3)}
    assert not target.renewed(transfers=transfers(target, step.groups_of)).transfers


def test_layers_wait_that_a_busy_sender_has() -> None:
    """Half of the layers come from each of two; one of these has hardly any time left to send."""
    plan, target = two_replicas_and_a_third()
    room = Room(seconds=lambda node: 1.0 if node == NodeId(0) else 9.0, link_s=lambda move: 1.0)
    step = warm_up(plan, target, 2, room)
    assert Counter(move.source for move in step.transfers) == {0: 1, 1: 2}
    assert [layer for shadow in step.shadows for layer in shadow.layers] == sorted(
        move.group for move in step.transfers
    )


def test_a_layer_that_is_too_much_for_its_sender_comes_from_all_who_have_it() -> None:
    plan, target = two_replicas_and_a_third(size_bytes=2 * WORTH_SPLITTING_BYTES + 1)

    def link_s(move: Transfer) -> float:
        return move.moved_bytes(plan.groups[move.group]) / plan.groups[move.group].moved_bytes

    room = Room(seconds=lambda node: 9.0 if node == NodeId(2) else 0.6, link_s=link_s)
    step = warm_up(plan, target, 2, room)
    assert [(move.source, move.part) for move in step.transfers] == [
        (0, (0, WORTH_SPLITTING_BYTES)),
        (1, (WORTH_SPLITTING_BYTES, 2 * WORTH_SPLITTING_BYTES + 1)),
    ]


def two_replicas_and_a_third(size_bytes: int = 8) -> tuple[Plan, Plan]:
    """Four layers; each of the two nodes that have them sends two to the third."""

    def pipelines(count: int) -> tuple[Pipeline, ...]:
        return tuple(
            Pipeline(stages=(Stage(worker=WorkerId(worker), first_layer=0, end_layer=4),)) for worker in range(count)
        )

    plan = Plan(
        generation=1,
        num_layers=4,
        num_microbatches=1,
        devices_per_node=1,
        groups=tuple(Group(layers=(layer,), size_bytes=size_bytes) for layer in range(4)),
        pipelines=pipelines(2),
        routes=(),
        sync_epochs=(1,) * 4,
    )
    moves = tuple(Transfer(group=group, source=WorkerId(group % 2), target=WorkerId(2)) for group in range(4))
    return plan, msgspec.structs.replace(plan, pipelines=pipelines(3), transfers=moves)
