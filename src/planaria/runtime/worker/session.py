"""Connects a worker to the coordinator, anew after each loss of the connection; a thread puts orders into the mailbox.
What may be said on which connection, `planaria.protocol.worker.session` says."""

from __future__ import annotations

import random
import socket
import threading
import time

from planaria.protocol.messages.from_worker import Failed, FromWorker, Hello, OutOfMemory, Proof, Returned
from planaria.protocol.messages.message import Message, encode
from planaria.protocol.messages.plan_delta import Orders
from planaria.protocol.messages.to_worker import Challenge, Stop
from planaria.protocol.thresholds import FIRST_PAUSE_S, LONGEST_PAUSE_S
from planaria.protocol.worker.machine import CoordinatorBack, CoordinatorGone
from planaria.protocol.worker.session import WorkerSession
from planaria.runtime.journal.coordinator_place import CoordinatorPlace
from planaria.runtime.thresholds import QUIET_LEADER_S, SESSION_CONNECT_S, SILENT_COORDINATOR_S
from planaria.runtime.wire.control_frames import FrameError, control_frame, read_control
from planaria.runtime.wire.tls import Security, connect
from planaria.runtime.worker.transport.mailbox import Mailbox


class Control:
    """Sends messages to the coordinator, and puts what it says into the mailbox.

    Args:
        coordinator: where it is, see `CoordinatorPlace`.
        mailbox: gets the orders; `CoordinatorBack` after each new connection; `CoordinatorGone` when none was made in
            time.
        timeout_s: for which another coordinator is looked for.
        security: what the coordinator has to show, and is shown; None: the connection is plain.
    """

    def __init__(
        self, coordinator: str, mailbox: Mailbox, timeout_s: float = 60.0, security: Security | None = None
    ) -> None:
        self._security = security
        self._tls = "" if security is None else str(security.folder)
        self._place = CoordinatorPlace(coordinator, tls=self._tls)
        self._address = ""
        self._heard = 0.0
        self._mailbox = mailbox
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._hello: Hello | None = None
        self._session = WorkerSession()
        self._ended = threading.Event()

    def start(self, hello: Hello) -> None:
        """Connects, and says hello. Raises OSError when there is no coordinator."""
        self._hello = hello
        self._greet(self._connect(SESSION_CONNECT_S))
        threading.Thread(target=self._serve, name="control", daemon=True).start()
        if self._place.may_move:
            threading.Thread(target=self._look_elsewhere, name="leader", daemon=True).start()

    def send(self, message: FromWorker) -> None:
        """Sends a message. What cannot be sent now is lost, unless every coordinator has to hear of it."""
        with self._lock:
            if self._session.may_say(message):
                self._transmit(message)

    def send_returned(self, returned: Returned, connection: int) -> None:
        """Sends a message on the connection of this number, and on no other."""
        with self._lock:
            if self._session.may_return(connection):
                self._transmit(returned)

    def send_last(self, failure: Failed | OutOfMemory) -> None:
        """Sends a failure, and waits for the order to stop: the coordinator may have to restart to hear of it."""
        self.send(failure)
        self._ended.wait(self._timeout_s)

    def close(self) -> None:
        self._ended.set()
        with self._lock:
            self._hang_up()

    def _transmit(self, message: Message) -> None:
        """Sends a frame; that the coordinator is gone is learnt from the reading side."""
        if self._socket is None:
            return
        try:
            self._socket.sendall(control_frame(encode(message)))
        except OSError:
            self._hang_up()

    def _hang_up(self) -> None:
        """Shuts the connection down, which wakes the reading side."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                self._socket.close()

    # The reading side

    def _serve(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._ended.is_set():
                if self._read():
                    pause_s = FIRST_PAUSE_S
                pause_s = self._find_another(pause_s)
        except (FrameError, ValueError) as error:
            self._mailbox.put_error(error)

    def _read(self) -> bool:
        """Reads orders until the connection is lost; returns whether anything came."""
        sock, heard, orders = self._socket, False, Orders()
        assert sock is not None
        try:
            while True:
                order = orders.decode(read_control(sock))
                heard, self._heard = True, time.monotonic()
                if isinstance(order, Challenge):
                    with self._lock:
                        self._transmit(Proof(nonce=order.nonce))
                    continue
                self._mailbox.put_order(order)
                if isinstance(order, Stop):
                    self._ended.set()
        except (EOFError, OSError):
            with self._lock:
                self._socket = None
            sock.close()
            return heard

    def _look_elsewhere(self) -> None:
        """Leaves a coordinator that says nothing, as one does that is stopped or cut off, once another leads."""
        place = CoordinatorPlace(self._place.text, tls=self._tls)  # the other is the connecting thread's
        is_quiet = False
        while not self._ended.wait(QUIET_LEADER_S if is_quiet else SILENT_COORDINATOR_S):
            is_quiet = False
            if time.monotonic() - self._heard < SILENT_COORDINATOR_S:
                continue
            try:
                address = place.address()
            except OSError:
                is_quiet = place.is_quiet
                continue
            is_quiet = place.is_quiet
            with self._lock:
                if address != self._address:
                    self._hang_up()

    def _find_another(self, pause_s: float) -> float:
        """Connects anew; returns how long to pause if that fails soon. Gives up after the timeout."""
        gives_up = time.monotonic() + self._timeout_s
        while not self._ended.wait(pause_s * random.uniform(0.5, 1.0)):
            left_s = gives_up - time.monotonic()
            if left_s <= 0:
                self._ended.set()
                self._mailbox.put_order(CoordinatorGone())
                break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                sock = self._connect(min(left_s, SESSION_CONNECT_S))
            except OSError:
                continue
            self._mailbox.put_order(CoordinatorBack(self._greet(sock)))
            break
        return pause_s

    def _connect(self, timeout_s: float) -> socket.socket:
        address = self._place.address()
        host, _, port = address.rpartition(":")
        sock = connect((host, int(port)), timeout_s, self._security)
        self._address, self._heard = address, time.monotonic()
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A coordinator's host that is gone without a word: what nobody acknowledges breaks the connection.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(self._timeout_s * 1e3)))
        return sock

    def _greet(self, sock: socket.socket) -> int:
        """Greets the coordinator; returns the connection's number."""
        with self._lock:
            self._socket = sock
            number, lasting = self._session.connected()
            assert self._hello is not None
            for message in (self._hello, *lasting):
                self._transmit(message)
            return number
