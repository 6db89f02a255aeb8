"""Orders for routes that cross each other: a list schedule, in whole units of time, deterministic.

Used after a loss that leaves no pipeline whole, and by rerouting: workers then serve several paths, and no
textbook schedule applies.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from planaria.plan.plan import Route, ScheduleKind, WorkerId
from planaria.plan.work import Leg, Phase, Unit, legs, merge_hops

LayerUnits = tuple[int, int, int]
"""How long a layer's forward, its input's gradient and its weights' gradients take."""

_ALIKE: LayerUnits = (1, 1, 1)
"""Of every layer, where a plan does not say."""

_ROUNDS = 3
"""Of settling the turns; more gain nothing."""

_Waiting = tuple[int, float, int, int]
"""Of a unit: born, its microbatch's turn, the microbatch, the unit's number."""

_Step = tuple[Phase, Leg, int, tuple[int, ...], list[_Waiting]]
"""Of all microbatches of a way one unit: its phase and leg, what it costs, the places of those that it makes ready, and
where it waits once it is ready."""


def list_schedule(
    routes: Sequence[Route],
    kind: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
    spare_in_flight: int = 0,
    layer_units: Sequence[LayerUnits] = (),
    *,
    keeps_sent: bool = False,
) -> dict[WorkerId, tuple[Unit, ...]]:
    """Every worker's order: the order of starts in one simulated run, so a restriction of a global order.

    A free worker takes a backward for whose result somebody waits before a forward, and a forward before weight
    gradients and the last backward of a way, which so fill what would be bubbles; of each, the oldest route's first,
    and then in turn (`_turns`).

    It starts no forward while it would keep more layers' activations than the schedule kind keeps on its fullest
    leg, were that a stage of a pipeline of its own (`ScheduleKind.in_flight`), with the spare ones; a worker that runs
    several legs, or for several pipelines, has no more. What nobody waits for then goes first. Only when nothing else
    in the whole system can go on is the lowest waiting forward started all the same: the bound can delay work but
    never block it.

    Measured on ReCycle's reroutes (docs/explanation/policies.md): with split backwards and 4 spare microbatches, steps
    are within 2% of what the routes allow. Without spare ones a busy stage has no room for microbatches that are
    held up above it.

    Args:
        routes: that cross.
        kind: how backwards are made, and how many microbatches are kept.
        spare_in_flight: microbatches that a worker may keep beyond these.
        layer_units: of each layer; none: all layers and phases take the same.
        keeps_sent: whether what is sent is kept, to be sent again.
    """
    return _ListSchedule(routes, kind, spare_in_flight, layer_units, keeps_sent).run() if routes else {}


