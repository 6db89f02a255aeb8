"""Messages between workers and the coordinator. Every one is a frozen struct; nothing is unpickled.

A message that belongs to a generation bears it, and an older one is refused by rule. `PROTOCOL_VERSION` is checked
when a worker says hello, an agent enrols or a user asks, and before anything else of that message but the token.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated, TypeVar

import msgspec

from planaria.job.checks import MAX_ZONE_LENGTH
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, Transfer, WorkerId

PROTOCOL_VERSION = 8


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


class StateSource(enum.StrEnum):
    """Where a worker's replicas come from when it adopts a plan."""

    INITIAL = "initial"
    CHECKPOINT = "checkpoint"
    LIVE = "live"


class WorkerPhase(enum.StrEnum):
    """Where a worker is in a step."""

    IDLE = "idle"
    """Waiting for orders: before the first plan, or held at a step boundary."""
    RUNNING = "running"
    """Running the program of (generation, step)."""
    HALTED = "halted"
    """Stopped inside a step; accumulators are kept."""
    VOTED = "voted"
    ENDED = "ended"


class SavedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group's state in a checkpoint: file name within its folder, bytes and SHA-256."""

    group: int
    file: str
    size_bytes: int
    sha256: str


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Anything that travels on a control connection."""


class Activity(enum.StrEnum):
    """What a worker's main thread does."""

    IDLE = "idle"
    """The main thread has nothing to do: it has no plan, or has cast its vote."""
    COMPUTING = "computing"
    """The main thread runs one instruction of its program, and waits for no peer."""
    WAITING = "waiting"
    """The main thread waits for a message of a peer."""
    BUSY = "busy"
    """The main thread does what no estimate covers: building layers, reading or writing a checkpoint."""


BEAT_S = 0.2
"""Seconds between two heartbeats of a worker."""

MAX_DOING_LENGTH = 200
"""Longest text in characters by which a worker says what it does."""

Doing = Annotated[str, msgspec.Meta(max_length=MAX_DOING_LENGTH)]
"""What a worker does, for people."""

HeldBytes = Annotated[int, msgspec.Meta(ge=0)]
"""Bytes as told from outside: not negative."""


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's state at a heartbeat.

    Attributes:
        activity: of the main thread.
        progress: counts up with everything that the main thread finishes.
        waits_for: the peer whose message it waits for; -1: none, or any of several.
    """

    activity: Activity
    progress: int
    waits_for: int = -1


# Worker to coordinator


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a worker on each of its connections: all that follows there is the same worker's.

    Attributes:
        mark: of the run for which it was started: who is left of an earlier run with the same token has no part here.
        data_address: where peers reach it ("host:port").
        zone: where its node is.
        label: of its node.
        data: hash of the tokens that it trains on; "": it has none, or cannot read them.
    """

    version: int
    token: str
    worker: WorkerId
    pid: int
    data_address: str
    zone: ZoneName = ""
    label: NodeLabel = ""
    data: str = ""
    mark: str = ""


class Proof(Message, frozen=True, kw_only=True, tag="proof"):
    """Answer to `Challenge`: proves that what this connection says is said now."""

    nonce: str


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """Tells that all state that the plan gives this worker is in place. The last part had been here for `since_s`
    seconds before it was looked for; 0 where nothing came."""

    generation: int
    since_s: float = 0.0


class Flow(msgspec.Struct, frozen=True, array_like=True):
    """What a connection has sent since it was made: bytes that arrived, and seconds in which some were under way."""

    sent_bytes: int
    busy_s: Seconds


class Score(msgspec.Struct, frozen=True, array_like=True):
    """What the model makes of one microbatch that is evaluated.

    Attributes:
        loss: of the microbatch.
        num_right: how many labels were thought the likeliest.
        num_labels: of how many; 0: they cannot be told from the last layer's outputs.
    """

    loss: float
    num_right: int
    num_labels: int


class Vote(Message, frozen=True, kw_only=True, tag="vote"):
    """Tells that the program of (generation, step) ran to its end here, and that the sums are whole.

    Attributes:
        norms: group -> squared L2 norm of its summed gradient, for the groups whose norm is this worker's to tell.
        losses: microbatch -> its loss, for the microbatches whose last layer ran here.
        ledger: what this worker counted.
        compute_s: how long its forwards and backwards of the step took; 0: not measured.
        flows: what it has sent to each peer on another host, once in `FLOWS_EVERY` steps.
        scores: of an evaluation, in place of losses: microbatch -> what was made of it.
    """

    generation: int
    step: int
    norms: dict[int, float]
    losses: dict[int, float]
    ledger: Ledger
    compute_s: Seconds = 0.0
    flows: dict[WorkerId, Flow] = {}
    scores: dict[int, Score] = {}


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """Answer to Halt: what is in this worker's accumulators, and which groups it holds as of `step - 1`."""

    generation: int
    step: int
    ledger: Ledger
    held: tuple[int, ...]


