"""Hops: what one worker does of a route, all that its instructions depend on beside the microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from planaria.plan.plan import Route, Stage, WorkerId
from planaria.plan.program.routes import PipelineRoutes, merge_hops, travellers
from planaria.plan.schedule_kind import ScheduleKind


class RouteHop(msgspec.Struct, frozen=True, kw_only=True):
    """One (merged) hop of a route.

    Attributes:
        worker: the worker that does it.
        place: of the hop in its route, from 0.
        hops_after: hops of the route above this one.
        born: the generation in which the route was made.
        first_layer: lowest layer that runs forward.
        low_layer: lowest layer that runs backward; end_layer where none does.
        end_layer: one above the highest.
        counted: the layers whose gradients are accumulated, ascending.
        keeps: whether a backward follows the forward: a layer of the hop or below is counted.
        has_weight: whether gradients of weights are computed apart from the gradient of the input.
        below: the worker of the hop below, or none.
        above: the worker of the hop above, or none.
        activation_to: the worker of the hop above where that still runs a forward, or none.
        gradient_to: the worker of the hop below where that runs a backward too, or none.
        copy_to: the worker that runs the hop below once more, and so needs the gradient too, or none.
        keeps_sent: what is sent is kept, to be sent again if its receiver is lost.
        is_done: of a resumed route: all that this hop had to compute is done, and it only sends again.
    """

    worker: WorkerId
    place: int
    hops_after: int
    born: int
    first_layer: int
    low_layer: int
    end_layer: int
    counted: tuple[int, ...]
    keeps: bool
    has_weight: bool
    below: WorkerId | None
    above: WorkerId | None
    activation_to: WorkerId | None
    gradient_to: WorkerId | None
    copy_to: WorkerId | None
    keeps_sent: bool
    is_done: bool

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.first_layer


Passing = list[tuple[RouteHop, int]]
"""Work that passes one worker: hops and microbatches, in the order in which they set out."""


def passing(pipeline: PipelineRoutes, place: int, kind: ScheduleKind) -> Passing:
    """Returns what the worker at that place does for its own pipeline."""
    return _passing(pipeline, pipeline.routes, place, kind)


def shadowed(pipeline: PipelineRoutes, place: int, kind: ScheduleKind) -> Passing:
    """Returns what the worker at that place may run once more: what its successor does, or another pipeline."""
    if pipeline.shadowed_routes:
        return _passing(pipeline, pipeline.shadowed_routes, 0, kind)
    successor = (place + 1) % len(pipeline.hops)
    is_mine = pipeline.redundant_workers[successor] == pipeline.hops[place].worker
    return passing(pipeline, successor, kind) if is_mine else []


def _passing(pipeline: PipelineRoutes, routes: tuple[Route, ...], place: int, kind: ScheduleKind) -> Passing:
    hops = [
        _hops_of_pipeline(route, kind.splits_backward, pipeline.keeps_sent, pipeline.redundant_backwards)[place]
        for route in routes
    ]
    return [(hops[at], microbatch) for _, microbatch, at in travellers(routes)]


@lru_cache(maxsize=256)
def _hops_of_pipeline(
    route: Route, split: bool, keeps_sent: bool, redundant_backwards: tuple[WorkerId | None, ...]
) -> tuple[RouteHop, ...]:
    """Returns the hops of a route, made once for all workers on it."""
    return route_hops(route, split=split, keeps_sent=keeps_sent, redundant_backwards=redundant_backwards)


def route_hops(
    route: Route,
    *,
    split: bool,
    keeps_sent: bool = False,
    redundant_backwards: Sequence[WorkerId | None] = (),
) -> tuple[RouteHop, ...]:
    """Returns the hops of a route, merged.

    Args:
        route: the route.
        split: whether backwards are split, where an input's gradient goes on to another worker and weights count.
        keeps_sent: whether what is sent is kept.
        redundant_backwards: of each hop, the worker that runs its backwards once more, or none; empty: nobody does.
    """
    hops = merge_hops(route.hops)
    low, top, counted = route.counted[0], route.counted[-1] + 1, set(route.counted)
    done = [_is_done(hop, route.reached, low, top) for hop in hops]
    result = []
    for place, hop in enumerate(hops):
        below = hops[place - 1].worker if place > 0 else None
        above = hops[place + 1].worker if place + 1 < len(hops) else None
        gradient_to = below if hop.first_layer > low and not (place > 0 and done[place] and done[place - 1]) else None
        mine = tuple(layer for layer in hop.layers if layer in counted)
        keeps = hop.end_layer > low
        sends_copy = bool(redundant_backwards) and place > 0 and gradient_to is not None
        copy_to = redundant_backwards[place - 1] if sends_copy else None
        result.append(
            RouteHop(
                worker=hop.worker,
                place=place,
                hops_after=len(hops) - 1 - place,
                born=route.born,
                first_layer=hop.first_layer,
                low_layer=min(max(hop.first_layer, low), hop.end_layer),
                end_layer=hop.end_layer,
                counted=mine,
                keeps=keeps,
                has_weight=keeps and split and bool(mine) and gradient_to is not None,
                below=below,
                above=above,
                activation_to=above if place + 1 < len(hops) and not done[place + 1] else None,
                gradient_to=gradient_to,
                copy_to=None if copy_to == hop.worker else copy_to,
                keeps_sent=keeps_sent,
                is_done=done[place],
            )
        )
    return tuple(result)


def _is_done(hop: Stage, reached: int | None, low: int, top: int) -> bool:
    """Returns whether nothing on the hop is left to count or to pass through."""
    if reached is None:
        return False
    return (hop.first_layer >= top and reached <= hop.first_layer) or (hop.end_layer <= low and reached < hop.end_layer)
