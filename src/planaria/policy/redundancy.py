"""The policy of redundant computation (Bamboo): each worker shadows its successor, and takes over when that is lost.

All pipelines have one depth P, as many of them as the nodes are enough for, up to those of the job's start; nodes that
are left over wait in a standby queue. A lost worker's predecessor goes on in its place, inside the step and after it,
until a reconfiguration makes whole pipelines again (appendix A). That happens at once where a worker was lost together
with its shadow, and at the end of a step where the nodes that wait are enough to make the broken pipelines whole, or a
new one, or where some layer has fewer than f + 1 replicas left. Where no pipelines with shadows are possible that keep
f + 1 replicas within the memory, the policy makes do with templates, until there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from planaria.plan.costs.pipeline_time import Template, Times, step_times
from planaria.plan.costs.stage_costs import PipelineCost, StageCosts
from planaria.plan.errors import TooFewNodes
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, Stage, WorkerId
from planaria.plan.quantities import count, size
from planaria.plan.validate import lacking
from planaria.planner.finish_step.salvage import LayerHolders
from planaria.planner.finish_step.shadow_takeover import in_the_ring, taken_over, without_owned
from planaria.planner.instantiation.instantiate import place, plan_of
from planaria.planner.instantiation.microbatch_shares import distribute
from planaria.planner.placement.placement import Holders
from planaria.planner.placement.transfers import shadows_holding, transfers
from planaria.planner.rings import Lacks, left_in_place, refilled, ring_shadows, spread
from planaria.policy.interface import Candidate, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.sentences import join, nodes_are, told
from planaria.policy.templates import TemplatesPolicy

REDUNDANCY = "redundancy"
"""The name of how plans on whole pipelines of one depth were made."""

TAKEOVER = "takeover"
"""The name of how a plan was made in which predecessors have the places of the lost."""


@dataclass(frozen=True, eq=False)
class RedundancyPolicy(Policy):
    """Proposes plans with shadows that compute.

    Attributes:
        planner: its templates have room for shadows.
        depth: P, nodes of a pipeline.
        most_pipelines: D, never exceeded.
    """

    depth: int
    most_pipelines: int

    @classmethod
    def of(cls, planner: Planner) -> Self:
        """Returns the policy for a job: makes the templates, with room for shadows, and chooses P and D for the job's
        nodes.

        Raises:
            PlanError: no pipelines of one depth keep f + 1 replicas within the memory.
        """
        most_lost = planner.settings.fault_tolerance
        # A layer's owner and its shadow are two replicas, so fewer pipelines than f + 1 keep as many.
        shaped = planner.variant(shadows=True, fault_tolerance=most_lost - (most_lost + 1) // 2)
        planner = shaped.with_settings(fault_tolerance=most_lost)
        depth, most_pipelines = quickest_rings(planner, planner.settings.num_nodes)
        return cls(planner, depth, most_pipelines)

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns a job's first plan, or the first after a restore.

        Raises:
            PlanError: too few nodes or microbatches.
        """
        try:
            depth, number = self._shape_for(len(nodes))
            plan = first_rings(self.planner, self._template(depth), number, sorted(nodes), generation)
        except PlanError as refused:
            return self._without_shadows(refused, lambda policy: policy.initial(nodes, generation))
        return Candidate.of(self.planner, plan, "initial", told(*made(plan, len(set(nodes)))))

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns predecessors in the places of the lost, or whole pipelines again: see the module.

        Raises:
            TooFewNodes: fewer nodes are left than keep f + 1 replicas, with shadows or without.
            NoReplica: a group has no live holder.
        """
        live = request.complete_nodes
        standing = self._standing(request, live)
        if standing is not None and not self._is_due(request.plan, standing, live):
            found = self._taken_over(request, standing, live)
            if found is not None:
                return found
        try:
            return self._rebuilt(request, live)
        except PlanError as refused:
            return self._without_shadows(refused, lambda policy: policy.reconfigure(request))

    def _shape_for(self, num_nodes: int) -> tuple[int, int]:
        """Returns depth P and the number of pipelines, as many as can be and not more than D; another depth if those
        are too few.

        Raises:
            PlanError: there are none.
        """
        number = min(num_nodes // self.depth, self.most_pipelines)
        if number >= least_pipelines(self.planner, self.depth):
            return self.depth, number
        return quickest_rings(self.planner, num_nodes)

    def _template(self, depth: int) -> Template:
        return next(template for template in self.planner.templates if template.num_nodes == depth)

    def _without_shadows(self, refused: PlanError, propose: Callable[[TemplatesPolicy], Candidate]) -> Candidate:
        """Returns the templates' candidate of as many replicas. Raises PlanError, as refused: they make none either."""
        try:
            found = propose(TemplatesPolicy(self.planner.variant(shadows=False)))
        except PlanError:
            raise refused from None
        return dataclasses.replace(found, reason=f"{found.reason} Workers shadow nobody until rings fit again.")

    def _standing(self, request: ReplanRequest, live: Collection[NodeId]) -> tuple[Pipeline, ...] | None:
        """Returns the pipelines with predecessors in the places of the lost; None where one cannot go on so, or the
        plan is of another making."""
        plan = request.plan
        if plan.redundancy is not self.planner.settings.redundancy or plan.num_microbatches < len(plan.pipelines):
            return None
        layers: LayerHolders = {worker: plan.layers_held(groups) for worker, groups in request.holders.items()}
        workers = {worker for worker in plan.workers if plan.node_of(worker) in live}
        dropped = in_the_ring(plan, workers)
        found = taken_over(plan, workers, layers)
        if any(
            whole is None and pipeline not in dropped for pipeline, whole in zip(plan.pipelines, found, strict=True)
        ):
            return None
        return tuple(whole for whole in found if whole is not None) or None

    def _is_due(self, plan: Plan, standing: Sequence[Pipeline], live: Collection[NodeId]) -> bool:
        """Returns whether waiting nodes are enough to make all pipelines whole, or one more (appendix A, trigger a)."""
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
        self, request: ReplanRequest, standing: tuple[Pipeline, ...], live: Collection[NodeId]
    ) -> Candidate | None:
        """Returns the plan in which predecessors have the places of the lost, and no state moves. None where it has too
        few replicas (trigger b), or does not fit the memory."""
        plan, planner = request.plan, self.planner
        workers = {worker for worker in plan.workers if plan.node_of(worker) in live}
        shadows = tuple(
            shadow
            for shadow in without_owned(plan, standing, workers)
            if set(shadow.layers) <= set(plan.layers_held(request.holders.get(shadow.worker, ())))
        )
        new = on_pipelines(planner, standing, shadows, request.generation)
        if lacking(new, planner.settings.fault_tolerance) or not planner.fits(new):
            return None
        return Candidate.of(planner, new, TAKEOVER, happened(plan, new, live))

    def _rebuilt(self, request: ReplanRequest, live: Sequence[NodeId]) -> Candidate:
        """Returns whole pipelines, with as many nodes as can be where they were."""
        depth, number = self._shape_for(len(live))
        new = rings(self.planner, request, self._template(depth), number)
        reason = made_again(request.plan, new, live, new.moved_bytes)
        return Candidate.of(self.planner, new, REDUNDANCY, reason, transfer_bytes=new.moved_bytes)