class Saved(Message, frozen=True, kw_only=True, tag="saved"):
    """Tells that these groups of the checkpoint are on disk."""

    step: int
    serial: int
    groups: tuple[SavedGroup, ...]


class NotSaved(Message, frozen=True, kw_only=True, tag="not_saved"):
    """Tells that this worker's part of the checkpoint could not be written; `text` says where and why."""

    step: int
    serial: int
    text: str


class FaultInjected(Message, frozen=True, kw_only=True, tag="fault_injected"):
    """Tells that the node is about to kill itself on the user's order. Only for measuring; detection never uses it."""

    at_s: float


class CutOff(Message, frozen=True, kw_only=True, tag="cut_off"):
    """Tells that the connection to this peer has been lost for a while, though the plan still has it. The server judges
    which of the two is out of reach, as with closed connections; the machine hears of a lost node, or of nothing."""

    peer: WorkerId


class Damaged(Message, frozen=True, kw_only=True, tag="damaged"):
    """Tells that a message of `source` that is wanted here arrived with another checksum.

    Attributes:
        kind: "state", "sum", "activation" or "gradient".
        item: group of a state or sum, else microbatch.
        part: of a state, the bytes that it moves of the group's parameters; None: all.
    """

    generation: int
    step: int
    source: WorkerId
    kind: str
    item: int
    part: tuple[int, int] | None = None


class Alive(Message, frozen=True, kw_only=True, tag="alive", omit_defaults=True):
    """A heartbeat, for the failure detector. The machine hears of a lost node, or of nothing.

    Attributes:
        pulse: what the main thread does.
        worked_s: for how long it has worked, in all: who works may be slow, and is not stuck.
        doing: what it is at, for people: "in the forward of microbatch 3".
        held_bytes: of memory that it holds; told with some beats, 0 with the others.
    """

    pulse: Pulse
    worked_s: Seconds = 0.0
    doing: Doing = ""
    held_bytes: HeldBytes = 0


class Notice(Message, frozen=True, kw_only=True, tag="notice"):
    """Tells that this worker's node will go away in `grace_s` seconds (a preemption, a SIGTERM): hand its work over."""

    grace_s: Seconds
    cause: str


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """Tells that the user's own code failed here. It would fail again, so the job ends, saved where state is held.

    `holds`: this worker's replicas are whole, and it waits to save them; else it ends.
    """

    where: str
    text: str
    holds: bool = False


class Returned(Message, frozen=True, kw_only=True, tag="returned"):
    """Tells where this worker is: sent once when it begins, and to every coordinator that it finds after a restart.

    It tells all that was under way between the two, so that messages which were lost need not be sent again. Plans are
    large: this worker's is told only when it is asked for.

    Attributes:
        generation: of the plan that it has; -1: none.
        step: the step in progress in this worker.
        phase: the worker's phase in that step.
        is_settled: the state that the plan gives it has arrived.
        ledger: what it has counted in the step.
        held: groups that it holds as of `step - 1`.
        given: groups that its plan gives it: when it has voted and applies the step, it holds these and no others.
        serial: the highest of any order to save that it was given.
        commit: the last that it applied.
        vote: for the generation and step, when that is what it has come to.
        message: the plan that it has, as it was told; in the answer to `Recall`.
    """

    generation: int
    step: int
    phase: WorkerPhase
    is_settled: bool
    ledger: Ledger
    held: tuple[int, ...]
    given: tuple[int, ...]
    serial: int
    commit: Commit | None
    vote: Vote | None
    message: PlanMessage | None


class OutOfMemory(Message, frozen=True, kw_only=True, tag="out_of_memory"):
    """Tells that this worker cannot get the memory it needs: its node is lost, and the next plan must need less.

    Attributes:
        holds: its replicas are whole, and it waits to be killed or to save them; else it ends.
        where: in which instruction or act, for people ("in the forward of microbatch 3, layer 'h.2'").
        held_bytes: of its device's memory, before it gave up; 0: not known.
        wanted_bytes: what it asked for in vain; 0: not known.
    """

    holds: bool
    where: str
    held_bytes: int
    wanted_bytes: int


