"""Transfers at 512 nodes: what moves after many losses, how busy the busiest node is, and how long planning it takes.

    PYTHONPATH=src python benchmarks/planner_transfers.py

Beside it the greedy way: who holds most of a role takes it, and the first holder sends. Loads are in layers. Planning
is one thread's work, and its time is the processor's: other processes do not count.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import msgspec
from figures import note, report

from planaria.estimate.transfer_time import transfer_time
from planaria.plan.costs.model_profile import LinkCost, Links
from planaria.plan.costs.pipeline_time import Template, TemplateStage
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Stage, Transfer, WorkerId
from planaria.planner.placement.placement import assign
from planaria.planner.placement.senders import Holders
from planaria.planner.placement.transfers import transfers

NUM_NODES = 512
NUM_LAYERS = 96
LAYER_BYTES = 50_000_000
REPEATS = 15
LINKS = Links(
    within_node=LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=300e9),
    between_nodes=LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=25e9),
)


def template(num_nodes: int, devices_per_node: int) -> Template:
    """An even split."""
    num_stages = num_nodes * devices_per_node
    cuts = [round(NUM_LAYERS * at / num_stages) for at in range(num_stages + 1)]
    stages = tuple(
        TemplateStage(first_layer=cuts[at], end_layer=cuts[at + 1], node=at // devices_per_node)
        for at in range(num_stages)
    )
    cost = PipelineCost(path_s=1.0, period_s=1.0)
    return Template(num_nodes=num_nodes, stages=stages, step_time_s=1.0, cost=cost)


@dataclass(frozen=True)
class Case:
    """Pipelines of `size` nodes lose nodes and get new ones, and each is made anew of what it has; or all are made anew
    as pipelines of `size`, as many as there can be."""

    name: str
    size: int
    devices_per_node: int
    lost: frozenset[int]
    joined: int = 0
    anew: bool = False

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        own = [Group(layers=(layer,), size_bytes=LAYER_BYTES) for layer in range(NUM_LAYERS)]
        return (*own, Group(layers=(0, NUM_LAYERS - 1), size_bytes=3 * LAYER_BYTES))

    @cached_property
    def holders(self) -> Holders:
        before = template(self.size, self.devices_per_node)
        holders: dict[WorkerId, tuple[int, ...]] = {}
        for node in range(NUM_NODES):
            for device, stage in enumerate(before.stages_of(node % self.size)):
                layers = range(stage.first_layer, stage.end_layer)
                held = [g for g, group in enumerate(self.groups) if not set(group.layers).isdisjoint(layers)]
                if node not in self.lost:
                    holders[WorkerId(node * self.devices_per_node + device)] = tuple(held)
        for worker in range(self.joined * self.devices_per_node):
            holders[WorkerId(NUM_NODES * self.devices_per_node + worker)] = ()
        return holders

    @cached_property
    def nodes(self) -> list[NodeId]:
        return sorted({NodeId(worker // self.devices_per_node) for worker in self.holders})

    @cached_property
    def templates(self) -> list[Template]:
        if self.anew:
            return [template(self.size, self.devices_per_node)] * (len(self.nodes) // self.size)
        alive = Counter(node // self.size for node in range(NUM_NODES) if node not in self.lost)
        sizes = [alive[at] for at in range(NUM_NODES // self.size) if alive[at]]
        for at in range(self.joined):
            sizes[at % len(sizes)] += 1
        return [template(size, self.devices_per_node) for size in sizes]

    def plan(self, pipelines: list[Pipeline]) -> Plan:
        return Plan(
            generation=2,
            num_layers=NUM_LAYERS,
            num_microbatches=NUM_NODES,
            devices_per_node=self.devices_per_node,
            groups=self.groups,
            pipelines=tuple(pipelines),
            routes=(),
            sync_epochs=(2,) * len(self.groups),
        )


def cases() -> list[Case]:
    draw = random.Random(0)
    one_each = frozenset(8 * at + at % 8 for at in range(64))
    anywhere = frozenset(draw.sample(range(NUM_NODES), 64))
    return [
        Case("one_of_each", 8, 1, one_each),
        Case("anywhere", 8, 1, anywhere),
        Case("anywhere_and_32_come", 8, 1, anywhere, 32),
        Case("long_pipelines", 32, 1, anywhere),
        Case("8_devices", 8, 8, anywhere),
        # Three of eight pipelines are left, and as many nodes as were lost come.
        Case("most_come_back", 64, 1, frozenset(range(192, NUM_NODES)), NUM_NODES - 192, anew=True),
    ]


def greedy(case: Case) -> tuple[list[Pipeline], tuple[Transfer, ...]]:
    """Most bytes in place first (one device a node); the first holder sends."""
    roles = [(t, part) for t in range(len(case.templates)) for part in range(case.templates[t].num_nodes)]
    sizes = [group.size_bytes for group in case.groups]
    stage_of = {role: case.templates[role[0]].stages_of(role[1])[0] for role in roles}
    need = {
        stage: {
            g
            for g, group in enumerate(case.groups)
            if any(stage.first_layer <= layer < stage.end_layer for layer in group.layers)
        }
        for stage in set(stage_of.values())
    }
    kept = {
        (stage, held): sum(sizes[g] for g in groups.intersection(held))
        for stage, groups in need.items()
        for held in set(case.holders.values())
    }
    pairs = sorted(
        (-kept[stage_of[role], case.holders[WorkerId(node)]], role, node) for role in roles for node in case.nodes
    )
    chosen: dict[tuple[int, int], int] = {}
    used: set[int] = set()
    for _, role, node in pairs:
        if role not in chosen and node not in used:
            chosen[role] = node
            used.add(node)
    first = {g: min(w for w, held in case.holders.items() if g in held) for g in range(len(sizes))}
    pipelines = []
    moves = []
    for at, made_of in enumerate(case.templates):
        stages = []
        for part in range(made_of.num_nodes):
            stage, worker = stage_of[at, part], WorkerId(chosen[at, part])
            stages.append(Stage(worker=worker, first_layer=stage.first_layer, end_layer=stage.end_layer))
            moves += [
                Transfer(group=g, source=first[g], target=worker) for g in need[stage] - set(case.holders[worker])
            ]
        pipelines.append(Pipeline(stages=tuple(stages)))
    return pipelines, tuple(moves)


def loads(case: Case, moves: tuple[Transfer, ...]) -> tuple[float, float, float]:
    """Layers that move between nodes, that the busiest node sends, and that the busiest receives."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for move in moves:
        source, target = move.source // case.devices_per_node, move.target // case.devices_per_node
        if source != target:
            size = move.moved_bytes(case.groups[move.group]) / (3 * LAYER_BYTES)
            sent[source] += size
            received[target] += size
    return sum(sent.values()), max(sent.values(), default=0.0), max(received.values(), default=0.0)


