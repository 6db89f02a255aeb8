"""The policy of redundant computation (Bamboo): each worker shadows its successor, and takes over when that is lost.

All pipelines have one depth P, as many of them as the nodes are enough for, up to those of the job's start; nodes that
are left over wait in a standby queue. A lost worker's predecessor goes on in its place, inside the step and after it,
until a reconfiguration makes whole pipelines again (appendix A). That happens at once where a worker was lost together
with its shadow, and at the end of a step where the nodes that wait are enough to make the broken pipelines whole, or a
new one, or where some layer has fewer than f + 1 replicas left. Where no pipelines with shadows are possible that keep
f + 1 replicas within the memory, the policy makes do with templates, until there are.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Self

import msgspec
import numpy as np

from planaria.plan.batch import Times, distribute
from planaria.plan.costs import StageCosts
from planaria.plan.errors import TooFewNodes
from planaria.plan.instantiate import contiguous_routes, place
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, Stage, WorkerId, runs_of
from planaria.plan.profile import ModelProfile
from planaria.plan.replicas import lacking
from planaria.plan.ring import Lacks, left_in_place, refilled, ring_shadows, spread
from planaria.plan.salvage import LayerHolders
from planaria.plan.settings import PlannerSettings
from planaria.plan.sources import Holders
from planaria.plan.speeds import step_times
from planaria.plan.takeover import in_the_ring, taken_over, without_owned
from planaria.plan.templates import Template
from planaria.plan.transfers import transfers
from planaria.plan.zones import Zones
from planaria.policy.proposal import Proposal
from planaria.policy.templates import TemplatesPolicy
from planaria.policy.wording import capital, count, join, nodes_are, size

REDUNDANCY = "redundancy"
"""How plans on whole pipelines of one depth were made."""

TAKEOVER = "takeover"
"""How a plan was made in which predecessors have the places of the lost."""


class RedundancyPolicy(TemplatesPolicy):
    """Proposes plans with shadows that compute.

    Attributes:
        depth: P, nodes of a pipeline.
        most_pipelines: D, never exceeded.
    """

    def __init__(self, profile: ModelProfile, settings: PlannerSettings) -> None:
        """Make the templates, with room for shadows, and choose P and D for the job's nodes.

        Raises:
            PlanError: no pipelines of one depth keep f + 1 replicas within the memory.
        """
        # A layer's owner and its shadow are two replicas, so fewer pipelines than f + 1 keep as many.
        spared = (settings.fault_tolerance + 1) // 2
        shaped = dataclasses.replace(settings, shadows=True, fault_tolerance=settings.fault_tolerance - spared)
        super().__init__(profile, shaped)
        self._settings = dataclasses.replace(settings, shadows=True)
        self._zones: Zones = {}
        self._plain: list[TemplatesPolicy] = []
        """Without shadows, once that was needed; shared with those of other zones and speeds."""
        self.depth, self.most_pipelines = self._shape(settings.num_nodes)

    @classmethod
    def beside(cls, planner: TemplatesPolicy) -> Self:
        """One that makes rings of another one's templates, of the shapes that it is told. Those have no room set apart
        for shadows, so whether a plan fits is to be asked."""
        policy = cls.like(planner)
        policy._settings = dataclasses.replace(planner.settings, shadows=True)
        return policy

    def with_zones(self, zones: Zones) -> Self:
        """The same policy for nodes in these zones: neighbours in a pipeline are in different ones if possible."""
        policy = copy.copy(self)
        policy._zones = dict(zones)
        return policy

    # Shapes

    def _shape(self, num_nodes: int) -> tuple[int, int]:
        """Depth and number of the pipelines that make the shortest step, within the memory.

        Raises:
            PlanError: there are none.
        """
        best: tuple[float, int, int] | None = None
        needed = 0
        for template in self.templates:
            least = self.least_pipelines(template.num_nodes)
            most = min(num_nodes // template.num_nodes, self._settings.num_microbatches)
            needed = min(needed or 1 << 30, least * template.num_nodes)
            if most < least or self._is_too_deep(template):
                continue
            plan = self._planned(template, [NodeId(node) for node in range(most * template.num_nodes)], 1)
            if self.fits(plan):
                seconds = self._outline(plan).step_time_s
                if best is None or seconds < best[0]:
                    best = seconds, template.num_nodes, most
        if best is None:
            if needed > num_nodes:
                raise TooFewNodes(needed, num_nodes, self.least_pipelines(self.templates[0].num_nodes))
            raise PlanError(
                f"No pipelines of one depth on {count(num_nodes, 'node')} leave room for what workers compute of their "
                f'successors\' layers (resilience.redundancy = "{self._settings.redundancy}"). Use more nodes, or set '
                'resilience.redundancy = "lazy-lazy", which keeps least.'
            )
        return best[1], best[2]

    def _is_too_deep(self, template: Template) -> bool:
        """The user's depth is the only one, while it can be had."""
        return bool(self._settings.min_nodes) and template.num_nodes > self.templates[0].num_nodes

    def least_pipelines(self, depth: int) -> int:
        """That keep f + 1 replicas: of each layer two a pipeline, on different nodes, if it has more than one."""
        replicas = self._settings.fault_tolerance + 1
        return replicas if depth == 1 else -(-replicas // 2)

    def _template(self, depth: int) -> Template:
        return next(template for template in self.templates if template.num_nodes == depth)

    # Plans

    def _initial_plan(self, nodes: Sequence[NodeId], generation: int) -> Plan:
        depth, number = self._shape_for(len(nodes))
        return self.first_ring(self._template(depth), number, nodes, generation)

    def first_ring(self, template: Template, number: int, nodes: Sequence[NodeId], generation: int) -> Plan:
        """So many whole pipelines of that template, for a job to begin with."""
        order = [node for ring in spread(nodes, number, template.num_nodes, self._zones) for node in ring]
        return self._planned(template, order, generation)

    def _shape_for(self, num_nodes: int) -> tuple[int, int]:
        """Pipelines of depth P, as many as can be and not more than D; of another depth if those are too few.

        Raises:
            PlanError: there are none.
        """
        number = min(num_nodes // self.depth, self.most_pipelines)
        if number >= self.least_pipelines(self.depth):
            return self.depth, number
        return self._shape(num_nodes)

    def _planned(self, template: Template, nodes: Sequence[NodeId], generation: int) -> Plan:
        """Whole pipelines of that template, on nodes in order."""
        per_node, depth = self._settings.devices_per_node, template.num_nodes
        pipelines = [place(template, nodes[at : at + depth], per_node) for at in range(0, len(nodes), depth)]
        times = [step_times(template, self._settings.num_microbatches)] * len(pipelines)
        return self.of_pipelines(pipelines, times, ring_shadows(pipelines, per_node), generation)

    def of_pipelines(
        self, pipelines: Sequence[Pipeline], times: Sequence[Times], shadows: tuple[Stage, ...], generation: int
    ) -> Plan:
        profile, settings = self._profile, self._settings
        shares = distribute(times, settings.num_microbatches)
        return Plan(
            generation=generation,
            num_layers=profile.num_layers,
            num_microbatches=settings.num_microbatches,
            devices_per_node=settings.devices_per_node,
            groups=profile.groups,
            pipelines=tuple(pipelines),
            routes=contiguous_routes(pipelines, shares, profile.num_layers, generation),
            sync_epochs=(generation,) * len(profile.groups),
            shadows=shadows,
            redundancy=settings.redundancy,
            schedule=settings.schedule,
        )

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Proposal:
        """A job's first plan, or the first after a restore.

        Raises:
            PlanError: too few nodes or microbatches.
        """
        try:
            plan = self._initial_plan(sorted(nodes), generation)
        except PlanError as refused:
            return self._without_shadows(refused, lambda policy: policy.initial(nodes, generation))
        return self._proposal(plan, f"{self.made(plan, len(set(nodes)))}.", 0, "initial")

    def made(self, plan: Plan, num_nodes: int) -> str:
        """What the plan is, as the beginning of a sentence."""
        depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
        idle = num_nodes - len(plan.nodes)
        waits = f", and {count(idle, 'node')} {'wait' if idle > 1 else 'waits'} in the standby queue" if idle else ""
        what = "each worker shadows its successor" if depth > 1 else "each node can finish the next one's microbatches"
        return f"{count(len(plan.pipelines), 'pipeline')} of depth {depth}; {what} ({plan.redundancy}){waits}"

    # After a change

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """Predecessors in the places of the lost, or whole pipelines again: see the module.

        Raises:
            TooFewNodes: fewer nodes are left than keep f + 1 replicas, with shadows or without.
            NoReplica: a group has no live holder.
        """
        absent = {*lost, *leaving}
        live = complete_nodes(plan, holders, absent)
        standing = self._standing(plan, live, holders)
        if standing is not None and not self._is_due(plan, standing, live):
            proposal = self._taken_over(plan, standing, live, holders, generation)
            if proposal is not None:
                return proposal
        try:
            return self._rebuilt(plan, live, holders, generation, leaving)
        except PlanError as refused:
            return self._without_shadows(
                refused, lambda policy: policy.reconfigure(plan, lost, holders, generation, leaving)
            )

    def _without_shadows(self, refused: PlanError, propose: Callable[[TemplatesPolicy], Proposal]) -> Proposal:
        """What templates make of as many replicas. Raises PlanError, as refused: nothing either."""
        try:
            if not self._plain:
                self._plain.append(TemplatesPolicy(self._profile, dataclasses.replace(self._settings, shadows=False)))
            policy = self._plain[0].with_zones(self._zones).with_stretch(self._conditions.stretch)
            proposal = propose(policy if self._speeds is None else policy.with_speeds(self._speeds))
        except PlanError:
            raise refused from None
        return dataclasses.replace(proposal, reason=f"{proposal.reason} Workers shadow nobody until rings fit again.")

    def _standing(self, plan: Plan, live: Collection[NodeId], holders: Holders) -> tuple[Pipeline, ...] | None:
        """The pipelines with predecessors in the places of the lost; None where one cannot go on so, or the plan is of
        another making."""
        if plan.redundancy is not self._settings.redundancy or plan.num_microbatches < len(plan.pipelines):
            return None
        layers: LayerHolders = {worker: plan.layers_held(groups) for worker, groups in holders.items()}
        workers = {worker for worker in plan.workers if plan.node_of(worker) in live}
        dropped = in_the_ring(plan, workers)
        found = taken_over(plan, workers, layers)
        if any(
            whole is None and pipeline not in dropped for pipeline, whole in zip(plan.pipelines, found, strict=True)
        ):
            return None
        return tuple(whole for whole in found if whole is not None) or None

    def _is_due(self, plan: Plan, standing: Sequence[Pipeline], live: Collection[NodeId]) -> bool:
        """Whether the nodes that wait are enough to make all pipelines whole, or one more (appendix A, trigger a)."""
        placed = {plan.node_of(worker) for pipeline in standing for worker in pipeline.workers}
        if set(live) == placed:
            return False
        try:
            depth, number = self._shape_for(len(live))
        except PlanError:
            return False
        rings = left_in_place(plan, self._template(depth), live)
        if len(rings) < len(plan.pipelines):
            return True  # they are of another depth, for which there were too few nodes
        is_whole = all(node is not None for ring in rings for node in ring)
        return number > len(standing) or (number == len(standing) and not is_whole)

    def _taken_over(
        self,
        plan: Plan,
        standing: tuple[Pipeline, ...],
        live: Collection[NodeId],
        holders: Holders,
        generation: int,
    ) -> Proposal | None:
        """The plan in which predecessors have the places of the lost, and no state moves. None where it has too few
        replicas (trigger b), or does not fit the memory."""
        workers = {worker for worker in plan.workers if plan.node_of(worker) in live}
        shadows = tuple(
            shadow
            for shadow in without_owned(plan, standing, workers)
            if set(shadow.layers) <= set(plan.layers_held(holders.get(shadow.worker, ())))
        )
        new = self.of_pipelines(standing, [self.times_of(pipeline) for pipeline in standing], shadows, generation)
        if lacking(new, self._settings.fault_tolerance) or not self.fits(new):
            return None
        return self._proposal(new, self.happened(plan, new, live), 0, TAKEOVER)

    def times_of(self, pipeline: Pipeline) -> Times:
        """Of a pipeline in which some workers have two places: its path, and a period for each further microbatch."""
        costs = StageCosts(self._profile)
        busy: dict[WorkerId, float] = {}
        path = 0.0
        for before, stage in zip((None, *pipeline.stages[:-1]), pipeline.stages, strict=True):
            seconds = costs.compute_s(stage.first_layer, stage.end_layer, stage.num_devices)
            node = NodeId(stage.worker // self._settings.devices_per_node)
            seconds /= self._conditions.speed(node)
            busy[stage.worker] = busy.get(stage.worker, 0.0) + seconds
            path += seconds
            if before is not None and before.worker != stage.worker:
                path += 2 * costs.link_s(stage.first_layer)
        return path + np.arange(self._settings.num_microbatches, dtype=np.float64) * max(busy.values())

    def happened(self, before: Plan, after: Plan, live: Collection[NodeId]) -> str:
        gone = sorted(set(before.nodes) - set(live))
        double = sorted({after.node_of(w) for p in after.pipelines for w in p.workers if p.workers.count(w) > 1})
        parts = [nodes_are(gone, "gone")] if gone else []
        if double:
            parts.append(
                f"{'nodes' if len(double) > 1 else 'node'} {join(double)}, which shadowed "
                f"{'their successors' if len(double) > 1 else 'its successor'}, "
                f"{'have' if len(double) > 1 else 'has'} both stages, and no state moves"
            )
            bare, stages = _bare(after), sum(len(pipeline.stages) for pipeline in after.pipelines)
            parts.append(
                f"{bare} of {stages} stages {'have' if bare != 1 else 'has'} no shadow until pipelines are whole"
            )
        else:
            parts.append("the pipelines go on as they are, and no state moves")
        return f"{capital('; '.join(parts))}."

    def _rebuilt(
        self,
        plan: Plan,
        live: Sequence[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId],
    ) -> Proposal:
        """Whole pipelines, with as many nodes as can be where they were."""
        depth, number = self._shape_for(len(live))
        new = self.ring(plan, live, holders, generation, leaving, self._template(depth), number)
        moved = sum(move.moved_bytes(plan.groups[move.group]) for move in new.transfers)
        return self._proposal(new, self.made_again(plan, new, live, moved), moved, REDUNDANCY)

    def ring(
        self,
        plan: Plan,
        live: Sequence[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId],
        template: Template,
        number: int,
    ) -> Plan:
        """So many whole pipelines of that template, with as many nodes as can be where they were in `plan`."""
        depth = template.num_nodes
        rings = left_in_place(plan, template, live)
        placed = {node for ring in rings for node in ring if node is not None}
        waiting = [node for node in live if node not in placed]
        found = refilled(rings, number, depth, waiting, Lacks(plan, template, holders), self._zones)
        assert found is not None, f"{len(live)} nodes are too few for {number} pipelines of {depth}"
        new = self._planned(template, [node for ring in found for node in ring], generation)
        return _with_transfers(new, plan, holders, live, leaving)

    def made_again(self, before: Plan, after: Plan, live: Collection[NodeId], moved_bytes: int) -> str:
        """The sentence for whole pipelines."""
        gone = sorted(set(before.nodes) - set(live))
        happened = capital(nodes_are(gone, "gone")) if gone else "The nodes changed"
        moves = f"{size(moved_bytes)} of state move" if moved_bytes else "no state moves"
        return f"{happened}: {self.made(after, len(live))}; {moves}."


def _bare(plan: Plan) -> int:
    """Stages that nobody shadows."""
    return sum(
        not any(
            shadow.worker in pipeline.workers and set(stage.layers) <= set(shadow.layers) for shadow in plan.shadows
        )
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    )


def complete_nodes(plan: Plan, holders: Holders, absent: Collection[NodeId]) -> list[NodeId]:
    """Live nodes, all of whose workers there are."""
    workers: dict[NodeId, set[WorkerId]] = {}
    for worker in holders:
        workers.setdefault(plan.node_of(worker), set()).add(worker)
    driving: dict[NodeId, set[WorkerId]] = {}
    for worker in plan.workers:
        driving.setdefault(plan.node_of(worker), set()).add(worker)
    return sorted(
        node
        for node, there in workers.items()
        if node not in absent and (driving[node] <= there if node in driving else len(there) == plan.devices_per_node)
    )


def _with_transfers(
    new: Plan, before: Plan, holders: Holders, live: Sequence[NodeId], leaving: Collection[NodeId]
) -> Plan:
    """The plan, with the state that its workers lack. Who has no place in it never hears of it, and can send nothing,
    except for nodes that leave; so the only live holders of a group that wait in the queue send as shadows."""
    there = {w: groups for w, groups in holders.items() if before.node_of(w) in live or before.node_of(w) in leaving}
    told = {w: g for w, g in there.items() if w in new.groups_of or new.node_of(w) in leaving}
    held = {group for groups in told.values() for group in groups}
    shadows = list(new.shadows)
    for worker, groups in sorted(there.items()):
        if worker not in told and not held.issuperset(groups):
            shadows += runs_of(worker, new.layers_held(groups), before.devices_of.get(worker, 1))
            told[worker] = groups
            held.update(groups)
    new = msgspec.structs.replace(new, shadows=tuple(shadows))
    return msgspec.structs.replace(new, transfers=transfers(new, told))
