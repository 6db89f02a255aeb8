"""Writes and reads tensors on a socket as data frames. Nothing is unpickled.

A 4-byte header length, 8-byte payload length, two 8-byte checksums (xxh3_64: of the payload; of all before it and the
header), a msgpack header, then the tensors' bytes one after the other.
"""

from __future__ import annotations

import math
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import torch
import xxhash

from planaria.runtime.thresholds import BUFFERED_BYTES, MAX_HEADER_BYTES, READ_BYTES, READ_TURN_BYTES, WAKE_BYTES
from planaria.runtime.wire.control_frames import FrameError
from planaria.runtime.wire.tls import RECORD_BYTES, SecureSocket, pending
from planaria.runtime.worker.transport.mailbox import Key

_DATA = struct.Struct("!IQQ")
_SUM = struct.Struct("!Q")
_START_BYTES = _DATA.size + _SUM.size

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


class TensorMeta(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]


class Carried(msgspec.Struct, frozen=True, array_like=True, tag="carried"):
    """Tells that a message's tensors come by a process group.

    Attributes:
        serial: of the group, among those of the sender.
        tensors: what comes.
    """

    serial: int
    tensors: tuple[TensorMeta, ...]


class Loan(msgspec.Struct, frozen=True, array_like=True, tag="lent"):
    """Tells that a message's tensors are the addresses of memory in which it lies.

    Attributes:
        number: by which the sender knows it; 0: it need not be told that it was read.
        tensors: what lies at each address.
        offsets: where it begins there, in bytes.
    """

    number: int
    tensors: tuple[TensorMeta, ...]
    offsets: tuple[int, ...]


class Arrived(NamedTuple):
    """A message that arrived.

    Attributes:
        tensors: None: its payload is damaged.
        elsewhere: where the message is; None: it is these tensors.
    """

    key: Key
    tensors: tuple[torch.Tensor, ...] | None
    elsewhere: Loan | Carried | None


class DamagedFrame(FrameError):
    """The header of a data frame arrived damaged."""

    def __init__(self) -> None:
        super().__init__("a header is damaged")


class DataHeader(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    sender: int
    step: int
    epoch: int
    item: int
    layer: int
    tensors: tuple[TensorMeta, ...]
    elsewhere: Loan | Carried | None = None


_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(DataHeader)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Returns a contiguous CPU tensor's bytes, without a copy."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(NAMES[tensor.dtype], tuple(tensor.shape))


def data_frame(
    key: Key, tensors: tuple[torch.Tensor, ...], elsewhere: Loan | Carried | None = None
) -> list[memoryview]:
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
            tuple(map(meta_of, host)),
            elsewhere,
        )
    )
    payload = [view for view in (bytes_of(tensor) for tensor in host) if len(view)]
    size = sum(len(view) for view in payload)
    lengths = _DATA.pack(len(header), size, _sum(payload))
    return [memoryview(lengths + _SUM.pack(xxhash.xxh3_64_intdigest(lengths + header)) + header), *payload]


