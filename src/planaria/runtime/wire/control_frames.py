"""Control frames: how messages between a worker, a user and the coordinator are written and read on a socket.

A 4-byte big-endian length, then a message in msgpack. No torch: who only asks a running job does not load it.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from planaria.protocol.messages.message import MAX_FRAME_BYTES

_LENGTH = struct.Struct("!I")

HANDSHAKE_BYTE: Final = 0x16
"""First byte of whoever begins a TLS handshake."""
ALERT: Final = bytes.fromhex("15030300020246")
"""TLS's alert "protocol version", which an end that speaks TLS and one that does not both understand as: not so."""


class FrameError(ValueError):
    """The bytes that came are not a frame of ours."""


class SpeaksTls(FrameError):
    """The other end speaks TLS, and this one does not."""


def control_frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def frame_size(head: bytes, limit_bytes: int) -> int:
    """Returns the size of the frame that begins with these four bytes. Raises FrameError when it is too long."""
    size: int = _LENGTH.unpack(head)[0]
    if size <= limit_bytes:
        return size
    if head[0] == HANDSHAKE_BYTE and head[1] == ALERT[1]:
        raise SpeaksTls("it speaks TLS, and this run does not: set cluster.tls in the job file, or leave out --tls")
    if head[:2] == ALERT[:2]:
        raise SpeaksTls("it speaks TLS: give --tls FOLDER with the run's certificates")
    raise FrameError(f"a frame of {size} bytes is over the limit of {limit_bytes}")


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
    return read_exactly(sock, frame_size(read_exactly(sock, _LENGTH.size), limit_bytes))
