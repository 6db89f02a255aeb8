"""Events that the coordinator's machine takes, and commands that it gives. All are frozen values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.from_worker import FromWorker, SavedGroup
from planaria.protocol.messages.journal import AnyEntry
from planaria.protocol.messages.records import AnyRecord, RunStatus
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.messages.to_worker import ToWorker


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker said hello with the right version and token."""

    worker: WorkerId
    data_address: str
    zone: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """A node that is about to join is on this host, which measured these links to others."""

    node: NodeId
    host: str
    links: tuple[HostLink, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanOut:
    """What is known of a worker that ran out of memory. Killed by the kernel, it is not named, and sizes are 0."""

    worker: WorkerId | None = None
    where: str = ""
    held_bytes: int = 0
    wanted_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A worker of this node is dead or out of reach, so the node is."""

    node: NodeId
    cause: str
    ran_out: RanOut | None = None


@dataclass(frozen=True, slots=True)
class DeviceGone:
    """A worker is dead whose node lives: others of its workers do."""

    worker: WorkerId
    cause: str
    ran_out: RanOut | None = None


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """The node will go away in `grace_s` seconds: it may hand over its state until then."""

    node: NodeId
    grace_s: float
    cause: str


class Received(msgspec.Struct, frozen=True, gc=False):
    """A worker's message has come. No dataclass, as thousands of these are made at once."""

    worker: WorkerId
    message: FromWorker


@dataclass(frozen=True, slots=True)
class Restarted:
    """First event of a machine that was built with a past.

    `step_began`: monotonic seconds, when the driver heard of the last commit; None: it has heard of none.
    `gone_at`: monotonic seconds, when a node's process ended or its loss was told, as far as the driver heard of it.
    Only measurements use it.
    """

    step_began: float | None = None
    gone_at: Mapping[NodeId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The user wants the run to end at the next step boundary with its state saved; `discards`: without saving."""

    discards: bool = False


@dataclass(frozen=True, slots=True)
class SaveRequested:
    """The user wants the state saved as soon as possible, under this folder; "": where all checkpoints are."""

    folder: str = ""


@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time that `SetTimer` asked for has passed."""


@dataclass(frozen=True, slots=True)
class PolicyRequested:
    """The user wants another policy to make the plans from now on."""

    name: PolicyName


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """A node costs so many dollars an hour from now on, as budget.price_command says."""

    price: float


@dataclass(frozen=True, slots=True)
class DecisionTook:
    """How long the last decision's computation took, as the driver measured it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Idle:
    """No event waits to be handled: there may be time to prepare decisions."""


@dataclass(frozen=True, slots=True)
class PieceTook:
    """How long the last piece of a precomputed decision took, as the driver measured it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """The checkpoint of this step is whole on disk."""

    step: int
    folder: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """The checkpoint of this step could not be made whole."""

    step: int
    folder: str
    text: str


Event = (
    Restarted
    | WorkerJoined
    | LinksMeasured
    | NodeGone
    | DeviceGone
    | NodeNotice
    | Received
    | StopRequested
    | SaveRequested
    | TimerDue
    | PolicyRequested
    | PriceChanged
    | DecisionTook
    | Idle
    | PieceTook
    | ManifestWritten
    | ManifestFailed
)


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a message to a worker. No dataclass, as thousands of these are made at once.

    `may_wait`: it is a plan for which others hurry more, see `planaria.protocol.step.telling_order`.
    """

    worker: WorkerId
    message: ToWorker
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class Evict:
    """Kill what is left of the node where possible, and refuse the node from now on."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class EvictDevice:
    """Kill what is left of a device's worker where possible, and refuse it until it is started again."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Release:
    """Let a node end that is no longer needed, and refuse it from now on."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Complete the checkpoint, whose parts are all on disk, by writing its manifest.

    `best`: the step of an older one that is not to be removed, as the model was best there; None: of no one.
    """

    step: int
    folder: str
    groups: tuple[SavedGroup, ...]
    exponents: tuple[int, ...]
    best: int | None = None


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove what is on disk of a checkpoint that was begun in this folder and given up."""

    folder: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send the event `TimerDue` in this many seconds. An earlier timer is forgotten."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Publish:
    """Make a record public. `again`: it is from an earlier coordinator's journal: readers that have it drop it, and any
    step that is there too, since a power loss may take a commit that nobody was told of."""

    record: AnyRecord
    again: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """End the driver's work: the run is over."""

    status: RunStatus
    message: str


Command = Send | AnyEntry | Evict | EvictDevice | Release | WriteManifest | Discard | SetTimer | Publish | Finish
