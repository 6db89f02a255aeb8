"""The adaptive policy (Odyssey): after each change it asks the other policies, estimates each answer, takes the best.

Candidates: going on without the lost (rerouting), new pipelines from templates in every way that is worth an estimate,
and both in time: one step rerouted, beside which the state for the new pipelines moves. The objective is Odyssey's
Eq. 8, see `planaria.policy.worth`. It makes no plan of its own.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from planaria.estimate.memory import worker_memory_bytes
from planaria.estimate.transition import transfer_time
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.profile import ModelProfile
from planaria.plan.reconfigure import Change
from planaria.plan.replicas import lacking
from planaria.plan.respeed import candidates
from planaria.plan.settings import PlannerSettings
from planaria.policy.candidate import Candidate
from planaria.policy.outlook import Outlook
from planaria.policy.proposal import Proposal
from planaria.policy.reroute import REROUTE, ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from planaria.policy.wording import join, time
from planaria.policy.worth import CHANGE_S, Course, horizon_s, peril, worth

MOST_TOLD = 3
"""Candidates that the sentence names, the chosen one included; records have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """A candidate before it is judged.

    Attributes:
        name: see `Candidate`.
        proposal: of the plan that lasts.
        moves_s: seconds for which its state is under way.
        transition_s: see `Candidate`.
        is_degraded: some layer has fewer than f + 1 replicas under the plan that lasts.
        memory_bytes: of the fullest device under that plan.
    """

    name: str
    proposal: Proposal
    moves_s: float
    transition_s: float
    is_degraded: bool
    memory_bytes: int


