"""Evaluation programs: forwards alone, of the last layer's loss, and a vote that tells the losses.

Every worker takes the microbatches in one global order, and each of them from its first hop to its last. So programs
cannot deadlock, whether routes cross or not: the globally first instruction that is not done can always be done.
A worker does not run far ahead of the one that follows it, or what it sends would pile up there: for each microbatch it
waits until the one `AHEAD` before it on the same route has been taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from planaria.plan.plan import Plan, Route, WorkerId
from planaria.plan.program.hops import RouteHop, route_hops
from planaria.plan.program.instructions import Instruction, Op, Program, instructions_of
from planaria.plan.program.routes import travellers
from planaria.plan.program.units import Phase, Unit

AHEAD = 4
"""Microbatches of a route that may be under way between two of its workers."""


def evaluation_programs(plan: Plan, workers: Iterable[WorkerId]) -> dict[WorkerId, Program]:
    """Returns the programs of these workers for the plan's evaluation."""
    assert plan.evaluation is not None
    routes = plan.evaluation.routes
    hops = [_forward_hops(route) for route in routes]
    bodies: dict[WorkerId, list[Instruction]] = {worker: [] for worker in workers}
    for _, microbatch, at in travellers(routes):
        turn = routes[at].microbatches.index(microbatch)
        for hop in hops[at]:
            if hop.worker in bodies:
                bodies[hop.worker] += _instructions(routes[at], hop, turn)
    vote = Instruction(op=Op.VOTE, epoch=plan.generation)
    return {worker: (*body, vote) for worker, body in bodies.items()}


def _forward_hops(route: Route) -> list[RouteHop]:
    return [msgspec.structs.replace(hop, keeps=False) for hop in route_hops(route, split=False)]


def _instructions(route: Route, hop: RouteHop, turn: int) -> Iterator[Instruction]:
    """Yields what a worker does of a microbatch: with the forward, that it awaits and tells what has been taken."""
    microbatches = route.microbatches
    if hop.above is not None and turn >= AHEAD:
        yield _taken(Op.RECV_GRADIENT, hop, microbatches[turn - AHEAD], hop.end_layer, hop.above)
    yield from instructions_of(Unit(Phase.FORWARD, hop, microbatches[turn]))
    if hop.below is not None and turn + AHEAD < len(microbatches):
        yield _taken(Op.SEND_GRADIENT, hop, microbatches[turn], hop.first_layer, hop.below)


def _taken(op: Op, hop: RouteHop, microbatch: int, boundary: int, peer: WorkerId) -> Instruction:
    """Returns the message against the stream that a microbatch was taken: a gradient of nothing."""
    return Instruction(op=op, microbatch=microbatch, born=hop.born, first_layer=boundary, peer=peer)
