"""A proposal: a plan, what it is thought to cost, and one sentence that says why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from planaria.estimate.rest import Stretch
from planaria.plan.ledger import Ledger
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.salvage import LayerHolders
from planaria.plan.speeds import Speeds
from planaria.plan.zones import Zones
from planaria.policy.candidate import Candidate
from planaria.policy.outlook import Outlook


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
        dropped: microbatches that the policy means to leave out; the plan leaves out exactly those.
        transfer_s: estimated seconds until the state has moved, where nothing else is done meanwhile.
        compute_s: seconds that each worker computes in a step, on a node as fast as the profile says.
        beside: a plan to go on with for one step, beside which the state for this one moves; None: it moves first.
        restores: the workers' state is that of the last checkpoint, not of the last commit: what was trained since is
            trained again.
        candidates: the plans that were weighed, the best, which is this one, first; none where nothing was weighed.
        rest_s: of a plan that finishes a step, estimated seconds until that is done; None: the step is finished so in
            any case, and not begun anew where that is quicker.
        gap: by how much of it a step may be longer than any on the same stages; 0: not known.
    """

    plan: Plan
    reason: str
    step_time_s: float
    transfer_bytes: int
    longest_s: float
    how: str
    is_degraded: bool = False
    dropped: tuple[int, ...] = ()
    transfer_s: float = 0.0
    compute_s: Mapping[WorkerId, float] = field(default_factory=dict)
    beside: Proposal | None = None
    restores: bool = False
    candidates: tuple[Candidate, ...] = ()
    rest_s: float | None = None
    gap: float = 0.0

    @property
    def batch_s(self) -> float:
        """Estimated seconds for as many samples as the global batch has: longer than a step that leaves some out."""
        return self.step_time_s * self.plan.num_microbatches / self.plan.num_counted

    @property
    def transition_s(self) -> float | None:
        """Estimated seconds that pass without gain until the plan runs; None where nothing was weighed."""
        return self.candidates[0].transition_s if self.candidates else None


class Policy(Protocol):
    """Proposes plans after a change, as pure functions; never executes one."""

    def with_speeds(self, speeds: Speeds) -> Self:
        """The same policy for nodes that compute so fast; all others are as fast as the profile says."""

    def with_stretch(self, stretch: float) -> Self:
        """The same policy, where everything takes so many times longer than the profile says."""

    def with_zones(self, zones: Zones) -> Self:
        """The same policy for nodes that are there; a plan's replicas are spread over the zones as far as can be."""

    def with_outlook(self, outlook: Outlook) -> Self:
        """The same policy, for decisions at such a time. Most policies make the same plans at any."""

    def estimated(self, plan: Plan) -> Proposal:
        """This very plan, with what it is thought to cost."""

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

    def ponder(self, plan: Plan, lost: Collection[NodeId], holders: Holders, *, at_once: bool = True) -> Iterator[None]:
        """Prepare the answer to `reconfigure` for when these nodes are lost, in short pieces. Nothing follows from it
        but that the same answer comes sooner then; it raises nothing. `at_once`: see `Outlook`.
        """

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        """A plan for one step that goes on as `plan` while the state for `target` travels; None to take it at once."""

    def finishes(self, plan: Plan, lost: Collection[NodeId], holders: Holders) -> bool:
        """Whether what losses left undone of the step in progress is done; else all of it is begun anew, under the
        answer of `reconfigure`, of which the arguments are."""

    def finish_step(
        self,
        plan: Plan,
        live: Collection[WorkerId],
        halted: Collection[WorkerId],
        counted: Ledger,
        holders: LayerHolders,
        generation: int,
        so_far: Sequence[Stretch] = (),
    ) -> Proposal:
        """A plan for the rest of the step in progress, which was done under these plans so far; raises NoReplica when
        there is none."""
