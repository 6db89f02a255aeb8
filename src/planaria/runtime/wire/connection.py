"""One control connection, without blocking: bytes in become frames, frames out become bytes."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterator

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.to_worker import PlanMessage
from planaria.runtime.thresholds import CONTROL_READ_BYTES, HELLO_LIMIT_BYTES
from planaria.runtime.wire.control_frames import ALERT, SpeaksTls, control_frame, frame_size
from planaria.runtime.wire.tls import NotSecured, SecureSocket, pending


class Connection:
    """Buffers the frames of one socket.

    Attributes:
        worker: who is at the other end, once it has said hello.
        limit_bytes: longest frame that is read: of a stranger, until somebody trusts it with more.
        is_watched_for_room: whether the selector tells when the socket takes more.
        is_closed: nothing may be read or sent any more.
        plan: the last that was sent here; the next is told as what differs from it.
    """

    def __init__(self, sock: socket.socket, limit_bytes: int = HELLO_LIMIT_BYTES) -> None:
        self.socket = sock
        self.worker: WorkerId | None = None
        self.limit_bytes = limit_bytes
        self.is_watched_for_room = False
        self.is_closed = False
        self.plan: PlanMessage | None = None
        self._has_shaken_hands = False
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()

    def receive(self) -> Iterator[bytes]:
        """Yields the whole frames that came. Raises EOFError at the end, FrameError for a frame that is too long.

        The limit is asked for frame by frame: it rises once the first of them has shown the token. And once one of them
        has closed the connection, nobody hears the others. Raises NotSecured for an end that is not trusted.
        """
        while self._read():
            yield from self._whole()
            if self.is_closed or not pending(self.socket):
                return

    def _read(self) -> bool:
        """Reads once; returns False where nothing has come."""
        try:
            if not self._is_secured():
                return False
            data = self.socket.recv(CONTROL_READ_BYTES)
        except BlockingIOError:
            return False
        except NotSecured:
            raise
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("connection closed")
        self._incoming += data
        return True

    def _is_secured(self) -> bool:
        """Goes on with the handshake of a connection under TLS; returns whether there is nothing left of it."""
        if isinstance(self.socket, SecureSocket) and not self._has_shaken_hands:
            self._has_shaken_hands = self.socket.shake_hands()
            return self._has_shaken_hands
        return True

    def _whole(self) -> Iterator[bytes]:
        while len(self._incoming) >= 4 and not self.is_closed:
            try:
                size = frame_size(bytes(self._incoming[:4]), self.limit_bytes)
            except SpeaksTls:
                with contextlib.suppress(OSError):
                    self.socket.send(ALERT)
                raise
            if len(self._incoming) < 4 + size:
                break
            frame = bytes(self._incoming[4 : 4 + size])
            del self._incoming[: 4 + size]
            yield frame

    def send(self, body: bytes) -> None:
        """Queues a message."""
        self.send_frame(control_frame(body))

    def send_frame(self, frame: bytes) -> None:
        """Queues a frame, without a copy: the same one may wait for thousands of connections."""
        self._outgoing.append(memoryview(frame))

    def flush(self) -> bool:
        """Sends what the kernel takes; returns whether something is left."""
        outgoing = self._outgoing
        while outgoing:
            frame = outgoing[0]
            try:
                sent = self.socket.send(frame)
            except BlockingIOError:
                return True
            except OSError:
                # The reading side learns of it and tells the machine.
                outgoing.clear()
                return False
            if sent == len(frame):
                outgoing.popleft()
            else:
                outgoing[0] = frame[sent:]
        return False

    @property
    def wants_to_send(self) -> bool:
        return bool(self._outgoing)

    def close(self) -> None:
        self.is_closed = True
        self.socket.close()
