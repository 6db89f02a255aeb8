"""Programs: what each worker does in a step, in order, as a pure function of (plan, worker).

A worker's order is always a restriction of one global order in which everything comes after what it needs.
Sends do not wait for their receivers and receives match by (born, microbatch, boundary), not by order, so the
worker whose next instruction is the globally first one not yet done can always do it: no program can
deadlock, and neither can what is left of it after some instructions were done under an earlier plan.

A route's instructions depend on nothing but the route. So a plan that keeps a route keeps its instructions,
equal ones, and a worker drops those it has done. (A sync's round may change; a sync is the same when group
and epoch are.) Which layer a piece of a backward covers depends, beside the route, on the microbatches born in
the same generation that the worker counts: it keeps or drops all of those together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from planaria.plan.list_schedule import LayerUnits, list_schedule
from planaria.plan.plan import Plan, Redundancy, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program import Instruction, Op, Program
from planaria.plan.stand_in import ring_of_whole, stand_ins, with_shadows
from planaria.plan.sync_rounds import colour
from planaria.plan.work import Leg, Phase, Unit, legs, merge_hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A way whose workers serve no other one: a pipeline, whatever the rest of the plan does.

    Attributes:
        hops: merged.
        routes: all that take it, in the plan's order.
        stand_ins: of each hop, the worker that runs it once more, or none.
        copies: of each hop, the worker that runs its backwards once more, or none.
        keeps_sent: whether what is sent is kept.
        following: of a pipeline of one stage, another one's routes, whose microbatches its worker runs once more.
    """

    hops: tuple[Stage, ...]
    routes: tuple[Route, ...]
    stand_ins: tuple[WorkerId | None, ...]
    copies: tuple[WorkerId | None, ...]
    keeps_sent: bool
    following: tuple[Route, ...] = ()

    @property
    def travellers(self) -> list[tuple[int, int, int]]:
        """Born, microbatch and number of its route, of all microbatches in the order in which they set out."""
        return _travellers(self.routes)

    def at(self, place: int, kind: ScheduleKind) -> list[tuple[Leg, int]]:
        """What passes that place: the leg and the microbatch, in the order of the travellers."""
        return self._at(self.routes, place, kind)

    def shadowed(self, place: int, kind: ScheduleKind) -> list[tuple[Leg, int]]:
        """What the worker at that place may run once more: what its successor does, or another pipeline."""
        if self.following:
            return self._at(self.following, 0, kind)
        following = (place + 1) % len(self.hops)
        return self.at(following, kind) if self.stand_ins[following] == self.hops[place].worker else []

    def _at(self, routes: Sequence[Route], place: int, kind: ScheduleKind) -> list[tuple[Leg, int]]:
        ways = [
            legs(
                route,
                merge_hops(route.hops),
                split=kind.splits_backward,
                keeps_sent=self.keeps_sent,
                copies=self.copies,
            )[place]
            for route in routes
        ]
        return [(ways[at], microbatch) for _, microbatch, at in _travellers(routes)]


def _travellers(routes: Sequence[Route]) -> list[tuple[int, int, int]]:
    return sorted((route.born, m, at) for at, route in enumerate(routes) for m in route.microbatches)


