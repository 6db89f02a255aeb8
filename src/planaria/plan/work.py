"""Units of work: what is done for one microbatch on one hop of its route, with the messages that belong to it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
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
        activation_to: the worker of the hop above where that still runs a forward, or none.
        gradient_to: the worker of the hop below where that runs a backward too, or none.
        copy_to: the worker that runs the hop below once more, and so needs the gradient too, or none.
        keeps_sent: what is sent is kept, to be sent again if its receiver is lost.
        is_done: of a resumed route: all that this hop had to compute is done, and it only sends again.
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
    activation_to: WorkerId | None
    gradient_to: WorkerId | None
    copy_to: WorkerId | None
    keeps_sent: bool
    is_done: bool

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
        if self.is_done:
            yield from self._sent(Op.SEND_ACTIVATION, microbatch, self.end_layer, self.activation_to)
            return
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
        yield from self._sent(Op.SEND_ACTIVATION, microbatch, self.end_layer, self.activation_to)

    def input_gradient(self, microbatch: int, *, by_layer: bool) -> Iterator[Instruction]:
        """A BACKWARD or BACKWARD_INPUT with what comes before and after it; `by_layer`: a BACKWARD is cut into layers,
        from the top down."""
        assert self.backward is not None
        if self.is_done:
            yield from self._sent(Op.SEND_GRADIENT, microbatch, self.low_layer, self.gradient_to)
            yield from self._sent(Op.SEND_GRADIENT, microbatch, self.low_layer, self.copy_to)
            return
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
        yield from self._sent(Op.SEND_GRADIENT, microbatch, self.low_layer, self.gradient_to)
        yield from self._sent(Op.SEND_GRADIENT, microbatch, self.low_layer, self.copy_to)

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

    def shadow_forward(self, microbatch: int) -> Iterator[Instruction]:
        """The forward once more, at the worker that shadows this hop: what it takes in is there."""
        if self.place == 0 or self.hops_after == 0:
            yield Instruction(op=Op.LOAD, microbatch=microbatch, born=self.born)
        yield Instruction(
            op=Op.SHADOW_FORWARD,
            microbatch=microbatch,
            born=self.born,
            first_layer=self.first_layer,
            end_layer=self.end_layer,
            keeps=True,
        )

    def shadow_backward(self, microbatch: int, by: WorkerId) -> Iterator[Instruction]:
        """The backward once more, at the worker `by` that shadows this hop; the gradient comes from the hop above."""
        if self.above is not None and self.above != by:
            yield self._message(Op.RECV_GRADIENT, microbatch, self.end_layer, self.above)
        yield Instruction(
            op=Op.SHADOW_BACKWARD,
            microbatch=microbatch,
            born=self.born,
            first_layer=self.low_layer,
            end_layer=self.end_layer,
            counted=self.counted,
        )

    def _sent(self, op: Op, microbatch: int, boundary: int, peer: WorkerId | None) -> Iterator[Instruction]:
        if peer is not None:
            yield Instruction(
                op=op, microbatch=microbatch, born=self.born, first_layer=boundary, peer=peer, keeps=self.keeps_sent
            )

    def _message(self, op: Op, microbatch: int, boundary: int, peer: WorkerId) -> Instruction:
        return Instruction(op=op, microbatch=microbatch, born=self.born, first_layer=boundary, peer=peer)


def legs(
    route: Route,
    hops: tuple[Stage, ...],
    *,
    split: bool,
    keeps_sent: bool = False,
    copies: Sequence[WorkerId | None] = (),
) -> tuple[Leg, ...]:
    """The legs of a route.

    Args:
        route: whose.
        hops: its merged hops.
        split: whether backwards are split, where an input's gradient goes on to another worker and weights count.
        keeps_sent: whether what is sent is kept.
        copies: of each hop, the worker that runs its backwards once more, or none; nothing: nobody does.
    """
    low, top, counted = route.counted[0], route.counted[-1] + 1, set(route.counted)
    done = [_is_done(hop, route.reached, low, top) for hop in hops]
    result = []
    for place, hop in enumerate(hops):
        below = hops[place - 1].worker if place > 0 else None
        above = hops[place + 1].worker if place + 1 < len(hops) else None
        gradient_to = below if hop.first_layer > low and not (place > 0 and done[place] and done[place - 1]) else None
        mine = tuple(layer for layer in hop.layers if layer in counted)
        backward = None
        if hop.end_layer > low:
            backward = Op.BACKWARD_INPUT if split and mine and gradient_to is not None else Op.BACKWARD
        copy_to = copies[place - 1] if copies and place > 0 and gradient_to is not None else None
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
                above=above,
                activation_to=above if place + 1 < len(hops) and not done[place + 1] else None,
                gradient_to=gradient_to,
                copy_to=None if copy_to == hop.worker else copy_to,
                keeps_sent=keeps_sent,
                is_done=done[place],
            )
        )
    return tuple(result)


def _is_done(hop: Stage, reached: int | None, low: int, top: int) -> bool:
    """Whether nothing is left to compute on the hop: nothing of it is to be counted, or passed through any more."""
    if reached is None:
        return False
    return (hop.first_layer >= top and reached <= hop.first_layer) or (hop.end_layer <= low and reached < hop.end_layer)


class Phase(enum.IntEnum):
    """What of a leg is done at once."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    """A whole backward, or the input's half of a split one."""
    WEIGHT_GRADIENTS = 2
    SHADOW_FORWARD = 3
    """At the worker that shadows the leg."""
    SHADOW_BACKWARD = 4

    @property
    def is_shadow(self) -> bool:
        return self >= Phase.SHADOW_FORWARD


class Unit(NamedTuple):
    """One phase of a leg for one microbatch; of a shadow's phases, `by` is the worker that shadows the leg."""

    phase: Phase
    leg: Leg
    microbatch: int
    by: WorkerId | None = None

    def instructions(self, *, by_layer: bool = False) -> Iterator[Instruction]:
        """What the worker does for it; `by_layer`: gradients of weights are computed layer by layer."""
        match self.phase:
            case Phase.FORWARD:
                return self.leg.forward(self.microbatch)
            case Phase.INPUT_GRADIENT:
                return self.leg.input_gradient(self.microbatch, by_layer=by_layer)
            case Phase.WEIGHT_GRADIENTS:
                return self.leg.weight_gradients(self.microbatch, by_layer=by_layer)
            case Phase.SHADOW_FORWARD:
                return self.leg.shadow_forward(self.microbatch)
            case Phase.SHADOW_BACKWARD:
                assert self.by is not None
                return self.leg.shadow_backward(self.microbatch, self.by)
