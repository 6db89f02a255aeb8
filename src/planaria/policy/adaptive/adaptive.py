"""The adaptive policy (Odyssey): after each change it asks the other policies, estimates each answer, takes the best.

Candidates come from the sources of `planaria.policy.adaptive.candidates`: going on without the lost (rerouting), new
pipelines from templates and from a search, shadows and rings (redundancy), the last checkpoint (morph), samples left
out where the job allows that. Where they can be, each also with split backwards, and with one step rerouted beside
which its state moves. The objective is Odyssey's Eq. 8, see `planaria.policy.adaptive.objective`. It makes no plan of
its own.

What the candidates are depends on the request alone, so it can be found out before (`precompute`); which is best
depends on the forecast, and takes no time. An answer that was prepared is the answer that would be given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from planaria.plan.costs.pipeline_time import Template
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.validate import lacking
from planaria.planner.finish_step.salvage import LayerHolders
from planaria.planner.placement.zones import zone_of
from planaria.policy.adaptive.candidates import found_in_pieces
from planaria.policy.adaptive.canonical import Canonical, canonical
from planaria.policy.adaptive.first_plan import MOST_TOLD, best_first
from planaria.policy.adaptive.new_pipelines import degraded, enough_nodes, fewer_replicas
from planaria.policy.adaptive.objective import Course, judged, peril_now, transition_s
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.drop import DropPolicy
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Pieces, Policy, ReplanRequest, result_of
from planaria.policy.planner import LEAN, Planner
from planaria.policy.sentences import join, time
from planaria.policy.templates import TemplatesPolicy

MOST_KEPT = 256
"""Answers that are kept. Nodes in equal places have one, so a cluster of a thousand needs some tens."""


@dataclass(eq=False)
class _Answers:
    """Answers to canonical requests, found and being found.

    Attributes:
        known: the answers that are known.
        under_way: an answer that is being prepared; the next request goes on where that stands.
    """

    known: dict[Hashable, Sequence[Candidate]] = field(default_factory=dict)
    under_way: dict[Hashable, Pieces[Sequence[Candidate]]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AdaptivePolicy(Policy):
    """Proposes what is best until the next loss. The rest of a step is as for the others; without what broken pipelines
    had, where samples are left out after it; and given up where the job is to go back.

    Attributes:
        forecast: of the time to come.
        answers: the answers that were prepared.
    """

    forecast: FailureForecast = field(default_factory=FailureForecast)
    answers: _Answers = field(default_factory=_Answers)

    @classmethod
    def of(cls, planner: Planner) -> Self:
        """Returns the policy for a job. Templates are made, and what sources of candidates need beside them.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        try:
            planner.prepared()
        except PlanError:
            if planner.settings.schedule is LEAN:
                raise
            planner = planner.variant(schedule=LEAN).prepared()
        _ = planner.sizes, planner.lean
        return cls(planner)

    def with_forecast(self, forecast: FailureForecast) -> Self:
        """Returns the same policy under this forecast."""
        return dataclasses.replace(self, forecast=forecast)

    def with_planner(self, planner: Planner) -> Self:
        """Returns the same policy for this planner. What was prepared is forgotten where nodes have other speeds or
        links; answers are known by the zones that they are for."""
        of_now = self.planner
        is_alike = planner.is_like(of_now)
        return dataclasses.replace(self, planner=planner, answers=self.answers if is_alike else _Answers())

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns the best of the templates' first plan, even sets of pipelines and grids, also with split backwards.

        Where the nodes left make no f + 1 pipelines, it has as many as they are enough for, or shadows.

        Raises:
            PlanError: too few nodes for one pipeline, or too few microbatches.
        """
        planner, sizes = self.planner, self.planner.sizes
        lean = planner.lean
        if lean is not None and not enough_nodes(planner, len(set(nodes))):
            planner, sizes = lean, lean.templates
        try:
            own = TemplatesPolicy(planner).initial(nodes, generation)
        except PlanError as refused:
            return self._of_fewer(planner, sizes, nodes, generation, refused)
        return best_first(planner, sizes, own, nodes, generation, self.forecast, self.planner)

    def _of_fewer(
        self,
        planner: Planner,
        sizes: Sequence[Template],
        nodes: Sequence[NodeId],
        generation: int,
        refused: PlanError,
    ) -> Candidate:
        """Returns a first plan of too few nodes for f + 1 pipelines. Raises PlanError, as refused: there is none."""
        for _, fewer in fewer_replicas(planner, len(set(nodes))):
            try:
                own = TemplatesPolicy(fewer).initial(nodes, generation)
            except PlanError:
                continue
            best = best_first(fewer, sizes, own, nodes, generation, self.forecast, self.planner)
            most_lost = self.planner.settings.fault_tolerance
            short = lacking(best.plan, most_lost, arrived=best.plan.redundancy is not None)
            if not short:
                return best
            reason = f"{best.reason} {degraded(min(short.values()), most_lost + 1)}"
            return dataclasses.replace(best, reason=reason, is_degraded=True)
        raise refused

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns the best of all candidates. Its state moves beside the candidate's `beside`, if it has one.

        Raises:
            TooFewNodes: nothing can be rerouted, and fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        asked = self._form(request)
        ranked, told, horizon = self._ranked(asked)
        return self._chosen(asked, ranked[0], told, horizon)

    def finishes(self, request: ReplanRequest) -> bool:
        """Returns False where the job is to go back to the last checkpoint: then the step is to be trained again
        anyway."""
        if not self.planner.settings.may_restore:
            return True
        best = self._first_choice(request)
        return best is None or not best.restores

    def finish_step(self, request: FinishRequest) -> Candidate:
        """Returns the usual rest, or without broken pipelines' samples where later steps leave them out too."""
        if self.planner.settings.may_drop and self._leaves_out(request.plan, request.live, request.holders):
            return DropPolicy(self.planner).finish_step(request)
        return super().finish_step(request)

    def _leaves_out(self, plan: Plan, live: Collection[WorkerId], layers: LayerHolders) -> bool:
        lost = sorted({plan.node_of(worker) for worker in plan.workers} - {plan.node_of(worker) for worker in live})
        groups = {
            held: tuple(g for g, group in enumerate(plan.groups) if not held.isdisjoint(group.layers))
            for held in {frozenset(own) for own in layers.values()}
        }
        holders = {worker: groups[frozenset(own)] for worker, own in layers.items()}
        best = self._first_choice(ReplanRequest(plan=plan, lost=lost, holders=holders))
        return best is not None and bool(best.dropped)

    def _first_choice(self, request: ReplanRequest) -> Candidate | None:
        """Returns what `reconfigure` would answer; None where it has no answer."""
        try:
            ranked, _, _ = self._ranked(self._form(request))
        except PlanError:
            return None
        return ranked[0]

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        """Precomputes the candidates for when these nodes are lost, each piece at most a simulated step."""
        policy = self.with_forecast(dataclasses.replace(self.forecast, at_once=at_once))
        try:
            yield from policy._found(policy._form(request))
        except PlanError:
            return  # it is found out as quickly when it is asked

    def _form(self, asked: ReplanRequest) -> Canonical:
        """Returns the canonical form of a request. Nodes keep their numbers where they differ in speed or zone, and
        where the plan is not for the next step: then it is compared with that of now."""
        are_alike = not (self.planner.speeds or self.planner.zones or self.planner.conditions.network)
        return canonical(asked, may_rename=self.forecast.at_once and are_alike)

    def _found(self, asked: Canonical) -> Pieces[Sequence[Candidate]]:
        """Finds the candidates for the canonical request. Raises PlanError: there is none."""
        settings, zones = self.planner.settings, self.planner.zones
        nodes = {NodeId(w // settings.devices_per_node) for w in asked.request.holders} if zones else ()
        key = asked.key, tuple((node, zone_of(zones, node)) for node in sorted(nodes))
        known, under_way = self.answers.known, self.answers.under_way
        if key in known:
            return known[key]
        if key not in under_way:
            under_way.clear()
            under_way[key] = found_in_pieces(self.planner, asked.request)
        try:
            found: Sequence[Candidate] | None = yield from under_way[key]
        finally:
            under_way.pop(key, None)
        if found is None:  # a request that could not wait brought it to its end
            found = known.get(key)
        if found is None:
            raise PlanError("There is no plan for the nodes that are left.")
        known[key] = found
        while len(known) > MOST_KEPT:
            del known[next(iter(known))]
        return found

    def _allowed(self, asked: Canonical, found: Sequence[Candidate], horizon: float) -> Sequence[Candidate]:
        """Returns the candidates that may be taken now. A degraded one only where no full one is possible: none at all,
        or none in time. State moves beside a step only where the plan is for the next step, and not twice in a row.

        Nothing is trained twice, and no more is left out, but after a loss. What does one of these is no reason not to
        go on degraded.
        """
        forecast = self.forecast
        may_wait = forecast.at_once and not forecast.is_prepared
        num_dropped = asked.request.plan.num_microbatches if forecast.after_loss else len(asked.asked.plan.dropped)
        possible = [
            candidate
            for candidate in found
            if (candidate.beside is None or may_wait)
            and (candidate.restored is None or (forecast.after_loss and forecast.at_once))
            and len(candidate.dropped) <= num_dropped
            and not (forecast.at_once and candidate.is_late)
        ]
        if not possible:
            raise PlanError("Only plans are left that train steps again or leave samples out, and nobody was lost.")
        full = [candidate for candidate in possible if not candidate.is_degraded]
        in_time = any(
            candidate.transfer_s * forecast.transfer_stretch < horizon or not forecast.at_once
            for candidate in full
            if candidate.restored is None and not candidate.dropped
        )
        return full if in_time else possible

    def _ranked(self, asked: Canonical) -> tuple[Sequence[Candidate], tuple[CandidateRecord, ...], float]:
        """Returns the candidates by what they are worth, their records, and the seconds over which that is so. Of
        equals the one with the shorter transition comes first, then the one of fewer bytes.

        Raises:
            PlanError: there is none.
        """
        found = result_of(self._found(asked))
        horizon = self.forecast.horizon_s(min(candidate.step_time_s for candidate in found))
        now = peril_now(asked.asked, self.planner.zones, self.forecast)
        found = self._allowed(asked, found, horizon)
        before_s = 0.0 if self.forecast.at_once else self.planner.step_s(asked.asked.plan)
        told = [self._judged(candidate, now, horizon, before_s) for candidate in found]
        order = sorted(
            range(len(found)),
            key=lambda at: (-told[at].samples_per_s, told[at].transition_s, told[at].transfer_bytes),
        )
        return [found[at] for at in order], tuple(told[at] for at in order), horizon

    def _judged(self, candidate: Candidate, peril_now: float, horizon: float, before_s: float) -> CandidateRecord:
        course = Course(
            step_time_s=candidate.step_time_s,
            transition_s=transition_s(candidate, self.forecast, before_s),
            peril_before=peril_now,
            peril=candidate.exposure.peril(self.forecast.nodes_together),
            loss_s=candidate.loss_s,
            is_degraded=candidate.is_degraded,
        )
        return judged(candidate, course, self.forecast, horizon, self.planner.profile.microbatch_size)

    def _chosen(
        self, asked: Canonical, best: Candidate, told: tuple[CandidateRecord, ...], horizon: float
    ) -> Candidate:
        """Returns the best candidate for the request as it was made, with its reason."""
        chosen = asked.answered(best)
        why = _comparison(told, horizon, self.forecast)
        beside = chosen.beside
        if beside is not None:
            beside = dataclasses.replace(beside, reason=f"{beside.reason} {why}", candidates=told)
        assert best.explain is not None, "candidates of sources have an explanation"
        reason = f"{best.explain(asked.asked, chosen.plan)} {why}"
        return dataclasses.replace(chosen, reason=reason, explain=None, candidates=told, beside=beside)


def _comparison(ranked: Sequence[CandidateRecord], horizon: float, forecast: FailureForecast) -> str:
    """Returns the sentence that says why the first was taken."""
    first, *others = ranked
    if not others:
        return f"Nothing but {first.name} is possible."
    until = "the next loss" if horizon >= forecast.time_to_failure_s else "the end"
    rivals = [f"{other.name} {other.samples_per_s:.4g}" for other in others[: MOST_TOLD - 1]]
    return (
        f"Chosen: {first.name}, {first.samples_per_s:.4g} samples/s over the {time(horizon)} to {until}. "
        f"Next best: {join(rivals)}."
    )
