"""What the coordinator tells and asks of a worker. A message that belongs to a generation bears it."""

from __future__ import annotations

import enum
import math

from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.plan.program.audits import Audit
from planaria.protocol.messages.message import Message


class StateSource(enum.StrEnum):
    """Where a worker's replicas come from when it adopts a plan."""

    INITIAL = "initial"
    CHECKPOINT = "checkpoint"
    LIVE = "live"


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
        audits: of `step`; none in a step that goes on.
        wire_bytes_per_s: what the wire of a host takes, as it was probed; 0: that is not known.
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
    audits: tuple[Audit, ...] = ()
    wire_bytes_per_s: float = 0.0

    @property
    def goes_on(self) -> bool:
        """Whether the plan only goes on with a step that was begun under another."""
        return self.begun not in (-1, self.plan.generation)


class Halt(Message, frozen=True, kw_only=True, tag="halt"):
    """Orders a worker to stop computing, keep the accumulators, and report. Where devices share microbatches, they
    keep nothing: each has a part, and no ledger tells of parts."""

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


NOT_APPLIED = 0.0
"""Clip factor of a step that is committed without being applied."""


class Commit(Message, frozen=True, kw_only=True, tag="commit"):
    """Orders a worker to apply the durable `step`, then to wait for orders (`hold`) or go on with the same plan.

    With `save`, copy those groups as soon as the step is applied, and write them while training goes on.

    Attributes:
        clip_factor: what the gradients are multiplied by; 0 (`NOT_APPLIED`): the step is done, but
            parameters and optimizer state stay as they are.
        exponents: grid exponent of every group for the step after it (exact numerics).
        loss: mean over the step's microbatches. Workers do not need it, nor the norm; but who was told of a step can
            tell of it when the journal was lost.
        norm: global gradient norm.
        scale: what the learning rate was multiplied by: the effective batch over the global one.
        learning_rate: of the step, with `scale`: all workers take the same.
        dropped: microbatches that were left out of the step, for good.
        num_dropped: that were left out of this step and all before it.
        audits: of the step after it, where that goes on with the same plan.
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
    audits: tuple[Audit, ...] = ()


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Orders a worker to end now; the reason is for the log."""

    reason: str


class Challenge(Message, frozen=True, kw_only=True, tag="challenge"):
    """Asks, for a coordinator that began again, whether the worker is there, or its messages are played again. It is
    answered by `Proof` as soon as it is read, and is no order."""

    nonce: str


ToWorker = PlanMessage | Halt | Commit | Recall | Resend | Save | Stop
