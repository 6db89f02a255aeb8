"""What a user asks of a running job: state, a node more or less, another policy, an end. One request per connection."""

from __future__ import annotations

import enum

import msgspec

from planaria.protocol.messages.records import PlanTaken
from planaria.protocol.messages.worker import Seconds, decoded


class Wish(enum.StrEnum):
    STATUS = "status"
    ADD = "add"
    """Start more nodes."""
    DRAIN = "drain"
    """Let a node hand over its work and end."""
    POLICY = "policy"
    """Let another policy make the plans."""
    STOP = "stop"
    """Finish the step, save and end."""
    SAVE = "save"
    """Save the next state that can be had, and answer when it is on disk."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag="request", tag_field="type"):
    """The only message from the user's side of a connection.

    Attributes:
        version: of the protocol.
        token: of the job.
        wish: what is asked for.
        node: to be drained.
        count: of nodes to add.
        grace_s: of a drain: seconds until the node is gone, for the record.
        policy: name of the one that is wanted.
        folder: under which to save; "": where the run's checkpoints are.
        discards: of a stop: the run may end without its state on disk.
    """

    version: int
    token: str
    wish: Wish
    node: int = -1
    count: int = 1
    grace_s: Seconds = 0.0
    policy: str = ""
    folder: str = ""
    discards: bool = False


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a running job at one moment.

    Attributes:
        phase: of the coordinator.
        step: in progress.
        steps: of the job.
        nodes: that live.
        leaving: of them, those that gave notice.
        pipelines: for each, its stages as (worker, first layer, end layer).
        generation: of the plan in force; 0 before the first.
        speeds: of nodes that are slower than the others, as parts of their speed.
        resting: nodes that the plan does without because they are slow.
        zones: of nodes that said where they are.
        policy: in force.
        num_dropped: microbatches that were left out so far.
        decision: the last one on a placement, with what was weighed for it; None before the first.
        unsaved: why the state with which the run is to end is not on disk yet; "": it does not end, or nothing hinders.
    """

    phase: str
    step: int
    steps: int
    nodes: tuple[int, ...]
    leaving: tuple[int, ...]
    pipelines: tuple[tuple[tuple[int, int, int], ...], ...]
    generation: int
    speeds: dict[int, float] = {}
    resting: tuple[int, ...] = ()
    zones: dict[int, str] = {}
    policy: str = ""
    num_dropped: int = 0
    decision: PlanTaken | None = None
    unsaved: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer", tag_field="type"):
    """The answer to a request: `text` says what will happen, or why nothing will; `nodes` are those being started."""

    accepted: bool
    text: str
    state: RunState
    nodes: tuple[int, ...] = ()


_request = msgspec.msgpack.Decoder(Request)
_answer = msgspec.msgpack.Decoder(Answer)


def decode_request(data: bytes) -> Request:
    """Decodes a request. Raises msgspec.DecodeError (a ValueError) for anything else."""
    return decoded(_request, data)


def decode_answer(data: bytes) -> Answer:
    """Decodes an answer. Raises msgspec.DecodeError (a ValueError) for anything else."""
    return decoded(_answer, data)
