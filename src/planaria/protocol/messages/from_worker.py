"""What a worker tells the coordinator. A message that belongs to a generation bears it, and an older one is refused."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from planaria.plan.ledger import Ledger
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.message import Message, NodeLabel, Seconds, ZoneName, decoded
from planaria.protocol.messages.to_worker import Commit, PlanMessage, Save


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
"""Seconds between two heartbeats of a worker, where there are not thousands."""

BEATS_A_SECOND = 5000
"""Heartbeats a second of all workers together: those of thousands beat less often. Measured: each takes a coordinator
25 us of a processor under TLS, and 20,000 a second kept half a core busy."""


def beat_every_s(num_workers: int) -> float:
    """Returns the seconds between two heartbeats of each of so many workers."""
    return max(BEAT_S, num_workers / BEATS_A_SECOND)


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


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """Digests of what an owner of a group holds as it votes; owners that hold the same bits tell the same.

    Attributes:
        state: of its replica.
        sum: of the step's summed gradient, which it is about to apply; 0 in an evaluation.
        written: of the replica as this worker itself wrote it last, by its optimizer's step or from a checkpoint; None:
            the replica came from a peer since.
    """

    state: int
    sum: int = 0
    written: int | None = None


LOSS = "l"
WEIGHTS = "w"
PART = "p"
"""Names of what comes of a computation beside activations and gradients; see `Computed`."""

NO_SUM = (1 << 64) - 1
"""Digest of what makes a sum of gradients infinite, or no number, or something else that gradients do not add up to."""


class Computed(msgspec.Struct, frozen=True, array_like=True):
    """Digests of one computation that is audited, told by the worker whose work it is and by those that ran it again.

    Or of a message, as it was sent or as it came: then there are no layers, and both bounds are the boundary.

    Attributes:
        microbatch: whose forward and backward it is.
        first_layer: lowest layer.
        end_layer: one above the highest.
        given: of what went in: the activation from below and the gradient from above; 0 where it is the data, or the
            loss.
        made: of what came of it, by name: "a4" and "g2", the activation and the gradient at that boundary, "w3", what
            layer 3 adds to sums of gradients, "p3", a part of that, which one of several devices adds, "l", the loss.
    """

    microbatch: int
    first_layer: int
    end_layer: int
    given: tuple[int, int]
    made: dict[str, int]


class Vote(Message, frozen=True, kw_only=True, tag="vote"):
    """Tells that the program of (generation, step) ran to its end here, and that the sums are whole.

    Attributes:
        norms: group -> squared L2 norm of its summed gradient, for the groups whose norm is this worker's to tell.
        losses: microbatch -> its loss, for the microbatches whose last layer ran here.
        ledger: what this worker counted.
        compute_s: how long its forwards and backwards of the step took; 0: not measured.
        flows: what it has sent to each peer on another host, once in `FLOWS_EVERY` steps.
        scores: of an evaluation, in place of losses: microbatch -> what was made of it.
        digests: group -> digests of what this worker holds of it; empty where replicas are not compared.
        computed: what is audited of what this worker computed, and what it ran again.
    """

    generation: int
    step: int
    norms: dict[int, float]
    losses: dict[int, float]
    ledger: Ledger
    compute_s: Seconds = 0.0
    flows: dict[WorkerId, Flow] = msgspec.field(default_factory=dict)
    scores: dict[int, Score] = msgspec.field(default_factory=dict)
    digests: dict[int, Digest] = msgspec.field(default_factory=dict)
    computed: tuple[Computed, ...] = ()


class AwaitsSamples(Message, frozen=True, kw_only=True, tag="awaits_samples"):
    """Tells, again and again, that the step does not go on here before a stream gives its samples."""

    generation: int
    step: int


class Report(Message, frozen=True, kw_only=True, tag="report"):
    """Answer to Halt: what is in this worker's accumulators, and which groups it holds whole as of `step - 1`."""

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

    @classmethod
    def answering(cls, order: Save, text: str) -> NotSaved:
        """Returns the answer to an order that was not carried out."""
        return cls(step=order.step, serial=order.serial, text=text)


class TryOutcome(enum.StrEnum):
    """What came of an attempt at a store."""

    AGAIN = "again"
    """The attempt failed, and another follows."""
    THROUGH = "through"
    """The attempt was answered, after others that failed."""
    GIVEN_UP = "given_up"
    """The attempt failed, and no other follows."""


class StoreTried(Message, frozen=True, kw_only=True, tag="store_tried"):
    """Tells that a call to a store of files failed and is tried again, or later what came of that. For people alone;
    the machine hears of `Saved` or `NotSaved`.

    Attributes:
        place: URL of the store.
        doing: what the call does: "write group-00003".
        failed: how many attempts failed so far.
        outcome: what came of the last one.
        why: what the last one that failed said.
        again_s: seconds until the next one.
        seconds: since the first one.
    """

    place: str
    doing: str
    failed: int
    outcome: TryOutcome
    why: str = ""
    again_s: Seconds = 0.0
    seconds: Seconds = 0.0


class FaultInjected(Message, frozen=True, kw_only=True, tag="fault_injected"):
    """Tells that the node is about to kill itself on the user's order. Only for measuring; detection never uses it."""

    at_s: float


class CutOff(Message, frozen=True, kw_only=True, tag="cut_off"):
    """Tells that the connection to this peer has been lost for a while, though the plan still has it. The server judges
    which of the two is out of reach, as with closed connections; the machine hears of a lost node, or of nothing.

    Attributes:
        address: of the peer in the last plan that this worker has. A device that came back since has another one.
    """

    peer: WorkerId
    address: str


class Damaged(Message, frozen=True, kw_only=True, tag="damaged"):
    """Tells that a message of `source` that is wanted here arrived with another checksum.

    Attributes:
        kind: "state", "parameters", "sum", "activation" or "gradient".
        item: group of a state, parameters or sum, else microbatch.
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
        held: groups that it holds whole as of `step - 1`.
        given: groups that its plan has it keep whole: when it has voted and applies the step, it so holds these and no
            others.
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
    | AwaitsSamples
    | Report
    | Saved
    | NotSaved
    | StoreTried
    | FaultInjected
    | CutOff
    | Damaged
    | Alive
    | Notice
    | OutOfMemory
    | Failed
    | Returned
)
# msgpack, not JSON: a loss may be NaN, which JSON cannot say.
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def decode_from_worker(data: bytes) -> FromWorker:
    """Decodes a message of a worker. Raises msgspec.DecodeError (a ValueError) for anything else."""
    message: FromWorker = decoded(_from_worker, data)
    return message
