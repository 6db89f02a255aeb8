"""What a worker does in one step: a list of instructions, computed from the plan by `planaria.plan.schedule`."""

from __future__ import annotations

import enum

import msgspec

from planaria.plan.plan import WorkerId


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
)
"""Forwards and backwards."""


class Instruction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that a worker does. Two equal instructions of one step are the same work.

    A backward is whole, or split: BACKWARD_INPUT gives the gradient of the range's input and counts nothing yet;
    BACKWARD_WEIGHT gives, later and perhaps in pieces, the gradients of the counted layers' parameters. What the
    forward kept for a range is needed until then. (A backward that counts nothing at all is a whole one.)

    A SHADOW_FORWARD runs layers that another worker owns, on what this worker sent that one, and keeps everything:
    their forward is then done here, should their owner be lost. A SHADOW_BACKWARD gives those layers' gradients a
    second time; what it counts counts for nothing until the owner is lost.

    Attributes:
        op: what is done.
        microbatch: whose (load, forward, backward, send, receive).
        born: generation in which the microbatch's route was made.
        first_layer: with end_layer, the layers that a forward or (whole or split) backward runs, lowest included,
            end excluded. For a send or receive it is the boundary: the layer that consumes the activation.
        end_layer: see first_layer.
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
