"""The data plane between workers: one TCP connection for each direction of each pair that talks.

A connection belongs to its two ends alone, so the death of one worker touches nobody else's: there is no group to
abort or to build again. A message is named by its `Key`; the receiver asks for keys, so what a dead plan left under
way is never taken. Sends never block the caller: what the kernel does not take at once, a thread of the peer sends.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

from planaria.plan.plan import WorkerId
from planaria.protocol.worker.session import CUT_OFF_S
from planaria.runtime.wire.control_frames import FrameError
from planaria.runtime.wire.listener import PeerListener, greeting
from planaria.runtime.wire.sockets import bound_silence, watch_over
from planaria.runtime.worker.transport.frames import DamagedFrame, data_frame, read_data
from planaria.runtime.worker.transport.mailbox import Key, Mailbox

CONNECT_TIMEOUT_S: Final = 5.0
UNREACHABLE_PAUSE_S: Final = 0.1
"""Seconds between two attempts at an unreachable host: in the first second after its cable is back, its entry among
the kernel's neighbours may still be that of a host that is gone."""

MAX_PAYLOAD_BYTES: Final = 1 << 36


class _Peer:
    """The connection to one peer: a socket and a thread that sends what could not go at once.

    Args:
        own: the sender.
        peer: the receiver, at `address`.
        token: of the job.
        broken: called from the thread when the connection failed without having been closed here.
    """

    def __init__(self, own: WorkerId, peer: WorkerId, address: str, token: str, broken: Callable[[], None]) -> None:
        self._hello = greeting(own, token)
        self._address = address
        self._broken = broken
        self._queue: queue.SimpleQueue[list[memoryview] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._socket: socket.socket | None = None
        self._dead = False
        self._closed = False
        threading.Thread(target=self._run, name=f"to-{peer}", daemon=True).start()

    def send(self, pieces: list[memoryview]) -> None:
        with self._lock:
            if self._dead:
                return
            if self._waiting == 0 and self._socket is not None:
                pieces = self._send_at_once(self._socket, pieces)
                if not pieces:
                    return
            self._waiting += 1
        self._queue.put(pieces)

    def _send_at_once(self, sock: socket.socket, pieces: list[memoryview]) -> list[memoryview]:
        """Gives the kernel what it takes without blocking; returns the rest."""
        try:
            sent = sock.sendmsg(pieces, [], socket.MSG_DONTWAIT)
        except OSError:
            return pieces  # not now, or never: the thread finds out which
        rest = []
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
            else:
                rest.append(piece[sent:] if sent else piece)
                sent = 0
        return rest

    def _run(self) -> None:
        try:
            sock = self._connect()
            with self._lock:
                self._socket = sock
            while (pieces := self._queue.get()) is not None:
                for piece in pieces:
                    sock.sendall(piece)
                with self._lock:
                    self._waiting -= 1
        except OSError:
            # The peer is dying, most likely; the coordinator hears of it from the peer's own control connection.
            if not self._closed:
                self._broken()
        finally:
            with self._lock:
                self._dead = True
                if self._socket is not None:
                    self._socket.close()

    def _connect(self) -> socket.socket:
        host, port = self._address.rsplit(":", 1)
        began = time.monotonic()
        while True:
            try:
                sock = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)
            except TimeoutError:
                if self._closed:
                    raise
                continue  # the host is busy; whether it is dead is not for us to say
            except OSError as error:
                is_late = time.monotonic() - began >= CONNECT_TIMEOUT_S
                if error.errno != errno.EHOSTUNREACH or self._closed or is_late:
                    raise
                time.sleep(UNREACHABLE_PAUSE_S)
                continue
            sock.settimeout(None)
            watch_over(sock)
            if sock.getpeername()[0] != sock.getsockname()[0]:
                bound_silence(sock)  # no packet is lost within a host
            sock.sendall(self._hello)
            return sock

    def close(self) -> None:
        with self._lock:
            self._closed = self._dead = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        self._queue.put(None)


class Transport:
    """Sends to peers, and puts what they send into the mailbox.

    Args:
        worker: who this is.
        token: of the job.
        mailbox: for what arrives.
        host: to listen on.
        cut_off: told, from another thread, of a peer that is in the plan and to which the connection is lost.
    """

    def __init__(
        self,
        worker: WorkerId,
        token: str,
        mailbox: Mailbox,
        host: str = "127.0.0.1",
        cut_off: Callable[[WorkerId], None] = lambda peer: None,
    ) -> None:
        self._worker = worker
        self._token = token
        self._mailbox = mailbox
        self._host = host
        self._cut_off = cut_off
        self._peers: dict[WorkerId, _Peer] = {}
        self._addresses: dict[WorkerId, str] = {}
        self._greeter = PeerListener(token, self._greeted)

    def start(self) -> str:
        """Begins to listen; returns the address that peers need."""
        return f"{self._host}:{self._greeter.start(self._host)}"

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        """Sets the peers of the plan. Connections to all others are closed; those that stay are not touched."""
        for worker in [w for w in self._peers if addresses.get(w) != self._addresses.get(w)]:
            self._peers.pop(worker).close()
        self._addresses = dict(addresses)

    def is_on_this_host(self, peer: WorkerId) -> bool:
        return self._addresses[peer].rpartition(":")[0] == self._host

    def connect(self, peer: WorkerId) -> _Peer:
        found = self._peers.get(peer)
        if found is None:
            address = self._addresses[peer]
            found = _Peer(self._worker, peer, address, self._token, lambda: self._broken(peer, address))
            self._peers[peer] = found
        return found

    def _broken(self, peer: WorkerId, address: str) -> None:
        """Tells `cut_off` of a peer whose connection broke, if that peer is still in the plan a while later."""

        def check() -> None:
            if self._addresses.get(peer) == address:
                self._cut_off(peer)

        timer = threading.Timer(CUT_OFF_S, check)
        timer.daemon = True
        timer.start()

    def send(self, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        """Sends without waiting. The tensors must not change until the peer has them (a later commit says so)."""
        self.connect(peer).send(data_frame(key, tensors))

    def _greeted(self, sock: socket.socket, sender: int) -> None:
        threading.Thread(target=self._receive, args=(sock, sender), name="receive", daemon=True).start()

    def _receive(self, sock: socket.socket, sender: int) -> None:
        """Reads one peer's messages until it closes."""
        with sock:
            try:
                while True:
                    try:
                        key, tensors = read_data(sock, MAX_PAYLOAD_BYTES)
                    except DamagedFrame as damaged:
                        self._damaged(WorkerId(sender), damaged)
                        if damaged.key is None:
                            return  # where the next message begins, nobody knows
                        continue
                    if key.sender != sender:
                        raise FrameError(f"worker {sender} sent a message in the name of {key.sender}")
                    self._mailbox.put(key, tensors)
            except (EOFError, OSError):
                return  # the peer is gone, or the plan has no more use for it
            except Exception as error:
                self._mailbox.put_error(error)

    def _damaged(self, sender: WorkerId, damaged: DamagedFrame) -> None:
        said = f"worker {self._worker}: a message of worker {sender} failed its checksum and is dropped: {damaged}"
        print(said, file=sys.stderr, flush=True)
        if damaged.key is not None:
            self._mailbox.put_damaged(damaged.key)
        elif sender in self._addresses:
            self._cut_off(sender)

    def close(self) -> None:
        self._greeter.close()
        for peer in self._peers.values():
            peer.close()
