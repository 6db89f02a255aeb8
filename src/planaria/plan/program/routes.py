"""Routes, sorted out: which are a pipeline whose workers serve no other one, and which cross.

Also says whose layers shadows run once more (Bamboo, section 5): a worker that holds its successor's layers runs their
forwards on what it sends there anyway; the last one loads the first one's inputs itself. Pipelines of one stage are in
a ring: each worker owns all layers, and runs the next pipeline's microbatches (appendix B, "over-batching").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from planaria.plan.plan import Plan, Route, Stage, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRoutes:
    """Routes with the same hops, whose workers serve no others: a pipeline, whatever the rest of the plan does.

    Attributes:
        hops: the hops of all the routes, merged.
        routes: all that have these hops, in the plan's order.
        redundant_workers: of each hop, the worker that runs it once more, or none.
        redundant_backwards: of each hop, the worker that runs its backwards once more, or none.
        keeps_sent: whether what is sent is kept.
        shadowed_routes: of a pipeline of one stage, another one's, whose microbatches its worker runs once more.
    """

    hops: tuple[Stage, ...]
    routes: tuple[Route, ...]
    redundant_workers: tuple[WorkerId | None, ...]
    redundant_backwards: tuple[WorkerId | None, ...]
    keeps_sent: bool
    shadowed_routes: tuple[Route, ...] = ()

    @property
    def travellers(self) -> list[tuple[int, int, int]]:
        """Returns born, microbatch and route number of all microbatches in the order in which they set out."""
        return travellers(self.routes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRoutes:
    """A plan's routes, sorted into those of separate pipelines and those that cross.

    Attributes:
        pipelines: those that are one, by their first route's place in the plan.
        place_of: of a worker of one: its pipeline, and its place there.
        crossing: all other routes.
    """

    pipelines: tuple[PipelineRoutes, ...]
    place_of: Mapping[WorkerId, tuple[PipelineRoutes, int]]
    crossing: tuple[Route, ...]


@lru_cache(maxsize=8)
def sorted_routes(plan: Plan) -> SortedRoutes:
    """Sorts a plan's routes into those of separate pipelines and those that cross."""
    by_hops: dict[tuple[Stage, ...], list[Route]] = {}
    for route in plan.routes:
        by_hops.setdefault(merge_hops(route.hops), []).append(route)
    visits: dict[WorkerId, int] = {}
    for hops in by_hops:
        for hop in hops:
            visits[hop.worker] = visits.get(hop.worker, 0) + 1
    alone: list[PipelineRoutes] = []
    crossing: list[Route] = []
    for hops, routes in by_hops.items():
        if all(visits[hop.worker] == 1 for hop in hops):
            alone.append(_pipeline(plan, hops, routes))
        else:
            crossing.extend(routes)
    pipelines = _with_shadowed(plan, alone)
    return SortedRoutes(
        pipelines=pipelines,
        place_of={hop.worker: (own, place) for own in pipelines for place, hop in enumerate(own.hops)},
        crossing=tuple(crossing),
    )


def merge_hops(hops: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Returns the hops with neighbouring ones on one worker made into one."""
    merged: list[Stage] = []
    for hop in hops:
        if merged and merged[-1].worker == hop.worker and merged[-1].num_devices == hop.num_devices:
            hop = Stage(
                worker=hop.worker,
                first_layer=merged.pop().first_layer,
                end_layer=hop.end_layer,
                num_devices=hop.num_devices,
            )
        merged.append(hop)
    return tuple(merged)


def travellers(routes: Sequence[Route]) -> list[tuple[int, int, int]]:
    """Returns born, microbatch and number of its route, of all microbatches in the order in which they set out."""
    return sorted((route.born, m, at) for at, route in enumerate(routes) for m in route.microbatches)


def redundant_workers(plan: Plan, hops: Sequence[Stage]) -> tuple[WorkerId | None, ...]:
    """Returns for each hop of a pipeline the worker before it, if that shadows all of it; the last is before the first.

    None where nobody does, where it is on the same node, and where there is one hop.
    """
    if plan.redundancy is None or len(hops) < 2:
        return (None,) * len(hops)
    held: dict[WorkerId, set[int]] = {}
    for shadow in plan.shadows:
        held.setdefault(shadow.worker, set()).update(shadow.layers)
    found: list[WorkerId | None] = []
    for place, hop in enumerate(hops):
        worker = hops[place - 1].worker
        elsewhere = plan.node_of(worker) != plan.node_of(hop.worker)
        found.append(worker if elsewhere and held.get(worker, set()).issuperset(hop.layers) else None)
    return tuple(found)


def redundant_ring(plan: Plan, workers: Sequence[WorkerId]) -> dict[WorkerId, WorkerId]:
    """Returns, of workers that are a pipeline each, whose microbatches each one runs once more: the next one's, of
    stages on several devices on the same one of them.

    Without pairs on one node.
    """
    if plan.redundancy is None:
        return {}
    lanes = [[w for w in workers if w % plan.devices_per_stage == lane] for lane in range(plan.devices_per_stage)]
    pairs = [pair for lane in lanes for pair in zip(lane, [*lane[1:], *lane[:1]], strict=True)]
    return {worker: other for worker, other in pairs if plan.node_of(worker) != plan.node_of(other)}


def _pipeline(plan: Plan, hops: tuple[Stage, ...], routes: Sequence[Route]) -> PipelineRoutes:
    found = redundant_workers(plan, hops)
    runs_backwards = plan.redundancy is not None and plan.redundancy.runs_backwards
    return PipelineRoutes(
        hops=hops,
        routes=tuple(routes),
        redundant_workers=found,
        redundant_backwards=found if runs_backwards else (None,) * len(hops),
        keeps_sent=plan.redundancy is not None,
    )


def _with_shadowed(plan: Plan, pipelines: Sequence[PipelineRoutes]) -> tuple[PipelineRoutes, ...]:
    """Returns the pipelines with those of one stage joined into a ring, in the order of their workers."""
    alone = {own.hops[0].worker: own for own in pipelines if len(own.hops) == 1}
    ring = redundant_ring(plan, sorted(alone))
    return tuple(
        replace(own, shadowed_routes=alone[ring[own.hops[0].worker]].routes)
        if len(own.hops) == 1 and own.hops[0].worker in ring
        else own
        for own in pipelines
    )
