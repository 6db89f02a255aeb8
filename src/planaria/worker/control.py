"""The worker's one connection to the coordinator: a socket, and a thread that puts orders into the mailbox."""

from __future__ import annotations

import socket
import threading

from planaria.protocol.messages import Message, encode
from planaria.protocol.plan_update import Orders
from planaria.protocol.worker import CoordinatorGone
from planaria.worker.frames import FrameError, control_frame, read_control
from planaria.worker.mailbox import Mailbox


class Control:
    """Sends messages to the coordinator; what it says falls into the mailbox."""

    def __init__(self, address: str, mailbox: Mailbox) -> None:
        self._address = address
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(self) -> None:
        host, port = self._address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=10.0)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._read, name="control", daemon=True).start()

    def send(self, message: Message) -> None:
        """A coordinator that is gone is learnt from the reading side."""
        assert self._socket is not None
        with self._lock:
            try:
                self._socket.sendall(control_frame(encode(message)))
            except OSError:
                self._mailbox.put_order(CoordinatorGone())

    def _read(self) -> None:
        assert self._socket is not None
        orders = Orders()
        try:
            while True:
                self._mailbox.put_order(orders.decode(read_control(self._socket)))
        except (EOFError, OSError):
            self._mailbox.put_order(CoordinatorGone())
        except (FrameError, ValueError) as error:
            self._mailbox.put_error(error)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
