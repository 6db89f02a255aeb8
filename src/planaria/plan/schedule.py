"""Programs: what each worker does in a step, in order, as a pure function of (plan, worker).

A worker's order is always a restriction of one global order in which everything comes after what it needs.
Sends do not wait for their receivers and receives match by (born, microbatch, boundary), not by order, so the
worker whose next instruction is the globally first one not yet done can always do it: no program can
deadlock, and neither can what is left of it after some instructions were done under an earlier plan.

A route's instructions depend on nothing but the route. So a plan that keeps a route keeps its instructions,
equal ones, and a worker drops those it has done. (A sync's round may change; a sync is the same when group
and epoch are.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from planaria.plan.list_schedule import list_schedule
from planaria.plan.plan import Plan, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program import Instruction, Op, Program
from planaria.plan.sync_rounds import colour
from planaria.plan.work import Unit, merge_hops


@dataclass(frozen=True, slots=True)
class _Layout:
    """Every worker's units of work, in order."""

    orders: dict[WorkerId, tuple[Unit, ...]]


def program(plan: Plan, worker: WorkerId) -> Program:
    """The worker's instructions for one step under the plan, in order.

    Raises:
        KeyError: the worker owns no layers in the plan.
    """
    groups = plan.groups_of[worker]
    body = [i for unit in _split(_layout(plan).orders.get(worker, ())) for i in unit]
    rounds = colour(plan)

    def sync(group: int) -> Instruction:
        return Instruction(op=Op.SYNC, group=group, epoch=plan.sync_epochs[group], round=rounds[group])

    due: dict[int, list[int]] = {}
    for group in groups:
        layers = set(plan.groups[group].layers)
        last = max((at for at, i in enumerate(body) if not layers.isdisjoint(i.counted)), default=-1)
        due.setdefault(last, []).append(group)
    instructions = [sync(group) for group in sorted(due.pop(-1, ()), key=lambda g: (rounds[g], g))]
    for at, instruction in enumerate(body):
        instructions.append(instruction)
        instructions.extend(sync(group) for group in sorted(due.get(at, ()), key=lambda g: (rounds[g], g)))
    instructions += [Instruction(op=Op.VOTE, epoch=plan.generation), Instruction(op=Op.APPLY)]
    return tuple(instructions)


def programs(plan: Plan) -> dict[WorkerId, Program]:
    """Every worker's program."""
    return {worker: program(plan, worker) for worker in plan.workers}


@lru_cache(maxsize=8)
def _layout(plan: Plan) -> _Layout:
    paths: dict[tuple[Stage, ...], list[Route]] = {}
    for route in plan.routes:
        paths.setdefault(merge_hops(route.hops), []).append(route)
    visits: dict[WorkerId, int] = {}
    for hops in paths:
        for hop in hops:
            visits[hop.worker] = visits.get(hop.worker, 0) + 1
    orders: dict[WorkerId, tuple[Unit, ...]] = {}
    irregular: list[Route] = []
    for hops, routes in paths.items():
        # A path whose workers serve no other path is a textbook pipeline, whatever the rest of the plan does.
        if all(visits[hop.worker] == 1 for hop in hops):
            orders.update(_pipeline_orders(hops, routes, plan.schedule))
        else:
            irregular.extend(routes)
    orders.update(list_schedule(irregular))
    return _Layout(orders)


def _pipeline_orders(
    hops: tuple[Stage, ...], routes: list[Route], kind: ScheduleKind
) -> Iterator[tuple[WorkerId, tuple[Unit, ...]]]:
    travellers = sorted((route.born, m, at) for at, route in enumerate(routes) for m in route.microbatches)
    for place, hop in enumerate(hops):
        forwards = [Unit.forward(routes[at], m, hops, place) for _, m, at in travellers]
        backwards = [Unit.backward(routes[at], m, hops, place) for _, m, at in travellers]
        ahead = kind.forwards_ahead(len(hops) - 1 - place, len(travellers))
        yield hop.worker, tuple(_one_f_one_b(forwards, backwards, ahead))


def _one_f_one_b(forwards: list[Unit], backwards: list[Unit | None], ahead: int) -> Iterator[Unit]:
    """Warm-up of `ahead` forwards, then a forward and a backward in turn, then the other backwards.

    Where a microbatch has no backward here its place stays empty: what is left keeps the textbook's global
    order.
    """
    yield from forwards[:ahead]
    for at, backward in enumerate(backwards):
        if ahead + at < len(forwards):
            yield forwards[ahead + at]
        if backward is not None:
            yield backward


def _split(units: tuple[Unit, ...]) -> Iterator[tuple[Instruction, ...]]:
    """The units' instructions, with the last counting backwards cut into layers, so that syncs can start
    early.

    "Last" is the highest microbatch of those born in one generation, not of the whole plan: routes born later
    must not change how an earlier one's backward is cut, because it may be half done.
    """
    last: dict[tuple[int, int], int] = {}
    for unit in units:
        for layer in unit.counted:
            key = (unit.born, layer)
            last[key] = max(last.get(key, -1), unit.microbatch)
    for unit in units:
        yield unit.instructions(by_layer=any(last[unit.born, layer] == unit.microbatch for layer in unit.counted))
