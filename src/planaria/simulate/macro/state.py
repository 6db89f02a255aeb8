"""A situation in which a job trains undisturbed, up to the names of nodes.

Nodes of a kind are alike, so a question about a cluster is asked of the protocol and the policies in canonical names:
pipelines in the order of their shapes, nodes in the order of their places. The answer is the same, but for ties that
are broken by number, for all clusters of that shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from planaria.plan.plan import NodeId, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.plan.zones import Zones

GENERATION = 1
"""Of every canonical plan."""

_Sign = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class State:
    """One.

    Attributes:
        plan: in force, canonical.
        num_idle: nodes that live and that it does without; their numbers follow its own.
        leaving: nodes that gave notice and are kept, since nothing is possible without them.
        zones: where each node is; "": not known. Empty where it is of none. Names are numbers: nodes that were in one
            zone are, and which one it was is no part of the state.
    """

    plan: Plan
    num_idle: int
    leaving: tuple[NodeId, ...] = ()
    zones: tuple[str, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    twins: tuple[tuple[tuple[int, int], ...] | None, ...] = field(init=False, repr=False, compare=False)
    """For each node, the nodes to change places with so that it is one of the first pipeline of its kind, or the first
    idle one; None: it is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.plan, self.num_idle, self.leaving, self.zones)))
        object.__setattr__(self, "twins", _twins(self))

    def __hash__(self) -> int:
        return self._hash

    @property
    def num_nodes(self) -> int:
        """Live ones."""
        return len(self.plan.nodes) + self.num_idle

    @property
    def num_microbatches(self) -> int:
        """That a step counts."""
        return sum(len(route.microbatches) for route in self.plan.routes)


def _twins(state: State) -> tuple[tuple[tuple[int, int], ...] | None, ...]:
    plan = state.plan
    twins: list[tuple[tuple[int, int], ...] | None] = [None] * state.num_nodes
    keys = [tuple((s.worker, s.first_layer, s.end_layer) for s in pipeline.stages) for pipeline in plan.pipelines]
    shares = {route.key: len(route.microbatches) for route in plan.routes}
    if shares.keys() <= set(keys) and not plan.shadows:
        firsts: dict[object, list[int]] = {}
        noticed = frozenset(state.leaving)
        for pipeline, key in zip(plan.pipelines, keys, strict=True):
            nodes = list(dict.fromkeys(int(plan.node_of(stage.worker)) for stage in pipeline.stages))
            where = tuple(state.zones[node : node + 1] for node in nodes)
            sign = _sign(plan, pipeline, shares.get(key, 0), noticed), where
            first = firsts.setdefault(sign, nodes)
            if first is not nodes:
                swaps = tuple(zip(first, nodes, strict=True))
                for node in nodes:
                    twins[node] = swaps
    if not state.leaving:
        of_zone: dict[tuple[str, ...], int] = {}
        for node in range(state.num_nodes - state.num_idle, state.num_nodes):
            first_idle = of_zone.setdefault(state.zones[node : node + 1], node)
            if first_idle != node:
                twins[node] = ((first_idle, node),)
    return tuple(twins)


def canonical(
    plan: Plan,
    nodes: Collection[NodeId],
    leaving: Iterable[NodeId] = (),
    *,
    zones: Zones | None = None,
    by_number: bool = False,
) -> tuple[State, tuple[NodeId, ...]]:
    """The state of live nodes under a plan, and, for each canonical number, the node that has it.

    Args:
        plan: in force; every microbatch has one route.
        nodes: live ones.
        leaving: of them, those that gave notice.
        zones: where nodes are.
        by_number: nodes keep the order of their numbers, and pipelines and microbatches theirs. Then ties are broken
            as in a run of these very nodes, and few situations are met twice.
    """
    noticed = frozenset(leaving)
    keys = [tuple((s.worker, s.first_layer, s.end_layer) for s in pipeline.stages) for pipeline in plan.pipelines]
    shares: dict[tuple[tuple[int, int, int], ...], int] = {}
    for route in plan.routes:
        shares[route.key] = shares.get(route.key, 0) + len(route.microbatches)
    order = list(range(len(keys)))
    if not by_number:
        pairs = zip(plan.pipelines, keys, strict=True)
        signs = [_sign(plan, pipeline, shares.get(key, 0), noticed) for pipeline, key in pairs]
        if zones:
            zones = _numbered(plan, signs, zones, nodes)
            where = [tuple(zones.get(plan.node_of(s.worker), "") for s in p.stages) for p in plan.pipelines]
            order.sort(key=lambda at: (signs[at], where[at], at))
        else:
            order.sort(key=lambda at: (signs[at], at))
    names = _names(plan, order, by_number=by_number)
    placed = len(names)
    idle = sorted(node for node in nodes if node not in names)
    if zones and not by_number:
        idle.sort(key=lambda node: (zones.get(node, ""), node))
    for node in idle:
        names[node] = NodeId(len(names))
    pipelines = tuple(_renamed(plan, plan.pipelines[at].stages, names) for at in order)
    dropped = plan.dropped
    if not by_number and shares.keys() <= set(keys):
        routes = _dealt(pipelines, [shares.get(keys[at], 0) for at in order], plan.num_layers)
        dropped = tuple(range(plan.num_microbatches - len(dropped), plan.num_microbatches))
    else:
        routes = tuple(
            msgspec.structs.replace(route, hops=_renamed(plan, route.hops, names), born=GENERATION)
            for route in (plan.routes if by_number else sorted(plan.routes, key=lambda route: route.microbatches))
        )
    result = msgspec.structs.replace(
        plan,
        generation=GENERATION,
        pipelines=tuple(Pipeline(stages=stages) for stages in pipelines),
        routes=routes,
        dropped=dropped,
        shadows=_renamed(plan, plan.shadows, names),
        transfers=(),
        sync_epochs=(GENERATION,) * len(plan.groups),
    )
    back = tuple(sorted(names, key=names.__getitem__))
    state = State(
        result,
        len(names) - placed,
        tuple(sorted(names[node] for node in noticed if node in names)),
        tuple(zones.get(node, "") for node in back) if zones else (),
    )
    return state, back