def measure(case: Case) -> None:
    matching, choosing = [], []
    for _ in range(REPEATS):
        holders = dict(case.holders)
        began = time.process_time()
        pipelines = assign(case.templates, case.nodes, case.devices_per_node, case.groups, holders)
        assigned = time.process_time()
        moves = transfers(case.plan(pipelines), holders)
        matching.append(1e3 * (assigned - began))
        choosing.append(1e3 * (time.process_time() - assigned))
    total, sent, received = loads(case, moves)
    name = f"planner.transfers.{case.name}"
    split = sum(move.part is not None for move in moves)
    note(f"{case.name}: {len(case.nodes)} nodes, {len(moves)} transfers, {split} of them parts of a group")
    note(f"  assignment {min(matching):.2f} ms, sources {min(choosing):.2f} ms")
    report(f"{name}.time", min(matching) + min(choosing), "ms", goal="<= 20")
    if case.devices_per_node == 1:
        as_greedy = loads(case, greedy(case)[1])
        for what, value in zip(("moved", "busiest_sender", "busiest_receiver"), as_greedy, strict=True):
            report(f"{name}.greedy.{what}", value, "layers")
    for what, value in (("moved", total), ("busiest_sender", sent), ("busiest_receiver", received)):
        report(f"{name}.{what}", value, "layers")
    predicted = transfer_time(msgspec.structs.replace(case.plan(pipelines), transfers=moves), LINKS)
    report(f"{name}.predicted", 1e3 * predicted.time_s, "ms")
    report(f"{name}.predicted_over_bound", predicted.time_s / predicted.bound_s, "ratio")
    if split:
        whole = transfers(case.plan(pipelines), case.holders, worth_splitting_bytes=1 << 60)
        report(f"{name}.whole_groups.busiest_sender", loads(case, whole)[1], "layers")


def measure_transfers() -> None:
    for case in cases():
        measure(case)
