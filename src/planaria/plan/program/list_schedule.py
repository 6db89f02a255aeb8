"""Orders for routes that cross each other: a list schedule, in whole units of time, deterministic.

Used after a loss that leaves no pipeline whole, and by rerouting: workers then serve several paths, and no
order of a pipeline applies.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from planaria.plan.plan import Route, WorkerId
from planaria.plan.program.hops import RouteHop
from planaria.plan.program.units import Phase, Unit
from planaria.plan.schedule_kind import ScheduleKind
from planaria.plan.thresholds import TURN_ROUNDS

LayerUnits = tuple[int, int, int]
"""Units of time of a layer's forward, its input's gradient and its weights' gradients."""

_ALIKE: LayerUnits = (1, 1, 1)
"""Units of time of every layer where a plan does not say."""


_Waiting = tuple[int, float, int, int]
"""Key of a waiting unit: born, its microbatch's turn, the microbatch, the unit's number."""

_Step = tuple[Phase, RouteHop, int, tuple[int, ...], list[_Waiting]]
"""A unit that each microbatch of a route has: its phase and hop, what it costs, the places of those that it makes
ready, and where it waits once it is ready."""


def list_schedule(
    routes: Sequence[Route],
    hops: Sequence[tuple[RouteHop, ...]],
    kind: ScheduleKind,
    spare_in_flight: int = 0,
    layer_units: Sequence[LayerUnits] = (),
) -> dict[WorkerId, tuple[Unit, ...]]:
    """Returns each worker's order: the order of starts in one simulated run, so a restriction of a global order.

    A free worker takes a backward for whose result somebody waits before a forward, and a forward before weight
    gradients and the last backward of a route, which so fill what would be bubbles; of each, the oldest route's first,
    and then in turn (`_turns`).

    It starts no forward while it would keep more layers' activations than the schedule kind keeps on its fullest
    hop, were that a stage of a pipeline of its own (`ScheduleKind.in_flight`), with the spare ones; a worker that runs
    several hops, or for several pipelines, has no more. What nobody waits for then goes first. Only when nothing else
    in the whole system can go on is the lowest waiting forward started all the same: the bound can delay work but
    never block it.

    Measured on ReCycle's reroutes (docs/explanation/policies.md): with split backwards and 4 spare microbatches, steps
    are within 2% of what the routes allow. Without spare ones a busy stage has no room for microbatches that are
    held up above it.

    Args:
        routes: the routes that cross.
        hops: the hops of each route.
        kind: how backwards are made, and how many microbatches are kept.
        spare_in_flight: microbatches that a worker may keep beyond these.
        layer_units: of each layer; none: all layers and phases take the same.
    """
    return _ListSchedule(routes, hops, kind, spare_in_flight, layer_units).run() if routes else {}


