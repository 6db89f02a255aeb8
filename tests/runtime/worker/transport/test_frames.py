"""Frames: what goes in comes out, and nonsense is refused before memory is taken for it."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.protocol.messages.message import MAX_FRAME_BYTES
from planaria.runtime.thresholds import MAX_HEADER_BYTES
from planaria.runtime.wire.control_frames import FrameError, control_frame, read_control
from planaria.runtime.worker.transport.frames import DTYPES, Arrived, DataHeader, FrameReader, TensorMeta, data_frame
from planaria.runtime.worker.transport.mailbox import Key, Kind
from tests.proof import examples

KEY = Key(Kind.ACTIVATION, 3, 7, 2, 5, 1)
STATE_KEY = Key(Kind.STATE, 3, 7, 2, 5, 0)
LIMIT = 1 << 20

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    near.settimeout(5)
    far.settimeout(5)
    with near, far:
        yield near, far


def sent(pair: Pair, data: bytes) -> socket.socket:
    """The receiving side, with this and nothing more to read."""
    near, far = pair
    near.sendall(data)
    near.close()
    return far


def came(sock: socket.socket) -> list[Arrived]:
    """What the socket has. Raises what the reader raises, but at the end."""
    sock.settimeout(None)
    reader, found = FrameReader(sock, LIMIT), list[Arrived]()
    while True:
        try:
            more = list(reader.read())
        except EOFError:
            return found
        if not more:
            return found
        found += more


def framed(header: object, payload: bytes = b"", *, header_size: int | None = None, size: int | None = None) -> bytes:
    body = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    lengths = struct.pack(
        "!IQQ",
        len(body) if header_size is None else header_size,
        len(payload) if size is None else size,
        xxhash.xxh3_64_intdigest(payload),
    )
    return lengths + struct.pack("!Q", xxhash.xxh3_64_intdigest(lengths + body)) + body + payload


def header(*metas: TensorMeta) -> DataHeader:
    return DataHeader("a", 3, 7, 2, 5, 1, metas)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)], ids=str)
def test_tensors_of_every_kind(pair: Pair, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 10).to(dtype)
    pair[0].sendall(b"".join(data_frame(KEY, (tensor, tensor.clone()))))
    [(key, tensors, _)] = came(pair[1])
    assert key == KEY
    assert tensors is not None
    assert [t.dtype for t in tensors] == [dtype, dtype]
    assert all(torch.equal(t, tensor) and t.shape == tensor.shape for t in tensors)


def test_tensors_that_are_not_contiguous_or_need_gradients(pair: Pair) -> None:
    tensor = torch.randn(4, 6, requires_grad=True)
    views = (tensor.t(), tensor[:, ::2], tensor[1:2].expand(3, 6))
    pair[0].sendall(b"".join(data_frame(KEY, views)))
    [(_, tensors, _)] = came(pair[1])
    assert tensors is not None
    for view, got in zip(views, tensors, strict=True):
        assert torch.equal(view, got)
        assert not got.requires_grad


def test_nothing_at_all_is_a_message_too(pair: Pair) -> None:
    pair[0].sendall(b"".join(data_frame(KEY, ())) + b"".join(data_frame(KEY, (torch.ones(2),))))
    nothing, (_, tensors, _) = came(pair[1])
    assert nothing == (KEY, (), None)
    assert tensors is not None
    assert tensors[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    "data",
    [
        framed(b"not msgpack \xff"),
        framed([1, 2, 3]),
        framed(header(TensorMeta("f4", (2,))), b"1234567"),
        framed(header(TensorMeta("f4", (2,))), b""),
        framed(header(), b"12345678"),
        framed(header(TensorMeta("x9", (2,))), b"12345678"),
        framed(header(TensorMeta("f4", (-2,))), b"12345678"),
        framed(header(TensorMeta("f4", (1 << 62, 4))), b"12345678"),
        framed(header(TensorMeta("f4", (1 << 50,))), b"12345678"),
        framed(header(TensorMeta("f4", (1 << 63,))), b"12345678"),
        framed(header(TensorMeta("f4", ((1 << 64) - 1,))), b"12345678"),
        framed(header(), size=LIMIT + 1),
        framed(header(), header_size=MAX_HEADER_BYTES + 1),
        framed(b"\x91" * 60_000),
        b"\xff" * 64,
    ],
)
def test_nonsense_is_refused(pair: Pair, data: bytes) -> None:
    with pytest.raises(FrameError):
        came(sent(pair, data))


@settings(max_examples=examples(200), deadline=None)
@given(cut=st.integers(0, 200))
def test_what_is_cut_off_never_arrives(cut: int) -> None:
    whole = b"".join(data_frame(KEY, (torch.arange(20.0),)))
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(5)
        near.sendall(whole[: min(cut, len(whole) - 1)])
        near.close()
        assert came(far) == []


@settings(max_examples=examples(300), deadline=None)
@given(noise=st.binary(min_size=12, max_size=300))
def test_noise_ends_in_one_of_two_errors(noise: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(5)
        near.sendall(noise)
        near.close()
        with contextlib.suppress(FrameError):
            assert came(far) == []


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_flipped_bit_is_found(data: st.DataObject) -> None:
    """Wherever it is in a state; a damaged payload leaves the next message readable."""
    first = bytearray(b"".join(data_frame(STATE_KEY, (torch.arange(20.0), torch.arange(7)))))
    payload_size = 20 * 4 + 7 * 8
    bit = data.draw(st.integers(0, 8 * len(first) - 1))
    first[bit // 8] ^= 1 << bit % 8
    second = b"".join(data_frame(STATE_KEY._replace(item=6), (torch.ones(2),)))
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(5)
        near.sendall(bytes(first) + second)
        near.close()
        if bit // 8 >= len(first) - payload_size:
            damaged, (key, _, _) = came(far)
            assert damaged == (STATE_KEY, None, None)
            assert key.item == 6
        else:
            with contextlib.suppress(FrameError):  # a longer header than there is ends with the connection
                assert came(far) == []


def test_messages_of_any_size_in_pieces_of_any_size(pair: Pair) -> None:
    """Larger and smaller than what is read at a time, and cut wherever the sender's kernel likes."""
    numbers = random.Random(5)
    sizes = [numbers.choice([0, 1, 30, 5_000, 40_000, 300_000, 1_500_000]) for _ in range(60)]
    tensors = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
    data = b"".join(b"".join(data_frame(KEY._replace(item=i), (t,))) for i, t in enumerate(tensors))
    pair[1].settimeout(None)
    reader, found = FrameReader(pair[1], 1 << 30), list[Arrived]()
    at = 0
    while len(found) < len(tensors):
        end = min(len(data), at + numbers.choice([1, 20, 4_000, 90_000]))
        pair[0].sendall(data[at:end])
        at = end
        found += reader.read()
    for index, (tensor, (key, got, _)) in enumerate(zip(tensors, found, strict=True)):
        assert key.item == index
        assert got is not None
        assert torch.equal(got[0], tensor)


def test_a_control_frame_is_read_as_it_was_written(pair: Pair) -> None:
    pair[0].sendall(control_frame(b"one") + control_frame(b"") + control_frame(b"three"))
    assert [read_control(pair[1]) for _ in range(3)] == [b"one", b"", b"three"]


def test_a_control_frame_that_is_too_long(pair: Pair) -> None:
    with pytest.raises(FrameError, match="over the limit"):
        read_control(sent(pair, (MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_a_control_frame_that_ends_early(pair: Pair) -> None:
    with pytest.raises(EOFError):
        read_control(sent(pair, control_frame(b"hello")[:-1]))
