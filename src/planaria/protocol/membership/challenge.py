"""Challenge to workers that reconnect to a new coordinator: are they here, or are old messages played again?

Whoever listened on the network may play a worker's messages again, hello and token included. While the worker is
connected, that is refused. A new coordinator has no connection to anybody: it asks those whom its journal knows for a
word that nobody said before, and until that comes, nothing that is said on the connection counts. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from planaria.plan.plan import NodeId
from planaria.protocol.messages.from_worker import FromWorker, Hello
from planaria.protocol.thresholds import MOST_HELD

Connection = TypeVar("Connection")
"""A worker's connection, as the server represents it."""


class Unproven(ValueError):
    """Raised when the other end does not prove that it is there now."""


class ReconnectChallenge(Generic[Connection]):
    """Connections of one coordinator that have yet to prove that they are live.

    Args:
        known: nodes that joined before it began.
    """

    def __init__(self, known: Collection[NodeId] = ()) -> None:
        self._known = frozenset(known)
        self._asked: dict[Connection, tuple[Hello, str, list[FromWorker]]] = {}

    def about(self, node: NodeId) -> bool:
        """Returns whether somebody may have overheard hellos of this node's workers before."""
        return node in self._known

    def doubt(self, node: NodeId) -> None:
        """Has workers of this node prove themselves from now on: one of them was there before, and comes back."""
        self._known |= {node}

    def ask(self, connection: Connection, hello: Hello, nonce: str) -> None:
        """Records that the sender of this hello was asked to return a nonce, which was never used before."""
        self._asked[connection] = hello, nonce, []

    def is_asked(self, connection: Connection) -> bool:
        return connection in self._asked

    def hold(self, connection: Connection, message: FromWorker) -> None:
        """Holds a message until the proof arrives. Raises Unproven if there are too many before that."""
        held = self._asked[connection][2]
        if len(held) == MOST_HELD:
            raise Unproven(f"it said {MOST_HELD} things, and not that it is there now")
        held.append(message)

    def proven(self, connection: Connection, nonce: str) -> tuple[Hello, list[FromWorker]]:
        """Returns the proven hello and the messages held since. Raises Unproven if the nonce is another one's."""
        hello, expected, held = self._asked[connection]
        if nonce != expected:
            raise Unproven("it says again what was said to another coordinator")
        del self._asked[connection]
        return hello, held

    def forget(self, connection: Connection) -> None:
        """Forgets a closed connection."""
        self._asked.pop(connection, None)
