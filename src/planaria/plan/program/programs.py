"""Programs: what each worker does in a step, in order, as a pure function of (plan, worker).

A worker's order is always a restriction of one global order in which everything comes after what it needs.
Sends do not wait for their receivers and receives match by (born, microbatch, boundary), not by order, so the
worker whose next instruction is the globally first one not yet done can always do it: no program can
deadlock, and neither can what is left of it after some instructions were done under an earlier plan. Devices that share
microbatches do the same in the same order, so what one of them waits for within an instruction, the others come to.
(A sync's round may change with the plan; a sync is the same when group and epoch are.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from planaria.plan.plan import Plan, Route, WorkerId
from planaria.plan.program.evaluation import evaluation_programs
from planaria.plan.program.hops import passing, route_hops, shadowed
from planaria.plan.program.instructions import Instruction, Program, body_of
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.list_schedule import LayerUnits, list_schedule
from planaria.plan.program.orders import pipeline_order
from planaria.plan.program.redundant_compute import with_shadows
from planaria.plan.program.routes import SortedRoutes, sorted_routes
from planaria.plan.program.tail import with_tail
from planaria.plan.program.units import Unit
from planaria.plan.schedule_kind import ScheduleKind
from planaria.plan.sums.rounds import colour


def program(plan: Plan, worker: WorkerId) -> Program:
    """Returns the worker's instructions for one step under the plan, or for the evaluation before it, in order.

    Raises:
        KeyError: the worker owns no layers in the plan.
    """
    return programs(plan, [worker])[worker]


def programs(plan: Plan, workers: Iterable[WorkerId] | None = None) -> dict[WorkerId, Program]:
    """Returns the programs of these workers, or of all workers."""
    first_of = {worker: plan.first_of(worker) for worker in (plan.workers if workers is None else workers)}
    leading = dict.fromkeys(first_of.values())
    if plan.evaluation is not None:
        passes = evaluation_programs(plan, leading)
        return {worker: _beside(passes[first], worker - first) for worker, first in first_of.items()}
    orders, rounds = cut_orders(plan, leading), colour(plan)
    bodies = {worker: body_of(order) for worker, order in orders.items()}
    return {
        worker: with_tail(_beside(bodies[first], worker - first), orders[first], plan, worker, rounds)
        for worker, first in first_of.items()
    }


def _beside(instructions: Sequence[Instruction], places: int) -> Program:
    """Returns what the device so many places after the first one of its stage does with it: the same, with the devices
    as many places after the first ones of other stages."""
    if not places:
        return tuple(instructions)
    return tuple(
        instruction
        if instruction.peer is None
        else msgspec.structs.replace(instruction, peer=WorkerId(instruction.peer + places))
        for instruction in instructions
    )


def cut_orders(plan: Plan, workers: Iterable[WorkerId]) -> dict[WorkerId, CutOrder]:
    """Returns the cut orders that these workers' programs are made from."""
    routes, kind = sorted_routes(plan), plan.schedule
    return {worker: CutOrder.of(_units(plan, routes, worker), kind) for worker in workers}


def _units(plan: Plan, routes: SortedRoutes, worker: WorkerId) -> Sequence[Unit]:
    if worker not in routes.place_of:
        keeps_sent = plan.redundancy is not None
        orders = _crossing(routes.crossing, plan.schedule, plan.spare_in_flight, plan.layer_units, keeps_sent)
        return orders.get(worker, ())
    pipeline, place = routes.place_of[worker]
    num_hops, kind = len(pipeline.hops), plan.schedule
    its, others = passing(pipeline, place, kind), shadowed(pipeline, place, kind)
    own = tuple(pipeline_order(its, place, num_hops, kind))
    if plan.redundancy is None or not plan.redundancy.runs_forwards:
        return own
    return tuple(with_shadows(own, others, worker, plan.redundancy, place, num_hops))


@lru_cache(maxsize=8)
def _crossing(
    routes: tuple[Route, ...],
    kind: ScheduleKind,
    spare_in_flight: int,
    layer_units: tuple[LayerUnits, ...],
    keeps_sent: bool,
) -> Mapping[WorkerId, Sequence[Unit]]:
    """Returns the list schedule of crossing routes, shared by plans that differ only in transfers."""
    hops = [route_hops(route, split=kind.splits_backward, keeps_sent=keeps_sent) for route in routes]
    return list_schedule(routes, hops, kind, spare_in_flight, layer_units)
