"""The adaptive policy (Odyssey): after each change it asks the other policies, estimates each answer, takes the best.

Candidates come from the sources of `planaria.policy.sources`: going on without the lost (rerouting), new pipelines from
templates and from a search, shadows and rings (redundancy), the last checkpoint (morph), samples left out where the job
allows that. Where they can be, each also with split backwards, and with one step rerouted beside which its state moves.
The objective is Odyssey's Eq. 8, see `planaria.policy.worth`. It makes no plan of its own.

What the candidates are depends on the question alone, so it can be found out before (`ponder`); which is best depends
on the outlook, and takes no time. An answer that was prepared is the answer that would be given.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Self

from planaria.estimate.rest import Stretch
from planaria.plan.ledger import Ledger
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.replicas import lacking
from planaria.plan.salvage import LayerHolders
from planaria.plan.settings import PlannerSettings
from planaria.plan.speeds import Speeds
from planaria.plan.templates import Template
from planaria.plan.zones import Zones, zone_of
from planaria.policy.candidate import Candidate
from planaria.policy.drop import DropPolicy
from planaria.policy.exposure import exposure
from planaria.policy.fewer import degraded, fewer_replicas
from planaria.policy.first_plan import best_first
from planaria.policy.leaner import LEAN, Leaner
from planaria.policy.options import Option, options_in_pieces
from planaria.policy.outlook import Outlook
from planaria.policy.pieces import Pieces, finished
from planaria.policy.proposal import Proposal
from planaria.policy.question import Canonical, Question, canonical
from planaria.policy.rebuilding import Searched
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.rings import Rings
from planaria.policy.source import Source
from planaria.policy.sources import SOURCES
from planaria.policy.wording import join, time
from planaria.policy.worth import Course, horizon_s, worth

MOST_TOLD = 3
"""Candidates that the sentence names, the chosen one included; records have all."""

MOST_KEPT = 256
"""Answers. Nodes in equal places have one, so a cluster of a thousand needs some tens."""


class AdaptivePolicy(ReroutePolicy):
    """Proposes what is best until the next loss. The rest of a step is as for templates; without what broken pipelines
    had, where samples are left out after it; and given up where the job is to go back."""

    def __init__(self, profile: ModelProfile, settings: PlannerSettings) -> None:
        """Make the templates.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        try:
            super().__init__(profile, settings)
        except PlanError:
            if settings.schedule is LEAN:
                raise
            super().__init__(profile, dataclasses.replace(settings, schedule=LEAN))
        self._outlook = Outlook()
        self._sources: tuple[Source, ...] = tuple(make(ReroutePolicy.like(self)) for make in SOURCES)
        self._answers: dict[Hashable, Sequence[Option]] = {}
        self._under_way: dict[Hashable, Pieces[Sequence[Option]]] = {}
        """An answer that is being prepared: whoever asks for it goes on where that stands."""

    def with_outlook(self, outlook: Outlook) -> Self:
        """The same templates, for decisions at such a time."""
        policy = copy.copy(self)
        policy._outlook = outlook
        return policy

    def with_speeds(self, speeds: Speeds) -> Self:
        """The same templates, for nodes that compute so fast; what was prepared is forgotten."""
        policy = super().with_speeds(speeds)
        policy._sources = tuple(source.at_speeds(speeds) for source in self._sources)
        policy._answers, policy._under_way = {}, {}
        return policy

    def with_stretch(self, stretch: float) -> Self:
        """The same templates, where everything takes so long; what was prepared is forgotten."""
        policy = super().with_stretch(stretch)
        policy._sources = tuple(source.stretched(stretch) for source in self._sources)
        policy._answers, policy._under_way = {}, {}
        return policy

    def with_zones(self, zones: Zones) -> Self:
        """The same templates, for nodes in these zones; answers are known by the zones that they are for."""
        policy = super().with_zones(zones)
        policy._sources = tuple(source.in_zones(zones) for source in self._sources)
        return policy

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Proposal:
        """What is worth most of the templates' first plan, even sets of pipelines and grids, also with split backwards.

        Where the nodes left make no f + 1 pipelines, it has as many as they are enough for, or shadows.

        Raises:
            PlanError: too few nodes for one pipeline, or too few microbatches.
        """
        sizes = next((source.sizes for source in self._sources if isinstance(source, Searched)), self.templates)
        rings = next((source for source in self._sources if isinstance(source, Rings)), None)
        planner = ReroutePolicy.like(self)
        leaner = next((source for source in self._sources if isinstance(source, Leaner)), None)
        if leaner is not None and len(set(nodes)) < leaner.needed:
            planner, sizes = leaner.planner, leaner.planner.templates
        try:
            own = planner.initial(nodes, generation)
        except PlanError as refused:
            return self._of_fewer(planner, sizes, nodes, generation, rings, refused)
        return best_first(planner, sizes, own, nodes, generation, self._outlook, rings)

    def _of_fewer(
        self,
        planner: ReroutePolicy,
        sizes: Sequence[Template],
        nodes: Sequence[NodeId],
        generation: int,
        rings: Rings | None,
        refused: PlanError,
    ) -> Proposal:
        """A first plan of too few nodes for f + 1 pipelines. Raises PlanError, as refused: there is none."""
        for _, fewer in fewer_replicas(planner, len(set(nodes))):
            try:
                own = fewer.initial(nodes, generation)
            except PlanError:
                continue
            best = best_first(fewer, sizes, own, nodes, generation, self._outlook, rings)
            most_lost = self._settings.fault_tolerance
            short = lacking(best.plan, most_lost, arrived=best.plan.redundancy is not None)
            if not short:
                return best
            reason = f"{best.reason} {degraded(min(short.values()), most_lost + 1)}"
            return dataclasses.replace(best, reason=reason, is_degraded=True)
        raise refused

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
        asked = self._form(Question(plan=plan, lost=lost, holders=holders, leaving=leaving))
        options, told, horizon = self._ranked(asked)
        return self._chosen(asked, options[0], told, horizon, generation)

    def finishes(self, plan: Plan, lost: Collection[NodeId], holders: Holders) -> bool:
        """Not where the job is to go back to the last checkpoint: then the step is to be trained again anyway."""
        if not self._settings.may_restore:
            return True
        best = self._first_choice(Question(plan=plan, lost=lost, holders=holders))
        return best is None or not best.offer.proposal.restores

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
        """As for the others, or without what broken pipelines had, where the steps after it leave that out too."""
        if self._settings.may_drop and self._leaves_out(plan, live, holders):
            return DropPolicy.like(self).finish_step(plan, live, halted, counted, holders, generation, so_far)
        return super().finish_step(plan, live, halted, counted, holders, generation, so_far)

    def _leaves_out(self, plan: Plan, live: Collection[WorkerId], layers: LayerHolders) -> bool:
        lost = sorted({plan.node_of(worker) for worker in plan.workers} - {plan.node_of(worker) for worker in live})
        groups = {
            held: tuple(g for g, group in enumerate(plan.groups) if not held.isdisjoint(group.layers))
            for held in {frozenset(own) for own in layers.values()}
        }
        holders = {worker: groups[frozenset(own)] for worker, own in layers.items()}
        best = self._first_choice(Question(plan=plan, lost=lost, holders=holders))
        return best is not None and bool(best.offer.proposal.dropped)

    def _first_choice(self, question: Question) -> Option | None:
        """What `reconfigure` would answer; None where it has no answer."""
        try:
            asked = self._form(question)
            options, _, _ = self._ranked(asked)
        except PlanError:
            return None
        return options[0]

    def ponder(self, plan: Plan, lost: Collection[NodeId], holders: Holders, *, at_once: bool = True) -> Iterator[None]:
        """The candidates for when these nodes are lost, each piece at most a simulated step."""
        policy = self.with_outlook(dataclasses.replace(self._outlook, at_once=at_once))
        try:
            yield from policy._options(policy._form(Question(plan=plan, lost=lost, holders=holders)))
        except PlanError:
            return  # it is found out as quickly when it is asked

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        """As for the others; what was weighed for the target is told."""
        proposal = super().warm_up(plan, target, generation)
        if proposal is None:
            return None
        return dataclasses.replace(proposal, candidates=target.candidates, transfer_s=target.transfer_s)

    def _form(self, asked: Question) -> Canonical:
        """Where a plan is not for the next step, it is compared with that of now, and nodes keep their numbers; so they
        do where they differ, in speed or in zone."""
        return canonical(asked, may_rename=self._outlook.at_once and not self._speeds and not self._zones)

    def _options(self, asked: Canonical) -> Pieces[Sequence[Option]]:
        """Of the canonical question. Raises PlanError: there is none."""
        nodes = {NodeId(w // self._settings.devices_per_node) for w in asked.question.holders} if self._zones else ()
        key = asked.question.key, tuple((node, zone_of(self._zones, node)) for node in sorted(nodes))
        options = self._answers.get(key)
        if options is not None:
            return options
        if key not in self._under_way:
            self._under_way.clear()
            self._under_way[key] = options_in_pieces(self, self._sources, asked.question)
        try:
            found: Sequence[Option] | None = yield from self._under_way[key]
        finally:
            self._under_way.pop(key, None)
        if found is None:  # it was brought to its end by whoever could not wait
            found = self._answers.get(key)
        if found is None:
            raise PlanError("There is no plan for the nodes that are left.")
        self._answers[key] = options = found
        while len(self._answers) > MOST_KEPT:
            del self._answers[next(iter(self._answers))]
        return options

    def _allowed(self, asked: Canonical, options: Sequence[Option], horizon: float) -> Sequence[Option]:
        """A degraded plan lasts only where no full one is possible: none at all, or none in time. What would move
        beside a step moves so only where the plan is for the next step, and not twice in a row.

        Nothing is trained twice, and no more is left out, but after a loss. What does one of these is no reason not to
        go on degraded.
        """
        outlook = self._outlook
        may_wait = outlook.at_once and not outlook.is_prepared
        num_dropped = asked.question.plan.num_microbatches if outlook.after_loss else len(asked.asked.plan.dropped)
        possible = [
            option
            for option in options
            if (option.beside_s is None or may_wait)
            and (option.restored is None or (outlook.after_loss and outlook.at_once))
            and len(option.offer.proposal.dropped) <= num_dropped
            and not (outlook.at_once and option.is_late)
        ]
        if not possible:
            raise PlanError("Only plans are left that train steps again or leave samples out, and nobody was lost.")
        full = [option for option in possible if not option.is_degraded]
        in_time = any(
            option.moves_s * outlook.transfer_stretch < horizon or not outlook.at_once
            for option in full
            if option.restored is None and not option.offer.proposal.dropped
        )
        return full if in_time else possible

    def _ranked(self, asked: Canonical) -> tuple[Sequence[Option], tuple[Candidate, ...], float]:
        """The options by what they are worth, what is told of them, and the seconds over which that is so. Of equals
        the one with the shorter transition, of fewer bytes, the first.

        Raises:
            PlanError: there is none.
        """
        options = finished(self._options(asked))
        horizon = horizon_s(self._outlook, min(option.step_time_s for option in options))
        plan, absent = asked.asked.plan, {*asked.asked.lost, *asked.asked.leaving}
        live = [(plan.node_of(w), groups) for w, groups in asked.asked.holders.items() if plan.node_of(w) not in absent]
        now = exposure(live, len(plan.groups), self._zones).peril(self._outlook.nodes_together)
        options = self._allowed(asked, options, horizon)
        before_s = 0.0 if self._outlook.at_once else self._outline(plan).step_time_s
        judged = [self._judged(option, now, horizon, before_s) for option in options]
        order = sorted(
            range(len(options)),
            key=lambda at: (-judged[at].samples_per_s, judged[at].transition_s, judged[at].transfer_bytes),
        )
        return [options[at] for at in order], tuple(judged[at] for at in order), horizon

    def _chosen(
        self, asked: Canonical, option: Option, told: tuple[Candidate, ...], horizon: float, generation: int
    ) -> Proposal:
        """The proposal of the best option."""
        chosen = asked.answered(option.offer.proposal, generation)
        why = _comparison(told, horizon, self._outlook)
        beside = chosen.beside
        if beside is not None:
            beside = dataclasses.replace(beside, reason=f"{beside.reason} {why}", candidates=told)
        reason = f"{option.offer.explain(asked.asked, chosen.plan)} {why}"
        return dataclasses.replace(
            chosen, reason=reason, candidates=told, beside=beside, is_degraded=option.is_degraded
        )

    def _judged(self, option: Option, peril_now: float, horizon: float, before_s: float) -> Candidate:
        proposal = option.offer.proposal
        transition_s = self._transition_s(option, before_s)
        course = Course(
            step_time_s=proposal.step_time_s,
            transition_s=transition_s,
            peril_before=peril_now,
            peril=option.exposure.peril(self._outlook.nodes_together),
            loss_s=option.loss_s,
            is_degraded=option.is_degraded,
        )
        value = worth(course, self._outlook, horizon)
        samples = proposal.plan.num_counted * self._profile.microbatch_size
        return Candidate(
            name=option.name,
            step_time_s=proposal.step_time_s,
            transition_s=transition_s,
            transfer_bytes=proposal.transfer_bytes,
            memory_bytes=option.memory_bytes,
            is_degraded=option.is_degraded,
            risk_s=value.risk_s,
            loss_s=option.loss_s,
            samples_per_s=samples * value.steps_per_s,
        )

    def _transition_s(self, option: Option, before_s: float = 0.0) -> float:
        """What passes without gain until the plan runs. Beside a step nobody waits for state before he votes.

        Args:
            option: whose plan it is.
            before_s: of a step of the plan of now, beside which state moves where the plan is not for the next step.
        """
        outlook, step_s = self._outlook, option.step_time_s
        if option.restored is not None:
            load_s = outlook.storage.time_s(option.restored.busiest_bytes, option.restored.total_bytes)
            return max(outlook.change_s + load_s, outlook.restore_s) + outlook.steps_at_stake * step_s
        moves_s = option.moves_s * outlook.transfer_stretch
        second_s = outlook.change_s + outlook.decision_s  # after the step beside which state moved it is decided again
        if option.beside_s is not None:
            waits_s = second_s + max(0.0, max(option.beside_s, moves_s) - step_s)
        elif outlook.at_once or not moves_s:
            waits_s = max(0.0, option.wait_s + moves_s - option.moves_s)
        else:
            waits_s = second_s + max(0.0, max(before_s, moves_s) - step_s)
        return outlook.change_s + waits_s


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
