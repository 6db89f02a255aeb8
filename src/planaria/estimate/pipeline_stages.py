"""Pipeline stages: how long a pipeline's stages take for a microbatch, whatever else travels along them.

Of pipelines that are alike but for their workers' numbers these are the same, so they are found once for all of them.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from planaria.estimate.durations import Durations
from planaria.estimate.pipeline_rounds import Front
from planaria.plan.plan import Plan, Stage
from planaria.plan.program.instructions import Op

MOST_COUNTED = 256
"""Sets of layers of which it is known what backwards take that count them; then all are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backwards:
    """Of microbatches of which the same layers count.

    Attributes:
        seconds: of the backward at each stage; 0: there is none.
        low: the lowest stage that runs a backward.
        counted: the layers, as bits.
    """

    seconds: list[float]
    low: int
    counted: int


class Stages:
    """Of a pipeline, and of all that differ from it in their workers' numbers alone.

    Attributes:
        times_s: four rows of a column a stage: its forward, a message to the next stage, one to the stage before, and
            when it begins.
        layers: of each stage, as bits.
        groups: that each stage's worker holds, each with those of its layers that the stage has.
        front: of steps of microbatches all of whose layers count.
    """

    def __init__(self, plan: Plan, hops: Sequence[Stage], durations: Durations) -> None:
        self._computed = durations.computed
        self._hops = tuple(hops)
        self._on = [(durations.devices[hop.worker], durations.speeds[hop.worker]) for hop in hops]
        self._all_layers = tuple(range(plan.num_layers))
        forwards_s, down_s, up_s = [], [0.0] * len(hops), [0.0] * len(hops)
        last = len(hops) - 1
        for place, hop in enumerate(hops):
            forwards_s.append(durations.compute_of_s(hop.worker, Op.FORWARD, hop.first_layer, hop.end_layer))
            if place < last:
                down_s[place] = durations.message_s(hop.worker, hops[place + 1].worker, hop.end_layer)
            if place:
                up_s[place] = durations.message_s(hop.worker, hops[place - 1].worker, hop.first_layer)
        self.times_s = [forwards_s, down_s, up_s, [durations.late_s[hop.worker] for hop in hops]]
        self.layers = [_bits(hop.layers) for hop in hops]
        self.groups = [
            [
                (group, [layer for layer in plan.groups[group].layers if layer in hop.layers])
                for group in plan.groups_of[hop.worker]
            ]
            for hop in hops
        ]
        self.front = Front()
        self._most_ahead = [plan.schedule.forwards_ahead(last - place, sys.maxsize) for place in range(len(hops))]
        self._backwards: dict[tuple[int, ...], Backwards] = {}

    def ahead(self, number: int) -> list[int]:
        """Of each stage, the forwards of so many microbatches before its first backward may follow the next forward."""
        return [min(most, number) for most in self._most_ahead]

    def counts_all(self, counted: tuple[int, ...]) -> bool:
        """These are all layers of the model."""
        return counted == self._all_layers

    def backwards(self, counted: tuple[int, ...]) -> Backwards:
        """Of microbatches of which these layers count."""
        found = self._backwards.get(counted)
        if found is None:
            if len(self._backwards) >= MOST_COUNTED:
                self._backwards.clear()
            found = self._backwards[counted] = Backwards(
                seconds=[self._backward_s(place, counted) for place in range(len(self._hops))],
                low=next(place for place, hop in enumerate(self._hops) if hop.end_layer > counted[0]),
                counted=_bits(counted),
            )
        return found

    def _backward_s(self, place: int, counted: tuple[int, ...]) -> float:
        hop, low = self._hops[place], counted[0]
        if hop.end_layer <= low:
            return 0.0
        own = counted[bisect_left(counted, hop.first_layer) : bisect_left(counted, hop.end_layer)]
        return self._computed[*self._on[place], Op.BACKWARD, max(hop.first_layer, low), hop.end_layer, own]

    def pieces(self, place: int, counted: tuple[int, ...]) -> tuple[Sequence[float], Sequence[int]]:
        """Of a backward at that stage that is cut into layers; see `planaria.estimate.durations.Computed`."""
        hop = self._hops[place]
        return self._computed.pieces_of(*self._on[place], hop.first_layer, hop.end_layer, counted)


def _bits(layers: Sequence[int]) -> int:
    return sum(1 << layer for layer in layers)
