"""Challenge to workers that reconnect to a new coordinator: are they here, or are old messages played again?

Whoever listened on the network may play a worker's messages again, hello and token included. While the worker is
connected, that is refused. A coordinator that follows another has no connection to anybody, and its journal does not
know all who said hello before: one that was deposed hears workers too, and can write none of them down. So it asks
everybody for a word that nobody said before, and until that comes, nothing that is said on the connection counts. Pure.
"""

from __future__ import annotations

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
        follows: there were coordinators before it.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self._follows = follows
        self._back: set[NodeId] = set()
        self._asked: dict[Connection, tuple[Hello, str, list[FromWorker]]] = {}

    def about(self, node: NodeId) -> bool:
        """Returns whether somebody may have overheard hellos of this node's workers before."""
        return self._follows or node in self._back

    def doubt(self, node: NodeId) -> None:
        """Has workers of this node prove themselves from now on: one of them was there before, and comes back."""
        self._back.add(node)

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
