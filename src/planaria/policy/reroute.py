"""The policy of data rerouting (ReCycle): after a loss, peers that own the same layers run what the dead did.

No state moves, so training goes on at once, slower by what the bubbles do not hold. Its plans may be degraded (some
layer with fewer than f + 1 replicas); then the sentence says so. It makes new pipelines, as templates do, where it
cannot reroute: some layer has no live owner, or the memory is short; and when nodes came that can end a degraded state
in no other way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.quantities import count, ranges, size
from planaria.plan.thresholds import WORTH_MOVING
from planaria.plan.validate import lacking
from planaria.planner.placement.transfers import moved
from planaria.planner.reroute.plans import Place, as_placed, carriers, left_over, places, with_place
from planaria.planner.reroute.routes import Detours, unowned
from planaria.policy.detour_search import Rerouted, detours_in_pieces
from planaria.policy.interface import Candidate, Pieces, Policy, ReplanRequest, result_of
from planaria.policy.planner import Planner
from planaria.policy.sentences import join, nodes_are, told
from planaria.policy.templates import TemplatesPolicy

REROUTE = "reroute"
"""The policy's name, as that of how a plan was made."""


_Rank = tuple[int, float, float, int]
"""The rank of a place: replicas still lacking then, the busiest worker's load, how uneven loads are, bytes to move."""


class ReroutePolicy(Policy):
    """Proposes plans on what is left. The first plan, and new pipelines after a loss, are those of templates."""

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns the first plan of templates."""
        return TemplatesPolicy(self.planner).initial(nodes, generation)

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns detours around nodes that are gone; nodes that came take the places of the lost.

        Raises:
            TooFewNodes: it cannot be rerouted, and fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        rerouted = result_of(self.on_what_is_left(request))
        came = nodes_without_place(request, left_over(request.plan, request.holders, request.absent))
        # A node that gave notice lives, and is named as lost when its time has come: it can still make a plan full.
        lives = {request.plan.node_of(worker) for worker in request.holders}
        can_be_full = bool(came) or not request.absent.isdisjoint(lives)
        is_wanting = rerouted is not None and rerouted.is_degraded and can_be_full
        idle = set() if rerouted is None else set(came).difference(rerouted.plan.nodes)
        if rerouted is not None and not is_wanting and not idle:
            return rerouted
        try:
            made = TemplatesPolicy(self.planner).reconfigure(request)
            if rerouted is None or is_wanting or made.step_time_s < WORTH_MOVING * rerouted.step_time_s:
                return made
            return rerouted
        except PlanError:
            if rerouted is None:
                rerouted = self.as_it_is(request)
            if rerouted is None:
                raise
            return rerouted

    def as_it_is(self, request: ReplanRequest) -> Candidate | None:
        """Returns the candidate of what is left going on, as nothing else is possible. None where that is not either.

        Though nodes came: they are too few for more pipelines. Or though of some layer no owner has the state in place:
        it comes before the step; or a worker that holds it beside the plan becomes an owner.
        """
        plan, holders = request.plan, request.holders
        left = left_over(plan, holders, request.absent)
        came = nodes_without_place(request, left)
        found = result_of(self._rerouted(request, left, came)) if came else None
        if found is not None:
            return found
        return result_of(self._rerouted(request, as_placed(plan, holders, request.absent), ()))

    def on_what_is_left(self, request: ReplanRequest) -> Pieces[Candidate | None]:
        """Finds detours around nodes that are gone, and places of the lost for nodes that came, with pauses.

        None where some layer would have no owner, nothing fits the memory, or nodes came and none has a place to take.
        """
        plan = request.plan
        left = left_over(plan, request.holders, request.absent)
        came = nodes_without_place(request, left)
        whole = all(pipeline.is_whole(plan.num_layers) for pipeline in left)
        has_place = not whole or not request.absent.isdisjoint(plan.nodes)
        if came and not has_place:
            return None
        return (yield from self._rerouted(request, left, came))

    def _rerouted(
        self, request: ReplanRequest, left: Sequence[Pipeline], came: Sequence[NodeId]
    ) -> Pieces[Candidate | None]:
        """Finds detours on these pipelines. None where some layer would have no owner, or nothing fits the memory."""
        planner, plan, holders = self.planner, request.plan, request.holders
        filled = self._filled(request, left, came)
        for pipelines in (filled, left) if filled != left else (left,):
            if not pipelines or unowned(pipelines, plan.num_layers):
                continue
            found = yield from detours_in_pieces(
                planner.profile, planner.settings, pipelines, request.generation, conditions=planner.conditions
            )
            if found is None:
                continue
            absent, leaving = request.absent, request.leaving
            sources = {w: g for w, g in holders.items() if plan.node_of(w) not in absent or plan.node_of(w) in leaving}
            return self._candidate(request, found, moved(found.plan, sources, leaving, plan.devices_of))
        return None

    def _filled(self, request: ReplanRequest, left: Sequence[Pipeline], came: Sequence[NodeId]) -> tuple[Pipeline, ...]:
        """Returns the pipelines with the nodes that came, each placed where it helps most, as long as one helps."""
        planner, per_node = self.planner, request.plan.devices_per_node
        pipelines, num_gaps = tuple(left), len(left)
        for node in came:
            now = self._rank(pipelines, 0)
            ranked: list[tuple[_Rank, int, tuple[Pipeline, ...]]] = []
            for place in places(pipelines, planner.profile, per_node):
                if not has_room(planner, place):
                    continue
                then = with_place(pipelines, place, node, per_node)
                rank = self._rank(then, lacking_bytes(request, place, node))
                is_gap = place.pipeline < num_gaps
                if is_gap or rank[:1] < now[:1] or rank[1] < 0.99 * now[1]:
                    ranked.append((rank, len(ranked), then))
            if ranked:
                pipelines = min(ranked)[2]
        return pipelines

    def _rank(self, pipelines: Sequence[Pipeline], size_bytes: int) -> _Rank:
        profile, settings = self.planner.profile, self.planner.settings
        nodes: list[set[int]] = [set() for _ in range(profile.num_layers)]
        for pipeline in pipelines:
            for stage in pipeline.stages:
                for layer in stage.layers:
                    nodes[layer].add(stage.worker // settings.devices_per_node)
        needed = settings.fault_tolerance + 1
        short = sum(max(0, needed - len(on)) for on in nodes)
        if not all(nodes):
            return short, float("inf"), float("inf"), size_bytes
        workers = (stage.worker for pipeline in pipelines for stage in pipeline.stages)
        speeds = {
            worker: self.planner.conditions.speed(NodeId(worker // settings.devices_per_node)) for worker in workers
        }
        detours = Detours(pipelines, StageCosts(profile), profile.num_layers, speeds=speeds)
        busiest, uneven = detours.deal(settings.num_microbatches).rank
        return short, busiest, uneven, size_bytes

    def _candidate(self, request: ReplanRequest, found: Rerouted, plan: Plan) -> Candidate:
        """Returns the candidate of a rerouted plan, with its reason."""
        candidate = Candidate.of(self.planner, plan, REROUTE, transfer_bytes=plan.moved_bytes)
        short = lacking(plan, self.planner.settings.fault_tolerance)
        candidate = dataclasses.replace(candidate, is_degraded=bool(short), gap=found.gap)
        return dataclasses.replace(candidate, reason=self.reason(request, candidate, plan))

    def reason(self, request: ReplanRequest, candidate: Candidate, plan: Plan) -> str:
        """Returns the sentence for a rerouted plan: `plan` after the request's, as the candidate has it."""
        most_lost = self.planner.settings.fault_tolerance
        short = lacking(plan, most_lost)
        parts = [_happened(request.plan, plan, request.absent), *_detours(plan, candidate.gap)]
        parts.append(
            f"{size(candidate.transfer_bytes)} of state move" if candidate.transfer_bytes else "no state moves"
        )
        parts.append(f"degraded: {_replicas(short, most_lost)}" if short else "")
        return told(*parts)