class FrameReader:
    """Reads data frames from a socket, as their bytes come, without waiting for more.

    What is read goes into the tensors themselves; only headers, and what comes right behind the end of a message, go
    through a buffer.

    Args:
        sock: without a timeout.
        max_payload_bytes: of one frame.
        place: returns the tensors into which a message is to be read; None: into new ones.
    """

    def __init__(
        self,
        sock: socket.socket,
        max_payload_bytes: int,
        place: Callable[[Key], tuple[torch.Tensor, ...] | None] = lambda key: None,
    ) -> None:
        self._socket = sock
        self._place = place
        self._max_payload_bytes = max_payload_bytes
        self._buffer = memoryview(bytearray(BUFFERED_BYTES))
        self._begin = self._end = 0
        self._low = 1
        self._hidden = 2 * RECORD_BYTES if isinstance(sock, SecureSocket) else 0
        """Most bytes of a message that have left the kernel and are not here: TLS has them until it has all of them."""
        self._arriving: _Arriving | None = None

    def read(self) -> Iterator[Arrived]:
        """Reads what the socket has, up to a limit; yields the messages that it makes whole, in order.

        Raises:
            EOFError: the other side has closed.
            DamagedFrame: a header is damaged: where the next message begins, nobody knows.
            FrameError: what came is no frame.
        """
        left = READ_TURN_BYTES
        while left > 0:
            asked, got = self._receive()
            yield from self._whole()
            left = left - got if got == asked else 0
        rest = 0 if self._arriving is None else self._arriving.left - self._hidden
        self._wake_for(WAKE_BYTES if rest > WAKE_BYTES else 1)

    @property
    def is_unread(self) -> bool:
        """Whether something has come that a selector does not know of."""
        return pending(self._socket) > 0

    def _wake_for(self, size: int) -> None:
        """Has the socket count as readable from so many bytes on: a large message is not read in crumbs."""
        if size != self._low:
            self._low = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _receive(self) -> tuple[int, int]:
        """Reads once; returns how many bytes were asked for, and how many came."""
        waiting = self._end - self._begin
        if self._begin:
            self._buffer[:waiting] = bytes(self._buffer[self._begin : self._end])
            self._begin, self._end = 0, waiting
        rest = None if self._arriving is None else self._arriving.next
        room = self._buffer[self._end :]
        views = [room] if rest is None else [rest, room] if len(rest) < READ_BYTES else [rest]
        try:
            got = self._socket.recvmsg_into(views, 0, socket.MSG_DONTWAIT)[0]
        except BlockingIOError:
            return 1, 0
        if got == 0:
            raise EOFError("connection closed")
        here = 0 if rest is None else min(got, len(rest))
        if self._arriving is not None:
            self._arriving.came(here)
        self._end += got - here
        return sum(map(len, views)), got

    def _whole(self) -> Iterator[Arrived]:
        """Takes what is in the buffer: ends and beginnings of messages, and small ones as a whole."""
        while self._arriving is not None or self._begin_message():
            arriving = self._arriving
            assert arriving is not None
            while arriving.next is not None and self._begin < self._end:
                size = min(len(arriving.next), self._end - self._begin)
                arriving.next[:size] = self._buffer[self._begin : self._begin + size]
                self._begin += size
                arriving.came(size)
            if arriving.next is not None:
                return
            self._arriving = None
            yield arriving.message()

    def _begin_message(self) -> bool:
        """Begins the message whose header is in the buffer; returns False if not all of it is."""
        start = bytes(self._buffer[self._begin : min(self._end, self._begin + _START_BYTES)])
        if len(start) < _START_BYTES:
            return False
        lengths, (header_sum,) = start[: _DATA.size], _SUM.unpack(start[_DATA.size :])
        header_size, payload_size, payload_sum = _DATA.unpack(lengths)
        if header_size > MAX_HEADER_BYTES or payload_size > self._max_payload_bytes:
            raise FrameError(f"a data frame of {header_size} + {payload_size} bytes is over the limit")
        payload_at = self._begin + _START_BYTES + header_size
        if payload_at > self._end:
            return False
        encoded = bytes(self._buffer[self._begin + _START_BYTES : payload_at])
        if xxhash.xxh3_64_intdigest(lengths + encoded) != header_sum:
            raise DamagedFrame
        self._arriving = _Arriving(encoded, payload_size, payload_sum, self._place)
        self._begin = payload_at
        return True


class _Arriving:
    """A message whose header has come. Raises FrameError if it makes no sense.

    Attributes:
        next: where the next bytes of the payload go, at most `READ_BYTES`; None: all have come.
        left: bytes of the payload that have not come.
    """

    def __init__(
        self,
        encoded: bytes,
        payload_size: int,
        payload_sum: int,
        place: Callable[[Key], tuple[torch.Tensor, ...] | None],
    ) -> None:
        try:
            header = _header_decoder.decode(encoded)
            if sum(DTYPES[meta.dtype].itemsize * math.prod(meta.shape) for meta in header.tensors) != payload_size:
                raise FrameError("a data frame's payload does not have the size that its header tells")
            self._key = Key(header.kind, header.sender, header.step, header.epoch, header.item, header.layer)
            placed = place(self._key)
            if placed is None or tuple(map(meta_of, placed)) != header.tensors:
                placed = tuple([torch.empty(meta.shape, dtype=DTYPES[meta.dtype]) for meta in header.tensors])
            told = header.elsewhere
            if isinstance(told, Loan) and not len(told.tensors) == len(told.offsets) == len(placed):
                raise FrameError("a data frame's loan does not have the addresses that it tells of")
            self._tensors, self._elsewhere = placed, told
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RuntimeError, TypeError) as error:
            raise FrameError(f"a data frame's header makes no sense: {str(error).partition(chr(10))[0]}") from error
        self._sum = payload_sum
        self._digest = xxhash.xxh3_64()
        self._views = deque(bytes_of(tensor) for tensor in self._tensors)
        self.next: memoryview | None = None
        self.left = payload_size
        self._look_on()

    def came(self, size: int) -> None:
        """Takes note of so many bytes in `next`, which are summed while they are in the cache."""
        assert self.next is not None
        self._digest.update(self.next[:size])
        self.left -= size
        self._views[0] = self._views[0][size:]
        self._look_on()

    def _look_on(self) -> None:
        while self._views and not len(self._views[0]):
            self._views.popleft()
        self.next = self._views[0][:READ_BYTES] if self._views else None

    def message(self) -> Arrived:
        """Returns the message, all of which has come; without tensors if it is damaged."""
        return Arrived(self._key, self._tensors if self._digest.intdigest() == self._sum else None, self._elsewhere)


def _sum(views: Iterable[memoryview]) -> int:
    digest = xxhash.xxh3_64()
    for view in views:
        digest.update(view)
    return digest.intdigest()
