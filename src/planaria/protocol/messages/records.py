"""What a run tells the world: one frozen record per event. Log, metrics, summary and display are made from them."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from planaria.policy.candidate_record import CandidateRecord


class RunStatus(enum.StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    """The run stopped as the user asked."""
    INTERRUPTED = "interrupted"
    """The run was interrupted by a signal, or its output was closed. Only the launcher knows that of a stopped run."""
    EXHAUSTED = "exhausted"
    FAILED = "failed"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """One thing that happened in a run."""


class NodeJoined(Record, frozen=True, kw_only=True, tag="node_joined"):
    """A node joined. `zone`: where the node is; `label`: what whoever started it calls it; "": not known."""

    node: int
    live_nodes: int
    zone: str = ""
    label: str = ""


class NodeLost(Record, frozen=True, kw_only=True, tag="node_lost"):
    """A node was lost. `detect_ms`: from the injected fault, or from the end that was seen while no coordinator served,
    to its detection; None when nobody knows when the node died."""

    node: int
    step: int
    cause: str
    live_nodes: int
    detect_ms: float | None


class DeviceLost(Record, frozen=True, kw_only=True, tag="device_lost"):
    """A device was lost alone: its node goes on with the `live_devices` others. `detect_ms`: as of a node."""

    node: int
    device: int
    step: int
    cause: str
    live_devices: int
    detect_ms: float | None


class DeviceJoined(Record, frozen=True, kw_only=True, tag="device_joined"):
    """A device of a node came back: the node has `live_devices` now."""

    node: int
    device: int
    live_devices: int


class ComputedWrong(Record, frozen=True, kw_only=True, tag="computed_wrong"):
    """A node computed something wrong, or did not keep what it had: its bits are not those of the others. It is lost.

    Attributes:
        step: in progress; no earlier one was committed with what is wrong.
        held: what was wrong: a "replica", a "sum" of gradients, or a "computation" that was audited.
        layers: of which it was.
        host: of the node.
        times: how many nodes of that host computed wrong so far, this one included.
    """

    node: int
    step: int
    held: str
    layers: tuple[int, ...]
    host: str
    times: int


class NodeLeaving(Record, frozen=True, kw_only=True, tag="node_leaving"):
    """A node gave notice: it will be gone in `grace_s` seconds, and hands over its state before."""

    node: int
    step: int
    grace_s: float
    cause: str


class NodeReleased(Record, frozen=True, kw_only=True, tag="node_released"):
    """A node's work is handed over and it ends, `seconds` after its notice; `step` is the first without it."""

    node: int
    step: int
    live_nodes: int
    seconds: float


class NodeSpeed(Record, frozen=True, kw_only=True, tag="node_speed"):
    """A node became slower than the others, or faster again: at `speed` 0.5 it takes twice as long as they do.

    `step` is the last of the `steps` in a row that tell of it; `before` is what was known until then.
    """

    node: int
    step: int
    speed: float
    before: float
    steps: int


class Waiting(Record, frozen=True, kw_only=True, tag="waiting"):
    """Too few nodes are left. The survivors keep and save the state after `step` - 1; nodes may join."""

    step: int
    live_nodes: int
    reason: str


class PlanTaken(Record, frozen=True, kw_only=True, tag="plan_taken"):
    """A plan is in force. `purpose`: "start", "finish step" (after a loss, within a step), "warm up" (nodes get their
    state beside a step), "reconfigure" or "restore"."""

    generation: int
    step: int
    purpose: str
    policy: str
    reason: str
    pipelines: tuple[tuple[tuple[int, int, int], ...], ...]
    """For each pipeline, its stages as (worker, first layer, end layer)."""
    microbatches: tuple[int, ...]
    """For each pipeline, how many microbatches it runs in a step; where the devices of a stage share each, these are
    told of the first device's pipeline alone."""
    estimated_step_s: float
    transfer_bytes: int
    plan_hash: str
    candidates: tuple[CandidateRecord, ...] = ()
    """The plans that were weighed, best first; empty where none were. For a warm-up: those for the plan after it."""
    estimated_transition_s: float | None = None
    """Estimated seconds without gain until the best weighed plan runs."""
    shares_microbatches: bool = False
    """Whether the devices of a stage share each microbatch."""


class PolicySwitched(Record, frozen=True, kw_only=True, tag="policy_switched"):
    """The user wants another policy: it makes the plans from now on. `step` is in progress."""

    policy: str
    before: str
    step: int


class PlanMeasured(Record, frozen=True, kw_only=True, tag="plan_measured"):
    """How long the steps of a plan took, beside the estimate. Told when the plan is replaced and at the end.

    `steps` is how many were measured (the last ones; none in which a node was lost); `measured_step_s` their median.
    `measured_transition_s`: by how much the plan's first step took longer than that, the decision aside: what it
    waited for the plan and for state; and the step before it as well, if that was one beside which the plan's state
    moved, and then `estimated_transition_s` is what was thought before that. None where the steps were too few, or too
    many, to say. `decision_s` is what the decision for the plan took.
    """

    generation: int
    steps: int
    estimated_step_s: float
    measured_step_s: float
    measured_transition_s: float | None = None
    estimated_transition_s: float | None = None
    decision_s: float = 0.0


class EstimateCorrected(Record, frozen=True, kw_only=True, tag="estimate_corrected"):
    """The first steps of a plan showed that estimates are off: of its steps, `before_s` was estimated, and `step_s` is.

    From now on everything counts as `stretch` times as long as the profile says, and links between hosts beside that as
    `link_slowdown` times slower than probed. Where that changes links much, `is_reviewed`: plans are weighed anew.
    """

    step: int
    before_s: float
    step_s: float
    stretch: float
    link_slowdown: float
    is_reviewed: bool = False


