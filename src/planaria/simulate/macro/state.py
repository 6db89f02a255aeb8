"""A situation in which a job trains undisturbed, up to the names of nodes.

Nodes of a kind are alike, so a question about a cluster is asked of the protocol and the policies in canonical names:
pipelines in the order of their shapes, nodes in the order of their places. The answer is the same, but for ties that
are broken by number, for all clusters of that shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from planaria.plan.plan import NodeId, Pipeline, Plan, Route, Stage, Transfer, WorkerId

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
    """

    plan: Plan
    num_idle: int
    leaving: tuple[NodeId, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    twins: tuple[tuple[tuple[int, int], ...] | None, ...] = field(init=False, repr=False, compare=False)
    """For each node, the nodes to change places with so that it is one of the first pipeline of its kind, or the first
    idle one; None: it is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.plan, self.num_idle, self.leaving)))
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
        firsts: dict[_Sign, list[int]] = {}
        noticed = frozenset(state.leaving)
        for pipeline, key in zip(plan.pipelines, keys, strict=True):
            nodes = list(dict.fromkeys(int(plan.node_of(stage.worker)) for stage in pipeline.stages))
            first = firsts.setdefault(_sign(plan, pipeline, shares.get(key, 0), noticed), nodes)
            if first is not nodes:
                swaps = tuple(zip(first, nodes, strict=True))
                for node in nodes:
                    twins[node] = swaps
    if not state.leaving:
        placed = state.num_nodes - state.num_idle
        for node in range(placed + 1, state.num_nodes):
            twins[node] = ((placed, node),)
    return tuple(twins)


def canonical(
    plan: Plan, nodes: Iterable[NodeId], leaving: Iterable[NodeId] = (), *, by_number: bool = False
) -> tuple[State, tuple[NodeId, ...]]:
    """The state of live nodes under a plan, and, for each canonical number, the node that has it.

    Args:
        plan: in force; every microbatch has one route.
        nodes: live ones.
        leaving: of them, those that gave notice.
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
        order.sort(key=lambda at: (signs[at], at))
    names = _names(plan, order, by_number=by_number)
    placed = len(names)
    for node in sorted(nodes):
        names.setdefault(node, NodeId(len(names)))
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
    state = State(result, len(names) - placed, tuple(sorted(names[node] for node in noticed if node in names)))
    return state, back


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
