"""Connections from peers: one thread reads them all, each for as long as its other end keeps it."""

from __future__ import annotations

import enum
import itertools
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import torch

from planaria.protocol.worker.mail import Key
from planaria.runtime.thresholds import MAX_PAYLOAD_BYTES
from planaria.runtime.wire.control_frames import FrameError
from planaria.runtime.worker.transport.frames import Arrived, DamagedFrame, FrameReader


class _End(enum.Enum):
    """That a connection has ended."""

    END = enum.auto()


class Incoming:
    """Reads what peers send.

    Args:
        take: takes a message, who sent it, and the number of the connection; called from the thread.
        place: returns where a message goes; see `FrameReader`.
        damaged: called from the thread for a connection that is given up, since a header was damaged.
        failed: takes an error for which the worker has to end.
        ended: told of the sender and the number of a connection that has ended; called from the thread.
    """

    def __init__(
        self,
        take: Callable[[int, Arrived, int], None],
        place: Callable[[Key], tuple[torch.Tensor, ...] | None],
        damaged: Callable[[int, DamagedFrame], None],
        failed: Callable[[BaseException], None],
        ended: Callable[[int, int], None] = lambda sender, number: None,
    ) -> None:
        self._take = take
        self._place = place
        self._damaged = damaged
        self._failed = failed
        self._ended = ended
        self._numbers = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._bell, ear = socket.socketpair()
        self._selector.register(ear, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="receive", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, sock: socket.socket, sender: int) -> None:
        """Reads this connection too. May be called from any thread."""
        try:
            reader = FrameReader(sock, MAX_PAYLOAD_BYTES, self._place)
            self._selector.register(sock, selectors.EVENT_READ, (sender, reader, next(self._numbers)))
        except (KeyError, ValueError):
            sock.close()  # this end is closed

    def close(self) -> None:
        """Ends the thread, and with it all connections."""
        self._bell.close()

    def _run(self) -> None:
        try:
            unread: list[selectors.SelectorKey] = []
            while True:
                ready = {key.fd: key for key, _ in self._selector.select(0 if unread else None)}
                ready |= {key.fd: key for key in unread if self._is_read(key)}
                if not all(self._serve(key) for key in ready.values()):
                    break
                unread = [key for key in ready.values() if self._is_read(key) and key.data[1].is_unread]
        except BaseException as error:
            self._failed(error)
        finally:
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._selector.close()

    def _is_read(self, key: selectors.SelectorKey) -> bool:
        """Returns whether a connection has not been given up."""
        return self._selector.get_map().get(key.fd) == key

    def _serve(self, key: selectors.SelectorKey) -> bool:
        """Reads one connection; returns False if it is time to end."""
        if key.data is None:
            return False
        assert isinstance(key.fileobj, socket.socket)
        sender, reader, number = key.data
        messages = reader.read()
        while (arrived := self._next(sender, messages)) is not None:
            if isinstance(arrived, _End):
                self._selector.unregister(key.fileobj)
                key.fileobj.close()
                self._ended(sender, number)
                break
            self._take(sender, arrived, number)
        return True

    def _next(self, sender: int, messages: Iterator[Arrived]) -> Arrived | _End | None:
        """Returns a connection's next message, or its end; None: there is none now."""
        try:
            arrived = next(messages, None)
            if arrived is not None and arrived.key.sender != sender:
                raise FrameError(f"worker {sender} sent a message in the name of {arrived.key.sender}")
            return arrived
        except DamagedFrame as damaged:
            self._damaged(sender, damaged)
        except (EOFError, OSError):
            pass  # the peer is gone, or the plan has no more use for it
        except Exception as error:
            self._failed(error)
        return _End.END
