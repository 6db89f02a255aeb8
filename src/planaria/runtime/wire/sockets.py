"""Sets socket options: to send at once, and to notice when the other end is out of reach.

A host that goes without a closing packet, or behind a cut link, leaves a connection that looks alive for a quarter of
an hour. These options bound that. They never decide who is lost: that is the coordinator's.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from planaria.runtime.thresholds import IDLE_S, LOST_AFTER_S, PROBE_EVERY_S, PROBES


def watch_over(sock: socket.socket) -> None:
    """Has small messages sent at once, and a silent connection noticed even when nothing is sent."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def bound_silence(sock: socket.socket) -> None:
    """Has the connection given up when nothing that was sent is acknowledged for so long.

    Not for control connections: there both ends have better means to judge.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LOST_AFTER_S * 1000))


_TCP_INFO: Final = struct.Struct("=120xQQ32xQQ")
"""Of Linux's `struct tcp_info`: `tcpi_bytes_acked`, `tcpi_bytes_received`, and `tcpi_busy_time` and
`tcpi_rwnd_limited` in microseconds."""


def sent(sock: socket.socket) -> tuple[int, float]:
    """Returns the bytes that have arrived at the other end, and for how many seconds some were under way to it.

    Seconds in which the other end had no room do not count.
    """
    arrived, _, busy_us, full_us = _tcp_info(sock)
    return arrived, (busy_us - full_us) / 1e6


def received(sock: socket.socket) -> int:
    """Returns the bytes that have arrived here, also those that nobody has read yet."""
    return _tcp_info(sock)[1]


def _tcp_info(sock: socket.socket) -> tuple[int, ...]:
    return _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