FromWorker = (
    Hello
    | Proof
    | Ready
    | Vote
    | Report
    | Saved
    | NotSaved
    | FaultInjected
    | CutOff
    | Damaged
    | Alive
    | Notice
    | OutOfMemory
    | Failed
    | Returned
)


# Coordinator to worker


class PlanMessage(Message, frozen=True, kw_only=True, tag="plan"):
    """Orders a worker to adopt this plan for `step`, the step in progress.

    Attributes:
        addresses: worker -> data address, for everyone in the plan.
        exponents: grid exponent of every group for `step` (exact numerics).
        source: where replicas that the worker lacks come from.
        folder: the checkpoint, when that is the source.
        afresh: what was done of the step counts no more, and it is begun again.
        begun: generation of the plan under which the step was begun, as it counts. A worker for whom no plan since then
            had a place may have been in a step of that number before the job went back: what it has of that is nothing.
        lineage: generation of the plan whose state was loaded or initial; all replicas that count descend from that. A
            worker whose plan is older holds none, whatever step its replicas are of.
    """

    plan: Plan
    step: int
    addresses: dict[WorkerId, str]
    exponents: tuple[int, ...]
    source: StateSource
    folder: str = ""
    afresh: bool = False
    begun: int = -1
    lineage: int = -1


class Halt(Message, frozen=True, kw_only=True, tag="halt"):
    """Orders a worker to stop computing, keep the accumulators, and report."""

    generation: int
    step: int


class Recall(Message, frozen=True, kw_only=True, tag="recall"):
    """Orders a worker to tell its plan, which the coordinator's journal lost. The answer is a `Returned`."""


class Resend(Message, frozen=True, kw_only=True, tag="resend"):
    """Orders state that arrived damaged to be sent again: its source sends it, its target awaits it.

    `attempt` counts from 1, and tells what is sent from what was sent before.
    """

    generation: int
    step: int
    transfer: Transfer
    attempt: int


class Save(Message, frozen=True, kw_only=True, tag="save"):
    """Orders a worker to write these groups, as of `step`, into the folder. The answer bears the order's number."""

    step: int
    serial: int
    folder: str
    groups: tuple[int, ...]

    def failed(self, text: str) -> NotSaved:
        """Returns the answer that it was not carried out."""
        return NotSaved(step=self.step, serial=self.serial, text=text)


class Commit(Message, frozen=True, kw_only=True, tag="commit"):
    """Orders a worker to apply the durable `step`, then to wait for orders (`hold`) or go on with the same plan.

    With `save`, copy those groups as soon as the step is applied, and write them while training goes on.

    Attributes:
        clip_factor: what the gradients are multiplied by; 0 (`protocol.step.commit.NOT_APPLIED`): the step is done, but
            parameters and optimizer state stay as they are.
        exponents: grid exponent of every group for the step after it (exact numerics).
        loss: mean over the step's microbatches. Workers do not need it, nor the norm; but who was told of a step can
            tell of it when the journal was lost.
        norm: global gradient norm.
        scale: what the learning rate was multiplied by: the effective batch over the global one.
        learning_rate: of the step, with `scale`: all workers take the same.
        dropped: microbatches that were left out of the step, for good.
        num_dropped: that were left out of this step and all before it.
    """

    generation: int
    step: int
    clip_factor: float
    exponents: tuple[int, ...]
    hold: bool
    loss: float = math.nan
    norm: float = math.nan
    scale: float = 1.0
    learning_rate: float = math.nan
    dropped: tuple[int, ...] = ()
    num_dropped: int = 0
    save: Save | None = None


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Orders a worker to end now; the reason is for the log."""

    reason: str


class Challenge(Message, frozen=True, kw_only=True, tag="challenge"):
    """Asks, for a coordinator that began again, whether the worker is there, or its messages are played again. It is
    answered by `Proof` as soon as it is read, and is no order."""

    nonce: str


ToWorker = PlanMessage | Halt | Commit | Recall | Resend | Save | Stop

# msgpack, not JSON: a loss may be NaN, which JSON cannot say.
_from_worker = msgspec.msgpack.Decoder(FromWorker)
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


def decode_from_worker(data: bytes) -> FromWorker:
    """Decodes a message of a worker. Raises msgspec.DecodeError (a ValueError) for anything else."""
    message: FromWorker = decoded(_from_worker, data)
    return message
