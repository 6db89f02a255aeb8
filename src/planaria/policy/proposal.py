"""A proposal: a plan, what it is thought to cost, and one sentence that says why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from planaria.plan.ledger import Ledger
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.salvage import LayerHolders


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a policy proposes; the coordinator validates and takes it, or not.

    Attributes:
        plan: the plan.
        reason: one sentence for people; log, CLI and dashboard print it as it is.
        step_time_s: estimated seconds of a step under the plan.
        transfer_bytes: parameters and optimizer state that move before its first step.
        longest_s: estimated seconds of the plan's longest instruction.
        how: of a reconfiguration, how pipelines were made again; "initial" or "finish step" otherwise.
        is_degraded: the policy means to go on though some layer has fewer than f + 1 replicas.
    """

    plan: Plan
    reason: str
    step_time_s: float
    transfer_bytes: int
    longest_s: float
    how: str
    is_degraded: bool = False


class Policy(Protocol):
    """Proposes plans after a change, as pure functions; never executes one."""

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Proposal:
        """A first plan for these nodes; raises PlanError when there is none."""

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """A plan for the next steps; raises TooFewNodes or NoReplica when there is none.

        It does without the `leaving` nodes, which still live and send what they hold.
        """

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        """A plan for one step that goes on as `plan` while the state for `target` travels; None to take it at once."""

    def finish_step(
        self,
        plan: Plan,
        live: Collection[WorkerId],
        halted: Collection[WorkerId],
        counted: Ledger,
        holders: LayerHolders,
        generation: int,
    ) -> Proposal:
        """A plan for the rest of the step in progress; raises NoReplica when there is none."""