@dataclass(frozen=True, slots=True)
class Order:
    """A worker's units of work, in order.

    Attributes:
        units: all.
        end: of those before the weights' gradients that are left when all else is done: these go layer by layer.
        own_end: of its own; after them comes only what it shadows.
        cut: born, microbatch and phase of the units whose gradients of weights are computed layer by layer.
    """

    units: Sequence[Unit]
    end: int
    own_end: int
    cut: Set[tuple[int, int, Phase]]

    @classmethod
    def of(cls, units: Sequence[Unit], kind: ScheduleKind) -> Order:
        own_end = len(units)
        while own_end > 0 and units[own_end - 1].phase.is_shadow:
            own_end -= 1
        end = own_end
        while end > 0 and units[end - 1].phase is Phase.WEIGHT_GRADIENTS:
            end -= 1
        return cls(units, end, own_end, _to_cut(units, kind))

    def instructions(self, unit: Unit) -> Iterator[Instruction]:
        """Of one of the units."""
        return unit.instructions(by_layer=(unit.leg.born, unit.microbatch, unit.phase) in self.cut)

    def tail(self) -> list[Instruction]:
        """Of the weights' gradients that are left: layer by layer from the top, so that the upper layers' sums start
        first."""
        tail = [instruction for unit in self.units[self.end : self.own_end] for instruction in self.instructions(unit)]
        tail.sort(key=lambda i: (len(i.counted) == 1, -i.counted[0]))
        return tail


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Who works in which order.

    Attributes:
        paths: those that are pipelines.
        place_of: of a worker of one: number of its path, and its place there.
        orders: of every other worker: its units of work, in order.
        rounds: of each group's sum.
        redundancy: the plan's.
    """

    paths: tuple[Path, ...]
    place_of: Mapping[WorkerId, tuple[int, int]]
    orders: Mapping[WorkerId, Sequence[Unit]]
    rounds: tuple[int, ...]
    redundancy: Redundancy | None

    def units(self, worker: WorkerId, kind: ScheduleKind) -> Sequence[Unit]:
        if worker not in self.place_of:
            return self.orders.get(worker, ())
        number, place = self.place_of[worker]
        path = self.paths[number]
        own = tuple(_pipeline_order(path, place, kind))
        if self.redundancy is None or not self.redundancy.runs_forwards:
            return own
        shadowed = path.shadowed(place, kind)
        return tuple(with_shadows(own, shadowed, worker, self.redundancy, place, len(path.hops)))


def program(plan: Plan, worker: WorkerId) -> Program:
    """The worker's instructions for one step under the plan, in order.

    Raises:
        KeyError: the worker owns no layers in the plan.
    """
    return _program(plan, worker, _layout(plan))


def programs(plan: Plan, workers: Iterable[WorkerId] | None = None) -> dict[WorkerId, Program]:
    """The programs of these workers, or of all."""
    layout = _layout(plan)
    return {worker: _program(plan, worker, layout) for worker in (plan.workers if workers is None else workers)}


def orders(plan: Plan, workers: Iterable[WorkerId]) -> dict[WorkerId, Order]:
    """Of these workers: what their programs are made from."""
    layout = _layout(plan)
    return {worker: Order.of(layout.units(worker, plan.schedule), plan.schedule) for worker in workers}


def paths(plan: Plan) -> tuple[Path, ...]:
    """The ways whose workers serve no other way, by their first route's place in the plan."""
    return _layout(plan).paths


def _program(plan: Plan, worker: WorkerId, layout: _Layout) -> Program:
    groups, rounds = plan.groups_of[worker], layout.rounds
    units = layout.units(worker, plan.schedule)
    body = _body(Order.of(units, plan.schedule))
    last = _last_counts(units, body)
    due: dict[int, list[int]] = {}
    for group in sorted(groups, key=lambda g: (rounds[g], g)):
        due.setdefault(max(last.get(layer, -1) for layer in plan.groups[group].layers), []).append(group)

    def syncs(at: int) -> Iterator[Instruction]:
        for group in due.get(at, ()):
            yield Instruction(op=Op.SYNC, group=group, epoch=plan.sync_epochs[group], round=rounds[group])

    instructions = [*syncs(-1)]
    done = 0
    for at in sorted(due.keys() - {-1}):
        instructions += body[done : at + 1]
        instructions += syncs(at)
        done = at + 1
    instructions += body[done:]
    instructions += [Instruction(op=Op.VOTE, epoch=plan.generation), Instruction(op=Op.APPLY)]
    return tuple(instructions)


@lru_cache(maxsize=8)
def _layout(plan: Plan) -> _Layout:
    ways: dict[tuple[Stage, ...], list[Route]] = {}
    for route in plan.routes:
        ways.setdefault(merge_hops(route.hops), []).append(route)
    visits: dict[WorkerId, int] = {}
    for hops in ways:
        for hop in hops:
            visits[hop.worker] = visits.get(hop.worker, 0) + 1
    regular: list[Path] = []
    irregular: list[Route] = []
    for hops, routes in ways.items():
        if all(visits[hop.worker] == 1 for hop in hops):
            regular.append(_path(plan, hops, routes))
        else:
            irregular.extend(routes)
    place_of = {hop.worker: (at, place) for at, path in enumerate(regular) for place, hop in enumerate(path.hops)}
    orders = _crossing(
        tuple(irregular), plan.schedule, plan.spare_in_flight, plan.layer_units, plan.redundancy is not None
    )
    return _Layout(
        paths=_with_following(plan, regular),
        place_of=place_of,
        orders=orders,
        rounds=colour(plan),
        redundancy=plan.redundancy,
    )


@lru_cache(maxsize=8)
def _crossing(
    routes: tuple[Route, ...],
    kind: ScheduleKind,
    spare_in_flight: int,
    layer_units: tuple[LayerUnits, ...],
    keeps_sent: bool,
) -> Mapping[WorkerId, Sequence[Unit]]:
    """Of plans that differ in what moves beside a step, one list schedule."""
    return list_schedule(routes, kind, spare_in_flight, layer_units, keeps_sent=keeps_sent)


def _path(plan: Plan, hops: tuple[Stage, ...], routes: Sequence[Route]) -> Path:
    found = stand_ins(plan, hops)
    runs_backwards = plan.redundancy is not None and plan.redundancy.runs_backwards
    return Path(
        hops=hops,
        routes=tuple(routes),
        stand_ins=found,
        copies=found if runs_backwards else (None,) * len(hops),
        keeps_sent=plan.redundancy is not None,
    )


