"""What a node's agent and the coordinator say to each other: which machine offers a node, and which number it gets.

An agent's connection is there for the node as a whole. Its workers have connections of their own, and they alone say
whether the node lives: that an agent is out of reach is no loss.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from planaria.job.faults import Fault
from planaria.job.history import KEYED
from planaria.job.settings import Job
from planaria.protocol.messages.message import Message, Seconds, ZoneName, decoded

MOST_LOG_BYTES = 128 * 1024
"""Bytes of a node's logs that its agent tells when the node ends, where the coordinator does not see them."""

# Agent to coordinator


class Enrol(Message, frozen=True, kw_only=True, tag="enrol"):
    """First message of an agent.

    Attributes:
        version: the protocol's version.
        token: the job's token.
        identity: of the agent, so that it is known again when its connection was lost.
        host: address at which peers reach this node's workers.
        boot: of the kernel: agents of one machine have the same.
        zone: where the host is.
        probe_port: at which it answers probes of its links; 0: at none.
        node: whose workers run here still, after a connection was lost; -1: none do.
        mark: of the run to which that node belongs.
        own_folder: whether the host keeps a run folder of its own, and does not see the coordinator's.
    """

    version: int
    token: str
    identity: str
    host: str
    boot: str
    zone: ZoneName = ""
    probe_port: int = 0
    node: int = -1
    mark: str = ""
    own_folder: bool = False


class Available(Message, frozen=True, kw_only=True, tag="available"):
    """Offers a node: nothing runs on this machine. `after`: the node that ran here last; -1: none."""

    after: int = -1


class NodeEnded(Message, frozen=True, kw_only=True, tag="node_ended"):
    """Reports that the node's processes have all ended."""

    node: int
    cause: str


class NodeLog(Message, frozen=True, kw_only=True, tag="node_log"):
    """Tells the end of what a worker of the agent's node wrote into its log, where the coordinator does not see it."""

    node: int
    worker: int
    tail: Annotated[bytes, msgspec.Meta(max_length=MOST_LOG_BYTES)]


class LinkProbed(Message, frozen=True, kw_only=True, tag="link_probed"):
    """Answer to ProbeLink: seconds of a small message one way, and bytes a second; 0: the host is out of reach."""

    latency_s: Seconds
    bytes_per_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class WantBlock(Message, frozen=True, kw_only=True, tag="want_block"):
    """Asks for a piece of a block of the run's stream, which the agent's host does not see.

    Attributes:
        block: its number.
        offset: of the piece's first byte in it.
    """

    block: Annotated[int, msgspec.Meta(ge=0, le=10**12)]
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Asks whether the coordinator is there, which answers with a `Pong`."""


FromAgent = Enrol | Available | LinkProbed | NodeEnded | NodeLog | WantBlock | Ping


# Coordinator to agent


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to Enrol: what the agent needs to know of the job and the run.

    Attributes:
        job: the whole job.
        run_folder: absolute path; a node without a run folder of its own must see the same folder there.
        mark: of this run; the folder's identity file says it, if it is the same folder.
        patience_s: without a word from the coordinator, after which the node's processes end.
        order: in which samples come, see `planaria.data.order`.
        profile: the file from which an emulated device takes its times, for a host with a run folder of its own.
        stream: the file that says what the run's stream is, for such a host; empty: the data are no stream.
    """

    job: Job
    run_folder: str
    mark: str
    patience_s: Seconds
    order: str = KEYED
    profile: bytes = b""
    stream: bytes = b""


class ProbeLink(Message, frozen=True, kw_only=True, tag="probe_link"):
    """Orders the agent to measure the link to another host, by sending for so many seconds to this address."""

    address: str
    seconds: Seconds


class StartNode(Message, frozen=True, kw_only=True, tag="start_node"):
    """Orders the agent to start the workers of this node, or one `worker` of it again. `faults` are to be injected into
    it, as the user ordered."""

    node: int
    worker: int | None = None
    faults: tuple[Fault, ...] = ()


class KillNode(Message, frozen=True, kw_only=True, tag="kill_node"):
    """Orders the agent to kill what is left of a node that was fenced, or of one `worker` of it."""

    node: int
    worker: int | None = None


class Farewell(enum.StrEnum):
    """Why an agent is not needed any more, or for now."""

    OVER = "over"
    """The run has come to its end."""
    DRAINED = "drained"
    """The agent's node has handed over its work, and is not wanted back."""
    SUSPENDED = "suspended"
    """The run may be resumed, and needs nodes then."""


class Dismissed(Message, frozen=True, kw_only=True, tag="dismissed"):
    """Tells the agent that it has nothing more to do."""

    farewell: Farewell


class OfferRefused(Message, frozen=True, kw_only=True, tag="refused"):
    """Tells the agent that its node cannot take part; it would be refused again."""

    reason: str


class BlockPiece(Message, frozen=True, kw_only=True, tag="block_piece"):
    """Answer to WantBlock: a piece, and what the host's workers want to know of the stream.

    Attributes:
        block: its number.
        offset: of the piece in it.
        piece: of its bytes.
        size_bytes: of the block; 0: it is not read yet.
        digest: what tells its bytes from others.
        num_read: samples that the reader has read.
        num_samples: of the stream; None: its end was not read.
        failure: the file that says why the stream cannot be read; empty: it can.
    """

    block: int
    offset: int
    piece: bytes = b""
    size_bytes: int = 0
    digest: str = ""
    num_read: int = 0
    num_samples: int | None = None
    failure: bytes = b""


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """Answer to Ping: the coordinator is there."""


ToAgent = Welcome | ProbeLink | StartNode | KillNode | BlockPiece | Dismissed | OfferRefused | Pong

_from_agent = msgspec.msgpack.Decoder(FromAgent)
_to_agent = msgspec.msgpack.Decoder(ToAgent)


def decode_from_agent(data: bytes) -> FromAgent:
    """Decodes a message of an agent. Raises msgspec.DecodeError (a ValueError) for anything else."""
    message: FromAgent = decoded(_from_agent, data)
    return message


def decode_to_agent(data: bytes) -> ToAgent:
    """Decodes a message to an agent. Raises msgspec.DecodeError (a ValueError) for anything else."""
    message: ToAgent = decoded(_to_agent, data)
    return message
