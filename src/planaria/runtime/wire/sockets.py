"""Sets socket options: to send at once, and to notice when the other end is out of reach.

A host that goes without a closing packet, or behind a cut link, leaves a connection that looks alive for a quarter of
an hour. These options bound that. They never decide who is lost: that is the coordinator's.
"""

from __future__ import annotations

import socket
from typing import Final

LOST_AFTER_S: Final = 10.0
"""Seconds that data may stay unacknowledged by the other kernel. A busy or stopped process does not matter: its
kernel answers. What it does not read for so long does."""

IDLE_S: Final = 10
PROBE_EVERY_S: Final = 5
PROBES: Final = 3


def watch_over(sock: socket.socket) -> None:
    """Has small messages sent at once, and a silent connection noticed even when nothing is sent."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def bound_silence(sock: socket.socket, seconds: float = LOST_AFTER_S) -> None:
    """Has the connection given up when nothing that was sent is acknowledged for so long.

    Not for control connections: there both ends have better means to judge.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
