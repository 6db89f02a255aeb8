"""The account of one recovery while it is under way: what was lost, decided, moved and run again."""

from __future__ import annotations

from dataclasses import dataclass, field

from planaria.plan.plan import NodeId, Plan
from planaria.policy.interface import Candidate
from planaria.protocol.messages.records import Recovery


@dataclass(slots=True, kw_only=True)
class OpenRecovery:
    """One recovery, from the first loss to the commit of the step it struck and the placement that follows.

    Attributes:
        began: monotonic seconds of the fault, or of its detection when the fault's moment is unknown.
        lost: the nodes that were lost.
        lost_devices: those that were lost alone, each as "NODE:DEVICE".
    """

    step: int
    policy: str
    began: float
    lost: list[NodeId] = field(default_factory=list)
    lost_devices: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    detect_ms: float | None = None
    decide_s: float = 0.0
    transfer_bytes: int = 0
    resumed: float | None = None
    reason: str = ""
    rerun: set[int] = field(default_factory=set)
    steps_redone: int = 0
    ready: float | None = None

    def add_loss(self, node: NodeId, cause: str, detect_ms: float | None, device: int | None = None) -> None:
        """Adds the loss of a node, or of one of its devices alone."""
        if device is None:
            self.lost.append(node)
        else:
            self.lost_devices.append(f"{node}:{device}")
        if cause not in self.causes:
            self.causes.append(cause)
        if detect_ms is not None:
            self.detect_ms = max(detect_ms, self.detect_ms or 0.0)

    def add_rerun(self, plan: Plan) -> None:
        """Adds the microbatches of the step that the plan's new routes run again; those of an evaluation are others."""
        for route in plan.routes if plan.evaluation is None else ():
            if route.born == plan.generation:
                self.rerun.update(route.microbatches)

    def add_reconfiguration(self, proposal: Candidate) -> None:
        self.transfer_bytes += proposal.transfer_bytes
        self.reason = proposal.reason

    def add_restore(self, plan: Plan, steps: int, reason: str) -> None:
        """Records that the job went back by so many committed steps; the recovery is open until the next commit."""
        self.resumed = None
        self.add_rerun(plan)
        self.steps_redone += steps
        self.reason = reason

    def settled(self, now: float) -> None:
        """Records that all workers have their state; until a step is committed, the last such time counts."""
        if self.resumed is None:
            self.ready = now

    def committed(self, now: float) -> None:
        if self.resumed is None:
            self.resumed = now

    def close(self, microbatches_per_step: int) -> Recovery:
        resumed = self.began if self.resumed is None else self.resumed
        return Recovery(
            step=self.step,
            cause=", ".join(self.causes),
            lost_nodes=tuple(self.lost),
            lost_devices=tuple(self.lost_devices),
            policy=self.policy,
            reason=self.reason or "Nothing had to move.",
            detect_ms=self.detect_ms,
            decide_ms=self.decide_s * 1e3,
            transfer_bytes=self.transfer_bytes,
            resume_ms=(resumed - self.began) * 1e3,
            microbatches_rerun=len(self.rerun),
            microbatches_per_step=microbatches_per_step,
            steps_redone=self.steps_redone,
            ready_ms=None if self.ready is None else (self.ready - self.began) * 1e3,
        )
