"""The outlook: what a policy that weighs plans against each other knows of the time to come. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from planaria.estimate.restore import Storage

DEFAULT_MEAN_TIME_BETWEEN_FAILURES_S = 3 * 3600.0
"""Llama 3.1's training was interrupted 419 times in 54 days, about every three hours (Odyssey, section II-B)."""

USUAL_DECISION_S = 0.1
"""Until one was measured. Seconds of the processor for 16 nodes and 64 microbatches, 2 cores of an AMD EPYC virtual
machine."""


CHANGE_S = 0.002
"""Until one was measured: by how much the first step under a plan is longer than the next, beside the decision and what
is waited for. Of 16 emulated workers on an idle machine most were below 0.003 (docs/figures/benchmarks.md,
adaptive.py)."""

DEGRADED_SAVES_S = 60.0
"""Under a degraded plan, from one checkpoint to the next, where the user wants none every so many steps."""

RESTORE_S = 1.0
"""Until one was measured: from the loss of a layer's last replica to the first step from a checkpoint, beside the steps
that are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """At one decision.

    Attributes:
        time_to_failure_s: expected seconds to the next loss of a node.
        nodes_together: that a loss takes, on average.
        steps_left: of the job, the next one included; None: no end is known.
        steps_at_stake: committed since the last checkpoint: lost if all replicas of a layer are.
        checkpoint_every: steps between checkpoints; 0: they are not by steps.
        checkpoint_every_s: seconds between them; 0: they are not by time. With both 0, none is written on the way but
            under a degraded plan.
        decision_s: that a decision takes; workers wait for it. One that follows another costs so much.
        storage: that checkpoints are read from.
        change_s: that a change of plans takes for which nothing moves, the decision aside.
        transfer_stretch: how many times longer state is under way than the profile's links say.
        restore_s: until the first step from a checkpoint begins, when a layer's last replica is lost.
        is_prepared: state moved beside the last step: another step beside which some moves does not follow.
        at_once: the plan is for the next step, so its state moves first, or beside that step. Else it is for the step
            after, and its state moves beside the plan of now in any case.
        after_loss: a loss is being recovered from.
    """

    time_to_failure_s: float = DEFAULT_MEAN_TIME_BETWEEN_FAILURES_S
    nodes_together: float = 1.0
    steps_left: int | None = None
    steps_at_stake: int = 0
    checkpoint_every: int = 0
    checkpoint_every_s: float = 0.0
    decision_s: float = USUAL_DECISION_S
    storage: Storage = field(default_factory=Storage)
    change_s: float = CHANGE_S
    transfer_stretch: float = 1.0
    restore_s: float = RESTORE_S
    is_prepared: bool = False
    at_once: bool = True
    after_loss: bool = False
