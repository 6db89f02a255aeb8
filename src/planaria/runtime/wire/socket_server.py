"""The coordinator's sockets: its port, the connections on it, and whatever else can wake its thread.

It reads frames and hands them over, sends what it is given, and bounds what strangers can take. It knows no message.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable

from planaria.job.errors import UserError
from planaria.protocol.reception import Nonsense, Unwanted
from planaria.runtime.thresholds import BACKLOG, HELLO_WITHIN_S, MAX_STRANGERS, MOST_ROUNDS_HEARD
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import FrameError, control_frame
from planaria.runtime.wire.sockets import watch_over
from planaria.runtime.wire.tls import NotSecured, Security
from planaria.runtime.wire.unauthenticated import Strangers

log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Opens the coordinator's port. The socket's owner may be another process than the one that serves it.

    Raises:
        UserError: the port is taken.
    """
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"cluster.port = {port}: cannot listen on {host}:{port} ({error.strerror}). "
            "Choose another port, or 0 for any free one."
        ) from None


class SocketServer:
    """Serves all connections of one coordinator. Used by one thread.

    Args:
        take: gets each whole frame. It raises FrameError or Nonsense for what is not a message; Unwanted, of which
            nobody is told, where a fenced node comes back.
        ended: called once for each connection that ends from the other side, or is ended for what it sent, with the
            cause.
        warn: takes a line for people.
        security: what connections have to show, and are shown; None: they are plain.
        expected: connections that may come at once and belong to the job: all of them get the time to say so.
    """

    def __init__(
        self,
        take: Callable[[Connection, bytes], None],
        ended: Callable[[Connection, str], None],
        warn: Callable[[str], None],
        security: Security | None = None,
        expected: int = 0,
    ) -> None:
        self._security = security
        self._take = take
        self._ended = ended
        self._selector = selectors.DefaultSelector()
        self._strangers: Strangers[Connection] = Strangers(warn, HELLO_WITHIN_S, max(MAX_STRANGERS, expected))
        self._listener: socket.socket | None = None
        self._watched: set[int] = set()

    def open(self, listener: socket.socket) -> None:
        """Accepts whoever connects."""
        self._listener = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def watch(self, descriptor: int, told: Callable[[], None]) -> None:
        """Calls `told` whenever the descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, told)
        self._watched.add(descriptor)

    def serve(self, timeout_s: float) -> None:
        """Waits until something happens, and deals with it."""
        for key, _ in self._selector.select(timeout=timeout_s):
            key.data()

    def hear_all(self) -> None:
        """Reads what ended processes sent last before losses are handled; some connections are not accepted yet."""
        for _ in range(MOST_ROUNDS_HEARD):
            ready = [key for key, _ in self._selector.select(timeout=0) if key.fd not in self._watched]
            if not ready:
                return
            for key in ready:
                key.data()

    def close(self) -> None:
        """Closes all connections and the port; what was watched is its owner's."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    # Strangers

    def trust(self, connection: Connection) -> None:
        """Notes that a connection has shown the job's token."""
        self._strangers.gone(connection)

    def send_strangers_away(self, now: float) -> None:
        """Closes connections that have been silent for too long without showing the token."""
        for stranger in self._strangers.overdue(now):
            self._send_away(stranger, "it did not show the job's token in time")
        self._strangers.tell(now)

    def _send_away(self, stranger: Connection, reason: str) -> None:
        self._strangers.refused(reason)
        self._end(stranger, reason)

    # Connections

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _address = self._listener.accept()
        except OSError:
            oldest = self._strangers.oldest()
            if oldest is not None:  # too many files are open, most likely: make room
                self._send_away(oldest, "too many files are open")
            return
        sock.setblocking(False)
        try:
            watch_over(sock)
            if self._security is not None:
                sock = self._security.accepted(sock)
        except OSError:  # it is gone again
            sock.close()
            return
        connection = Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._readable(connection))
        too_many = self._strangers.came(connection, time.monotonic())
        if too_many is not None:
            self._send_away(too_many, "too many connections do not show the job's token")

    def _readable(self, connection: Connection) -> None:
        if connection.is_closed:
            return  # by another event of the same batch
        if connection.wants_to_send:
            self._flush(connection)
        try:
            for frame in connection.receive():
                self._take(connection, frame)
        except EOFError:
            self._end(connection, "connection closed")
        except Unwanted as error:
            log.info("a connection was ended: %s", error)
            self._end(connection, str(error))
        except (FrameError, Nonsense, NotSecured) as error:
            if connection.worker is not None:
                log.warning("worker %d sent what is not a message: %s", connection.worker, error)
            else:
                self._strangers.refused(str(error))
            self._end(connection, "it sent what is not a message")

    def _end(self, connection: Connection, cause: str) -> None:
        if not connection.is_closed:
            self.hang_up(connection)
            self._ended(connection, cause)

    def say(self, connection: Connection, body: bytes) -> None:
        """Sends a message without waiting."""
        self.say_frame(connection, control_frame(body))

    def say_frame(self, connection: Connection, frame: bytes) -> None:
        """Sends a frame without waiting; however many connections it goes to, it is there once."""
        if not connection.is_closed:
            connection.send_frame(frame)
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        """Sends what can be sent, and watches for room only while something is left."""
        left = connection.flush()
        if left != connection.is_watched_for_room:
            connection.is_watched_for_room = left
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
            self._selector.modify(connection.socket, events, lambda: self._readable(connection))

    def hang_up(self, connection: Connection) -> None:
        if not connection.is_closed:
            self._strangers.gone(connection)
            self._selector.unregister(connection.socket)
            connection.close()
