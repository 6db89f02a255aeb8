"""The record of a candidate: the figures that a decision weighed. Values only."""

from __future__ import annotations

import msgspec


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one candidate's figures.

    Attributes:
        name: the policy, and how it would make the plan.
        step_time_s: of a step under the plan.
        transition_s: that no step gains from until the plan runs, this decision aside: the change of plans, state that
            is waited for, by how much longer the step takes beside which state moves, and the decision after it.
        transfer_bytes: state that moves.
        memory_bytes: of the device that must hold most.
        is_degraded: some layer has fewer than f + 1 replicas.
        risk_s: expected seconds that the next loss costs because it takes a last replica.
        loss_s: by how much longer the step is expected to take in which the next node is lost.
        samples_per_s: mean until the next loss, or the end of the job if that is sooner; the most is best.
        samples: of a step under the plan; 0: not told.
    """

    name: str
    step_time_s: float
    transition_s: float
    transfer_bytes: int
    memory_bytes: int
    is_degraded: bool
    risk_s: float
    samples_per_s: float
    loss_s: float = 0.0
    samples: int = 0
