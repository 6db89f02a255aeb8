"""What a user asks of a running job: state, a node more or less, another policy, an end. One request per connection."""

from __future__ import annotations

import enum

import msgspec

from planaria.protocol.messages.from_worker import Activity
from planaria.protocol.messages.message import Seconds, decoded
from planaria.protocol.messages.records import Evaluated, PlanTaken, StepCommitted, StepSkipped

EVALUATING = "evaluating"
"""What is told as the phase where the state is evaluated before the step."""


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
        version: the protocol's version.
        token: the job's token.
        wish: what is asked for.
        node: the node to drain, or to which a device is to come back.
        device: of the node, that is to be started again; -1: nodes are added.
        count: of nodes to add.
        grace_s: of a drain: seconds until the node is gone, for the record.
        policy: name of the one that is wanted.
        folder: under which to save; "": where the run's checkpoints are.
        discards: of a stop: the run may end without its state on disk.
        details: of a status: with what workers told last.
    """

    version: int
    token: str
    wish: Wish
    node: int = -1
    device: int = -1
    count: int = 1
    grace_s: Seconds = 0.0
    policy: str = ""
    folder: str = ""
    discards: bool = False
    details: bool = False


class LinkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Measured links of a class: how many pairs of hosts were measured, and the median's latency and bandwidth.

    `name`: of the class, as in a profile; or of two hosts whose link is far off.
    """

    name: str
    pairs: int
    latency_s: float
    bytes_per_s: float


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a running job at one moment.

    Attributes:
        phase: the coordinator's phase; "evaluating" where that is training, and the state is evaluated before it.
        step: the step in progress.
        steps: the job's number of steps.
        nodes: the live nodes.
        leaving: of them, those that gave notice.
        lost_devices: workers that were lost alone, of nodes that go on with the others.
        wanted: how many nodes the run would have if they came; 0: as many as come.
        pipelines: for each, its stages as (worker, first layer, end layer).
        microbatches: that are counted with each pipeline.
        devices_per_node: that workers are numbered by.
        generation: of the plan in force; 0 before the first.
        speeds: of nodes that are slower than the others, as parts of their speed.
        resting: nodes that the plan does without because they are slow.
        zones: of nodes that said where they are.
        labels: what those who started nodes call them, where they said so.
        links: the links between hosts, as they were measured.
        policy: the policy in force.
        cost: dollars that the run has cost so far; None: nothing is counted.
        cost_per_hour: dollars an hour of the nodes that are there.
        num_dropped: microbatches that were left out so far.
        decision: the last one on a placement, with what was weighed for it; None before the first.
        evaluated: the last evaluation; None: there was none.
        unsaved: why the state with which the run is to end is not on disk yet; "": it does not end, or nothing hinders.
    """

    phase: str
    step: int
    steps: int
    nodes: tuple[int, ...]
    leaving: tuple[int, ...]
    pipelines: tuple[tuple[tuple[int, int, int], ...], ...]
    microbatches: tuple[int, ...]
    generation: int
    devices_per_node: int = 1
    speeds: dict[int, float] = {}
    resting: tuple[int, ...] = ()
    zones: dict[int, str] = {}
    labels: dict[int, str] = {}
    links: tuple[LinkFigures, ...] = ()
    policy: str = ""
    cost: float | None = None
    cost_per_hour: float = 0.0
    num_dropped: int = 0
    decision: PlanTaken | None = None
    evaluated: Evaluated | None = None
    unsaved: str = ""
    wanted: int = 0
    lost_devices: tuple[int, ...] = ()


class WorkerWord(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker told last.

    Attributes:
        activity: of its main thread.
        doing: the same, for people: "in the forward of microbatch 3".
        waits_for: the peer whose message it waits for; -1: none, or any of several.
        held_bytes: of memory that it holds; 0: not told.
        silent_s: how long ago that was.
    """

    activity: Activity
    doing: str
    waits_for: int
    held_bytes: int
    silent_s: float


class GoneNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was lost, or released ("" as its cause), `ago_s` seconds ago."""

    node: int
    zone: str
    cause: str
    ago_s: float
    label: str = ""


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of single workers, as of their heartbeats, and what the coordinator told last.

    Attributes:
        workers: each connected worker's last word.
        awaited: workers that were started and have not joined.
        gone: the last nodes that went.
        last: the last committed step that this coordinator told of; None: there was none.
        memory_bytes: that a plan may use of one device; 0: no limit is known.
    """

    workers: dict[int, WorkerWord]
    awaited: tuple[int, ...]
    gone: tuple[GoneNode, ...]
    last: StepCommitted | StepSkipped | None
    memory_bytes: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer", tag_field="type"):
    """The answer to a request: `text` says what will happen, or why nothing will; `nodes` are those being started,
    `details` come where they were asked for."""

    accepted: bool
    text: str
    state: RunState
    nodes: tuple[int, ...] = ()
    details: RunDetails | None = None


class RequestRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="type"):
    """The answer to a request of another version of the protocol. It is the same in all versions from 7 on."""

    reason: str


_request = msgspec.msgpack.Decoder(Request)
_answer = msgspec.msgpack.Decoder(Answer | RequestRefused)


def decode_request(data: bytes) -> Request:
    """Decodes a request. Raises msgspec.DecodeError (a ValueError) for anything else."""
    return decoded(_request, data)


def decode_answer(data: bytes) -> Answer | RequestRefused:
    """Decodes an answer. Raises msgspec.DecodeError (a ValueError) for anything else."""
    answer: Answer | RequestRefused = decoded(_answer, data)
    return answer
