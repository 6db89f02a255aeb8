"""The questions to a policy and its answers: requests, the forecast of failures, candidates, and the policy itself.

A policy proposes plans after a change, as a pure function of its planner, the request and the forecast. It executes
none. The coordinator validates a candidate and takes it, or does not.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from planaria.estimate.evaluation_time import evaluation_time
from planaria.estimate.restore_time import RestoreTime
from planaria.estimate.step_remainder import PlanInterval
from planaria.plan.costs.pipeline_time import Template
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.validate import lacking
from planaria.planner.finish_step.salvage import LayerHolders, finish_evaluation, left_undone
from planaria.planner.finish_step.shadow_takeover import resume
from planaria.planner.placement.placement import Holders
from planaria.planner.placement.warm_up import warm_up
from planaria.planner.reconfigure.surviving_plan import Change
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.finishing import quickest, roughly
from planaria.policy.forecast import NOBODY, Exposure, FailureForecast
from planaria.policy.planner import Planner
from planaria.policy.sentences import finished, taken_over, warms

Found = TypeVar("Found")

Pieces = Generator[None, None, Found]
"""Work of which each piece is short: a generator that pauses wherever it may, and returns what it found out."""


def result_of(work: Pieces[Found]) -> Found:
    """Returns what the work finds out, done in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: Found = end.value
            return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRequest:
    """A request for a plan of the next steps.

    Attributes:
        plan: in force, or what is left of it.
        lost: nodes that are gone.
        holders: the live workers, and the groups that each holds.
        leaving: live nodes that the plan must do without; they still send what they hold.
        generation: of the plan that is asked for; 0: it is only looked at, and taken by nobody.
    """

    plan: Plan
    lost: Collection[NodeId]
    holders: Holders
    leaving: Collection[NodeId] = ()
    generation: int = 0

    @property
    def absent(self) -> set[NodeId]:
        """The nodes that the next plan does without."""
        return {*self.lost, *self.leaving}

    @property
    def complete_nodes(self) -> list[NodeId]:
        """The nodes that the next plan may use: live, with all of their workers."""
        plan = self.plan
        workers: dict[NodeId, set[WorkerId]] = {}
        for worker in self.holders:
            workers.setdefault(plan.node_of(worker), set()).add(worker)
        driving: dict[NodeId, set[WorkerId]] = {}
        for worker in plan.workers:
            driving.setdefault(plan.node_of(worker), set()).add(worker)
        absent = self.absent
        return sorted(
            node
            for node, there in workers.items()
            if node not in absent
            and (driving[node] <= there if node in driving else len(there) == plan.devices_per_node)
        )

    def change(self, planner: Planner, templates: Sequence[Template] | None = None) -> Change:
        """Returns what pipelines are made again from; `templates`: others than the planner's."""
        return Change(
            profile=planner.profile,
            templates=planner.templates if templates is None else templates,
            settings=planner.settings,
            plan=self.plan,
            lost=self.lost,
            holders=self.holders,
            generation=self.generation,
            leaving=self.leaving,
            speeds=planner.speeds or {},
            zones=planner.zones,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRequest:
    """A request for a plan of the rest of a step that a loss struck.

    Attributes:
        plan: in force when the loss happened.
        live: the live workers.
        halted: live workers that stopped.
        counted: what is in live accumulators, and is no kept route's work.
        holders: the layers that each live worker holds.
        generation: of the plan that is asked for.
        so_far: the plans under which the step was done so far.
        parts_differ: devices of a stage that share microbatches have counted others: of theirs, nothing is counted.
    """

    plan: Plan
    live: Collection[WorkerId]
    halted: Collection[WorkerId]
    counted: Ledger
    holders: LayerHolders
    generation: int
    so_far: Sequence[PlanInterval] = ()
    parts_differ: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that could be run next, with what it is thought to cost and why it would be taken.

    Every candidate has these:

    Attributes:
        plan: the plan.
        how: how its pipelines were made; "initial" or "finish step" where none was changed.
        step_time_s: estimated seconds of a step under the plan.
        longest_s: estimated seconds of the plan's longest instruction.
        compute_s: seconds that each worker computes in a step, on a node as fast as the profile says.
        reason: one sentence for people; log, CLI and dashboard print it as it is.
        transfer_bytes: parameters and optimizer state that move before its first step.
        transfer_s: estimated seconds until the state has moved, where nothing else is done meanwhile.
        is_degraded: some layer has fewer than f + 1 replicas, and the policy means to go on so.
        left_bytes: of a warm-up, state that moves beside later steps.
        dropped: microbatches that the policy means to leave out; the plan leaves out exactly those.
        beside: a plan to go on with for one step, beside which the state for this one moves; None: it moves first.
        restores: the workers' state is that of the last checkpoint, not of the last commit: what was trained since is
            trained again.
        rest_s: of a plan that finishes a step, estimated seconds until that is done; None: the step is finished so in
            any case, and not begun anew where that is quicker.
        gap: by how much of it a step may be longer than any on the same stages; 0: not known.
        candidates: the plans that were weighed, the best, which is this one, first; none where nothing was weighed.

    Where candidates are weighed against each other (`planaria.policy.adaptive`) they also have these:

    Attributes:
        name: of the candidate, for people.
        explain: makes the reason, of the request as it was made and the plan in its terms.
        wait_s: by how much longer the first step is if state moves before it: a worker that gets state late may have
            had nothing to do before.
        is_late: it has f + 1 replicas only when its shadows have the state that is under way to them.
        memory_bytes: of the fullest device.
        restored: what workers read, where they begin at the last checkpoint; None: their state is of now.
        loss_s: by how much longer the step takes under the plan in which the next node is lost.
        exposure: which losses would take a last replica.
    """

    plan: Plan
    how: str
    step_time_s: float
    longest_s: float
    compute_s: Mapping[WorkerId, float] = field(default_factory=dict)
    reason: str = ""
    transfer_bytes: int = 0
    transfer_s: float = 0.0
    left_bytes: int = 0
    is_degraded: bool = False
    dropped: tuple[int, ...] = ()
    beside: Candidate | None = None
    restores: bool = False
    rest_s: float | None = None
    gap: float = 0.0
    candidates: tuple[CandidateRecord, ...] = ()
    name: str = ""
    explain: Callable[[ReplanRequest, Plan], str] | None = field(default=None, compare=False)
    wait_s: float = 0.0
    is_late: bool = False
    memory_bytes: int = 0
    restored: RestoreTime | None = None
    loss_s: float = 0.0
    exposure: Exposure = NOBODY

    @classmethod
    def of(
        cls,
        planner: Planner,
        plan: Plan,
        how: str,
        reason: str = "",
        *,
        transfer_bytes: int = 0,
        transfer_s: float = 0.0,
    ) -> Self:
        """Returns the candidate of a plan, with its estimate."""
        step = planner.estimate(plan)
        return cls(
            plan=plan,
            how=how,
            reason=reason,
            step_time_s=step.step_time_s,
            longest_s=step.longest_instruction_s,
            compute_s=planner.as_profiled(plan, step.compute_s),
            transfer_bytes=transfer_bytes,
            transfer_s=transfer_s,
        )

    @property
    def batch_s(self) -> float:
        """Estimated seconds for as many samples as the global batch has: longer than a step that leaves some out."""
        return self.step_time_s * self.plan.num_microbatches / self.plan.num_counted

    @property
    def transition_s(self) -> float | None:
        """Estimated seconds that pass without gain until the plan runs; None where nothing was weighed."""
        return self.candidates[0].transition_s if self.candidates else None


@dataclass(frozen=True, eq=False)
class Policy(ABC):
    """Proposes plans after a change. A policy answers `initial` and `reconfigure`; the rest has an answer already.

    Policies share nothing but their planner. One that makes use of another's plans has it as an attribute.

    Attributes:
        planner: templates, costs and estimates of the job, for the nodes' speeds and zones as they are known.
    """

    planner: Planner

    @classmethod
    def of(cls, planner: Planner) -> Self:
        """Returns the policy for a job. All that decisions would wait for is made now: the templates.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        return cls(planner.prepared())

    @abstractmethod
    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns a first plan for these nodes.

        Raises:
            PlanError: there is none.
        """

    @abstractmethod
    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns a plan for the next steps.

        Raises:
            TooFewNodes: too few nodes are left for f + 1 replicas.
            NoReplica: a group has no live holder.
        """

    def with_planner(self, planner: Planner) -> Self:
        """Returns the same policy for another planner: this one's, for other speeds or zones."""
        return dataclasses.replace(self, planner=planner)

    def with_forecast(self, forecast: FailureForecast) -> Self:
        """Returns the same policy under this forecast. Most policies make the same plans at any."""
        return self

    def estimated(self, plan: Plan) -> Candidate:
        """Returns this very plan, with what it is thought to cost."""
        return Candidate.of(self.planner, plan, "unchanged", "The plan stays.")

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        """Precomputes the answer to `reconfigure`, in short pieces. Nothing follows but that the same answer comes
        sooner then; it raises nothing. `at_once`: see `FailureForecast`.
        """
        return iter(())

    def finishes(self, request: ReplanRequest) -> bool:
        """Returns whether a struck step's rest is finished; else it is begun anew, under the answer to this request."""
        return True

    def finish_step(self, request: FinishRequest) -> Candidate:
        """Returns a plan for the rest of the step in progress.

        Shadows go on in the places of the lost (`planaria.planner.finish_step.shadow_takeover`) where they can; else
        what is missing runs again where it is done soonest (`planaria.policy.finishing`).

        Raises:
            NoReplica: a layer has no live holder.
        """
        plan, live, planner = request.plan, request.live, self.planner
        struck = plan, live, request.halted, request.counted, request.holders, request.generation
        resumed = resume(*struck)
        if resumed is not None:
            return Candidate.of(planner, resumed, "finish step", taken_over(plan, resumed, live))
        found = quickest(left_undone(*struck), planner, request.so_far)
        candidate = Candidate.of(
            planner,
            roughly(found.plan, planner),
            "finish step",
            finished(plan, found.plan, live, crosses=found.crosses),
        )
        candidate = dataclasses.replace(candidate, plan=found.plan)
        rest_s = found.rest_s
        if rest_s is None:
            rest_s = _rest_s(planner, candidate, sum(stretch.seconds for stretch in request.so_far))
        # What was left out of the step before has left every accumulator.
        return dataclasses.replace(candidate, dropped=plan.dropped, rest_s=rest_s)

    def finish_evaluation(self, request: FinishRequest) -> Candidate:
        """Returns a plan for the rest of the evaluation in progress: what is missing is evaluated again, and no policy
        is asked how.

        Raises:
            NoReplica: a layer has no live holder.
        """
        plan, planner = request.plan, self.planner
        struck = plan, request.live, request.halted, request.counted, request.holders, request.generation
        rest = finish_evaluation(*struck, planner.profile)
        took = evaluation_time(rest, planner.profile, planner.conditions)
        return Candidate(
            plan=rest,
            how="finish step",
            step_time_s=took.total_s,
            longest_s=took.longest_s,
            transfer_bytes=0,
            reason=finished(plan.of_pass, rest.of_pass, request.live, crosses=False),
        )

    def warm_up(self, plan: Plan, target: Candidate, generation: int, *, in_parts: bool = False) -> Candidate | None:
        """Returns one more step of `plan`, beside which the workers of `target` get their state (see
        `planaria.planner.placement.warm_up`); None where that would not fit into the devices' memory: it is taken at
        once.

        Args:
            plan: in force.
            target: for the steps after.
            generation: of the new plan.
            in_parts: only as much moves beside this step as has room on the links, unless nodes wait to leave or layers
                lack replicas.
        """
        new = warm_up(plan, target.plan, generation)
        if not self.planner.fits(new):
            return None
        # The plan in force may be another policy's, and lack replicas.
        short = lacking(new, self.planner.settings.fault_tolerance)
        bytes_to_move = new.moved_bytes
        is_urgent = bool(short) or not set(plan.nodes) <= set(target.plan.nodes)
        if in_parts and plan.redundancy is None and not is_urgent:
            new = warm_up(plan, target.plan, generation, self.planner.room_beside(new))
        left_bytes = bytes_to_move - new.moved_bytes
        candidate = dataclasses.replace(
            Candidate.of(self.planner, new, "warm up", warms(plan, target.plan, new.moved_bytes, left_bytes)),
            transfer_bytes=target.transfer_bytes - left_bytes,
            transfer_s=self.planner.transfer_time(new).time_s if left_bytes else target.transfer_s,
            left_bytes=left_bytes,
        )
        return dataclasses.replace(
            candidate, dropped=plan.dropped, is_degraded=bool(short), candidates=target.candidates
        )


def _rest_s(planner: Planner, finishing: Candidate, passed_s: float) -> float:
    """Returns the seconds of the rest, from outside: at least what runs again alone, and what a whole step takes longer
    than what has passed of it."""
    plan = finishing.plan
    again = tuple(route for route in plan.routes if route.born == plan.generation)
    alone_s = planner.estimate(roughly(plan.renewed(routes=again), planner)).step_time_s if again else 0.0
    return max(alone_s, finishing.step_time_s - passed_s)
