"""Messages between the coordinator's process and its supervisor, on a pair of sockets. Nothing is unpickled.

The supervisor starts processes, keeps the run's records and outlives the coordinator; it decides nothing about the
training. What was sent before an end died is still read by the other.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from planaria.job.faults import Fault
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import AnyRecord, RunStatus
from planaria.runtime.thresholds import MAX_LINK_BYTES
from planaria.runtime.wire.connection import Connection

# Coordinator to supervisor


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """Says that the coordinator has made its policy and waits for `Begin`."""


class StartRefused(msgspec.Struct, frozen=True, tag="refused"):
    """Says that the job cannot be planned, and why."""

    text: str


class Told(msgspec.Struct, frozen=True, tag="told"):
    """Carries a record and its time (seconds since 1970). `again`: an earlier coordinator may have told it."""

    record: AnyRecord
    time_s: float
    again: bool = False


class KillNode(msgspec.Struct, frozen=True, tag="kill"):
    """Asks the supervisor to kill what is left of a node, or of one `worker` of it."""

    node: NodeId
    worker: WorkerId | None = None


class StartNode(msgspec.Struct, frozen=True, tag="start"):
    """Asks the supervisor to start a node, or one `worker` of it again."""

    node: NodeId
    worker: WorkerId | None = None


class Struck(msgspec.Struct, frozen=True, tag="struck"):
    """Says that the coordinator is about to kill itself on the user's order."""

    fault: Fault


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """Says that the run is over; only farewells follow. `checkpoint` is the last whole one."""

    status: RunStatus
    message: str
    checkpoint: CheckpointRef | None


# Supervisor to coordinator


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Orders a prepared coordinator to serve.

    Attributes:
        incarnation: counts from 1. From the second on there may be workers with state.
        nodes: that were started, with the pids of their processes on this machine.
        lost: their workers whose process ended, each with the cause.
        are_all_lost: no process of any node is left.
        step_began: monotonic seconds of the last commit that the supervisor heard of; None: there was none.
        gone_at: monotonic seconds at which the supervisor heard that a node is gone, be it of its end or of its loss.
        is_stopping: the user wants the run to end.
        faults: on the user's order, that have not struck yet.
        lead: revision at which the supervisor took the lead, where the journal is in etcd.
    """

    incarnation: int
    nodes: dict[NodeId, tuple[int, ...]]
    lost: tuple[tuple[WorkerId, str], ...]
    are_all_lost: bool
    step_began: float | None
    gone_at: dict[NodeId, float]
    is_stopping: bool
    faults: tuple[Fault, ...]
    lead: int = 0


class NodeStarted(msgspec.Struct, frozen=True, tag="started"):
    """Tells that a node was started, or one `worker` of it again."""

    node: NodeId
    pids: tuple[int, ...]
    worker: WorkerId | None = None


class NodesLost(msgspec.Struct, frozen=True, tag="lost"):
    """Tells of ended processes, each with its worker and cause. `are_all_lost`: no process of any node is left."""

    lost: tuple[tuple[WorkerId, str], ...]
    are_all_lost: bool


class StopRun(msgspec.Struct, frozen=True, tag="stop"):
    """Orders the coordinator to finish the step, save and end."""


FromCoordinator = Prepared | StartRefused | Told | KillNode | StartNode | Struck | Finished
ToCoordinator = Begin | NodeStarted | NodesLost | StopRun

# msgpack, not JSON: a loss may be NaN, which JSON cannot say.
_encoder = msgspec.msgpack.Encoder()
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(FromCoordinator)
_to_coordinator: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)
Received = TypeVar("Received")


class Link:
    """One end of the link between coordinator and supervisor.

    Args:
        sock: this side's socket of the pair.
        waits: sending waits until the other end has room. The supervisor's does not: what it says is short, and whoever
            waits for somebody who waits never ends.
    """

    def __init__(self, sock: socket.socket, *, waits: bool) -> None:
        sock.setblocking(False)
        self._connection = Connection(sock, MAX_LINK_BYTES)
        self._waits = waits

    def fileno(self) -> int:
        return self._connection.socket.fileno()

    def send(self, message: FromCoordinator | ToCoordinator) -> None:
        self._connection.send(_encoder.encode(message))
        while self._connection.flush() and self._waits:
            select.select([], [self], [])

    def orders(self) -> Iterator[ToCoordinator]:
        """Returns what the supervisor said. Raises EOFError when it is gone."""
        return self._received(_to_coordinator)

    def news(self) -> Iterator[FromCoordinator]:
        """Returns what the coordinator said. Raises EOFError when it is gone."""
        return self._received(_from_coordinator)

    def _received(self, decoder: msgspec.msgpack.Decoder[Received]) -> Iterator[Received]:
        self._connection.flush()
        for frame in self._connection.receive():
            yield decoder.decode(frame)

    def close(self) -> None:
        self._connection.close()
