"""Programs: what each worker does in a step, in order, as a pure function of (plan, worker).

A worker's order is always a restriction of one global order in which everything comes after what it needs.
Sends do not wait for their receivers and receives match by (born, microbatch, boundary), not by order, so the
worker whose next instruction is the globally first one not yet done can always do it: no program can
deadlock, and neither can what is left of it after some instructions were done under an earlier plan.
(A sync's round may change with the plan; a sync is the same when group and epoch are.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from planaria.plan.plan import Plan, Route, WorkerId
from planaria.plan.program.hops import passing, route_hops, shadowed
from planaria.plan.program.instructions import Instruction, Op, Program, cut_tail, instructions_of
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.list_schedule import LayerUnits, list_schedule
from planaria.plan.program.orders import pipeline_order
from planaria.plan.program.redundant_compute import with_shadows
from planaria.plan.program.routes import SortedRoutes, sorted_routes
from planaria.plan.program.units import Unit
from planaria.plan.schedule_kind import ScheduleKind
from planaria.plan.sync_rounds import colour


def program(plan: Plan, worker: WorkerId) -> Program:
    """Returns the worker's instructions for one step under the plan, in order.

    Raises:
        KeyError: the worker owns no layers in the plan.
    """
    return programs(plan, [worker])[worker]


def programs(plan: Plan, workers: Iterable[WorkerId] | None = None) -> dict[WorkerId, Program]:
    """Returns the programs of these workers, or of all."""
    rounds = colour(plan)
    orders = cut_orders(plan, plan.workers if workers is None else workers)
    return {worker: _with_sums(_body(order), order, plan, worker, rounds) for worker, order in orders.items()}


def cut_orders(plan: Plan, workers: Iterable[WorkerId]) -> dict[WorkerId, CutOrder]:
    """Returns what these workers' programs are made from."""
    routes, kind = sorted_routes(plan), plan.schedule
    return {worker: CutOrder.of(_units(plan, routes, worker), kind) for worker in workers}


def _units(plan: Plan, routes: SortedRoutes, worker: WorkerId) -> Sequence[Unit]:
    if worker not in routes.place_of:
        keeps_sent = plan.redundancy is not None
        orders = _crossing(routes.crossing, plan.schedule, plan.spare_in_flight, plan.layer_units, keeps_sent)
        return orders.get(worker, ())
    pipeline, place = routes.place_of[worker]
    num_hops = len(pipeline.hops)
    own = tuple(pipeline_order(passing(pipeline, place, plan.schedule), place, num_hops, plan.schedule))
    if plan.redundancy is None or not plan.redundancy.runs_forwards:
        return own
    others = shadowed(pipeline, place, plan.schedule)
    return tuple(with_shadows(own, others, worker, plan.redundancy, place, num_hops))


@lru_cache(maxsize=8)
def _crossing(
    routes: tuple[Route, ...],
    kind: ScheduleKind,
    spare_in_flight: int,
    layer_units: tuple[LayerUnits, ...],
    keeps_sent: bool,
) -> Mapping[WorkerId, Sequence[Unit]]:
    """Of plans that differ in what moves beside a step, one list schedule."""
    hops = [route_hops(route, split=kind.splits_backward, keeps_sent=keeps_sent) for route in routes]
    return list_schedule(routes, hops, kind, spare_in_flight, layer_units)


def _body(order: CutOrder) -> list[Instruction]:
    """All units' instructions, with the last counting backwards cut into layers, so that sums can start early."""
    body: list[Instruction] = []
    for unit in order.units[: order.end]:
        body += instructions_of(unit, by_layer=order.is_cut(unit))
    body += cut_tail(order)
    for unit in order.units[order.own_end :]:
        body += instructions_of(unit)
    return body


def _with_sums(
    body: Sequence[Instruction], order: CutOrder, plan: Plan, worker: WorkerId, rounds: Sequence[int]
) -> Program:
    """With each group's sum as soon as its gradients are whole here, then vote and apply."""
    last = _last_counts(order.units, body)
    due: dict[int, list[int]] = {}
    for group in sorted(plan.groups_of[worker], key=lambda g: (rounds[g], g)):
        due.setdefault(max(last.get(layer, -1) for layer in plan.groups[group].layers), []).append(group)

    def sums(at: int) -> Iterator[Instruction]:
        for group in due.get(at, ()):
            yield Instruction(op=Op.SYNC, group=group, epoch=plan.sync_epochs[group], round=rounds[group])

    instructions = [*sums(-1)]
    done = 0
    for at in sorted(due.keys() - {-1}):
        instructions += body[done : at + 1]
        instructions += sums(at)
        done = at + 1
    instructions += body[done:]
    instructions += [Instruction(op=Op.VOTE, epoch=plan.generation), Instruction(op=Op.APPLY)]
    return tuple(instructions)


def _last_counts(units: Sequence[Unit], body: Sequence[Instruction]) -> dict[int, int]:
    """For each layer that is counted here, the place of its last count."""
    own = {id(unit.hop): unit.hop for unit in units if not unit.phase.is_shadow}
    num_layers = len({layer for hop in own.values() for layer in hop.counted})
    last: dict[int, int] = {}
    for at in range(len(body) - 1, -1, -1):
        if len(last) == num_layers:
            break
        for layer in body[at].counted if body[at].op is not Op.SHADOW_BACKWARD else ():
            last.setdefault(layer, at)
    return last
