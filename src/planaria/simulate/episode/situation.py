"""A situation in which a job trains undisturbed, up to the names of nodes.

Nodes of a kind are alike, so a question about a cluster is asked of the protocol and the policies in canonical names:
pipelines in the order of their shapes, nodes in the order of their places. The answer is the same, but for ties that
are broken by number, for all clusters of that shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import cast

import msgspec

from planaria.plan.pipeline import renamed_stages
from planaria.plan.plan import Form, NodeId, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.planner.placement.zones import Zones

GENERATION = 1
"""Generation of every canonical plan."""

_Sign = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class State:
    """A state in which a job trains undisturbed.

    Attributes:
        plan: in force, canonical.
        num_idle: nodes that live and that it does without; their numbers follow its own.
        leaving: nodes that gave notice and are kept, since nothing is possible without them.
        zones: where each node is; "": not known. Empty where it is of none. Names are numbers: nodes that were in one
            zone are, and which one it was is no part of the state.
        lost_devices: of nodes that live.
    """

    plan: Plan
    num_idle: int
    leaving: tuple[NodeId, ...] = ()
    zones: tuple[str, ...] = ()
    lost_devices: tuple[WorkerId, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    _twins: dict[int, Sequence[tuple[int, int]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_twins", {})
        told = self.plan, self.num_idle, self.leaving, self.zones, self.lost_devices
        object.__setattr__(self, "_hash", hash(told))

    def __hash__(self) -> int:
        return self._hash

    @property
    def num_nodes(self) -> int:
        """Number of live nodes."""
        return len(self.plan.nodes) + self.num_idle

    @cached_property
    def num_microbatches(self) -> int:
        """Number of microbatches that a step counts."""
        return sum(len(route.microbatches) for route in self.plan.routes)

    def twin(self, node: int) -> Sequence[tuple[int, int]]:
        """Returns the nodes to swap, each with the one whose place it takes, so that this node is in the first pipeline
        of its kind, or the first idle one; none: it is."""
        swaps = self._twins.get(node)
        if swaps is None:
            swaps = self._twins[node] = self._twin(node)
        return swaps

    def _twin(self, node: int) -> Sequence[tuple[int, int]]:
        plan = self.plan
        if self.lost_devices or plan.devices_per_stage > 1:
            return ()
        placed = self.num_nodes - self.num_idle
        if node >= placed and not self.leaving:
            zone = self.zones[node : node + 1]
            first_idle = next(other for other in range(placed, node + 1) if self.zones[other : other + 1] == zone)
            return ((first_idle, node),) if first_idle != node else ()
        if -1 in plan.pipeline_of_route or plan.shadows:
            return ()
        noticed, shares = frozenset(self.leaving), _shares(plan)
        firsts: dict[object, tuple[NodeId, ...]] = {}
        swaps: Sequence[tuple[int, int]] = ()
        for pipeline, share in zip(plan.pipelines, shares, strict=True):
            nodes = pipeline.nodes(plan.devices_per_node)
            where = tuple(self.zones[one : one + 1] for one in nodes) if self.zones else ()
            first = firsts.setdefault((_sign(plan, pipeline, share, noticed), where), nodes)
            if first is not nodes and node in nodes:
                swaps = tuple(zip(first, nodes, strict=True))
        return swaps


def _shares(plan: Plan) -> list[int]:
    """Returns how many microbatches travel along each pipeline."""
    shares = [0] * len(plan.pipelines)
    for at, route in zip(plan.pipeline_of_route, plan.routes, strict=True):
        if at >= 0:
            shares[at] += len(route.microbatches)
    return shares


def canonical(
    plan: Plan,
    nodes: Collection[NodeId],
    leaving: Iterable[NodeId] = (),
    *,
    zones: Zones | None = None,
    lost_devices: Collection[WorkerId] = (),
    by_number: bool = False,
) -> tuple[State, tuple[NodeId, ...]]:
    """Returns the state of live nodes under a plan, and for each canonical number the node that has it.

    Args:
        plan: in force; every microbatch has one route.
        nodes: the live nodes.
        leaving: of them, those that gave notice.
        zones: node -> its zone.
        lost_devices: of live nodes.
        by_number: nodes keep the order of their numbers, and pipelines and microbatches theirs. Then ties are broken
            as in a run of these very nodes, and few situations are met twice.
    """
    noticed = frozenset(leaving)
    shares = _shares(plan)
    order = list(range(len(shares)))
    if not by_number:
        pairs = zip(plan.pipelines, shares, strict=True)
        signs = [_sign(plan, pipeline, share, noticed) for pipeline, share in pairs]
        if zones:
            zones = _numbered(plan, signs, zones, nodes)
            where = [tuple(zones.get(plan.node_of(s.worker), "") for s in p.stages) for p in plan.pipelines]
            order.sort(key=lambda at: (signs[at], where[at], at))
        else:
            order.sort(key=lambda at: (signs[at], at))
    names = _names(plan, order, by_number=by_number)
    placed = len(names)
    idle = sorted(set(nodes).difference(names))
    lacking: dict[NodeId, list[int]] = {}
    for worker in sorted(lost_devices):
        node, device = divmod(worker, plan.devices_per_node)
        lacking.setdefault(NodeId(node), []).append(device)
    if (zones or lacking) and not by_number:
        idle.sort(key=lambda node: (zones.get(node, "") if zones else "", lacking.get(node, []), node))
    for node in idle:
        names[node] = NodeId(len(names))
    pipelines = _moved(plan, [plan.pipelines[at] for at in order], names)
    dropped = plan.dropped
    if not by_number and -1 not in plan.pipeline_of_route:
        routes = _dealt(pipelines, [shares[at] for at in order], plan.num_layers)
        dropped = tuple(range(plan.num_microbatches - len(dropped), plan.num_microbatches))
    else:
        routes = tuple(
            msgspec.structs.replace(
                route, hops=renamed_stages(route.hops, names, plan.devices_per_node), born=GENERATION
            )
            for route in (plan.routes if by_number else sorted(plan.routes, key=lambda route: route.microbatches))
        )
    result = msgspec.structs.replace(
        plan,
        generation=GENERATION,
        pipelines=pipelines,
        routes=routes,
        dropped=dropped,
        shadows=renamed_stages(plan.shadows, names, plan.devices_per_node),
        transfers=(),
        sync_epochs=(GENERATION,) * len(plan.groups),
    )
    back = tuple(names)  # which have their numbers in this order
    state = State(
        result,
        len(names) - placed,
        tuple(sorted(names[node] for node in noticed if node in names)),
        tuple(zones.get(node, "") for node in back) if zones else (),
        tuple(
            sorted(
                WorkerId(names[node] * plan.devices_per_node + device)
                for node, devices in lacking.items()
                for device in devices
            )
        ),
    )
    return state, back


def _numbered(plan: Plan, signs: Sequence[_Sign], zones: Zones, nodes: Collection[NodeId]) -> dict[NodeId, str]:
    """Returns zones as numbers, in the order of what is in them, so that their names do not matter."""
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
    """Returns the plan's nodes in the order of their places, or of their numbers."""
    per_node = plan.devices_per_node
    places: list[NodeId] = []
    for at in order:
        places += plan.pipelines[at].nodes(per_node)
    places += [plan.node_of(shadow.worker) for shadow in plan.shadows]
    distinct = dict.fromkeys(sorted(places) if by_number else places)
    return dict(zip(distinct, cast("Iterable[NodeId]", range(len(distinct))), strict=True))


