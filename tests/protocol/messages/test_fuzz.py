"""Bytes and texts from anybody: what reads them gives an answer or one of its documented errors, in little memory."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import random
import socket
import tomllib
import tracemalloc
import types
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planaria.checkpoint.manifest import read_manifest, write_manifest
from planaria.job.errors import UserError
from planaria.job.parse import job_from_json, job_from_table, job_json, parse_job
from planaria.job.settings import Job
from planaria.plan.ledger import Mask
from planaria.protocol.messages.from_worker import Doing, FromWorker, HeldBytes, SavedGroup, decode_from_worker
from planaria.protocol.messages.journal import AnyEntry, decode_entry
from planaria.protocol.messages.message import Seconds, ZoneName, encode
from planaria.protocol.messages.plan_delta import decode_order
from planaria.protocol.messages.to_worker import Challenge, ToWorker
from planaria.protocol.messages.user import Answer, Request, RequestRefused, decode_answer, decode_request
from planaria.runtime.thresholds import HELLO_LIMIT_BYTES
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import FrameError, control_frame, read_control
from tests.proof import examples

many = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))

DECODERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "from a worker": (decode_from_worker, FromWorker),
    "to a worker": (partial(decode_order, last=None), ToWorker | Challenge),
    "a request": (decode_request, Request),
    "an answer": (decode_answer, Answer | RequestRefused),
    "a journal entry": (decode_entry, AnyEntry),
}


# Messages that are well formed


def anything(expected: Any, draw: random.Random) -> Any:
    """Of a type that messages are made of."""
    if expected == Seconds:
        return draw.choice([0.0, 1.5, 1e9])
    if expected == HeldBytes:
        return draw.choice([0, 7, 2**40])
    if expected in (ZoneName, Doing):
        return draw.choice(["", "europe-west4-a", "\u20ac" * 128])
    if expected == Mask:
        return draw.choice(["0", "ff"])
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if hasattr(expected, "__supertype__"):
        return anything(expected.__supertype__, draw)
    if origin in (types.UnionType, typing.Union):
        return anything(draw.choice(arguments), draw)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(anything(arguments[0], draw) for _ in range(draw.randrange(4)))
    if origin is tuple:
        return tuple(anything(part, draw) for part in arguments)
    if origin is dict:
        return {anything(arguments[0], draw): anything(arguments[1], draw) for _ in range(draw.randrange(4))}
    if isinstance(expected, type) and issubclass(expected, enum.Enum):
        return draw.choice(list(expected))
    if isinstance(expected, type) and (issubclass(expected, msgspec.Struct) or dataclasses.is_dataclass(expected)):
        return expected(**{name: anything(hint, draw) for name, hint in _hints(expected).items()})
    return {
        int: draw.choice([0, 1, -1, 7, 2**63 - 1, -(2**63), draw.getrandbits(40)]),
        float: draw.choice([0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, draw.gauss(0, 1e6)]),
        str: draw.choice(["", "a", "0" * 300, "\u20ac\U0001f600", "\0", "ff"]),
        bool: draw.random() < 0.5,
        bytes: draw.randbytes(draw.choice([0, 1, 300])),
        type(None): None,
    }[expected]


@functools.cache
def _hints(expected: type) -> dict[str, Any]:
    hints = typing.get_type_hints(expected, include_extras=True)
    is_struct = issubclass(expected, msgspec.Struct)
    fields = msgspec.structs.fields(expected) if is_struct else dataclasses.fields(expected)
    return {field.name: hints[field.name] for field in fields}


seeds = st.integers(0, 2**32)

damage = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "double", "swap"]), st.integers(0, 2**16), st.binary(max_size=6)
    ),
    min_size=1,
    max_size=6,
)


def damaged(data: bytes, blows: list[tuple[str, int, bytes]]) -> bytes:
    for kind, where, noise in blows:
        at = where % (len(data) + 1)
        match kind:
            case "flip":
                data = data[:at] + bytes(byte ^ (1 << where % 8) for byte in data[at : at + 1]) + data[at + 1 :]
            case "cut":
                data = data[:at]
            case "insert":
                data = data[:at] + noise + data[at:]
            case "double":
                data = data + data[at:]
            case "swap":
                data = data[at:] + data[:at]
    return data


def same(left: object, right: object) -> bool:
    """Equal, NaN for NaN."""
    return msgspec.msgpack.encode(left) == msgspec.msgpack.encode(right)


@pytest.mark.parametrize("name", DECODERS)
@many
@given(seed=seeds)
def test_what_is_sent_is_what_arrives(name: str, seed: int) -> None:
    decode, expected = DECODERS[name]
    message = anything(expected, random.Random(seed))
    assert same(decode(encode(message)), message)


@pytest.mark.parametrize("name", DECODERS)
@many
@given(seed=seeds, blows=damage)
def test_a_damaged_message_is_refused_or_read_as_one_that_may_be_sent(
    name: str, seed: int, blows: list[tuple[str, int, bytes]]
) -> None:
    decode, expected = DECODERS[name]
    sent = encode(anything(expected, random.Random(seed)))
    try:
        message = decode(damaged(sent, blows))
    except msgspec.DecodeError:
        return
    assert same(decode(encode(message)), message)


@pytest.mark.parametrize("name", DECODERS)
@many
@given(noise=st.binary(max_size=400))
def test_noise_is_no_message(name: str, noise: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        DECODERS[name][0](noise)


TYPE = b"\xa4type"
DEEP = b"\x91" * 100_000
HUGE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        DEEP,
        b"\x82" + TYPE + b"\xa5hello\xa1x" + DEEP,
        b"\x82" + TYPE + b"\xa4stop\xa1x" + DEEP,
        b"\x82" + TYPE + b"\xa7request\xa1x" + DEEP,
        b"\x82" + TYPE + b"\xa6answer\xa1x" + b"\x81\x01" * 50_000,
        b"\x82" + TYPE + b"\xa6report\xa4held\xdd" + HUGE,
        b"\x82" + TYPE + b"\xa6commit\xa9exponents\xdd" + HUGE + b"\x01" * 1000,
        b"\x82" + TYPE + b"\xa4vote\xa5norms\xdf" + HUGE,
        b"\x82" + TYPE + b"\xa6failed\xa4text\xdb" + HUGE,
        b"\xdf" + HUGE,
        b"\xdd" + HUGE,
        b"\xc9" + HUGE + b"\x01",
        b"",
    ],
)
def test_what_is_deep_or_claims_to_be_long_is_refused(name: str, data: bytes) -> None:
    """Refused before memory is taken for what is claimed."""
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.DecodeError):
            DECODERS[name][0](data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


# Control frames


class Pieces:
    """A socket from which the given pieces come, one a call, and then the end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def recv(self, size: int) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        self._pieces[:0] = [piece[size:]] if len(piece) > size else []
        return piece[:size]


