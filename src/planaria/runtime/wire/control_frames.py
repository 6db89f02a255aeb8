"""Control frames: how messages between a worker, a user and the coordinator are written and read on a socket.

A 4-byte big-endian length, then a message in msgpack. No torch: who only asks a running job does not load it.
"""

from __future__ import annotations

import socket
import struct

from planaria.protocol.messages.worker import MAX_FRAME_BYTES

_LENGTH = struct.Struct("!I")


class FrameError(ValueError):
    """The bytes that came are not a frame of ours."""


def control_frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Returns `size` bytes. Raises EOFError when the other side closes before they came."""
    data = bytearray(size)
    read_into(sock, memoryview(data))
    return bytes(data)


def read_into(sock: socket.socket, view: memoryview) -> None:
    while view:
        count = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if count == 0:
            raise EOFError("connection closed")
        view = view[count:]


def read_control(sock: socket.socket, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Returns the body of the next control frame. Raises EOFError at the end, FrameError when it is too long."""
    (size,) = _LENGTH.unpack(read_exactly(sock, _LENGTH.size))
    if size > limit_bytes:
        raise FrameError(f"a control frame of {size} bytes is over the limit of {limit_bytes}")
    return read_exactly(sock, size)
