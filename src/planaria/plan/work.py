"""Units of work: what is done for one microbatch on one hop of its route, with the messages that belong to it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from planaria.plan.plan import Route, Stage, WorkerId
from planaria.plan.program import Instruction, Op


def merge_hops(hops: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The same way with neighbouring hops on one worker made into one."""
    merged: list[Stage] = []
    for hop in hops:
        if merged and merged[-1].worker == hop.worker and merged[-1].num_devices == hop.num_devices:
            hop = Stage(
                worker=hop.worker,
                first_layer=merged.pop().first_layer,
                end_layer=hop.end_layer,
                num_devices=hop.num_devices,
            )
        merged.append(hop)
    return tuple(merged)


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """One hop of a (merged) route: all that its instructions depend on beside the microbatch.

    Attributes:
        worker: who does it.
        place: of the hop in its route, from 0.
        hops_after: hops of the route above this one.
        born: the route's.
        first_layer: lowest layer that runs forward.
        low_layer: lowest layer that runs backward; end_layer where none does.
        end_layer: one above the highest.
        counted: the layers whose gradients are accumulated, ascending.
        backward: the instruction that gives the input's gradient: BACKWARD, which gives the weights' too where any are
            counted, or BACKWARD_INPUT, which leaves them to a BACKWARD_WEIGHT; none where no layer of the hop or below
            is counted.
        below: the worker of the hop below, or none.
        above: the worker of the hop above, or none.
        gradient_to: the worker of the hop below where that runs a backward too, or none.
    """

    worker: WorkerId
    place: int
    hops_after: int
    born: int
    first_layer: int
    low_layer: int
    end_layer: int
    counted: tuple[int, ...]
    backward: Op | None
    below: WorkerId | None
    above: WorkerId | None
    gradient_to: WorkerId | None

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.first_layer

    @property
    def keeps(self) -> bool:
        """Whether a backward follows the forward."""
        return self.backward is not None

    @property
    def has_weight(self) -> bool:
        """Whether gradients of weights are computed apart."""
        return self.backward is Op.BACKWARD_INPUT

    def forward(self, microbatch: int) -> Iterator[Instruction]:
        """A forward with what comes before and after it."""
        if self.place == 0 or self.hops_after == 0:
            yield Instruction(op=Op.LOAD, microbatch=microbatch, born=self.born)
        if self.below is not None:
            yield self._message(Op.RECV_ACTIVATION, microbatch, self.first_layer, self.below)
        yield Instruction(
            op=Op.FORWARD,
            microbatch=microbatch,
            born=self.born,
            first_layer=self.first_layer,
            end_layer=self.end_layer,
            keeps=self.keeps,
        )
        if self.above is not None:
            yield self._message(Op.SEND_ACTIVATION, microbatch, self.end_layer, self.above)

    def input_gradient(self, microbatch: int, *, by_layer: bool) -> Iterator[Instruction]:
        """A BACKWARD or BACKWARD_INPUT with what comes before and after it; `by_layer`: a BACKWARD is cut into layers,
        from the top down."""
        assert self.backward is not None
        if self.above is not None:
            yield self._message(Op.RECV_GRADIENT, microbatch, self.end_layer, self.above)
        ranges = [(self.low_layer, self.end_layer)]
        if by_layer and self.backward is Op.BACKWARD:
            ranges = [(layer, layer + 1) for layer in reversed(range(self.low_layer, self.end_layer))]
        for first, end in ranges:
            counted = tuple(layer for layer in self.counted if first <= layer < end)
            yield Instruction(
                op=self.backward,
                microbatch=microbatch,
                born=self.born,
                first_layer=first,
                end_layer=end,
                counted=counted if self.backward is Op.BACKWARD else (),
            )
        if self.gradient_to is not None:
            yield self._message(Op.SEND_GRADIENT, microbatch, self.low_layer, self.gradient_to)

    def weight_gradients(self, microbatch: int, *, by_layer: bool) -> Iterator[Instruction]:
        """A BACKWARD_WEIGHT; `by_layer`: one for each counted layer, from the top down.

        Together they cover the range of the BACKWARD_INPUT: what that kept for layers that are not counted goes too.
        """
        ranges = [(self.low_layer, self.end_layer, self.counted)]
        if by_layer:
            cuts = (self.low_layer, *self.counted[1:], self.end_layer)
            places = reversed(range(len(self.counted)))
            ranges = [(cuts[at], cuts[at + 1], self.counted[at : at + 1]) for at in places]
        for first, end, counted in ranges:
            yield Instruction(
                op=Op.BACKWARD_WEIGHT,
                microbatch=microbatch,
                born=self.born,
                first_layer=first,
                end_layer=end,
                counted=counted,
            )

    def _message(self, op: Op, microbatch: int, boundary: int, peer: WorkerId) -> Instruction:
        return Instruction(op=op, microbatch=microbatch, born=self.born, first_layer=boundary, peer=peer)


def legs(route: Route, hops: tuple[Stage, ...], *, split: bool) -> tuple[Leg, ...]:
    """The legs of a route.

    Args:
        route: whose.
        hops: its merged hops.
        split: whether backwards are split, where an input's gradient goes on to another worker and weights count.
    """
    low, counted = route.counted[0], set(route.counted)
    result = []
    for place, hop in enumerate(hops):
        below = hops[place - 1].worker if place > 0 else None
        gradient_to = below if hop.first_layer > low else None
        mine = tuple(layer for layer in hop.layers if layer in counted)
        backward = None
        if hop.end_layer > low:
            backward = Op.BACKWARD_INPUT if split and mine and gradient_to is not None else Op.BACKWARD
        result.append(
            Leg(
                worker=hop.worker,
                place=place,
                hops_after=len(hops) - 1 - place,
                born=route.born,
                first_layer=hop.first_layer,
                low_layer=min(max(hop.first_layer, low), hop.end_layer),
                end_layer=hop.end_layer,
                counted=mine,
                backward=backward,
                below=below,
                above=hops[place + 1].worker if place + 1 < len(hops) else None,
                gradient_to=gradient_to,
            )
        )
    return tuple(result)


class Phase(enum.IntEnum):
    """What of a leg is done at once."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    """A whole backward, or the input's half of a split one."""
    WEIGHT_GRADIENTS = 2


class Unit(NamedTuple):
    """One phase of a leg for one microbatch."""

    phase: Phase
    leg: Leg
    microbatch: int

    def instructions(self, *, by_layer: bool = False) -> Iterator[Instruction]:
        """What the worker does for it; `by_layer`: gradients of weights are computed layer by layer."""
        match self.phase:
            case Phase.FORWARD:
                return self.leg.forward(self.microbatch)
            case Phase.INPUT_GRADIENT:
                return self.leg.input_gradient(self.microbatch, by_layer=by_layer)
            case Phase.WEIGHT_GRADIENTS:
                return self.leg.weight_gradients(self.microbatch, by_layer=by_layer)