class AdaptivePolicy(ReroutePolicy):
    """Proposes what is best until the next loss. First plans, and the rest of a step, are as for templates."""

    def __init__(self, profile: ModelProfile, settings: PlannerSettings) -> None:
        """Make the templates.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        super().__init__(profile, settings)
        self._outlook = Outlook()

    def with_outlook(self, outlook: Outlook) -> Self:
        """The same templates, for decisions at such a time."""
        policy = copy.copy(self)
        policy._outlook = outlook
        return policy

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """The best of all candidates. Its state moves beside the proposal's `beside`, if it has one.

        Raises:
            TooFewNodes: nothing can be rerouted, and fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        question = plan, lost, holders, generation, leaving
        rerouted = self.on_what_is_left(*question)
        try:
            made = list(self._from_templates(*question))
        except PlanError:
            rerouted = rerouted or self.as_it_is(*question)
            if rerouted is None:
                raise
            made = []
        options = list(self._options(rerouted, made, generation))
        horizon = horizon_s(self._outlook, min(option.proposal.step_time_s for option in options))
        absent = {*lost, *leaving}
        live = [(plan.node_of(w), groups) for w, groups in holders.items() if plan.node_of(w) not in absent]
        return self._best(self._allowed(options, horizon), peril(live, len(plan.groups)), horizon)

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        """As for the others; what was weighed for the target is told."""
        proposal = super().warm_up(plan, target, generation)
        return None if proposal is None else dataclasses.replace(proposal, candidates=target.candidates)

    def _from_templates(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId],
    ) -> Iterator[Proposal]:
        """The paper's way first, then others that fit. Raises PlanError: there is none."""
        first = TemplatesPolicy.reconfigure(self, plan, lost, holders, generation, leaving)
        yield first
        change = Change(
            profile=self._profile,
            templates=self.templates,
            settings=self._settings,
            plan=plan,
            lost=lost,
            holders=holders,
            generation=generation,
            leaving=leaving,
            speeds=self._speeds or {},
            zones=self._zones,
        )
        try:
            others = candidates(change)
        except PlanError:  # more nodes than the microbatches are enough for; the first way leaves some idle
            return
        seen = {(first.plan.pipelines, first.plan.routes)}
        for found in others:
            if (found.plan.pipelines, found.plan.routes) not in seen and self._fits(found.plan):
                yield self.reconfigured(plan, lost, found)

    def _options(self, rerouted: Proposal | None, made: Sequence[Proposal], generation: int) -> Iterator[_Option]:
        """In the order in which equally good ones are preferred."""
        if rerouted is not None:
            yield self._option(REROUTE, rerouted)
        for target in made:
            option = self._option(f"templates ({target.how}, {_shape(target.plan)})", target)
            both = self._both(rerouted, option, generation) if rerouted is not None else None
            if both is not None:
                yield both
            yield option

    def _option(self, name: str, proposal: Proposal) -> _Option:
        plan = proposal.plan
        moves_s = transfer_time(plan, self._profile.links).time_s
        if self._outlook.at_once:
            waits_s = moves_s
        else:
            waits_s = self._second_s + max(0.0, moves_s - proposal.step_time_s) if moves_s else 0.0
        return _Option(
            name=name,
            proposal=proposal,
            moves_s=moves_s,
            transition_s=CHANGE_S + waits_s,
            is_degraded=bool(lacking(plan, self._settings.fault_tolerance)),
            memory_bytes=max(worker_memory_bytes(plan, self._profile, worker) for worker in plan.workers),
        )

    @property
    def _second_s(self) -> float:
        """Of the change after the step beside which state moved: it is decided once more."""
        return CHANGE_S + self._outlook.decision_s

    def _both(self, rerouted: Proposal, option: _Option, generation: int) -> _Option | None:
        """A rerouted step, beside which the state moves for the option. None where that is no use, or cannot be."""
        target = option.proposal
        if not self._outlook.at_once or rerouted.plan.transfers or not target.plan.transfers:
            return None
        step = self.warm_up(rerouted.plan, target, generation)
        if step is None or not {move.source for move in target.plan.transfers} <= set(step.plan.workers):
            return None
        degraded = " It is degraded until then." if step.is_degraded else ""
        step = dataclasses.replace(
            step, reason=f"The lost nodes' work is rerouted for one step, beside which state moves.{degraded}"
        )
        return dataclasses.replace(
            option,
            name=f"one step rerouted, then {option.name}",
            proposal=dataclasses.replace(target, beside=step),
            transition_s=CHANGE_S
            + self._second_s
            + max(0.0, max(step.step_time_s, option.moves_s) - target.step_time_s),
        )

    def _allowed(self, options: Sequence[_Option], horizon: float) -> Sequence[_Option]:
        """A degraded plan lasts only where no full one is possible: none at all, or none in time."""
        full = [option for option in options if not option.is_degraded]
        in_time = any(option.moves_s < horizon or not self._outlook.at_once for option in full)
        return full if in_time else options

    def _best(self, options: Sequence[_Option], peril_now: float, horizon: float) -> Proposal:
        """The option that is worth most; of equals that with the shorter transition, then the first."""
        judged = [self._judged(option, peril_now, horizon) for option in options]
        order = sorted(range(len(options)), key=lambda at: (-judged[at].samples_per_s, judged[at].transition_s))
        ranked = tuple(judged[at] for at in order)
        chosen = options[order[0]].proposal
        told = _comparison(ranked, horizon, self._outlook)
        beside = chosen.beside
        if beside is not None:
            beside = dataclasses.replace(beside, reason=f"{beside.reason} {told}", candidates=ranked)
        return dataclasses.replace(chosen, reason=f"{chosen.reason} {told}", candidates=ranked, beside=beside)

    def _judged(self, option: _Option, peril_now: float, horizon: float) -> Candidate:
        proposal, plan = option.proposal, option.proposal.plan
        course = Course(
            step_time_s=proposal.step_time_s,
            transition_s=option.transition_s,
            peril_before=peril_now,
            peril=peril(((plan.node_of(w), groups) for w, groups in plan.groups_of.items()), len(plan.groups)),
        )
        value = worth(course, self._outlook, horizon)
        samples = self._settings.num_microbatches * self._profile.microbatch_size
        return Candidate(
            name=option.name,
            step_time_s=proposal.step_time_s,
            transition_s=option.transition_s,
            transfer_bytes=proposal.transfer_bytes,
            memory_bytes=option.memory_bytes,
            is_degraded=option.is_degraded,
            risk_s=value.risk_s,
            samples_per_s=samples * value.steps_per_s,
        )


def _shape(plan: Plan) -> str:
    """The pipelines' numbers of nodes."""
    return "+".join(str(len({plan.node_of(worker) for worker in pipeline.workers})) for pipeline in plan.pipelines)


def _comparison(ranked: Sequence[Candidate], horizon: float, outlook: Outlook) -> str:
    """Why the first was taken, as a sentence."""
    first, *others = ranked
    if not others:
        return f"Nothing but {first.name} is possible."
    until = "the next loss" if horizon >= outlook.time_to_failure_s else "the end"
    rivals = [f"{other.name} {other.samples_per_s:.4g}" for other in others[: MOST_TOLD - 1]]
    return (
        f"Chosen: {first.name}, {first.samples_per_s:.4g} samples a second over the {time(horizon)} expected to "
        f"{until}; {join(rivals)}."
    )
