"""Journal entries: what the coordinator decided, as it is written down before anything is done about it.

A journal is a sequence of them. `planaria.protocol.run.replay` says what a sequence means. An entry bears the records
that it makes public: a coordinator that is started again publishes those of its last entries once more, because the one
before may have died between the two.
"""

from __future__ import annotations

import enum

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.from_worker import Digest
from planaria.protocol.messages.message import decoded
from planaria.protocol.messages.records import AnyRecord, ComputedWrong, Evaluated
from planaria.protocol.messages.run_measurements import RunMeasurements
from planaria.protocol.messages.to_worker import Commit, PlanMessage


class PlanValidityState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a placement's validity, as it is written down.

    Attributes:
        placed: nodes that it was made of.
        needed: of those that gave notice, the ones that it cannot do without.
        newcomers: nodes that came since.
        is_warming: the next one gets its state beside the step.
        left_bytes: of which so much beside later steps.
        lacks_device: a node has lost a device since it was made.
    """

    placed: tuple[NodeId, ...]
    needed: tuple[NodeId, ...]
    newcomers: tuple[NodeId, ...]
    is_warming: bool
    left_bytes: int = 0
    lacks_device: bool = False


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """One entry of the journal. It must be durable before any later command of the same batch is carried out.

    Attributes:
        records: that are published because of it.
        learnt: all that is known of the running job by then, if it is more than an entry before said.
        has_links_before: the links of `learnt` are left out, as they are those of an entry before; see
            `planaria.protocol.messages.journal_chain`.
    """

    records: tuple[AnyRecord, ...] = ()
    learnt: RunMeasurements | None = None
    has_links_before: bool = False


class JournalCommit(JournalEntry, frozen=True, kw_only=True, tag="commit"):
    """The step is committed: the message that every voter gets, without the parts to save.

    Attributes:
        probation: nodes all of whose computation is audited, and in how many more steps of theirs.
        suspects: nodes of which one or another had a wrong sum so far.
    """

    commit: Commit
    probation: dict[NodeId, int] = {}
    suspects: tuple[NodeId, ...] = ()

    @property
    def step(self) -> int:
        return self.commit.step


class JournalEvaluation(JournalEntry, frozen=True, kw_only=True, tag="evaluation"):
    """The state after the last commit was evaluated."""

    evaluated: Evaluated


class JournalPlan(JournalEntry, frozen=True, kw_only=True, tag="plan"):
    """A plan that is about to be sent, and what is known of the placement behind it.

    Attributes:
        message: as it is sent; addresses may change later.
        stand: what was known of the placement: whether it is still valid.
        step_time_s: estimated, of a step.
        longest_s: estimated, of the longest instruction.
    """

    message: PlanMessage
    stand: PlanValidityState
    step_time_s: float
    longest_s: float


class Fate(enum.StrEnum):
    """What may happen to a node."""

    JOINED = "joined"
    LEAVING = "leaving"
    LOST = "lost"
    RELEASED = "released"


class JournalNode(JournalEntry, frozen=True, kw_only=True, tag="node"):
    """What happened to a node.

    Attributes:
        cause: the cause of a loss.
        strikes: it was lost while the plan in force needed it, so that there is something to recover from.
        zone: of a node that joined.
        label: likewise.
        host: likewise, as its peers reach it.
        device: number of the one device on the node to which it happened alone; None: to all.
    """

    node: NodeId
    fate: Fate
    cause: str = ""
    device: int | None = None
    strikes: bool = False
    zone: str = ""
    label: str = ""
    host: str = ""


class JournalRecovery(JournalEntry, frozen=True, kw_only=True, tag="recovery"):
    """The losses up to here are recovered from."""


class JournalCheckpoint(JournalEntry, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint is whole on disk."""

    checkpoint: CheckpointRef


class JournalDistrust(JournalEntry, frozen=True, kw_only=True, tag="distrust"):
    """The checkpoint of this step, the newest, may be of a wrong state: it counts no more, and is removed."""

    step: int


class JournalVoid(JournalEntry, frozen=True, kw_only=True, tag="void"):
    """What there is of the step in progress may come of a wrong state: the step is begun anew."""


Disputed = int | tuple[int, int, int, tuple[int, ...], str]
"""What owners differ about: a group, or the fields of a `planaria.protocol.step.agreement.Computation`."""


class OpenDispute(msgspec.Struct, frozen=True, kw_only=True):
    """A difference that nobody could settle; see `planaria.protocol.step.agreement.Disputes`.

    Attributes:
        step: that is done again.
        held: what differs: replicas, sums or computations.
        items: of which it does.
        claims: what each worker told of these and of all others.
        num_dropped: microbatches that were left out up to this step.
    """

    step: int
    held: str
    items: tuple[Disputed, ...]
    claims: tuple[tuple[Disputed, dict[WorkerId, Digest]], ...]
    num_dropped: int


class JournalDisputes(JournalEntry, frozen=True, kw_only=True, tag="disputes"):
    """These disputes are open from now on, each until its step is committed, and no others are."""

    disputes: tuple[OpenDispute, ...]


class JournalPolicy(JournalEntry, frozen=True, kw_only=True, tag="policy"):
    """Another policy makes the plans from now on, and the user was told so."""

    policy: PolicyName


class JournalStop(JournalEntry, frozen=True, kw_only=True, tag="stop"):
    """The user wants the run to end, and was told that it will."""


class JournalRestart(JournalEntry, frozen=True, kw_only=True, tag="restart"):
    """A coordinator begins on this journal."""


class JournalEnd(JournalEntry, frozen=True, kw_only=True, tag="end"):
    """The run is over; its only record is the `RunEnded`."""


class JournalPast(JournalEntry, frozen=True, kw_only=True, tag="past"):
    """What all entries before it say: they are removed, so that the journal of a long run is short.

    Attributes:
        plan: the last one.
        rest: all else but `learnt`, compressed; see `planaria.protocol.run.replay`.
    """

    plan: JournalPlan | None
    rest: bytes


_LASTING = (JournalVoid, JournalDisputes, JournalPolicy, JournalStop, JournalEnd)


def is_lasting(entry: JournalEntry) -> bool:
    """Returns whether an entry, and with it all that was written before, is to outlast a power cut too.

    No worker knows of it, and without it bits, what the user was told, or who computed wrong would be wrong.
    """
    return isinstance(entry, _LASTING) or any(isinstance(record, ComputedWrong) for record in entry.records)


AnyEntry = (
    JournalCommit
    | JournalEvaluation
    | JournalPlan
    | JournalNode
    | JournalRecovery
    | JournalCheckpoint
    | JournalDistrust
    | JournalVoid
    | JournalDisputes
    | JournalPolicy
    | JournalStop
    | JournalRestart
    | JournalEnd
    | JournalPast
)

_entry = msgspec.msgpack.Decoder(AnyEntry)
_encoder = msgspec.msgpack.Encoder()


def encode_entry(entry: JournalEntry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> AnyEntry:
    """Decodes a journal entry. Raises msgspec.DecodeError (a ValueError) for anything else."""
    entry: AnyEntry = decoded(_entry, data)
    return entry
