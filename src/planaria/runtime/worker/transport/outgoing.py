"""Connections to peers: one thread sends on all of them what could not go at once.

State has a connection of its own to each peer, and gives way: while something waits that steps need, whoever that is
for, the kernel is given little of it (`STATE_SHARE`). So state comes as fast as messages and sums leave room for it,
and they hardly wait for it. It is not held back altogether, since the step's end waits for it: several senders at once
have more to give than one receiver can take.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import itertools
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from planaria.runtime.thresholds import (
    GIVEN_WAY_S,
    PEER_CONNECT_S,
    STATE_SHARE,
    STATE_UNSENT_BYTES,
    UNREACHABLE_PAUSE_S,
)
from planaria.runtime.wire.sockets import bound_silence, sent, watch_over
from planaria.runtime.wire.tls import Security, connect

_MOST_PIECES: Final = 64
"""Most pieces that one call sends; a kernel takes up to 1,024."""
_SIOCOUTQNSD: Final = 0x894B
"""Asks how many bytes a socket has not sent yet."""
_SO_MAX_PACING_RATE: Final = 47
_UNPACED: Final = (1 << 64) - 1


class Outgoing:
    """All connections of a worker to its peers, and the thread that sends on them.

    Args:
        security: see `planaria.runtime.worker.transport.transport.Transport`.
    """

    def __init__(self, security: Security | None = None) -> None:
        self.security = security
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._urgent: tuple[Connection, ...] = ()
        self._giving_way: list[Connection] = []
        self._due_bytes = 0.0
        """Of state, beside what was sent that is urgent."""
        self._is_running = False
        self._is_closed = False

    def connect(self, address: str, hello: bytes, broken: Callable[[], None], *, gives_way: bool) -> Connection:
        """Begins to connect; what is sent meanwhile goes afterwards.

        Args:
            address: of the peer.
            hello: what is said first.
            broken: called, from any thread, when the connection failed without having been closed here.
            gives_way: to what all other connections have to send.
        """
        made = Connection(self, address, hello, broken, gives_way=gives_way)
        with self._lock:
            if not gives_way:
                self._urgent = *self._urgent, made
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="send", daemon=True).start()
        made.start()
        return made

    def forget(self, connection: Connection) -> None:
        with self._lock:
            self._urgent = tuple([other for other in self._urgent if other is not connection])

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed = True
        self._bell.close()

    def watch(self, connection: Connection, sock: socket.socket) -> None:
        """Has the thread send whenever the socket takes more."""
        self._selector.register(sock, selectors.EVENT_WRITE, connection)

    def unwatch(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, RuntimeError):
            self._selector.unregister(sock)

    def count(self, size: int, *, of_state: bool) -> None:
        """Counts bytes that the kernel took."""
        with self._lock:
            due = self._due_bytes + (-size if of_state else size * STATE_SHARE)
            self._due_bytes = min(max(due, -STATE_UNSENT_BYTES), STATE_UNSENT_BYTES)

    @property
    def is_state_to_wait(self) -> bool:
        """Whether something waits for which state gives way, and state has had its share."""
        return self._due_bytes <= 0 and any(connection.is_waiting for connection in self._urgent)

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(GIVEN_WAY_S if self._giving_way else None):
                if key.data is None:
                    break
                if key.data.gives_way and self.is_state_to_wait:
                    key.data.rest()
                    self._giving_way.append(key.data)
                else:
                    key.data.go_on()
            if self._giving_way and not self.is_state_to_wait:
                waiting, self._giving_way = self._giving_way, []
                for connection in waiting:
                    connection.go_on()
        self._selector.close()
        self._ear.close()


class _Turn(enum.Enum):
    """Whose turn it is, of a connection."""

    OURS = enum.auto()
    """Nothing waits: who sends next may do so at once."""
    THREAD = enum.auto()
    """The thread sends when the kernel takes more."""
    OTHERS = enum.auto()
    """The thread waits until nothing is urgent any more."""


class Connection:
    """One connection to a peer, and what waits to be sent on it. See `Outgoing.connect`."""

    def __init__(
        self, outgoing: Outgoing, address: str, hello: bytes, broken: Callable[[], None], *, gives_way: bool
    ) -> None:
        self.gives_way = gives_way
        self._outgoing = outgoing
        self._address = address
        self._hello = hello
        self._broken = broken
        self._lock = threading.Lock()
        self._pieces: deque[memoryview] = deque()
        self._socket: socket.socket | None = None
        self._turn = _Turn.OURS
        self._bytes_per_s = _UNPACED
        self._is_closed = False

    def start(self) -> None:
        """Connects, in a thread that lives as long as that takes."""
        threading.Thread(target=self._begin, name="connect", daemon=True).start()

    def send(self, pieces: list[memoryview]) -> None:
        """Sends without waiting: at once what the kernel takes, unless it has to give way."""
        with self._lock:
            if self._is_closed:
                return
            self._pieces.extend(pieces)
            if self._socket is not None and self._turn is _Turn.OURS:
                if not self.gives_way:
                    self._write(self._socket)
                self._settle()

    def go_on(self) -> None:
        """Sends what the kernel takes now."""
        with self._lock:
            if self._socket is not None:
                self._write(self._socket)
                self._settle()

    def rest(self) -> None:
        """Sends nothing until it is told to go on."""
        with self._lock:
            self._pass_to(_Turn.OTHERS)

    @property
    def is_waiting(self) -> bool:
        """Whether something has not been sent: it waits here, or in the kernel."""
        if self._pieces:
            return True
        sock = self._socket
        try:
            return sock is not None and any(fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, bytes(4)))
        except (OSError, ValueError):
            return False  # it was closed meanwhile

    def pace(self, bytes_per_s: float | None) -> None:
        """Sends no faster from now on; None: as fast as it goes."""
        with self._lock:
            wanted = _UNPACED if bytes_per_s is None else int(bytes_per_s)
            if wanted != self._bytes_per_s:
                self._bytes_per_s = wanted
                self._pace()

    def _pace(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it broke, or a kernel that does not pace
                rate = self._bytes_per_s.to_bytes(8, sys.byteorder)
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)

    def sent(self) -> tuple[int, float] | None:
        """See `planaria.runtime.wire.sockets.sent`; None while it is not connected."""
        with self._lock:
            return None if self._socket is None else sent(self._socket)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _write(self, sock: socket.socket) -> None:
        try:
            size = sock.sendmsg(itertools.islice(self._pieces, _MOST_PIECES), [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            # The peer is dying, most likely; the coordinator hears of it from the peer's own control connection.
            self._fail()
            return
        self._outgoing.count(size, of_state=self.gives_way)
        while self._pieces and size >= len(self._pieces[0]):
            size -= len(self._pieces.popleft())
        if size:
            self._pieces[0] = self._pieces[0][size:]

    def _settle(self) -> None:
        """Leaves to the thread what could not be sent."""
        self._pass_to(_Turn.THREAD if self._pieces else _Turn.OURS)

    def _pass_to(self, turn: _Turn) -> None:
        if self._socket is None or turn is self._turn:
            return
        if turn is _Turn.THREAD:
            self._outgoing.watch(self, self._socket)
        elif self._turn is _Turn.THREAD:
            self._outgoing.unwatch(self._socket)
        self._turn = turn

    def _begin(self) -> None:
        try:
            sock = self._connect()
        except OSError:
            with self._lock:
                self._fail()
            return
        with self._lock:
            if self._is_closed:
                sock.close()
                return
            self._socket = sock
            if self._bytes_per_s != _UNPACED:
                self._pace()  # as was wanted meanwhile
            self._settle()

    def _connect(self) -> socket.socket:
        host, port = self._address.rsplit(":", 1)
        began = time.monotonic()
        while True:
            try:
                sock = connect((host, int(port)), PEER_CONNECT_S, self._outgoing.security)
            except TimeoutError:
                if self._is_closed:
                    raise
                continue  # the host is busy; whether it is dead is not for us to say
            except OSError as error:
                is_late = time.monotonic() - began >= PEER_CONNECT_S
                if error.errno != errno.EHOSTUNREACH or self._is_closed or is_late:
                    raise
                time.sleep(UNREACHABLE_PAUSE_S)
                continue
            sock.settimeout(None)
            watch_over(sock)
            if sock.getpeername()[0] != sock.getsockname()[0]:
                bound_silence(sock)  # no packet is lost within a host
            if self.gives_way:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, STATE_UNSENT_BYTES)
            sock.sendall(self._hello)
            return sock

    def _fail(self) -> None:
        was_closed = self._is_closed
        self._end()
        if not was_closed:
            self._broken()

    def _end(self) -> None:
        self._is_closed = True
        self._pieces.clear()
        self._outgoing.forget(self)
        if self._socket is not None:
            self._pass_to(_Turn.OURS)
            self._socket.close()
            self._socket = None
