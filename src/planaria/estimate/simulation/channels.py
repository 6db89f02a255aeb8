"""Channels between workers: what of which kind is awaited and was sent, and when links are free."""

from __future__ import annotations

from planaria.estimate.durations import Durations
from planaria.plan.plan import WorkerId
from planaria.plan.program.instructions import Instruction, Op

Inbox = list[float]
"""Arrivals of messages of one kind, by microbatch; -1: it was not sent; below: and its receiver waits for it."""

MessageKind = tuple[bool, int, int, WorkerId]
"""A kind of message: is it a gradient, born, boundary, receiver."""

_GRADIENTS = (Op.SEND_GRADIENT, Op.RECV_GRADIENT)


class Channels:
    """Channels between workers: what is awaited and was sent, of so many microbatches, and when links are free."""

    def __init__(self, durations: Durations, num_microbatches: int) -> None:
        self.durations = durations
        self.inboxes: dict[MessageKind, Inbox] = {}
        self._links: dict[tuple[WorkerId, WorkerId], list[float]] = {}
        self._nothing = [-1.0] * num_microbatches

    def reset(self, num_microbatches: int) -> None:
        """Forgets all that was sent."""
        self._nothing = [-1.0] * num_microbatches
        for inbox in self.inboxes.values():
            inbox[:] = self._nothing
        for link in self._links.values():
            link[0] = 0.0

    def inbox(self, instruction: Instruction, receiver: WorkerId) -> Inbox:
        """Returns where such messages come."""
        kind = kind_of(instruction, receiver)
        found = self.inboxes.get(kind)
        if found is None:
            found = self.inboxes[kind] = self._nothing[:]
        return found

    def link(self, sender: WorkerId, receiver: WorkerId) -> list[float]:
        """Returns when the link is free."""
        return self._links.setdefault((sender, receiver), [0.0])


def kind_of(instruction: Instruction, receiver: WorkerId) -> MessageKind:
    return instruction.op in _GRADIENTS, instruction.born, instruction.first_layer, receiver
