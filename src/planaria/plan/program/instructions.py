"""Instructions: what a worker does in one step is a list of these, and each unit of work is some of them.

A route's instructions depend on nothing but the route. So a plan that keeps a route keeps its instructions, equal ones,
and a worker drops those it has done.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from planaria.plan.plan import WorkerId
from planaria.plan.program.hops import RouteHop
from planaria.plan.program.layer_cuts import CutOrder
from planaria.plan.program.units import Phase, Unit


class Op(enum.StrEnum):
    """Kinds of instruction."""

    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    SHADOW_FORWARD = "shadow_forward"
    SHADOW_BACKWARD = "shadow_backward"
    SEND_ACTIVATION = "send_activation"
    RECV_ACTIVATION = "recv_activation"
    SEND_GRADIENT = "send_gradient"
    RECV_GRADIENT = "recv_gradient"
    AUDIT = "audit"
    SYNC = "sync"
    VOTE = "vote"
    APPLY = "apply"


COMPUTING = (
    Op.FORWARD,
    Op.BACKWARD,
    Op.BACKWARD_INPUT,
    Op.BACKWARD_WEIGHT,
    Op.SHADOW_FORWARD,
    Op.SHADOW_BACKWARD,
    Op.AUDIT,
)
"""Instructions that compute: forwards and backwards."""


class Instruction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that a worker does. Two equal instructions of one step are the same work.

    A backward is whole, or split: BACKWARD_INPUT gives the gradient of the range's input and counts nothing yet;
    BACKWARD_WEIGHT gives, later and perhaps in pieces, the gradients of the counted layers' parameters. What the
    forward kept for a range is needed until then. (A backward that counts nothing at all is a whole one.)

    A SHADOW_FORWARD runs layers that another worker owns, on what this worker sent that one, and keeps everything:
    their forward is then done here, should their owner be lost. A SHADOW_BACKWARD gives those layers' gradients a
    second time; what it counts counts for nothing until the owner is lost.

    An AUDIT runs forward and backward of layers that another worker ran, on what went in there; nothing of it counts.

    Attributes:
        op: what is done.
        microbatch: whose (load, forward, backward, send, receive).
        born: generation in which the microbatch's route was made.
        first_layer: with end_layer, the layers that a forward or (whole or split) backward runs, lowest included,
            end excluded. For a send or receive it is the boundary: the layer that consumes the activation.
        end_layer: end of the layers, exclusive; see first_layer.
        counted: of a backward, the layers whose gradients are accumulated, ascending.
        keeps: of a forward, whether a backward will follow for at least one of its layers; of a send, whether what is
            sent stays here as well, because it may have to be sent again.
        peer: of a send or receive, the other worker.
        group: of a sync, which parameter group.
        epoch: of a sync, the group's sync epoch; of a vote, the plan's generation: each plan is voted for anew.
        round: of a sync, its place in the order of sums; a lower one goes first.
    """

    op: Op
    microbatch: int = -1
    born: int = -1
    first_layer: int = -1
    end_layer: int = -1
    counted: tuple[int, ...] = ()
    keeps: bool = False
    peer: WorkerId | None = None
    group: int = -1
    epoch: int = -1
    round: int = -1


Program = tuple[Instruction, ...]


def instructions_of(unit: Unit, *, by_layer: bool = False) -> Iterator[Instruction]:
    """Returns what the worker does for a unit; `by_layer`: gradients of weights are computed layer by layer."""
    hop, microbatch = unit.hop, unit.microbatch
    match unit.phase:
        case Phase.FORWARD:
            return _forward(hop, microbatch)
        case Phase.INPUT_GRADIENT:
            return _input_gradient(hop, microbatch, by_layer=by_layer)
        case Phase.WEIGHT_GRADIENTS:
            return _weight_gradients(hop, microbatch, by_layer=by_layer)
        case Phase.SHADOW_FORWARD:
            return _shadow_forward(hop, microbatch)
        case Phase.SHADOW_BACKWARD:
            assert unit.by is not None
            return _shadow_backward(hop, microbatch, unit.by)


def body_of(order: CutOrder) -> list[Instruction]:
    """Returns all units' instructions. The last counting backwards are cut into layers: sums can start early."""
    body: list[Instruction] = []
    for unit in order.units[: order.end]:
        body += instructions_of(unit, by_layer=order.is_cut(unit))
    body += cut_tail(order)
    for unit in order.units[order.own_end :]:
        body += instructions_of(unit)
    return body


def cut_tail(order: CutOrder) -> list[Instruction]:
    """Returns the remaining weights' gradients layer by layer from the top, so that the upper layers' sums start
    first."""
    tail: list[Instruction] = []
    for unit in order.units[order.end : order.own_end]:
        tail += instructions_of(unit, by_layer=order.is_cut(unit))
    tail.sort(key=lambda i: (len(i.counted) == 1, -i.counted[0]))
    return tail


