"""What a stage needs of its devices' memory where its pipeline takes one route and its worker does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from planaria.estimate.memory_walk import Moment, Stretch, Walk, add_messages, stretch_of, with_holes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Route, ScheduleKind, WorkerId
from planaria.plan.program.hops import RouteHop, route_hops
from planaria.plan.program.instructions import Op, Program, instructions_of
from planaria.plan.program.units import Phase, Unit


def moments_alone(schedule: ScheduleKind, profile: ModelProfile, route: Route) -> tuple[Moment, ...]:
    """Of the workers of a pipeline with this route and no other, each of one stage."""
    way = route_hops(route, split=schedule.splits_backward)
    return tuple(_moment(schedule, profile, leg, len(route.microbatches)) for leg in way)


def _moment(schedule: ScheduleKind, profile: ModelProfile, leg: RouteHop, number: int) -> Moment:
    """As `planaria.estimate.memory` finds it from units of work, but what a stretch of a worker's order needs is found
    once: it is the same for all microbatches."""
    ahead, behind = schedule.forwards_ahead(leg.hops_after, number), schedule.weights_behind(leg.place)
    parts = _parts(profile, _anywhere(leg))
    walk = Walk(profile)
    for at in range(-ahead, number):
        if ahead + at < number:
            walk.pass_through(parts.forward)
        if at >= 0:
            walk.pass_through(parts.backward if at < number - 1 else parts.last)
            if parts.weights is not None and behind <= at < number - 1:
                walk.pass_through(parts.weights)
    for piece in parts.pieces:
        walk.pass_through(piece)
        walk.now += (min(number, behind + 1) - 1) * piece[2]
    return with_holes(schedule, profile, walk.most, parts.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Of a leg: what its passes need, and the bytes of its waiting messages.

    Attributes:
        forward: of a microbatch.
        backward: of its input's gradient, and where they are not apart the weights'; nothing where there is none.
        last: of the last microbatch's, which goes layer by layer.
        weights: of the weights' gradients where they are apart.
        pieces: of these layer by layer, from the top down.
        messages: bytes.
    """

    forward: Stretch
    backward: Stretch
    last: Stretch
    weights: Stretch | None
    pieces: Sequence[Stretch]
    messages: int


def _anywhere(leg: RouteHop) -> RouteHop:
    """The same for all workers and places, as far as memory goes."""

    def some(worker: WorkerId | None) -> WorkerId | None:
        return None if worker is None else WorkerId(1)

    return msgspec.structs.replace(
        leg,
        worker=WorkerId(0),
        place=1,
        hops_after=1,
        born=0,
        below=some(leg.below),
        # Messages of a way in are told apart by who sends them.
        above=None if leg.above is None else WorkerId(2),
        activation_to=some(leg.activation_to),
        gradient_to=some(leg.gradient_to),
    )


@lru_cache(maxsize=1 << 12)
def _parts(profile: ModelProfile, leg: RouteHop) -> _Parts:
    ways: dict[tuple[Op, WorkerId | None], int] = {}

    def instructions(phase: Phase, *, by_layer: bool = False) -> Program:
        return tuple(instructions_of(Unit(phase, leg, 0), by_layer=by_layer))

    def stretch(phase: Phase, *, by_layer: bool = False) -> Stretch:
        passed = instructions(phase, by_layer=by_layer)
        add_messages(ways, profile, passed)
        return stretch_of(profile, passed)

    forward = stretch(Phase.FORWARD)
    backward = stretch(Phase.INPUT_GRADIENT) if leg.keeps else stretch_of(profile, ())
    last = stretch(Phase.INPUT_GRADIENT, by_layer=True) if leg.keeps and leg.counted else backward
    weights = stretch(Phase.WEIGHT_GRADIENTS) if leg.has_weight else None
    cut = instructions(Phase.WEIGHT_GRADIENTS, by_layer=True) if leg.has_weight else ()
    pieces = [stretch_of(profile, (piece,)) for piece in sorted(cut, key=lambda piece: -piece.first_layer)]
    return _Parts(
        forward=forward,
        backward=backward,
        last=last,
        weights=weights,
        pieces=pieces,
        messages=sum(ways.values()),
    )