class LinkChanged(Record, frozen=True, kw_only=True, tag="link_changed"):
    """Bytes pass `factor` times as fast between two hosts as before: the link counts so, and plans are weighed anew."""

    step: int
    hosts: tuple[str, str]
    bytes_per_s: float
    factor: float


class StepCommitted(Record, frozen=True, kw_only=True, tag="step_committed"):
    """One optimizer step is durable. `step` counts from 1; `loss` is the mean over the microbatches that counted.

    `dropped` are those that were left out for good, `num_dropped` how many were so far; `scale` is the effective batch
    over the global one, by which `learning_rate` is multiplied already. `loss_scale`: of the next step (float16).
    `cost`: dollars that the run has cost so far, where [budget] has prices.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    clip_factor: float
    generation: int
    live_nodes: int
    duration_s: float
    tokens_per_s: float
    scale: float = 1.0
    loss_scale: float = 1.0
    dropped: tuple[int, ...] = ()
    num_dropped: int = 0
    cost: float = 0.0


class StepSkipped(Record, frozen=True, kw_only=True, tag="step_skipped"):
    """A step is durable but was not applied: the loss or gradient given as None is not finite.

    `loss_scale`: of the next step (float16).
    """

    step: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float
    generation: int
    live_nodes: int
    duration_s: float
    tokens_per_s: float
    loss_scale: float = 1.0
    dropped: tuple[int, ...] = ()
    num_dropped: int = 0


class Evaluated(Record, frozen=True, kw_only=True, tag="evaluated"):
    """The model was evaluated after `step`, on samples that it is not trained on. None: not finite, or not known.

    `accuracy` is the share of labels that it thought the likeliest; `is_best`: by the job's metric, of all so far.
    """

    step: int
    loss: float | None
    perplexity: float | None
    accuracy: float | None
    microbatches: int
    generation: int
    duration_s: float
    is_best: bool = False


def lost_in_words(nodes: Sequence[int], devices: Sequence[str]) -> str:
    """Names lost nodes, and devices lost alone ("NODE:DEVICE"), for people."""
    many = "s" if len(nodes) > 1 else ""
    named = [f"node{many} {', '.join(map(str, nodes))}"] if nodes else []
    for each in dict.fromkeys(devices):
        node, _, device = each.partition(":")
        named.append(f"device {device} of node {node}")
    return " and ".join(named)


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """One loss and what it cost. Times in ms; None where it cannot be known."""

    step: int
    cause: str
    lost_nodes: tuple[int, ...]
    policy: str
    reason: str
    detect_ms: float | None
    decide_ms: float
    transfer_bytes: int
    resume_ms: float
    """Milliseconds from the fault (from its detection, if the fault's moment is unknown) to the next committed step."""
    microbatches_rerun: int
    microbatches_per_step: int
    steps_redone: int = 0
    """Committed steps that are trained again, because the job went back to a checkpoint."""
    ready_ms: float | None = None
    """Milliseconds from the fault to the last worker that got its state; None where none had to move or be loaded."""
    lost_devices: tuple[str, ...] = ()
    """Devices that were lost alone, each as "NODE:DEVICE"."""


class Recovered(Record, frozen=True, kw_only=True, tag="recovered"):
    recovery: Recovery


class CheckpointSaved(Record, frozen=True, kw_only=True, tag="checkpoint_saved"):
    step: int
    folder: str
    seconds: float


class CoordinatorRestarted(Record, frozen=True, kw_only=True, tag="coordinator_restarted"):
    """A coordinator was started again, and the workers that live have come back.

    Attributes:
        step: the step in progress.
        returned: workers that came back.
        lag: committed steps that the journal had lost and a worker knew of.
        seconds: from the start of this coordinator until all were back.
    """

    step: int
    returned: int
    lag: int
    seconds: float


class Restored(Record, frozen=True, kw_only=True, tag="restored"):
    """The job went back to a checkpoint, or its start: all replicas of a layer were lost, or the policy answers so."""

    from_step: int
    to_step: int
    reason: str


class NoteSubject(enum.StrEnum):
    """What a note is about, where something is made of it but its text.

    `degraded`: some layer has fewer than f + 1 replicas; `replicas`: there are enough again; `checkpoint`: one is given
    up.
    """

    OTHER = ""
    DEGRADED = "degraded"
    REPLICAS = "replicas"
    CHECKPOINT = "checkpoint"


class Note(Record, frozen=True, kw_only=True, tag="note"):
    """Something a user should read. level: "info" or "warning"."""

    level: str
    text: str
    subject: NoteSubject = NoteSubject.OTHER


class RunEnded(Record, frozen=True, kw_only=True, tag="run_ended"):
    status: RunStatus
    steps: int
    message: str
    skipped_microbatches: int
    duplicated_microbatches: int
    skipped_steps: int = 0
    """Steps whose loss or gradient was not finite, and which `train.when_not_finite` skipped."""
    dropped_microbatches: int = 0
    """Microbatches left out for good by a policy that may drop samples."""
    cost: float = 0.0
    """Dollars that the run has cost, with its earlier parts, where [budget] has prices."""


AnyRecord = (
    NodeJoined
    | NodeLost
    | DeviceLost
    | DeviceJoined
    | ComputedWrong
    | NodeLeaving
    | NodeReleased
    | NodeSpeed
    | Waiting
    | PlanTaken
    | PolicySwitched
    | PlanMeasured
    | EstimateCorrected
    | LinkChanged
    | StepCommitted
    | StepSkipped
    | Evaluated
    | Recovered
    | CheckpointSaved
    | CoordinatorRestarted
    | Restored
    | Note
    | RunEnded
)