# Places for nodes that came


def nodes_without_place(request: ReplanRequest, left: Sequence[Pipeline]) -> list[NodeId]:
    """Returns the live nodes, all of their workers there, that have no place yet."""
    plan = request.plan
    workers: dict[NodeId, int] = {}
    for worker in request.holders:
        workers[plan.node_of(worker)] = workers.get(plan.node_of(worker), 0) + 1
    placed = {plan.node_of(stage.worker) for pipeline in left for stage in pipeline.stages}
    complete = {node for node, number in workers.items() if number == plan.devices_per_node}
    return sorted(complete - placed - request.absent)


def has_room(planner: Planner, place: Place) -> bool:
    """Returns whether one microbatch at a time fits beside the state."""
    limit, profile = planner.settings.memory_bytes, planner.profile
    costs = StageCosts(profile, planner.settings.schedule)
    return all(
        num_devices in profile.device_counts and (not limit or costs.memory_bytes(first, end, 1, num_devices) <= limit)
        for _, num_devices, first, end in place.parts
    )


def lacking_bytes(request: ReplanRequest, place: Place, node: NodeId) -> int:
    """Returns the bytes of state that the node would get in that place."""
    plan, lacks = request.plan, 0
    for stage in place.stages(node, plan.devices_per_node):
        held = set(request.holders.get(WorkerId(stage.worker), ()))
        lacks += sum(
            group.moved_bytes
            for number, group in enumerate(plan.groups)
            if number not in held and not set(group.layers).isdisjoint(stage.layers)
        )
    return lacks


# Sentences


def _happened(before: Plan, after: Plan, gone: Collection[NodeId]) -> str:
    lost = sorted(set(gone).intersection(before.nodes) - set(after.nodes))
    came = sorted(set(after.nodes) - set(before.nodes))
    parts = []
    for nodes, what in ((lost, "gone"), (came, "new")):
        if nodes:
            parts.append(nodes_are(nodes, what))
    broken = [at for at, pipeline in enumerate(after.pipelines) if not pipeline.is_whole(after.num_layers)]
    if not parts and broken:
        parts.append(f"{'pipelines' if len(broken) > 1 else 'pipeline'} {join(broken)} {_are(broken)} not whole")
    return join(parts) or "the nodes changed"


def _are(things: Sequence[object]) -> str:
    return "are" if len(things) > 1 else "is"


def _detours(plan: Plan, gap_share: float) -> Sequence[str]:
    carried = carriers(plan)
    if not carried:
        return ["the microbatches are dealt out over whole pipelines"]
    one = len(carried) == 1
    run = f"{count(len(carried), 'peer')} that {'owns' if one else 'own'} the same layers {'runs' if one else 'run'}"
    gap = f"a step takes at most {100 * gap_share:.0f}% longer than under the best routes" if gap_share >= 0.005 else ""
    return [f"{run} what is missing", gap]


def _replicas(short: dict[int, int], fault_tolerance: int) -> str:
    layers = sorted(short)
    where = join([f"{low}" if low + 1 == end else f"{low}-{end - 1}" for low, end in ranges(layers)])
    fewest = min(short.values())
    return (
        f"layer{'s' if len(layers) > 1 else ''} {where} {'have' if len(layers) > 1 else 'has'} "
        f"{'as few as ' if len(set(short.values())) > 1 else ''}{count(fewest, 'replica')} of {fault_tolerance + 1}"
    )
