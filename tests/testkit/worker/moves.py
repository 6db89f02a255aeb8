"""State that plans move: what a simulated worker sends of its replicas, and what it awaits of others'.

The rules are those of `planaria.worker.agent`: one piece after the other, in the order of groups; a piece that came
damaged is awaited again, from wherever the coordinator's order says. A piece knows which bytes it is of, so one that is
put where another belongs makes a replica that is wrong.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from planaria.plan.plan import Group, Plan, Transfer, WorkerId
from planaria.plan.program.instructions import Instruction
from planaria.protocol.awaiting import needs_state
from planaria.protocol.mail import Key, Kind, Mail
from planaria.protocol.messages import Damaged, Resend
from tests.testkit.promises.symbols import Symbol
from tests.testkit.worker.holdings import Replica

if TYPE_CHECKING:
    from typing import Any

    from tests.testkit.worker.worker import Worker

Part = tuple[int, int] | None
Piece = tuple[Symbol, Part]
"""A replica's state, and which of its bytes."""


class Moves:
    """Of one worker, under the plan that it has.

    Attributes:
        is_settled: all state that the plan gives this worker has come, and the coordinator was told.
    """

    def __init__(self, worker: Worker, mail: Mail[Any]) -> None:
        self.is_settled = True
        self._groups: tuple[Group, ...] = ()
        self._worker = worker
        self._mail = mail
        self._incoming: list[Transfer] = []
        self._arriving: list[Piece] = []
        self._attempts: dict[Transfer, int] = {}

    @property
    def awaits(self) -> bool:
        """Whether state is to come that was not brought in yet."""
        return bool(self._incoming)

    def begin(self, plan: Plan) -> None:
        """Send what this plan wants of this worker."""
        own, self._groups = self._worker.number, plan.groups
        self._incoming = sorted((t for t in plan.transfers if t.target == own), key=lambda t: t.group)
        self._arriving = []
        self._attempts.clear()
        incoming, holdings = {transfer.group for transfer in self._incoming}, self._worker.holdings
        current = incoming.intersection(holdings.held_at(self._worker.machine.step - 1))
        # Who had no place in the plan before may have some too, on which nobody counts.
        current.intersection_update(self._worker.groups_before(plan))
        assert not current, f"groups {current} are up to date here, and move here"
        holdings.drop(incoming)
        for transfer in plan.transfers:
            if transfer.source == own:
                self._send(transfer)
        self.is_settled = False

    def again(self, order: Resend) -> None:
        transfer, own = order.transfer, self._worker.number
        self._attempts[transfer] = order.attempt
        if transfer.source == own:
            self._send(transfer)
        if transfer.target == own:
            awaited = [(move.group, move.part) for move in self._incoming]
            if (transfer.group, transfer.part) in awaited:
                self._incoming[awaited.index((transfer.group, transfer.part))] = transfer

    def _send(self, transfer: Transfer) -> None:
        replica = self._worker.holdings.replicas[transfer.group]
        size_bytes = transfer.moved_bytes(self._groups[transfer.group])
        piece = partial(_piece, replica, transfer.part)
        self._worker.transport.send(transfer.target, self._key(transfer), piece, size_bytes)

    def _key(self, transfer: Transfer) -> Key:
        machine, attempt = self._worker.machine, self._attempts.get(transfer, 0)
        return Key(Kind.STATE, transfer.source, machine.step, machine.generation, transfer.group, attempt)

    def is_needed_by(self, instruction: Instruction) -> bool:
        """Whether it waits for what is missing."""
        return needs_state(instruction, {layer for t in self._incoming for layer in self._groups[t.group].layers})

    def take(self) -> WorkerId | None:
        """Bring in what has come; returns whose piece is still missing, None when all is here."""
        worker = self._worker
        while self._incoming:
            transfer = self._incoming[0]
            key = self._key(transfer)
            if not worker.interpreter.has_come(key):
                return transfer.source
            piece = self._mail.take(key)
            assert isinstance(piece, tuple)
            self._arriving.append((piece[0], piece[1] if piece[1] == transfer.part else (-1, -1)))
            self._incoming.pop(0)
            if not self._incoming or self._incoming[0].group != transfer.group:
                state = _whole(self._arriving)
                worker.holdings.put(Replica(transfer.group, state, worker.machine.step - 1))
                self._arriving = []
        return None

    def damaged(self, key: Key) -> Damaged:
        """What is told of a wanted message that came other than it was sent."""
        machine = self._worker.machine
        return Damaged(
            generation=machine.generation,
            step=machine.step,
            source=WorkerId(key.sender),
            kind=Kind.NAMES[key.kind],
            item=key.item,
            part=self._incoming[0].part if key.kind == Kind.STATE else None,
        )


def _piece(replica: Replica, part: Part) -> Piece:
    return replica.state, part


def _whole(pieces: list[Piece]) -> Symbol:
    """One state, if all pieces are of it, and each of the bytes that it was taken for."""
    states = {state for state, _ in pieces}
    is_right = len(states) == 1 and all(part != (-1, -1) for _, part in pieces)
    return states.pop() if is_right else hash(tuple(pieces))