def received(data: bytes, cuts: list[int]) -> list[bytes]:
    """The frames that a connection makes of it. Raises as `Connection.receive`, at the end too."""
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[first:end] for first, end in itertools.pairwise(edges)]
    connection = Connection(typing.cast(socket.socket, Pieces(pieces)))
    frames: list[bytes] = []
    try:
        while True:
            frames += connection.receive()
    except EOFError:
        return frames


@many
@given(bodies=st.lists(st.binary(max_size=50), max_size=5), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_frames_arrive_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    assert received(b"".join(map(control_frame, bodies)), cuts) == bodies


@many
@given(noise=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_noise_on_a_control_connection_is_refused(noise: bytes, cuts: list[int]) -> None:
    """Frames within the limit for strangers, an end, or a refusal; never more memory than came."""
    try:
        frames = received(noise, cuts)
    except FrameError:
        return
    assert sum(len(frame) + 4 for frame in frames) <= len(noise)
    assert all(len(frame) <= HELLO_LIMIT_BYTES for frame in frames)


@many
@given(noise=st.binary(max_size=300))
def test_noise_to_a_worker_is_refused(noise: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(5)
        near.sendall(noise)
        near.close()
        with pytest.raises((EOFError, FrameError)):
            while True:
                read_control(far, limit_bytes=1 << 16)


# The job file

EXAMPLES = [path.read_text() for path in sorted(Path(__file__).parents[3].joinpath("examples").glob("*.toml"))]
SECTIONS = {name: set(table) for text in EXAMPLES for name, table in tomllib.loads(text).items()}
KEYS = sorted({f"{section}.{field}" for section, fields in SECTIONS.items() for field in fields})

scalars = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=30),
    st.booleans(),
    st.sampled_from(
        ["cpu", "exact", "cosine", "zb-h1", "wait", "1f1b", "bytes", "gpt2", "emulated", "", "/", "..", "\0"]
    ),
    st.dates(),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 10**400]),
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
)
snippets = st.one_of(
    st.sampled_from(
        ["0", "-1", "1e400", "nan", "inf", "1979-05-27", "[]", "{}", "[[1]]", '"x"', "'''\n'''", "0x7fffffffffffffff"]
    ),
    st.sampled_from(
        ["true", "{ a = { b = [1, {}] } }", "9" * 5000, "[" * 3000, "{a=" * 500, '"\\uD800"', '"\0"', "=", "#"]
    ),
    st.text(max_size=20),
)