def _numbered(plan: Plan, signs: Sequence[_Sign], zones: Zones, nodes: Collection[NodeId]) -> dict[NodeId, str]:
    """Zones by numbers, in the order of what is in them, so that it does not matter what they are called."""
    places: dict[str, list[tuple[_Sign, int]]] = {}
    for pipeline, sign in zip(plan.pipelines, signs, strict=True):
        for at, stage in enumerate(pipeline.stages):
            zone = zones.get(plan.node_of(stage.worker), "")
            if zone:
                places.setdefault(zone, []).append((sign, at))
    ranked = sorted(places, key=lambda zone: sorted(places[zone]))
    empty = [zones[node] for node in sorted(nodes) if zones.get(node) and zones[node] not in places]
    number = {zone: str(at) for at, zone in enumerate(dict.fromkeys((*ranked, *empty)))}
    return {node: number.get(zone, "") for node, zone in zones.items()}


def _names(plan: Plan, order: Sequence[int], *, by_number: bool) -> dict[NodeId, NodeId]:
    """The plan's nodes, in the order of their places, or of their numbers."""
    places = [plan.node_of(stage.worker) for at in order for stage in plan.pipelines[at].stages]
    places += [plan.node_of(shadow.worker) for shadow in plan.shadows]
    names: dict[NodeId, NodeId] = {}
    for node in sorted(places) if by_number else places:
        names.setdefault(node, NodeId(len(names)))
    return names


def _sign(plan: Plan, pipeline: Pipeline, share: int, leaving: frozenset[NodeId]) -> _Sign:
    """What tells a pipeline from others, names aside."""
    place: dict[NodeId, int] = {}
    stages = tuple(
        (
            stage.first_layer,
            stage.end_layer,
            stage.num_devices,
            place.setdefault(plan.node_of(stage.worker), len(place)),
            stage.worker % plan.devices_per_node,
            int(plan.node_of(stage.worker) in leaving),
        )
        for stage in pipeline.stages
    )
    return ((len(place), len(stages), share), *stages)


def _renamed(plan: Plan, stages: Sequence[Stage], names: dict[NodeId, NodeId]) -> tuple[Stage, ...]:
    devices = plan.devices_per_node
    return tuple(
        Stage(
            worker=WorkerId(names[plan.node_of(stage.worker)] * devices + stage.worker % devices),
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            num_devices=stage.num_devices,
        )
        for stage in stages
    )


def _dealt(pipelines: Sequence[tuple[Stage, ...]], shares: Sequence[int], num_layers: int) -> tuple[Route, ...]:
    """Each pipeline's microbatches, numbered in the pipelines' order."""
    routes: list[Route] = []
    first = 0
    layers = tuple(range(num_layers))
    for stages, share in zip(pipelines, shares, strict=True):
        if share:
            routes.append(
                Route(hops=stages, microbatches=tuple(range(first, first + share)), born=GENERATION, counted=layers)
            )
            first += share
    return tuple(routes)


def moved_bytes(plan: Plan, transfers: Sequence[Transfer]) -> int:
    """State that moves."""
    return sum(move.moved_bytes(plan.groups[move.group]) for move in transfers)