def _sign(plan: Plan, pipeline: Pipeline, share: int, leaving: frozenset[NodeId]) -> _Sign:
    """Returns what tells a pipeline from others, names aside."""
    form = pipeline.form(plan.devices_per_node)
    if not leaving or leaving.isdisjoint(pipeline.nodes(plan.devices_per_node)):
        return _usual_sign(form, share)
    marks = [int(plan.node_of(worker) in leaving) for worker in pipeline.workers]
    stages = ((*stage, mark) for stage, mark in zip(form.stages, marks, strict=True))
    return ((form.num_nodes, len(form.stages), share), *stages)


@lru_cache(maxsize=1 << 12)
def _usual_sign(form: Form, share: int) -> _Sign:
    """Returns the sign of a pipeline that no node leaves."""
    return ((form.num_nodes, len(form.stages), share), *((*stage, 0) for stage in form.stages))


def _moved(plan: Plan, pipelines: Sequence[Pipeline], names: dict[NodeId, NodeId]) -> tuple[Pipeline, ...]:
    """Returns the pipelines on the nodes of these names."""
    per_node = plan.devices_per_node
    moved: list[Pipeline] = []
    for pipeline in pipelines:
        numbers = list(map(names.__getitem__, pipeline.nodes(per_node)))
        first = numbers[0] if numbers else NodeId(0)
        if numbers == list(range(first, first + len(numbers))):
            moved.append(_placed(pipeline.form(per_node), first, per_node))
        else:
            moved.append(Pipeline(stages=renamed_stages(pipeline.stages, names, per_node)))
    return tuple(moved)


@lru_cache(maxsize=1 << 12)
def _placed(form: Form, first: NodeId, devices_per_node: int) -> Pipeline:
    """Returns the pipeline on neighbouring nodes, cached: the same is met again and again."""
    return Pipeline(
        stages=tuple(
            Stage(
                worker=WorkerId((first + node) * devices_per_node + device),
                first_layer=first_layer,
                end_layer=end_layer,
                num_devices=num_devices,
            )
            for first_layer, end_layer, num_devices, node, device in form.stages
        )
    )


def _dealt(pipelines: Sequence[Pipeline], shares: Sequence[int], num_layers: int) -> tuple[Route, ...]:
    """Returns the routes of each pipeline's microbatches, numbered in the pipelines' order."""
    routes: list[Route] = []
    first = 0
    layers = tuple(range(num_layers))
    for pipeline, share in zip(pipelines, shares, strict=True):
        if share:
            microbatches = tuple(range(first, first + share))
            routes.append(Route(hops=pipeline.stages, microbatches=microbatches, born=GENERATION, counted=layers))
            first += share
    return tuple(routes)


def moved_bytes(plan: Plan, transfers: Sequence[Transfer]) -> int:
    """Returns the bytes of state that the transfers move."""
    return sum(move.moved_bytes(plan.groups[move.group]) for move in transfers)