class _ListSchedule:
    def __init__(
        self,
        routes: Sequence[Route],
        kind: ScheduleKind,
        spare_in_flight: int,
        layer_units: Sequence[LayerUnits],
        keeps_sent: bool,
    ) -> None:
        self._layer_units = layer_units
        self._units: list[Unit] = []
        self._costs: list[int] = []
        self._next: list[tuple[int, ...]] = []
        """Of each unit, those that it makes ready."""
        self._ranks: list[_Waiting] = []
        self._waits_in: list[list[_Waiting]] = []
        """Of each unit, where it waits once it is ready."""
        self._bounds: dict[WorkerId, int] = {}
        self._ready: dict[WorkerId, tuple[list[_Waiting], ...]] = {}
        ways = [
            legs(route, merge_hops(route.hops), split=kind.splits_backward, keeps_sent=keeps_sent) for route in routes
        ]
        turns = _turns(routes, ways)
        num_served: dict[WorkerId, int] = {}
        for route, way in zip(routes, ways, strict=True):
            for worker in {leg.worker for leg in way}:
                num_served[worker] = num_served.get(worker, 0) + len(route.microbatches)
        for route, way in zip(routes, ways, strict=True):
            for leg in way:
                in_flight = kind.in_flight(leg.hops_after, num_served[leg.worker], leg.place) + spare_in_flight
                bound = max(self._bounds.get(leg.worker, 0), in_flight * leg.num_layers)
                self._bounds[leg.worker] = bound
                self._ready.setdefault(leg.worker, ([], [], []))
            steps = self._steps(way)
            for microbatch in route.microbatches:
                self._add(steps, microbatch, turns[route.born, microbatch])
        self._kept = dict.fromkeys(self._bounds, 0)
        self._busy = dict.fromkeys(self._bounds, False)
        self._order: dict[WorkerId, list[Unit]] = {w: [] for w in self._bounds}
        self._running: list[tuple[int, int]] = []
        self._touched: set[WorkerId] = set(self._bounds)

    def _steps(self, way: tuple[Leg, ...]) -> list[_Step]:
        """What each of a way's microbatches is for its workers."""
        units: list[tuple[Phase, Leg]] = [(Phase.FORWARD, leg) for leg in way]
        following: list[tuple[int, ...]] = [(place,) for place in range(1, len(way))] + [()]
        below = len(way) - 1
        for leg in reversed(way):
            if leg.backward is None:
                break
            at = len(units)
            following[below] = (*following[below], at)
            units.append((Phase.INPUT_GRADIENT, leg))
            following.append(())
            if leg.has_weight:
                following[at] = (at + 1,)
                units.append((Phase.WEIGHT_GRADIENTS, leg))
                following.append(())
            below = at
        return [
            (phase, leg, self._cost(phase, leg), after, self._waiting_in(phase, leg))
            for (phase, leg), after in zip(units, following, strict=True)
        ]

    def _waiting_in(self, phase: Phase, leg: Leg) -> list[_Waiting]:
        waited_for = phase is not Phase.INPUT_GRADIENT or leg.gradient_to is not None
        return self._ready[leg.worker][phase if waited_for else Phase.WEIGHT_GRADIENTS]

    def _add(self, steps: Sequence[_Step], microbatch: int, turn: float) -> None:
        first = number = len(self._units)
        for phase, leg, cost, following, waiting in steps:
            self._units.append(Unit(phase, leg, microbatch))
            self._costs.append(cost)
            self._next.append(tuple([first + at for at in following]))
            self._ranks.append((leg.born, turn, microbatch, number))
            self._waits_in.append(waiting)
            number += 1

    def _cost(self, phase: Phase, leg: Leg) -> int:
        def units(layer: int) -> LayerUnits:
            return self._layer_units[layer] if self._layer_units else _ALIKE

        if phase is Phase.FORWARD:
            return sum(units(layer)[0] for layer in range(leg.first_layer, leg.end_layer))
        weights = sum(units(layer)[2] for layer in leg.counted)
        if phase is Phase.WEIGHT_GRADIENTS:
            return weights
        inputs = sum(units(layer)[1] for layer in range(leg.low_layer, leg.end_layer))
        return inputs if leg.has_weight else inputs + weights

    def run(self) -> dict[WorkerId, tuple[Unit, ...]]:
        for number, unit in enumerate(self._units):
            if unit.phase is Phase.FORWARD and unit.leg.place == 0:
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
        self._touched.add(self._units[number].leg.worker)

    def _start_next(self, worker: WorkerId, now: int) -> None:
        forwards, backwards, others = self._ready[worker]
        if backwards:
            self._start(backwards, now)
        elif forwards and self._has_room(worker, self._units[forwards[0][-1]].leg):
            self._start(forwards, now)
        elif others:
            self._start(others, now)

    def _has_room(self, worker: WorkerId, leg: Leg) -> bool:
        return not leg.keeps or self._kept[worker] + leg.num_layers <= self._bounds[worker]

    def _force(self, now: int) -> bool:
        """Start the lowest waiting forward in spite of its worker's bound; False when nothing waits."""
        waiting = [forwards for forwards, _, _ in self._ready.values() if forwards]
        if not waiting:
            return False
        self._start(min(waiting), now)
        return True

    def _start(self, queue: list[_Waiting], now: int) -> None:
        number = heapq.heappop(queue)[-1]
        unit = self._units[number]
        leg = unit.leg
        self._busy[leg.worker] = True
        self._order[leg.worker].append(unit)
        if unit.phase is Phase.FORWARD and leg.keeps:
            self._kept[leg.worker] += leg.num_layers
        heapq.heappush(self._running, (now + self._costs[number], number))

    def _finish(self, number: int) -> None:
        phase, leg, _, _ = self._units[number]
        self._busy[leg.worker] = False
        self._touched.add(leg.worker)
        if phase is Phase.WEIGHT_GRADIENTS or (phase is Phase.INPUT_GRADIENT and not leg.has_weight):
            self._kept[leg.worker] -= leg.num_layers
        for following in self._next[number]:
            self._make_ready(following)


def _turns(routes: Sequence[Route], ways: Sequence[tuple[Leg, ...]]) -> dict[tuple[int, int], float]:
    """When each (born, microbatch) is due, from 0 to 1: the mean over its legs of its turn among all that pass there.

    So a microbatch that is carried by a peer goes neither before nor after all of the peer's own, and reaches the rest
    of its way when that expects it. The turns at one worker follow from the means, and these from the turns: a few
    rounds settle it.
    """
    passing: dict[tuple[WorkerId, int], set[tuple[int, int]]] = {}
    for route, way in zip(routes, ways, strict=True):
        for leg in way:
            travellers = passing.setdefault((leg.worker, leg.place), set())
            travellers.update((route.born, microbatch) for microbatch in route.microbatches)
    due = {(route.born, microbatch): 0.0 for route in routes for microbatch in route.microbatches}
    for _ in range(_ROUNDS):
        turns: dict[tuple[WorkerId, int], dict[tuple[int, int], float]] = {}
        for where, travellers in passing.items():
            order = sorted(travellers, key=lambda traveller: (traveller[0], due[traveller], traveller[1]))
            turns[where] = {traveller: (2 * at + 1) / (2 * len(order)) for at, traveller in enumerate(order)}
        due = {
            (route.born, m): sum(turns[leg.worker, leg.place][route.born, m] for leg in way) / len(way)
            for route, way in zip(routes, ways, strict=True)
            for m in route.microbatches
        }
    return due
