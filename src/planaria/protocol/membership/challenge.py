"""Doubts about workers that come back to a coordinator which began again: are they here, or is it what they once said?

Whoever listened on the network may play a worker's messages again, hello and token included. While the worker is
connected, that is refused. A new coordinator has no connection to anybody: it asks those whom its journal knows for a
word that nobody said before, and until that comes, nothing that is said on the connection counts. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Generic, TypeVar

from planaria.plan.plan import NodeId
from planaria.protocol.messages.worker import FromWorker, Hello

MOST_HELD: Final = 256
"""Messages of one connection that wait for its proof."""

Connection = TypeVar("Connection")
"""A worker's connection, as the server has it."""


class Unproven(ValueError):
    """Who is at the other end does not show that it is there now."""


class ReconnectChallenge(Generic[Connection]):
    """Of one coordinator.

    Args:
        known: nodes that joined before it began.
    """

    def __init__(self, known: Collection[NodeId] = ()) -> None:
        self._known = frozenset(known)
        self._asked: dict[Connection, tuple[Hello, str, list[FromWorker]]] = {}

    def about(self, node: NodeId) -> bool:
        """Whether somebody may have heard its workers' hellos before."""
        return node in self._known

    def ask(self, connection: Connection, hello: Hello, nonce: str) -> None:
        """Whoever said this hello is asked for the nonce, which was never used."""
        self._asked[connection] = hello, nonce, []

    def is_asked(self, connection: Connection) -> bool:
        return connection in self._asked

    def hold(self, connection: Connection, message: FromWorker) -> None:
        """It is heard after the proof. Raises Unproven: it says too much before that."""
        held = self._asked[connection][2]
        if len(held) == MOST_HELD:
            raise Unproven(f"it said {MOST_HELD} things, and not that it is there now")
        held.append(message)

    def proven(self, connection: Connection, nonce: str) -> tuple[Hello, list[FromWorker]]:
        """Its hello, and what it said since. Raises Unproven: the nonce is another one's."""
        hello, expected, held = self._asked[connection]
        if nonce != expected:
            raise Unproven("it says again what was said to another coordinator")
        del self._asked[connection]
        return hello, held

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._asked.pop(connection, None)
