"""State on its way to and from a simulated worker, in symbols.

A piece knows which bytes it is of, so one that is put where another belongs makes a replica that is wrong.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from planaria.plan.plan import Transfer
from planaria.protocol.messages.to_worker import PlanMessage, StateSource
from planaria.protocol.worker.mail import Key
from planaria.protocol.worker.state_transfers import StateTransfers
from tests.testkit.promises.symbols import Symbol
from tests.testkit.worker.holdings import Replica

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.worker.worker import Worker

Piece = tuple[Symbol, tuple[int, int] | None]
"""A replica's state, and the range of its bytes."""


class Moves(StateTransfers[Replica]):
    """Transfers of one worker's state, under the plan that it has."""

    def __init__(self, worker: Worker, cluster: Cluster) -> None:
        super().__init__(
            worker.number,
            worker.machine,
            worker.holdings,
            worker.mail,
            worker.control.send,
            lambda: cluster.clock_of(worker.node).now,
        )
        self._transport = worker.transport
        self._cluster = cluster

    def begin(self, message: PlanMessage, *, forgets: bool) -> None:
        if not forgets:
            self._check(message)
        super().begin(message, forgets=forgets)

    def _check(self, message: PlanMessage) -> None:
        """Checks that nothing moves to where it is. A worker new to the plan may have some, on which nothing counts."""
        before = self._cluster.invariants.before.get(message.plan.generation)
        had = () if before is None else before.kept_of.get(self._worker, ())
        incoming = {transfer.group for transfer in message.plan.transfers if transfer.target == self._worker}
        current = incoming.intersection(had, self._holdings.held_at(message.step - 1))
        assert not current, f"groups {current} are up to date here, and move here"

    def _load(self, replica: Replica, group: int, message: PlanMessage) -> None:
        if message.source is StateSource.INITIAL:
            replica.state = self._cluster.algebra.initial(group)
        else:
            replica.state, replica.step = self._cluster.disk.read(message.folder, group).state, message.step - 1

    def _send(self, transfer: Transfer, key: Key) -> None:
        replica = self._holdings.replicas[transfer.group]
        assert replica.is_whole, f"group {transfer.group} is sent by a worker that does not keep it"
        piece = partial(_piece, replica, transfer)
        self._transport.send(transfer.target, key, piece, transfer.moved_bytes(self.plan.groups[transfer.group]))

    def _fill(self, replica: Replica, transfer: Transfer, piece: Piece) -> None:
        state, part = piece
        if not transfer.with_optimizer:
            replica.pieces.clear()
        replica.take(state, is_right=part == transfer.part)


def _piece(replica: Replica, transfer: Transfer) -> Piece:
    return replica.state, transfer.part