def _forward(hop: RouteHop, microbatch: int) -> Iterator[Instruction]:
    """Returns a forward's instructions with what comes before and after it."""
    if hop.is_done:
        yield from _sent(hop, Op.SEND_ACTIVATION, microbatch, hop.end_layer, hop.activation_to)
        return
    yield from _loaded(hop, microbatch)
    if hop.below is not None:
        yield _message(hop, Op.RECV_ACTIVATION, microbatch, hop.first_layer, hop.below)
    yield Instruction(
        op=Op.FORWARD,
        microbatch=microbatch,
        born=hop.born,
        first_layer=hop.first_layer,
        end_layer=hop.end_layer,
        keeps=hop.keeps,
    )
    yield from _sent(hop, Op.SEND_ACTIVATION, microbatch, hop.end_layer, hop.activation_to)


def _input_gradient(hop: RouteHop, microbatch: int, *, by_layer: bool) -> Iterator[Instruction]:
    """Returns the instructions of a whole backward or its input half; `by_layer` cuts a whole one into layers, from the
    top."""
    if not hop.is_done:
        if hop.above is not None:
            yield _message(hop, Op.RECV_GRADIENT, microbatch, hop.end_layer, hop.above)
        counted = () if hop.has_weight else tuple([layer for layer in hop.counted if layer >= hop.low_layer])
        ranges = [(hop.low_layer, hop.end_layer, counted)]
        if by_layer and not hop.has_weight:
            counts, layers = {*counted}, reversed(range(hop.low_layer, hop.end_layer))
            ranges = [(layer, layer + 1, (layer,) if layer in counts else ()) for layer in layers]
        for first, end, own in ranges:
            yield Instruction(
                op=Op.BACKWARD_INPUT if hop.has_weight else Op.BACKWARD,
                microbatch=microbatch,
                born=hop.born,
                first_layer=first,
                end_layer=end,
                counted=own,
            )
    yield from _sent(hop, Op.SEND_GRADIENT, microbatch, hop.low_layer, hop.gradient_to)
    yield from _sent(hop, Op.SEND_GRADIENT, microbatch, hop.low_layer, hop.copy_to)


def _weight_gradients(hop: RouteHop, microbatch: int, *, by_layer: bool) -> Iterator[Instruction]:
    """Returns the instructions of the weights' gradients; `by_layer`: one for each counted layer, from the top down.

    Together they cover the range of the BACKWARD_INPUT: what that kept for layers that are not counted goes too.
    """
    ranges = [(hop.low_layer, hop.end_layer, hop.counted)]
    if by_layer:
        cuts = (hop.low_layer, *hop.counted[1:], hop.end_layer)
        places = reversed(range(len(hop.counted)))
        ranges = [(cuts[at], cuts[at + 1], hop.counted[at : at + 1]) for at in places]
    for first, end, counted in ranges:
        yield Instruction(
            op=Op.BACKWARD_WEIGHT,
            microbatch=microbatch,
            born=hop.born,
            first_layer=first,
            end_layer=end,
            counted=counted,
        )


def _shadow_forward(hop: RouteHop, microbatch: int) -> Iterator[Instruction]:
    """Returns the redundant forward's instructions at the worker that shadows this hop, which has the input already."""
    yield from _loaded(hop, microbatch)
    yield Instruction(
        op=Op.SHADOW_FORWARD,
        microbatch=microbatch,
        born=hop.born,
        first_layer=hop.first_layer,
        end_layer=hop.end_layer,
        keeps=True,
    )


def _shadow_backward(hop: RouteHop, microbatch: int, by: WorkerId) -> Iterator[Instruction]:
    """Returns the redundant backward's instructions at shadow worker `by`; the gradient comes from the hop above."""
    if hop.above is not None and hop.above != by:
        yield _message(hop, Op.RECV_GRADIENT, microbatch, hop.end_layer, hop.above)
    yield Instruction(
        op=Op.SHADOW_BACKWARD,
        microbatch=microbatch,
        born=hop.born,
        first_layer=hop.low_layer,
        end_layer=hop.end_layer,
        counted=hop.counted,
    )


def _loaded(hop: RouteHop, microbatch: int) -> Iterator[Instruction]:
    """Returns the loads of samples at a route's first worker and of targets at its last one."""
    if hop.place == 0 or hop.hops_after == 0:
        yield Instruction(op=Op.LOAD, microbatch=microbatch, born=hop.born)


def _sent(hop: RouteHop, op: Op, microbatch: int, boundary: int, peer: WorkerId | None) -> Iterator[Instruction]:
    if peer is not None:
        yield Instruction(
            op=op, microbatch=microbatch, born=hop.born, first_layer=boundary, peer=peer, keeps=hop.keeps_sent
        )


def _message(hop: RouteHop, op: Op, microbatch: int, boundary: int, peer: WorkerId) -> Instruction:
    return Instruction(op=op, microbatch=microbatch, born=hop.born, first_layer=boundary, peer=peer)
