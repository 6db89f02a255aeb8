"""Placement: which node takes which part of which template, so that little state moves; and what moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from planaria.plan.errors import NoReplica
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Stage, Transfer, WorkerId
from planaria.plan.templates import Template, TemplateStage

Holders = Mapping[WorkerId, Collection[int]]
"""For each live worker, the groups that it holds an up-to-date replica of."""


def assign(
    templates: Sequence[Template],
    nodes: Sequence[NodeId],
    devices_per_node: int,
    groups: Sequence[Group],
    holders: Holders,
) -> list[Pipeline]:
    """One pipeline a template on these nodes; nodes that are left over stay idle.

    Greedy: the (node, part of a template) pair with the most bytes already in place goes first; then the
    lowest template and the lowest node.
    """
    overlap = _Overlap(groups)
    held = {
        node: tuple(
            frozenset(holders.get(WorkerId(node * devices_per_node + device), ())) for device in range(devices_per_node)
        )
        for node in nodes
    }
    roles = [(at, part) for at, template in enumerate(templates) for part in range(template.num_nodes)]
    stages = {(at, part): templates[at].stages_of(part) for at, part in roles}
    pairs = sorted((-overlap.node(held[node], stages[role]), role, node) for role in roles for node in sorted(nodes))
    chosen: dict[tuple[int, int], NodeId] = {}
    used: set[NodeId] = set()
    for _, role, node in pairs:
        if role not in chosen and node not in used:
            chosen[role] = node
            used.add(node)
    pipelines: list[Pipeline] = []
    for at, template in enumerate(templates):
        placed: list[Stage] = []
        for part in range(template.num_nodes):
            node = chosen[at, part]
            devices = overlap.devices(held[node], stages[at, part])
            placed.extend(
                Stage(
                    worker=WorkerId(node * devices_per_node + device),
                    first_layer=stage.first_layer,
                    end_layer=stage.end_layer,
                    num_devices=stage.num_devices,
                )
                for device, stage in zip(devices, stages[at, part], strict=True)
            )
        pipelines.append(Pipeline(stages=tuple(placed)))
    return pipelines


class _Overlap:
    """Bytes of a stage's groups that a worker holds already."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self.node = lru_cache(maxsize=None)(self._node)
        self._bytes = lru_cache(maxsize=None)(self._uncached_bytes)

    def _uncached_bytes(self, held: frozenset[int], stage: TemplateStage) -> int:
        return sum(
            self._groups[g].size_bytes
            for g in held
            if any(stage.first_layer <= layer < stage.end_layer for layer in self._groups[g].layers)
        )

    def devices(self, held: tuple[frozenset[int], ...], stages: tuple[TemplateStage, ...]) -> list[int]:
        """For each stage of a node, its device: greedy, most bytes first, then in order."""
        pairs = sorted(
            (-self._bytes(groups, stage), place, device)
            for place, stage in enumerate(stages)
            for device, groups in enumerate(held)
        )
        chosen: dict[int, int] = {}
        for _, place, device in pairs:
            if place not in chosen and device not in chosen.values():
                chosen[place] = device
        return [chosen[place] for place in range(len(stages))]

    def _node(self, held: tuple[frozenset[int], ...], stages: tuple[TemplateStage, ...]) -> int:
        devices = self.devices(held, stages)
        return sum(self._bytes(held[device], stage) for device, stage in zip(devices, stages, strict=True))


def transfers(plan: Plan, holders: Holders) -> tuple[Transfer, ...]:
    """What each worker of the plan lacks, from live replicas, so that no source has to send much.

    Groups with few replicas and large groups go first; each is sent by the source with the fewest bytes so
    far, then the lowest worker.

    Raises:
        NoReplica: nobody holds a group.
    """
    sources: list[list[WorkerId]] = [[] for _ in plan.groups]
    for worker in sorted(holders):
        for group in holders[worker]:
            sources[group].append(worker)
    for group, available in enumerate(sources):
        if not available:
            raise NoReplica(group, plan.groups[group].layers)
    lacking = [
        (len(sources[group]), -plan.groups[group].size_bytes, group, worker)
        for worker, groups in plan.groups_of.items()
        for group in groups
        if group not in set(holders.get(worker, ()))
    ]
    sent = dict.fromkeys(holders, 0)
    moves: list[Transfer] = []
    for _, negative_bytes, group, target in sorted(lacking):
        source = min(sources[group], key=lambda worker: (sent[worker], worker))
        sent[source] -= negative_bytes
        moves.append(Transfer(group=group, source=source, target=target))
    return tuple(sorted(moves, key=lambda move: (move.target, move.group)))
