"""Writes and reads tensors on a socket as data frames. Nothing is unpickled.

A 4-byte header length, 8-byte payload length, two 8-byte checksums (xxh3_64: of the payload; of all before it and the
header), a msgpack header, then the tensors' bytes one after the other.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterable

import msgspec
import torch
import xxhash

from planaria.runtime.wire.control_frames import FrameError, read_exactly, read_into
from planaria.runtime.worker.transport.mailbox import Key

_DATA = struct.Struct("!IQQ")
_SUM = struct.Struct("!Q")
_READ_BYTES = 1 << 20
"""Bytes that are read at a time and summed while they are in the cache."""

MAX_HEADER_BYTES = 64 * 1024
DTYPES = {
    "f4": torch.float32,
    "f8": torch.float64,
    "bf": torch.bfloat16,
    "f2": torch.float16,
    "i8": torch.int64,
    "i4": torch.int32,
    "b1": torch.bool,
    "u1": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class DamagedFrame(FrameError):
    """A data frame arrived damaged.

    Attributes:
        key: of the message, whose frame was read to its end; None when not even its header can be trusted.
    """

    def __init__(self, key: Key | None) -> None:
        super().__init__("a header is damaged" if key is None else f"{key} is damaged")
        self.key = key


class TensorMeta(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]


class DataHeader(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    sender: int
    step: int
    epoch: int
    item: int
    layer: int
    tensors: tuple[TensorMeta, ...]


_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(DataHeader)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Returns a contiguous CPU tensor's bytes, without a copy."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def data_frame(key: Key, tensors: tuple[torch.Tensor, ...]) -> list[memoryview]:
    """Returns the pieces of a data frame, header first; the tensors' memory is not copied."""
    host = [tensor.detach().to("cpu").contiguous() for tensor in tensors]
    header = _header_encoder.encode(
        DataHeader(
            key.kind,
            key.sender,
            key.step,
            key.epoch,
            key.item,
            key.layer,
            tuple(TensorMeta(NAMES[t.dtype], tuple(t.shape)) for t in host),
        )
    )
    payload = [view for view in (bytes_of(tensor) for tensor in host) if len(view)]
    size = sum(len(view) for view in payload)
    lengths = _DATA.pack(len(header), size, _sum(payload))
    return [memoryview(lengths + _SUM.pack(xxhash.xxh3_64_intdigest(lengths + header)) + header), *payload]


def read_data(sock: socket.socket, max_payload_bytes: int) -> tuple[Key, tuple[torch.Tensor, ...]]:
    """Reads the next data frame into new tensors. Raises EOFError, DamagedFrame, FrameError."""
    start = read_exactly(sock, _DATA.size + _SUM.size)
    lengths, (header_sum,) = start[: _DATA.size], _SUM.unpack(start[_DATA.size :])
    header_size, payload_size, payload_sum = _DATA.unpack(lengths)
    if header_size > MAX_HEADER_BYTES or payload_size > max_payload_bytes:
        raise FrameError(f"a data frame of {header_size} + {payload_size} bytes is over the limit")
    encoded = read_exactly(sock, header_size)
    if xxhash.xxh3_64_intdigest(lengths + encoded) != header_sum:
        raise DamagedFrame(None)
    try:
        header = _header_decoder.decode(encoded)
        if sum(DTYPES[meta.dtype].itemsize * math.prod(meta.shape) for meta in header.tensors) != payload_size:
            raise FrameError("a data frame's payload does not have the size that its header tells")
        tensors = tuple(torch.empty(meta.shape, dtype=DTYPES[meta.dtype]) for meta in header.tensors)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RuntimeError, TypeError) as error:
        raise FrameError(f"a data frame's header makes no sense: {str(error).partition(chr(10))[0]}") from error
    key = Key(header.kind, header.sender, header.step, header.epoch, header.item, header.layer)
    views = [bytes_of(tensor) for tensor in tensors]
    if _read_and_sum(sock, views) != payload_sum:
        raise DamagedFrame(key)
    return key, tensors


def _sum(views: Iterable[memoryview]) -> int:
    digest = xxhash.xxh3_64()
    for view in views:
        digest.update(view)
    return digest.intdigest()


def _read_and_sum(sock: socket.socket, views: Iterable[memoryview]) -> int:
    digest = xxhash.xxh3_64()
    for view in views:
        for begin in range(0, len(view), _READ_BYTES):
            piece = view[begin : begin + _READ_BYTES]
            read_into(sock, piece)
            digest.update(piece)
    return digest.intdigest()