def refused_or_usable(make: Callable[[], Job]) -> None:
    """A job that survives the journey through JSON, or one line for the user."""
    refusal = ""
    try:
        job = make()
    except UserError as error:
        refusal = str(error)
    else:
        assert job_from_json(job_json(job)) == job
        return
    assert "\n" not in refusal
    assert 0 < len(refusal) < 2000


@many
@given(text=st.text(max_size=200))
def test_a_job_file_of_noise_is_refused_in_one_line(text: str) -> None:
    refused_or_usable(lambda: parse_job(text, origin="test"))


@many
@given(
    example=st.sampled_from(EXAMPLES),
    edits=st.lists(
        st.tuples(st.integers(0, 80), st.sampled_from(["value", "drop", "double", "line"]), snippets), max_size=5
    ),
)
def test_a_job_file_with_lines_changed_is_a_job_or_one_line(example: str, edits: list[tuple[int, str, str]]) -> None:
    lines = example.splitlines()
    for where, kind, snippet in edits:
        at = where % len(lines)
        key = lines[at].partition("=")[0]
        match kind:
            case "value":
                lines[at] = f"{key}= {snippet}"
            case "drop":
                lines[at] = ""
            case "double":
                lines.insert(at, lines[at])
            case "line":
                lines.insert(at, snippet)
    refused_or_usable(lambda: parse_job("\n".join(lines), origin="test"))


@many
@given(
    example=st.sampled_from(EXAMPLES),
    overrides=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(KEYS), snippets).map("=".join),
            st.tuples(st.text(max_size=12), snippets).map("=".join),
            st.text(max_size=30),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_overrides_make_a_job_or_one_line(example: str, overrides: list[str]) -> None:
    refused_or_usable(lambda: parse_job(example, overrides=overrides, origin="test"))


@many
@given(
    example=st.sampled_from(EXAMPLES),
    changes=st.dictionaries(st.sampled_from(KEYS), trees, max_size=4),
    strange=st.dictionaries(st.text(max_size=10), trees, max_size=1),
)
def test_a_job_from_tables_is_a_job_or_one_line(example: str, changes: dict[str, Any], strange: dict[str, Any]) -> None:
    table: dict[str, Any] = tomllib.loads(example)
    for key, value in changes.items():
        section, _, field = key.partition(".")
        table.setdefault(section, {})[field] = value
    refused_or_usable(lambda: job_from_table(table | strange))


@many
@given(data=st.data(), blows=damage)
def test_a_damaged_job_json_is_a_job_or_one_line(data: st.DataObject, blows: list[tuple[str, int, bytes]]) -> None:
    whole = job_json(parse_job(data.draw(st.sampled_from(EXAMPLES)), origin="test"))
    refused_or_usable(lambda: job_from_json(damaged(whole, blows)))


# What a crash or a full disk may leave of a manifest


@many
@given(blows=damage)
def test_a_damaged_manifest_is_refused(blows: list[tuple[str, int, bytes]], folder: Path) -> None:
    """It is as it was, or the user is told that it is damaged."""
    part = SavedGroup(group=0, file="group-0.safetensors", size_bytes=8, sha256="0" * 64)
    write_manifest(folder, step=3, job_fingerprint="a job", exponents=(4,), saved=(part,), layers=((0, 1),))
    (path,) = folder.iterdir()
    path.write_bytes(damaged(path.read_bytes(), blows))
    with contextlib.suppress(UserError):
        read_manifest(folder, "a job", verify=False)


@pytest.mark.parametrize(
    "noise", [b'{"version": "\xe4"}', b'{"x": ' + b"[" * 100_000, b'{"step": 1e999}', b"", b"null"]
)
def test_a_manifest_that_is_none_is_refused(noise: bytes, folder: Path) -> None:
    write_manifest(folder, step=3, job_fingerprint="a job", exponents=(4,), saved=(), layers=())
    (path,) = folder.iterdir()
    path.write_bytes(noise)
    with pytest.raises(UserError, match="is damaged"):
        read_manifest(folder, "a job")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifest")
