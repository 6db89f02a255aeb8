"""Listens on a worker's data port: one thread, which admits connections that greet with the job's token.

However many strangers connect, and however little they say, they cost one thread and a few kilobytes each.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from planaria.runtime.thresholds import GREETING_WITHIN_S, HELLO_LIMIT_BYTES, LISTENER_TICK_S
from planaria.runtime.wire.control_frames import FrameError, control_frame, frame_size
from planaria.runtime.wire.sockets import watch_over
from planaria.runtime.wire.tls import SecureSocket, Security
from planaria.runtime.wire.unauthenticated import Strangers

_GREETING: Final = b"planaria-data-1"
_LENGTH_BYTES: Final = 4


class GreetingRefused(Exception):
    """The other end of a connection does not belong to the job."""


def greeting(sender: int, token: str) -> bytes:
    """Returns what a sender says first."""
    return control_frame(b" ".join([_GREETING, str(sender).encode(), token.encode()]))


class Guest:
    """A connection that is about to greet. What comes after the greeting is left in the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._is_secured = not isinstance(sock, SecureSocket)
        self._said = bytearray()
        self._missing = _LENGTH_BYTES

    def listen(self, token: bytes) -> int | None:
        """Reads the greeting; returns the sender, None while it has not said all. Raises GreetingRefused.

        Whoever belongs to the job sends it in a piece of its own: with the last byte of it nothing else has come that
        a selector does not know of.
        """
        while self._missing:
            try:
                if isinstance(self.socket, SecureSocket) and not self._is_secured:
                    self._is_secured = self.socket.shake_hands()
                    if not self._is_secured:
                        return None
                data = self.socket.recv(self._missing)
            except BlockingIOError:
                return None
            except OSError as error:
                raise GreetingRefused(error.strerror or str(error)) from error
            if not data:
                raise GreetingRefused("it closed before it had greeted")
            self._said += data
            self._missing -= len(data)
            if len(self._said) == _LENGTH_BYTES:
                try:
                    self._missing = frame_size(bytes(self._said), HELLO_LIMIT_BYTES)
                except FrameError as error:
                    raise GreetingRefused(str(error)) from error
        return self._identity(token)

    def _identity(self, token: bytes) -> int:
        words, _, rest = bytes(self._said[_LENGTH_BYTES:]).partition(b" ")
        sender, _, shown = rest.partition(b" ")
        if words != _GREETING or not hmac.compare_digest(shown, token):
            raise GreetingRefused("it did not greet with the job's token")
        if not sender.isdigit() or len(sender) > 18:
            raise GreetingRefused("it greeted without saying which worker it is")
        return int(sender)


class PeerListener:
    """Listens, and passes on connections whose other end has greeted.

    Args:
        token: the job's token.
        welcome: takes a connection (blocking) and who is at its other end; called from the greeter's thread.
        security: what connections have to show, and are shown; None: they are plain.
    """

    def __init__(
        self, token: str, welcome: Callable[[socket.socket, int], None], security: Security | None = None
    ) -> None:
        self._security = security
        self._token = token.encode()
        self._welcome = welcome
        self._selector = selectors.DefaultSelector()
        self._strangers: Strangers[Guest] = Strangers(_to_log, GREETING_WITHIN_S)
        self._listener: socket.socket | None = None
        self._closed = False

    def start(self, host: str) -> int:
        """Starts to listen; returns the port."""
        self._listener = socket.create_server((host, 0), backlog=128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="greet", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Ends the thread within a moment, and with it the listener and all connections that have not greeted."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(LISTENER_TICK_S):
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)
            now = time.monotonic()
            for guest in self._strangers.overdue(now):
                self._send_away(guest, "it did not greet in time")
            self._strangers.tell(now)
        for guest in list(self._strangers):
            self._forget(guest)
            guest.socket.close()
        self._selector.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            oldest = self._strangers.oldest()
            if oldest is not None:  # too many files are open: make room
                self._send_away(oldest, "too many files are open")
            else:
                time.sleep(LISTENER_TICK_S)
            return
        sock.setblocking(False)
        try:
            guest = Guest(sock if self._security is None else self._security.accepted(sock))
        except OSError:  # it is gone again
            sock.close()
            return
        sock = guest.socket
        self._selector.register(sock, selectors.EVENT_READ, guest)
        too_many = self._strangers.came(guest, time.monotonic())
        if too_many is not None:
            self._send_away(too_many, "too many connections have not greeted")

    def _hear(self, guest: Guest) -> None:
        if guest.socket.fileno() < 0:
            return  # sent away by another event of the same batch
        try:
            sender = guest.listen(self._token)
        except GreetingRefused as refused:
            self._send_away(guest, str(refused))
            return
        if sender is None:
            return
        self._forget(guest)
        guest.socket.settimeout(None)
        watch_over(guest.socket)
        self._welcome(guest.socket, sender)

    def _send_away(self, guest: Guest, reason: str) -> None:
        self._strangers.refused(reason)
        self._forget(guest)
        guest.socket.close()

    def _forget(self, guest: Guest) -> None:
        self._selector.unregister(guest.socket)
        self._strangers.gone(guest)


def _to_log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
