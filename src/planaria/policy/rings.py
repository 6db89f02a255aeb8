"""Redundancy as a source of candidates (Bamboo): shadows in the places of the lost, and new rings.

A plan whose shadows compute goes on with them where workers are gone, and no state moves; pipelines of one depth, in
which each worker shadows its successor, are made anew. Both are plans of `RedundancyPolicy`; the depth of a new ring is
chosen here, in closed form, because one plan more is to be simulated for a question, and not one for every depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from operator import itemgetter

from planaria.plan.plan import NodeId, Plan, WorkerId, runs_of
from planaria.plan.replicas import lacking
from planaria.plan.reroute import left_over
from planaria.plan.ring import left_in_place
from planaria.plan.speeds import step_times
from planaria.plan.takeover import filled
from planaria.plan.templates import Template
from planaria.policy.question import Question
from planaria.policy.redundancy import REDUNDANCY, TAKEOVER, RedundancyPolicy, complete_nodes
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import FromPlanner, Offer
from planaria.policy.wording import shape

RING = "ring"
"""Pipelines of one depth are called so."""

FORWARD_SHARE = 1 / 3
"""Of a layer's work; what eager shadows compute is theirs of another stage, unless a bubble holds it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rings(FromPlanner[RedundancyPolicy]):
    """Takeovers and rings."""

    name: str = REDUNDANCY

    @classmethod
    def of(cls, planner: ReroutePolicy) -> Rings:
        """Of the planner's templates."""
        return cls(RedundancyPolicy.beside(planner))

    def offers(self, question: Question) -> Iterator[Offer | None]:
        live = complete_nodes(question.plan, question.holders, {*question.lost, *question.leaving})
        for plan, how in self._plans(question, live):
            if plan is None or not self._keeps(plan, question) or not self.planner.fits(plan):
                yield None
                continue
            yield None
            yield self._offer(plan, how)
            yield None

    def _keeps(self, plan: Plan, question: Question) -> bool:
        """Whether it has f + 1 replicas: from its first step on, or of a job that has shadows, once their state has
        come."""
        return not lacking(plan, self.planner.settings.fault_tolerance, arrived=question.plan.redundancy is not None)

    def first(self, nodes: Sequence[NodeId], generation: int) -> Offer | None:
        """A ring for a job to begin with, of the depth that is quickest in closed form; None where none fits."""
        shapes = self._all_shapes(len(nodes))
        if not shapes:
            return None
        _, template, number = min(shapes, key=itemgetter(0))
        plan = self.planner.first_ring(template, number, sorted(nodes), generation)
        if lacking(plan, self.planner.settings.fault_tolerance) or not self.planner.fits(plan):
            return None
        reason = f"{self.planner.made(plan, len(nodes))}."
        proposal = dataclasses.replace(self.planner.estimated(plan), reason=reason, how=REDUNDANCY)
        return Offer(name=self._called(RING, plan), proposal=proposal, explain=lambda asked, plan: reason)

    def _plans(self, question: Question, live: Sequence[NodeId]) -> Iterator[tuple[Plan | None, str]]:
        if question.plan.redundancy is not None:
            yield self._taken_over(question), TAKEOVER
        for template, number in self._shapes(question.plan, live):
            ring = self.planner.ring(
                question.plan,
                live,
                question.holders,
                question.plan.generation,
                question.leaving,
                template,
                number,
            )
            yield ring, REDUNDANCY

    def _taken_over(self, question: Question) -> Plan | None:
        """Everybody goes on with what he holds; None where some of a pipeline has nobody."""
        plan, holders = question.plan, question.holders
        held = {worker: plan.layers_held(groups) for worker, groups in holders.items()}
        left = left_over(plan, holders, {*question.lost, *question.leaving})
        pipelines = [filled(pipeline, held, plan.num_layers) for pipeline in left]
        if not 0 < len(pipelines) <= plan.num_microbatches or not all(p.is_whole(plan.num_layers) for p in pipelines):
            return None
        owned: dict[WorkerId, set[int]] = {}
        devices: dict[WorkerId, int] = {}
        for pipeline in pipelines:
            for stage in pipeline.stages:
                owned.setdefault(stage.worker, set()).update(stage.layers)
                devices[stage.worker] = max(devices.get(stage.worker, 0), stage.num_devices)
        shadows = [
            run for worker in owned for run in runs_of(worker, set(held[worker]) - owned[worker], devices[worker])
        ]
        times = [self.planner.times_of(pipeline) for pipeline in pipelines]
        return self.planner.of_pipelines(pipelines, times, tuple(shadows), plan.generation)

    def _shapes(self, plan: Plan, live: Sequence[NodeId]) -> list[tuple[Template, int]]:
        """Templates and numbers of pipelines: that of the ring in force, so far as there is one, and the quickest."""
        if plan.devices_per_node != self.planner.settings.devices_per_node:
            return []
        found = self._all_shapes(len(live))
        if not found:
            return []
        quickest = min(found, key=itemgetter(0))
        shapes = [quickest[1:]]
        if plan.redundancy is not None:
            kept = max(found, key=lambda one: (_num_in_place(plan, one[1], live), -one[0]))
            if kept[1] is not quickest[1] and _num_in_place(plan, kept[1], live):
                shapes.insert(0, kept[1:])
        return shapes

    def _all_shapes(self, num_nodes: int) -> list[tuple[float, Template, int]]:
        """Templates that keep f + 1 replicas, how many pipelines of each, and what a step takes so."""
        policy, settings = self.planner, self.planner.settings
        found: list[tuple[float, Template, int]] = []
        for template in policy.templates:
            number = min(num_nodes // template.num_nodes, settings.num_microbatches)
            if number < policy.least_pipelines(template.num_nodes):
                continue
            times = step_times(template, settings.num_microbatches)
            share = -(-settings.num_microbatches // number)
            found.append((float(times[share - 1]) + self._shadows_s(template, share), template, number))
        return found

    def _shadows_s(self, template: Template, share: int) -> float:
        """By how much a pipeline's step is longer than its template's, if no bubble holds what shadows compute."""
        kind, times = self.planner.settings.redundancy, step_times(template, self.planner.settings.num_microbatches)
        period_s = float(times[1] - times[0]) if len(times) > 1 else 0.0
        work = FORWARD_SHARE * kind.runs_forwards + (1 - FORWARD_SHARE) * kind.runs_backwards
        return max(0, share - template.num_nodes) * work * period_s

    def _offer(self, plan: Plan, how: str) -> Offer:
        moved = sum(move.moved_bytes(plan.groups[move.group]) for move in plan.transfers)
        proposal = dataclasses.replace(self.planner.estimated(plan), transfer_bytes=moved, how=how)

        def explain(asked: Question, plan: Plan) -> str:
            live = complete_nodes(asked.plan, asked.holders, {*asked.lost, *asked.leaving})
            if how == TAKEOVER:
                return self.planner.happened(asked.plan, plan, live)
            return self.planner.made_again(asked.plan, plan, live, moved)

        return Offer(name=self._called(TAKEOVER if how == TAKEOVER else RING, plan), proposal=proposal, explain=explain)

    def _called(self, kind: str, plan: Plan) -> str:
        return f"{self.name} ({kind}, {shape(plan)})"


def _num_in_place(plan: Plan, template: Template, live: Sequence[NodeId]) -> int:
    """Nodes that are where a ring of that template has them."""
    return sum(node is not None for ring in left_in_place(plan, template, live) for node in ring)
