"""Rings: equal pipelines whose workers shadow each other, and which node goes where in them.

Source: Bamboo, sections 4, 5 and appendix A. All pipelines have the user's depth P; each worker shadows its successor,
the last one the first; neighbours, the last and the first included, are in different zones where that can be, because
nodes of one zone are taken away together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from planaria.plan.costs.pipeline_time import Template
from planaria.plan.plan import NodeId, Pipeline, Plan, Stage, WorkerId
from planaria.planner.instantiation.instantiate import place
from planaria.planner.placement.senders import Holders
from planaria.planner.placement.zones import Zones

Ring = tuple[NodeId | None, ...]
"""Nodes of a pipeline, from its first part to its last; None: no node yet."""


def ring_shadows(pipelines: Sequence[Pipeline], devices_per_node: int) -> tuple[Stage, ...]:
    """Returns shadows by which every worker holds the stage of its successor; with several workers on a node, of the
    one with the same number on the next node that has as many. None on one node, which is lost as one."""
    shadows: list[Stage] = []
    for pipeline in pipelines:
        by_node: dict[int, list[Stage]] = {}
        for stage in pipeline.stages:
            by_node.setdefault(stage.worker // devices_per_node, []).append(stage)
        nodes = list(by_node)
        if len(nodes) < 2:
            continue
        for at, node in enumerate(nodes):
            workers = sorted({(stage.worker, stage.num_devices) for stage in by_node[nodes[at - 1]]})
            for number, stage in enumerate(by_node[node]):
                worker, num_devices = workers[number % len(workers)]
                shadows.append(msgspec.structs.replace(stage, worker=worker, num_devices=num_devices))
    return tuple(shadows)


def conflicts(ring: Sequence[NodeId | None], zones: Zones) -> int:
    """Returns how many neighbours are in one zone. Nodes without a known zone are in none."""
    if len(ring) < 2:
        return 0
    pairs = list(zip(ring, [*ring[1:], ring[0]], strict=True))
    if len(ring) == 2:
        pairs = pairs[:1]
    return sum(_is_conflict(one, other, zones) for one, other in pairs)


def _is_conflict(one: NodeId | None, other: NodeId | None, zones: Zones) -> bool:
    zone = None if one is None else zones.get(one)
    return zone is not None and other is not None and zones.get(other) == zone


def spread(nodes: Sequence[NodeId], num_rings: int, depth: int, zones: Zones) -> tuple[tuple[NodeId, ...], ...]:
    """Returns rings with as few neighbours in one zone as a greedy choice and exchanges of two nodes find.

    The nodes of the zone with most left go next, unless the last one was of that zone. Without zones, nodes stay in
    ascending order.

    Args:
        nodes: at least num_rings * depth; the first ones are taken.
        num_rings: how many pipelines.
        depth: nodes of each pipeline.
        zones: node -> its zone.
    """
    chosen = sorted(nodes)[: num_rings * depth] if not zones else _balanced(sorted(nodes), num_rings * depth, zones)
    order: list[NodeId] = []
    left: dict[str, list[NodeId]] = {}
    for node in chosen:
        left.setdefault(zones.get(node, ""), []).append(node)
    while any(left.values()):
        last = zones.get(order[-1], "") if order and len(order) % depth else None
        usable = [zone for zone, members in left.items() if members and (zone != last or not zone)]
        zone = max(usable or [z for z, m in left.items() if m], key=lambda z: (len(left[z]), -left[z][0]))
        order.append(left[zone].pop(0))
    return _exchanged([order[at * depth : (at + 1) * depth] for at in range(num_rings)], zones)


def _balanced(nodes: Sequence[NodeId], number: int, zones: Zones) -> list[NodeId]:
    """Returns so many nodes, from as many zones as evenly as can be."""
    counts: dict[str, int] = {}
    ranked: list[tuple[int, NodeId]] = []
    for node in nodes:
        zone = zones.get(node, "")
        counts[zone] = counts.get(zone, 0) + 1
        ranked.append((counts[zone] if zone else 0, node))
    return sorted(node for _, node in sorted(ranked)[:number])


def _exchanged(rings: list[list[NodeId]], zones: Zones) -> tuple[tuple[NodeId, ...], ...]:
    """Returns the rings after exchanging two nodes wherever that leaves fewer neighbours in one zone."""
    places = [(ring, at) for ring in range(len(rings)) for at in range(len(rings[ring]))]
    while True:
        bad = [place for place in places if _is_bad(rings, place, zones)]
        if not any(_exchange(rings, one, other, zones) for one in bad for other in places):
            return tuple(tuple(ring) for ring in rings)


def _is_bad(rings: Sequence[Sequence[NodeId]], place: tuple[int, int], zones: Zones) -> bool:
    ring, at = rings[place[0]], place[1]
    return len(ring) > 1 and _is_conflict(ring[at], ring[(at + 1) % len(ring)], zones)


def _exchange(rings: list[list[NodeId]], a: tuple[int, int], b: tuple[int, int], zones: Zones) -> bool:
    one, other = rings[a[0]], rings[b[0]]
    if zones.get(one[a[1]]) == zones.get(other[b[1]]):
        return False

    def number() -> int:
        return conflicts(one, zones) + (conflicts(other, zones) if a[0] != b[0] else 0)

    before = number()
    one[a[1]], other[b[1]] = other[b[1]], one[a[1]]
    if number() < before:
        return True
    one[a[1]], other[b[1]] = other[b[1]], one[a[1]]
    return False


def left_in_place(plan: Plan, template: Template, live: Collection[NodeId]) -> list[Ring]:
    """Returns, for each pipeline of the template's shape, the nodes that are where the template has them."""
    rings: list[Ring] = []
    for pipeline in plan.pipelines:
        cut = [(s.first_layer, s.end_layer, s.num_devices) for s in pipeline.stages]
        if cut != [(s.first_layer, s.end_layer, s.num_devices) for s in template.stages]:
            continue
        of_part: dict[int, set[NodeId]] = {}
        for stage, part in zip(pipeline.stages, template.stages, strict=True):
            of_part.setdefault(part.node, set()).add(plan.node_of(stage.worker))
        ring: list[NodeId | None] = []
        for part_number in range(template.num_nodes):
            nodes = of_part[part_number]
            node = next(iter(nodes)) if len(nodes) == 1 else None
            # Who took over has two places, and stays in his own: the one whose stage nobody has in his stead.
            ring.append(node if node in live and node not in ring else None)
        rings.append(tuple(_own_places(plan, pipeline, template, ring)))
    return rings


