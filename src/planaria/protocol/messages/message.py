"""What every message on a control connection is, and the version of the protocol. Nothing is unpickled.

`PROTOCOL_VERSION` is checked when a worker says hello, an agent enrols or a user asks, and before anything else of that
message but the token.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from planaria.job.sections.cluster import MAX_ZONE_LENGTH

PROTOCOL_VERSION = 15


def other_version(speaker: str, version: int) -> str | None:
    """Returns why a speaker of this version of the protocol is refused, and what to do; None: it is the same one."""
    if version == PROTOCOL_VERSION:
        return None
    return (
        f"the {speaker} speaks protocol version {version}, the coordinator {PROTOCOL_VERSION}; "
        "install the same Planaria on both"
    )


Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
"""Seconds as told from outside: not negative, and finite."""

ZoneName = Annotated[str, msgspec.Meta(max_length=MAX_ZONE_LENGTH)]
"""Name of the zone where a node is; a zone fails as one. "": not known."""

NodeLabel = Annotated[str, msgspec.Meta(max_length=MAX_ZONE_LENGTH)]
"""What whoever started a node's agent calls it: a task of SLURM's, a pod, a host. "": not known."""

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Longest control message in bytes that is read; a longer one is refused before memory is taken for it."""


COMPRESSED_FROM_BYTES = 1 << 14
"""Bytes of a plan's message from which it is compressed, once for all who get it: what fits into one record of TLS is
not. Not measured."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Anything that travels on a control connection."""


_encoder = msgspec.msgpack.Encoder()
Decoded = TypeVar("Decoded")


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decoded(decoder: msgspec.msgpack.Decoder[Decoded], data: bytes) -> Decoded:
    """Decodes a message. Raises msgspec.DecodeError (a ValueError) for whatever the decoder does not take."""
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


class First(msgspec.Struct, frozen=True, kw_only=True, rename={"kind": "type"}):
    """Fields that the first message on a connection has in every version of the protocol."""

    kind: str
    version: int
    token: str


_first = msgspec.msgpack.Decoder(First)


def decode_first(data: bytes) -> First | None:
    """Decodes what a first message has in every version; None: it is none."""
    try:
        return decoded(_first, data)
    except msgspec.DecodeError:
        return None
