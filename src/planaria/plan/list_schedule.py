"""Orders for routes that cross each other: a list schedule, in unit costs, deterministic.

Used after a loss that leaves no pipeline whole, and by rerouting: workers then serve several paths, and no
textbook schedule applies.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from planaria.plan.plan import Route, WorkerId
from planaria.plan.work import Unit, merge_hops

_FORWARD_COST = 1
_BACKWARD_COST = 2

_Key = tuple[int, int, int, bool]
"""A unit: route, microbatch, place of the hop, is it a forward."""


def list_schedule(routes: Sequence[Route]) -> dict[WorkerId, tuple[Unit, ...]]:
    """Every worker's order: the order of starts in one simulated run, so a restriction of a global order.

    A free worker takes a backward before a forward, then the lowest (born, microbatch). It starts no forward
    while it keeps the activations of as many microbatches as its longest way to the loss has hops (the bound
    that 1F1B has), unless nothing else in the whole system can go on: the bound can delay work but never
    block it.
    """
    return _ListSchedule(routes).run() if routes else {}


class _ListSchedule:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._units: dict[_Key, Unit] = {}
        self._hops: list[int] = []
        self._bounds: dict[WorkerId, int] = {}
        for at, route in enumerate(routes):
            self._add(at, route)
        self._kept = dict.fromkeys(self._bounds, 0)
        self._busy = dict.fromkeys(self._bounds, False)
        self._ready: dict[WorkerId, list[tuple[int, int, int, _Key]]] = {w: [] for w in self._bounds}
        self._order: dict[WorkerId, list[Unit]] = {w: [] for w in self._bounds}
        self._running: list[tuple[int, int, _Key]] = []
        self._started = 0

    def _add(self, at: int, route: Route) -> None:
        hops = merge_hops(route.hops)
        self._hops.append(len(hops))
        for place, hop in enumerate(hops):
            self._bounds[hop.worker] = max(self._bounds.get(hop.worker, 0), len(hops) - place)
            for microbatch in route.microbatches:
                self._units[at, microbatch, place, True] = Unit.forward(route, microbatch, hops, place)
                backward = Unit.backward(route, microbatch, hops, place)
                if backward is not None:
                    self._units[at, microbatch, place, False] = backward

    def run(self) -> dict[WorkerId, tuple[Unit, ...]]:
        for key in sorted(self._units):
            if key[2] == 0 and key[3]:
                self._make_ready(key)
        now = 0
        while True:
            for worker in sorted(self._ready):
                if not self._busy[worker]:
                    self._start_next(worker, now)
            if not self._running and not self._force(now):
                break
            now, _, _ = self._running[0]
            while self._running and self._running[0][0] == now:
                self._finish(heapq.heappop(self._running)[2])
        return {worker: tuple(units) for worker, units in sorted(self._order.items())}

    def _make_ready(self, key: _Key) -> None:
        unit = self._units[key]
        heapq.heappush(self._ready[unit.worker], (int(unit.is_forward), unit.born, unit.microbatch, key))

    def _start_next(self, worker: WorkerId, now: int) -> None:
        ready = self._ready[worker]
        if not ready:
            return
        unit = self._units[ready[0][3]]
        if not (unit.is_forward and unit.keeps and self._kept[worker] >= self._bounds[worker]):
            self._start(worker, now)

    def _force(self, now: int) -> bool:
        """Start the lowest waiting forward in spite of its worker's bound; False when nothing waits."""
        waiting = [(ready[0], worker) for worker, ready in sorted(self._ready.items()) if ready]
        if not waiting:
            return False
        self._start(min(waiting)[1], now)
        return True

    def _start(self, worker: WorkerId, now: int) -> None:
        key = heapq.heappop(self._ready[worker])[3]
        unit = self._units[key]
        self._busy[worker] = True
        self._order[worker].append(unit)
        if unit.is_forward and unit.keeps:
            self._kept[worker] += 1
        layers = unit.end_layer - unit.first_layer
        end = now + layers * (_FORWARD_COST if unit.is_forward else _BACKWARD_COST)
        heapq.heappush(self._running, (end, self._started, key))
        self._started += 1

    def _finish(self, key: _Key) -> None:
        at, microbatch, place, is_forward = key
        unit = self._units[key]
        self._busy[unit.worker] = False
        if not is_forward:
            self._kept[unit.worker] -= 1
            following: _Key = (at, microbatch, place - 1, False)
        elif place + 1 < self._hops[at]:
            following = (at, microbatch, place + 1, True)
        else:
            following = (at, microbatch, place, False)
        if following in self._units:
            self._make_ready(following)