class _ListSchedule:
    def __init__(
        self,
        routes: Sequence[Route],
        hops: Sequence[tuple[RouteHop, ...]],
        kind: ScheduleKind,
        spare_in_flight: int,
        layer_units: Sequence[LayerUnits],
    ) -> None:
        self._layer_units = layer_units
        self._units: list[Unit] = []
        self._costs: list[int] = []
        self._next: list[tuple[int, ...]] = []
        """For each unit, the units that it makes ready."""
        self._ranks: list[_Waiting] = []
        self._waits_in: list[list[_Waiting]] = []
        """For each unit, where it waits once it is ready."""
        self._bounds: dict[WorkerId, int] = {}
        self._ready: dict[WorkerId, tuple[list[_Waiting], ...]] = {}
        turns = _turns(routes, hops)
        num_served: dict[WorkerId, int] = {}
        for route, its in zip(routes, hops, strict=True):
            for worker in {hop.worker for hop in its}:
                num_served[worker] = num_served.get(worker, 0) + len(route.microbatches)
        for route, its in zip(routes, hops, strict=True):
            for hop in its:
                in_flight = kind.in_flight(hop.hops_after, num_served[hop.worker], hop.place) + spare_in_flight
                bound = max(self._bounds.get(hop.worker, 0), in_flight * hop.num_layers)
                self._bounds[hop.worker] = bound
                self._ready.setdefault(hop.worker, ([], [], []))
            steps = self._steps(its)
            for microbatch in route.microbatches:
                self._add(steps, microbatch, turns[route.born, microbatch])
        self._kept = dict.fromkeys(self._bounds, 0)
        self._busy = dict.fromkeys(self._bounds, False)
        self._order: dict[WorkerId, list[Unit]] = {w: [] for w in self._bounds}
        self._running: list[tuple[int, int]] = []
        self._touched: set[WorkerId] = set(self._bounds)

    def _steps(self, its: tuple[RouteHop, ...]) -> list[_Step]:
        """Returns the units of work that each microbatch of a route consists of."""
        units: list[tuple[Phase, RouteHop]] = [(Phase.FORWARD, hop) for hop in its]
        following: list[tuple[int, ...]] = [(place,) for place in range(1, len(its))] + [()]
        below = len(its) - 1
        for hop in reversed(its):
            if not hop.keeps:
                break
            at = len(units)
            following[below] = (*following[below], at)
            units.append((Phase.INPUT_GRADIENT, hop))
            following.append(())
            if hop.has_weight:
                following[at] = (at + 1,)
                units.append((Phase.WEIGHT_GRADIENTS, hop))
                following.append(())
            below = at
        return [
            (phase, hop, self._cost(phase, hop), after, self._waiting_in(phase, hop))
            for (phase, hop), after in zip(units, following, strict=True)
        ]

    def _waiting_in(self, phase: Phase, hop: RouteHop) -> list[_Waiting]:
        waited_for = phase is not Phase.INPUT_GRADIENT or hop.gradient_to is not None
        return self._ready[hop.worker][phase if waited_for else Phase.WEIGHT_GRADIENTS]

    def _add(self, steps: Sequence[_Step], microbatch: int, turn: float) -> None:
        first = number = len(self._units)
        for phase, hop, cost, following, waiting in steps:
            self._units.append(Unit(phase, hop, microbatch))
            self._costs.append(cost)
            self._next.append(tuple([first + at for at in following]))
            self._ranks.append((hop.born, turn, microbatch, number))
            self._waits_in.append(waiting)
            number += 1

    def _cost(self, phase: Phase, hop: RouteHop) -> int:
        def units(layer: int) -> LayerUnits:
            return self._layer_units[layer] if self._layer_units else _ALIKE

        if phase is Phase.FORWARD:
            return sum(units(layer)[0] for layer in range(hop.first_layer, hop.end_layer))
        weights = sum(units(layer)[2] for layer in hop.counted)
        if phase is Phase.WEIGHT_GRADIENTS:
            return weights
        inputs = sum(units(layer)[1] for layer in range(hop.low_layer, hop.end_layer))
        return inputs if hop.has_weight else inputs + weights

    def run(self) -> dict[WorkerId, tuple[Unit, ...]]:
        for number, unit in enumerate(self._units):
            if unit.phase is Phase.FORWARD and unit.hop.place == 0:
                self._make_ready(number)
        now = 0
        while True:
            for worker in sorted(self._touched):
                if not self._busy[worker]:
                    self._start_next(worker, now)
            self._touched.clear()
            if not self._running and not self._force(now):
                break
            now = self._running[0][0]
            while self._running and self._running[0][0] == now:
                self._finish(heapq.heappop(self._running)[1])
        return {worker: tuple(units) for worker, units in sorted(self._order.items())}

    def _make_ready(self, number: int) -> None:
        heapq.heappush(self._waits_in[number], self._ranks[number])
        self._touched.add(self._units[number].hop.worker)

    def _start_next(self, worker: WorkerId, now: int) -> None:
        forwards, backwards, others = self._ready[worker]
        if backwards:
            self._start(backwards, now)
        elif forwards and self._has_room(worker, self._units[forwards[0][-1]].hop):
            self._start(forwards, now)
        elif others:
            self._start(others, now)

    def _has_room(self, worker: WorkerId, hop: RouteHop) -> bool:
        return not hop.keeps or self._kept[worker] + hop.num_layers <= self._bounds[worker]

    def _force(self, now: int) -> bool:
        """Starts the lowest waiting forward in spite of its worker's bound; False when nothing waits."""
        waiting = [forwards for forwards, _, _ in self._ready.values() if forwards]
        if not waiting:
            return False
        self._start(min(waiting), now)
        return True

    def _start(self, queue: list[_Waiting], now: int) -> None:
        number = heapq.heappop(queue)[-1]
        unit = self._units[number]
        hop = unit.hop
        self._busy[hop.worker] = True
        self._order[hop.worker].append(unit)
        if unit.phase is Phase.FORWARD and hop.keeps:
            self._kept[hop.worker] += hop.num_layers
        heapq.heappush(self._running, (now + self._costs[number], number))

    def _finish(self, number: int) -> None:
        phase, hop, _, _ = self._units[number]
        self._busy[hop.worker] = False
        self._touched.add(hop.worker)
        if phase is Phase.WEIGHT_GRADIENTS or (phase is Phase.INPUT_GRADIENT and not hop.has_weight):
            self._kept[hop.worker] -= hop.num_layers
        for following in self._next[number]:
            self._make_ready(following)


def _turns(routes: Sequence[Route], hops: Sequence[tuple[RouteHop, ...]]) -> dict[tuple[int, int], float]:
    """Returns when each (born, microbatch) is due, from 0 to 1: the mean over its hops of its turn among all there.

    So a microbatch that is carried by a peer goes neither before nor after all of the peer's own, and reaches the rest
    of its route when that expects it. The turns at one worker follow from the means, and these from the turns: a few
    rounds settle it.
    """
    passing: dict[tuple[WorkerId, int], set[tuple[int, int]]] = {}
    for route, its in zip(routes, hops, strict=True):
        for hop in its:
            travellers = passing.setdefault((hop.worker, hop.place), set())
            travellers.update((route.born, microbatch) for microbatch in route.microbatches)
    due = {(route.born, microbatch): 0.0 for route in routes for microbatch in route.microbatches}
    for _ in range(TURN_ROUNDS):
        turns: dict[tuple[WorkerId, int], dict[tuple[int, int], float]] = {}
        for where, travellers in passing.items():
            order = sorted(travellers, key=lambda traveller: (traveller[0], due[traveller], traveller[1]))
            turns[where] = {traveller: (2 * at + 1) / (2 * len(order)) for at, traveller in enumerate(order)}
        due = {
            (route.born, m): sum(turns[hop.worker, hop.place][route.born, m] for hop in its) / len(its)
            for route, its in zip(routes, hops, strict=True)
            for m in route.microbatches
        }
    return due