def _own_places(plan: Plan, pipeline: Pipeline, template: Template, ring: Sequence[NodeId | None]) -> Ring:
    """Returns the ring where a worker that took its successor's place as well keeps only the place before it."""
    nodes: list[NodeId | None] = [None] * template.num_nodes
    for stage, part in zip(pipeline.stages, template.stages, strict=True):
        nodes[part.node] = plan.node_of(stage.worker)
    result = list(ring)
    if template.num_nodes > 1 and nodes[0] == nodes[-1] and nodes[0] is not None and result[0] == nodes[0]:
        result[0], result[-1] = None, nodes[0]  # the last one took the first one's
    return tuple(result)


def refilled(
    rings: Sequence[Ring], number: int, depth: int, waiting: Sequence[NodeId], needs: Lacks, zones: Zones
) -> tuple[tuple[NodeId, ...], ...] | None:
    """Returns so many whole rings, with as many nodes as can be where they were; None where there are too few nodes.

    The fullest stay, and the others' nodes, with those that wait, go where somebody lacks: first where their neighbours
    are in other zones, then where they hold most of the state.

    Args:
        rings: of the pipelines as they are.
        number: how many are wanted.
        depth: nodes of each pipeline.
        waiting: live nodes in no ring.
        needs: bytes that a node lacks for a place.
        zones: node -> its zone.
    """
    order = sorted(range(len(rings)), key=lambda at: (sum(node is None for node in rings[at]), at))
    kept = sorted(order[:number])
    free = sorted([*waiting, *(node for at in order[number:] for node in rings[at] if node is not None)])
    result = [list(rings[at]) for at in kept] + [[None] * depth for _ in range(number - len(kept))]
    gaps = [(ring, at) for ring, nodes in enumerate(result) for at, node in enumerate(nodes) if node is None]
    if len(free) < len(gaps):
        return None
    for ring, at in gaps:
        nodes = result[ring]
        beside = {nodes[at - 1], nodes[(at + 1) % depth]}
        best = min(
            free,
            key=lambda node: (sum(_is_conflict(node, other, zones) for other in beside), needs.of(node, at), node),
        )
        free.remove(best)
        nodes[at] = best
    whole = [[node for node in ring if node is not None] for ring in result]
    return tuple(tuple(ring) for ring in whole)


class Lacks:
    """Bytes of state that a node would have to get for a part of a template."""

    def __init__(self, plan: Plan, template: Template, holders: Holders) -> None:
        self._plan = plan
        self._template = template
        self._holders = holders
        self._known: dict[tuple[NodeId, int], int] = {}

    def of(self, node: NodeId, part: int) -> int:
        """Returns the bytes that the node lacks for the part, numbered from 0."""
        key = node, part
        if key not in self._known:
            pipeline = place(self._template, [node] * self._template.num_nodes, self._plan.devices_per_node)
            held = {
                group
                for device in range(self._plan.devices_per_node)
                for group in self._holders.get(WorkerId(node * self._plan.devices_per_node + device), ())
            }
            layers = {
                layer
                for stage, of_part in zip(pipeline.stages, self._template.stages, strict=True)
                if of_part.node == part
                for layer in stage.layers
            }
            self._known[key] = sum(
                group.moved_bytes
                for number, group in enumerate(self._plan.groups)
                if number not in held and not layers.isdisjoint(group.layers)
            )
        return self._known[key]
