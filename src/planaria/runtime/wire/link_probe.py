"""Measures the link to another host: small messages there and back, then as many bytes as it takes for a moment.

Bytes are counted where they arrive: what the sender's kernel has taken is not there yet.
"""

from __future__ import annotations

import contextlib
import select
import socket
import statistics
import struct
import threading
import time
from typing import Final

from planaria.runtime.thresholds import (
    ECHOES,
    ECHOES_S,
    PROBE_ANSWER_WITHIN_S,
    PROBE_ROUND_TRIPS,
    PROBE_S,
    PROBE_WINDOWS,
)
from planaria.runtime.wire.control_frames import read_exactly
from planaria.runtime.wire.listener import PeerListener, greeting
from planaria.runtime.wire.sockets import received, watch_over
from planaria.runtime.wire.tls import Security, connect

_CHUNK: Final = 1 << 18
_SMALL: Final = b"p"
_SECONDS: Final = struct.Struct("!d")


class ProbeListener:
    """Answers probes of others that know the job's token, each in a thread of its own.

    Args:
        token: of the job.
        security: see `PeerListener`.
    """

    def __init__(self, token: str, security: Security | None = None) -> None:
        self._listener = PeerListener(token, self._greeted, security)

    def start(self, host: str) -> int:
        """Starts to listen; returns the port."""
        return self._listener.start(host)

    def close(self) -> None:
        self._listener.close()

    def _greeted(self, sock: socket.socket, sender: int) -> None:
        threading.Thread(target=_answer, args=(sock,), name="probe", daemon=True).start()


def _answer(sock: socket.socket) -> None:
    """Echoes small messages until a number of seconds comes, then counts what arrives for so long, and tells."""
    with sock, contextlib.suppress(OSError, EOFError):
        sock.settimeout(PROBE_ANSWER_WITHIN_S)
        while (said := read_exactly(sock, 1)) == _SMALL:
            sock.sendall(said)
        (seconds,) = _SECONDS.unpack(read_exactly(sock, _SECONDS.size))
        sock.sendall(_SECONDS.pack(_arriving(sock, min(seconds, PROBE_S))))
        while sock.recv(_CHUNK):
            pass


def _arriving(sock: socket.socket, seconds: float) -> float:
    """Returns the most bytes a second that arrived in one of the windows.

    The kernel counts them: what it took while this process had to wait is read faster than it came.
    """
    buffer = bytearray(_CHUNK)
    began = time.perf_counter()
    rates, marks = [0.0], [began + share * seconds for share in PROBE_WINDOWS]
    window: tuple[float, int] | None = None
    while marks and sock.recv_into(buffer):
        now = time.perf_counter()
        if now >= marks[0]:
            total = received(sock)
            if window is not None:
                rates.append((total - window[1]) / (now - window[0]))
            window, marks = (now, total), [mark for mark in marks if mark > now]
    return max(rates)


def probe(address: str, token: str, seconds: float, security: Security | None = None) -> tuple[float, float]:
    """Returns the seconds of a small message one way, and the bytes a second of many.

    Args:
        address: of the other host's listener.
        token: of the job.
        seconds: for how long bytes are sent.
        security: see `PeerListener`.

    Raises:
        OSError: the other host cannot be reached, or does not answer.
        EOFError: it closed.
    """
    host, _, port = address.rpartition(":")
    with connect((host, int(port)), PROBE_ANSWER_WITHIN_S, security) as sock:
        watch_over(sock)
        sock.sendall(greeting(0, token))
        round_trip_s = _round_trip_s(sock)
        seconds = min(PROBE_S, max(seconds, PROBE_ROUND_TRIPS * round_trip_s))
        sock.sendall(b"b" + _SECONDS.pack(seconds))
        rate = _sending(sock, seconds)
        # What was sent and has not arrived need not: the connection is cut.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return round_trip_s / 2, rate


def _round_trip_s(sock: socket.socket) -> float:
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 2 or (len(times) < ECHOES and time.perf_counter() - began < ECHOES_S):
        sent = time.perf_counter()
        sock.sendall(_SMALL)
        read_exactly(sock, 1)
        times.append(time.perf_counter() - sent)
    return statistics.quantiles(times, n=4)[0]


def _sending(sock: socket.socket, seconds: float) -> float:
    """Sends until the other end says at what rate it arrived."""
    zeros = memoryview(bytes(_CHUNK))
    deadline = time.perf_counter() + seconds + PROBE_ANSWER_WITHIN_S
    sock.setblocking(False)
    while True:
        left = deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError("no answer to a probe")
        readable, writable, _ = select.select([sock], [sock], [], left)
        if readable:
            sock.settimeout(PROBE_ANSWER_WITHIN_S)
            (rate,) = _SECONDS.unpack(read_exactly(sock, _SECONDS.size))
            return float(rate)
        if writable:
            with contextlib.suppress(BlockingIOError):
                sock.send(zeros)