def _with_following(plan: Plan, regular: Sequence[Path]) -> tuple[Path, ...]:
    """Pipelines of one stage are in a ring, in the order of their workers."""
    alone = {path.hops[0].worker: path for path in regular if len(path.hops) == 1}
    following = ring_of_whole(plan, sorted(alone))
    return tuple(
        replace(path, following=alone[following[path.hops[0].worker]].routes)
        if len(path.hops) == 1 and path.hops[0].worker in following
        else path
        for path in regular
    )


def _pipeline_order(path: Path, place: int, kind: ScheduleKind) -> Iterator[Unit]:
    here = path.at(place, kind)
    ahead = kind.forwards_ahead(len(path.hops) - 1 - place, len(here))
    return _one_f_one_b(here, ahead, kind.weights_behind(place))


def _one_f_one_b(travellers: Sequence[tuple[Leg, int]], ahead: int, behind: int) -> Iterator[Unit]:
    """Warm-up of `ahead` forwards, then a forward and a backward in turn, then the other backwards; a microbatch's
    weight gradients, where they are apart, after the backward of the microbatch `behind` later.

    Where a microbatch has no backward here its place stays empty: what is left keeps the textbook's global
    order. (Weight gradients need and give nothing elsewhere, so they fit into a global order anywhere.)
    """
    for leg, microbatch in travellers[:ahead]:
        yield Unit(Phase.FORWARD, leg, microbatch)
    for at, (leg, microbatch) in enumerate(travellers):
        if ahead + at < len(travellers):
            yield Unit(Phase.FORWARD, *travellers[ahead + at])
        if leg.backward is not None:
            yield Unit(Phase.INPUT_GRADIENT, leg, microbatch)
        if at >= behind and travellers[at - behind][0].has_weight:
            yield Unit(Phase.WEIGHT_GRADIENTS, *travellers[at - behind])
    for leg, microbatch in travellers[max(0, len(travellers) - behind) :]:
        if leg.has_weight:
            yield Unit(Phase.WEIGHT_GRADIENTS, leg, microbatch)


def _body(order: Order) -> list[Instruction]:
    """The units' instructions, with the last counting backwards cut into layers, so that syncs can start early."""
    body: list[Instruction] = []
    for unit in order.units[: order.end]:
        body += order.instructions(unit)
    body += order.tail()
    return body + [instruction for unit in order.units[order.own_end :] for instruction in unit.instructions()]


def _last_counts(units: Sequence[Unit], body: Sequence[Instruction]) -> dict[int, int]:
    """For each layer that is counted here, the place of its last count."""
    own = {id(unit.leg): unit.leg for unit in units if not unit.phase.is_shadow}
    num_layers = len({layer for leg in own.values() for layer in leg.counted})
    last: dict[int, int] = {}
    for at in range(len(body) - 1, -1, -1):
        if len(last) == num_layers:
            break
        for layer in body[at].counted if body[at].op is not Op.SHADOW_BACKWARD else ():
            last.setdefault(layer, at)
    return last


def _to_cut(units: Sequence[Unit], kind: ScheduleKind) -> set[tuple[int, int, Phase]]:
    """Born, microbatch and phase of the units that are cut into layers.

    They are the last to count one of their layers; and of weight gradients also those of the microbatches that may
    come after all other work, because they lag behind. "Last" means the highest microbatch of those born in one
    generation, not of the whole plan: routes born later must not change how an earlier one's backward is cut,
    because it may be half done.
    """
    microbatches: dict[tuple[int, Phase], tuple[Leg, list[int]]] = {}
    for phase, leg, microbatch, _ in units:
        if (phase is Phase.INPUT_GRADIENT or phase is Phase.WEIGHT_GRADIENTS) and leg.counted:
            found = microbatches.get((id(leg), phase))
            if found is None:
                found = microbatches[id(leg), phase] = leg, []
            found[1].append(microbatch)
    counting: dict[tuple[int, int, Phase], list[tuple[int, int]]] = {}
    for (_, phase), (leg, of_leg) in microbatches.items():
        behind = kind.weights_behind(leg.place)
        top = sorted(of_leg)[-1 - behind :]
        for layer in leg.counted:
            counting.setdefault((leg.born, layer, phase), []).extend((microbatch, behind) for microbatch in top)
    cut: set[tuple[int, int, Phase]] = set()
    for (born, _, phase), travellers in counting.items():
        for turn, (microbatch, behind) in enumerate(sorted(travellers, reverse=True)):
            if turn == 0 or (phase is Phase.WEIGHT_GRADIENTS and turn <= behind):
                cut.add((born, microbatch, phase))
    return cut
