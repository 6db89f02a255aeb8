"""Templates and clusters for tests of placement and transfers: random, small, and without costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

from planaria.plan.costs.pipeline_time import Template, TemplateStage
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, WorkerId


def template(nodes: Sequence[Sequence[tuple[int, int]]]) -> Template:
    """Stages from the first layer on; for each node, each stage's number of layers and of devices."""
    stages: list[TemplateStage] = []
    first = 0
    for node, given in enumerate(nodes):
        for num_layers, num_devices in given:
            stages.append(
                TemplateStage(first_layer=first, end_layer=first + num_layers, node=node, num_devices=num_devices)
            )
            first += num_layers
    cost = PipelineCost(path_s=1.0, period_s=1.0)
    return Template(num_nodes=len(nodes), stages=tuple(stages), step_time_s=1.0, cost=cost)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What placement and transfers are given."""

    templates: list[Template]
    nodes: list[NodeId]
    devices_per_node: int
    groups: tuple[Group, ...]
    holders: dict[WorkerId, tuple[int, ...]]

    def plan(self, pipelines: Sequence[Pipeline]) -> Plan:
        return Plan(
            generation=1,
            num_layers=1 + max(layer for group in self.groups for layer in group.layers),
            num_microbatches=1,
            devices_per_node=self.devices_per_node,
            groups=self.groups,
            pipelines=tuple(pipelines),
            routes=(),
            sync_epochs=(1,) * len(self.groups),
        )


def random_scene(seed: int) -> Scene:
    """At most five nodes that may be used, and at most two others that only send. Every group has a holder.

    Nodes hold what a role needs or anything else, and groups are often equal, so that often several placements move
    the fewest bytes.
    """
    draw = random.Random(seed)
    max_size = draw.choice([1, 1, 2, 9])
    per_node = draw.choice([1, 1, 2, 4])
    num_nodes = draw.randint(1, 5 if per_node < 4 else 4)
    templates = []
    num_layers = draw.randint(num_nodes * per_node, num_nodes * per_node + 4)
    left = num_nodes
    while left and (not templates or draw.random() < 0.7):
        size = draw.randint(1, left)
        templates.append(template(_cut(draw, num_layers, size, per_node)))
        left -= size
    groups = [Group(layers=(layer,), size_bytes=draw.randint(1, max_size)) for layer in range(num_layers)]
    if num_layers > 1 and draw.random() < 0.5:
        layers = tuple(sorted(draw.sample(range(num_layers), 2)))
        groups.append(Group(layers=layers, size_bytes=draw.randint(0, max_size)))
    names = sorted(draw.sample(range(9), num_nodes + draw.randint(0, 2)))
    holders = {
        WorkerId(node * per_node + device): _held(draw, templates, groups)
        for node in names
        for device in range(per_node)
    }
    sender = WorkerId(names[-1] * per_node)
    unheld = set(range(len(groups))).difference(*holders.values())
    holders[sender] = tuple(sorted({*holders[sender], *unheld}))
    return Scene(
        templates=templates,
        nodes=[NodeId(node) for node in names[:num_nodes]],
        devices_per_node=per_node,
        groups=tuple(groups),
        holders=holders,
    )


def _cut(draw: random.Random, num_layers: int, num_nodes: int, per_node: int) -> list[list[tuple[int, int]]]:
    """A random template; some leave devices idle."""
    counts = []
    for _ in range(num_nodes):
        devices = [draw.randint(1, per_node)]
        while sum(devices) < per_node and draw.random() < 0.8:
            devices.append(draw.randint(1, per_node - sum(devices)))
        counts.append(devices)
    num_stages = sum(map(len, counts))
    cuts = [0, *sorted(draw.sample(range(1, num_layers), num_stages - 1)), num_layers]
    sizes = iter([end - first for first, end in pairwise(cuts)])
    return [[(next(sizes), num_devices) for num_devices in devices] for devices in counts]


def _held(draw: random.Random, templates: Sequence[Template], groups: Sequence[Group]) -> tuple[int, ...]:
    kind = draw.random()
    if kind < 0.2:
        return ()
    if kind < 0.4:
        return tuple(sorted(draw.sample(range(len(groups)), draw.randint(0, len(groups)))))
    stage = draw.choice(draw.choice(templates).stages)
    first = max(stage.first_layer + draw.randint(-1, 1), 0)
    return needed(groups, first, first + stage.end_layer - stage.first_layer)


def needed(groups: Sequence[Group], first_layer: int, end_layer: int) -> tuple[int, ...]:
    """The groups of these layers."""
    return tuple(g for g, group in enumerate(groups) if any(first_layer <= layer < end_layer for layer in group.layers))


def least_sent(scene: Scene, outer: Counter[int]) -> int:
    """What the busiest sender sends at least, rounded up, if every group is needed `outer` times from other nodes.

    For every set of nodes: what only they hold, over their number (Hall).
    """
    held: dict[int, set[int]] = {}
    for worker, groups in scene.holders.items():
        held.setdefault(worker // scene.devices_per_node, set()).update(groups)
    most = Fraction(0)
    for count in range(1, len(held) + 1):
        for nodes in combinations(held, count):
            elsewhere = {g for node, groups in held.items() if node not in nodes for g in groups}
            need = sum(times * scene.groups[g].size_bytes for g, times in outer.items() if g not in elsewhere)
            most = max(most, Fraction(need, count))
    return -(-most.numerator // most.denominator)


def random_crowd(seed: int) -> Scene:
    """Three to six nodes that take a whole small model each, and two or three that hold anything of it."""
    draw = random.Random(seed)
    per_node = draw.choice([1, 1, 2])
    num_layers = draw.randint(per_node, 4)
    num_nodes = draw.randint(3, 6)
    nodes = [NodeId(node) for node in draw.sample(range(9), num_nodes)]
    groups = tuple(Group(layers=(layer,), size_bytes=draw.randint(0, 20)) for layer in range(num_layers))
    workers = [WorkerId(node * per_node + device) for node in nodes for device in range(per_node)]
    holders: dict[WorkerId, tuple[int, ...]] = dict.fromkeys(workers, ())
    senders = draw.sample(workers, draw.randint(2, 3))
    for sender in senders:
        holders[sender] = tuple(g for g in range(num_layers) if draw.random() < 0.7)
    unheld = set(range(num_layers)).difference(*holders.values())
    holders[senders[0]] = tuple(sorted({*holders[senders[0]], *unheld}))
    return Scene(
        templates=[template(_cut(draw, num_layers, 1, per_node)) for _ in range(num_nodes)],
        nodes=nodes,
        devices_per_node=per_node,
        groups=groups,
        holders=holders,
    )