# Shapes


def quickest_rings(planner: Planner, num_nodes: int) -> tuple[int, int]:
    """Returns depth and number of the pipelines that make the shortest step, within the memory; the depth that is
    asked for, where it can be had.

    Raises:
        PlanError: there are none.
    """
    settings = planner.settings
    best: tuple[tuple[bool, float], int, int] | None = None
    needed = 0
    for template in planner.templates:
        least = least_pipelines(planner, template.num_nodes)
        most = min(num_nodes // template.num_nodes, settings.most_pipelines)
        needed = min(needed or 1 << 30, least * template.num_nodes)
        # The user's depth is the only one, while it can be had.
        is_too_deep = bool(settings.min_nodes) and template.num_nodes > planner.templates[0].num_nodes
        is_asked_for = settings.shape is not None and template.num_nodes == settings.shape[1]
        if most < least or (is_too_deep and settings.shape is None):
            continue
        plan = _whole(planner, template, [NodeId(node) for node in range(most * template.num_nodes)], 1)
        if planner.fits(plan):
            rank = not is_asked_for, planner.step_s(plan)
            if best is None or rank < best[0]:
                best = rank, template.num_nodes, most
    if best is None:
        if needed > num_nodes:
            raise TooFewNodes(needed, num_nodes, least_pipelines(planner, planner.templates[0].num_nodes))
        raise PlanError(
            f"No pipelines of one depth on {count(num_nodes, 'node')} leave room for what workers compute of their "
            f'successors\' layers (resilience.redundancy = "{settings.redundancy}"). Use more nodes, or set '
            'resilience.redundancy = "lazy-lazy", which keeps least.'
        )
    return best[1], best[2]


def least_pipelines(planner: Planner, depth: int) -> int:
    """Returns how many pipelines keep f + 1 replicas: each has two of a layer, on different nodes, where depth > 1."""
    replicas = planner.settings.fault_tolerance + 1
    return replicas if depth == 1 else -(-replicas // 2)


# Plans


def first_rings(planner: Planner, template: Template, number: int, nodes: Sequence[NodeId], generation: int) -> Plan:
    """Returns so many whole pipelines of that template, for a job to begin with. Neighbours in a pipeline are in
    different zones if possible."""
    order = [node for ring in spread(nodes, number, template.num_nodes, planner.zones) for node in ring]
    return _whole(planner, template, order, generation)


def rings(planner: Planner, request: ReplanRequest, template: Template, number: int) -> Plan:
    """Returns so many whole pipelines of that template, with as many nodes as can be where they were."""
    plan, live, depth = request.plan, request.complete_nodes, template.num_nodes
    left = left_in_place(plan, template, live)
    placed = {node for ring in left for node in ring if node is not None}
    waiting = [node for node in live if node not in placed]
    found = refilled(left, number, depth, waiting, Lacks(plan, template, request.holders), planner.zones)
    assert found is not None, f"{len(live)} nodes are too few for {number} pipelines of {depth}"
    new = _whole(planner, template, [node for ring in found for node in ring], request.generation)
    return _with_transfers(new, plan, request.holders, live, request.leaving)


def on_pipelines(planner: Planner, pipelines: Sequence[Pipeline], shadows: tuple[Stage, ...], generation: int) -> Plan:
    """Returns a plan on these pipelines, in which some workers may have two places."""
    return _plan(planner, pipelines, [_times(planner, pipeline) for pipeline in pipelines], shadows, generation)


def _whole(planner: Planner, template: Template, nodes: Sequence[NodeId], generation: int) -> Plan:
    """Returns a plan on whole pipelines of that template, on nodes in order."""
    settings, depth = planner.settings, template.num_nodes
    per_node = settings.devices_per_node
    pipelines = [place(template, nodes[at : at + depth], per_node) for at in range(0, len(nodes), depth)]
    times = [step_times(template, settings.num_microbatches)] * len(pipelines)
    return _plan(planner, pipelines, times, ring_shadows(pipelines, per_node), generation)


def _plan(
    planner: Planner,
    pipelines: Sequence[Pipeline],
    times: Sequence[Times],
    shadows: tuple[Stage, ...],
    generation: int,
) -> Plan:
    settings = planner.settings
    plan = plan_of(pipelines, distribute(times, settings.num_microbatches), planner.profile, settings, generation)
    return msgspec.structs.replace(plan, shadows=shadows, redundancy=settings.redundancy)


def _times(planner: Planner, pipeline: Pipeline) -> Times:
    """Returns the times of a pipeline in which some workers have two places: its path, and a period for each further
    microbatch."""
    costs, settings = StageCosts(planner.profile), planner.settings
    busy: dict[WorkerId, float] = {}
    path = 0.0
    for before, stage in zip((None, *pipeline.stages[:-1]), pipeline.stages, strict=True):
        seconds = costs.compute_s(stage.first_layer, stage.end_layer, stage.num_devices)
        seconds /= planner.conditions.speed(NodeId(stage.worker // settings.devices_per_node))
        busy[stage.worker] = busy.get(stage.worker, 0.0) + seconds
        path += seconds
        if before is not None and before.worker != stage.worker:
            path += 2 * costs.link_s(stage.first_layer)
    return PipelineCost(path_s=path, period_s=max(busy.values())).times_s(settings.num_microbatches)


def _with_transfers(
    new: Plan, before: Plan, holders: Holders, live: Sequence[NodeId], leaving: Collection[NodeId]
) -> Plan:
    """Returns the plan with the transfers of the state that its workers lack. A worker without a place in it never
    hears of it, and can send nothing, except for nodes that leave; so the only live holders of a group that wait in the
    queue send as shadows."""
    there = {w: groups for w, groups in holders.items() if before.node_of(w) in live or before.node_of(w) in leaving}
    told = {w: g for w, g in there.items() if w in new.groups_of or new.node_of(w) in leaving}
    held = {group for groups in told.values() for group in groups}
    shadows = list(new.shadows)
    for worker, groups in sorted(there.items()):
        if worker not in told and not held.issuperset(groups):
            only = sorted(set(groups) - held)
            shadows += shadows_holding(new, worker, groups, only, before.devices_of.get(worker, 1))
            told[worker] = groups
            held.update(groups)
    new = msgspec.structs.replace(new, shadows=tuple(shadows))
    return msgspec.structs.replace(new, transfers=transfers(new, told))


# Sentences


def made(plan: Plan, num_nodes: int) -> Sequence[str]:
    """Returns what the plan is, as parts that make a sentence each."""
    depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
    idle = num_nodes - len(plan.nodes)
    waits = f"{count(idle, 'node')} {'wait' if idle > 1 else 'waits'} in the standby queue" if idle else ""
    what = "each worker shadows its successor" if depth > 1 else "each node can finish the next one's microbatches"
    return [f"{count(len(plan.pipelines), 'pipeline')} of depth {depth}", f"{what} ({plan.redundancy})", waits]


def made_again(before: Plan, after: Plan, live: Collection[NodeId], moved_bytes: int) -> str:
    """Returns the sentence for whole pipelines."""
    gone = sorted(set(before.nodes) - set(live))
    happened = nodes_are(gone, "gone") if gone else "the nodes changed"
    moves = f"{size(moved_bytes)} of state move" if moved_bytes else "no state moves"
    return told(happened, *made(after, len(live)), moves)


def happened(before: Plan, after: Plan, live: Collection[NodeId]) -> str:
    """Returns the sentence for pipelines in which predecessors have the places of the lost."""
    gone = sorted(set(before.nodes) - set(live))
    double = sorted({after.node_of(w) for p in after.pipelines for w in p.workers if p.workers.count(w) > 1})
    parts = [nodes_are(gone, "gone")] if gone else []
    if double:
        parts.append(
            f"{'nodes' if len(double) > 1 else 'node'} {join(double)}, which shadowed "
            f"{'their successors' if len(double) > 1 else 'its successor'}, "
            f"{'have' if len(double) > 1 else 'has'} both stages"
        )
        parts.append("no state moves")
        bare, stages = _bare(after), sum(len(pipeline.stages) for pipeline in after.pipelines)
        parts.append(f"{bare} of {stages} stages {'have' if bare != 1 else 'has'} no shadow until pipelines are whole")
    else:
        parts += ["the pipelines go on as they are", "no state moves"]
    return told(*parts)


def _bare(plan: Plan) -> int:
    """Returns the number of stages without a shadow."""
    return sum(
        not any(
            shadow.worker in pipeline.workers and set(stage.layers) <= set(shadow.layers) for shadow in plan.shadows
        )
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    )
