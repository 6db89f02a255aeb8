"""The policy of sample dropping: a pipeline that lost a node is suspended, and its share of the batch is left out.

Nothing runs again and nothing waits: the step of a loss commits with the microbatches of the whole pipelines, and so do
the steps after it, with the learning rate scaled by the effective batch. The survivors' replicas stay up to date, and
whole pipelines are made again of the parts of broken ones, and of nodes that come. Where no pipeline is whole, or as
many nodes live as the job was made for, it makes new pipelines as templates do, and nothing is left out.

It is the only policy that may leave samples out (Bamboo, section 3, compares itself with it), and its plans say which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import msgspec

from planaria.plan.errors import NoReplica
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError
from planaria.plan.quantities import count, size
from planaria.plan.validate import lacking
from planaria.planner.dropped_samples import (
    Parts,
    Pool,
    combined,
    finish_without,
    kept_shares,
    left_out,
    shares,
    suspended,
)
from planaria.planner.placement.transfers import transfers
from planaria.planner.reconfigure.rebalance_layers import pipeline_times
from planaria.planner.reroute.plans import Place, as_placed, left_over, places, with_place
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.reroute import has_room, lacking_bytes, nodes_without_place
from planaria.policy.sentences import join, nodes_are, told
from planaria.policy.templates import TemplatesPolicy

DROP = "drop"
"""The policy's name, as that of how a plan was made."""


class DropPolicy(Policy):
    """Proposes to go on with whole pipelines. First plans are those of templates; gaps are filled as for rerouting."""

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns the first plan of templates."""
        return TemplatesPolicy(self.planner).initial(nodes, generation)

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns a plan in which whole pipelines run their microbatches, and what nobody has is left out.

        Raises:
            TooFewNodes: no pipeline is whole, and fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        plan = request.plan
        left = left_over(plan, request.holders, request.absent)
        came = nodes_without_place(request, left)
        placed = {plan.node_of(stage.worker) for pipeline in left for stage in pipeline.stages}
        is_complete = len(placed) + len(came) >= self.planner.settings.num_nodes
        found = None if is_complete else on_whole_pipelines(self.planner, request, self._shares)
        if found is not None and not (came and (found.is_degraded or set(came) - set(found.plan.nodes))):
            return found
        try:
            return TemplatesPolicy(self.planner).reconfigure(request)
        except PlanError:
            found = found or on_whole_pipelines(self.planner, request, self._shares, anyway=True)
            if found is None:  # of a pipeline that is whole but for state that was on its way to it, others have it
                found = on_whole_pipelines(self.planner, request, self._shares, anyway=True, arrives=True)
            if found is None:
                raise
            return found

    def finish_step(self, request: FinishRequest) -> Candidate:
        """Returns the rest of a step without the microbatches of broken pipelines; as for templates where none is
        whole.

        Raises:
            NoReplica: a layer has no live holder.
        """
        plan, live = request.plan, request.live
        dropped = left_out(plan, live, request.halted)
        if dropped is None:
            return super().finish_step(request)
        new = finish_without(
            plan,
            dropped,
            live,
            request.halted,
            request.counted,
            request.holders,
            request.generation,
            self.planner.profile,
        )
        nodes = sorted({plan.node_of(worker) for worker in set(plan.workers) - set(live)})
        reason = told(nodes_are(nodes, "lost") if nodes else "the live nodes changed", *_left_out(new, "this step"))
        return dataclasses.replace(Candidate.of(self.planner, new, "finish step", reason), dropped=dropped)

    def _shares(self, plan: Plan, pipelines: Sequence[Pipeline]) -> Mapping[int, Pool]:
        """Returns the shares that these pipelines had, as far as they are whole."""
        settings = self.planner.settings
        times = {
            at: pipeline_times(
                pipeline,
                self.planner.profile,
                self.planner.speeds or {},
                plan.devices_per_node,
                settings.num_microbatches,
            )
            for at, pipeline in enumerate(pipelines)
            if pipeline.is_whole(plan.num_layers)
        }
        if not times:
            return {}
        return shares(kept_shares(plan, pipelines), times, settings.num_microbatches, len(plan.pipelines))


Shares = Callable[[Plan, Sequence[Pipeline]], Mapping[int, Pool]]
"""The microbatches of each whole pipeline, by its number, after a plan; none where no pipeline is to run any."""


def on_whole_pipelines(
    planner: Planner, request: ReplanRequest, given: Shares, *, anyway: bool = False, arrives: bool = False
) -> Candidate | None:
    """Returns a plan that goes on with whole pipelines alone, nodes that came in the gaps of others.

    None where nothing is broken or left out (but for `anyway`), no pipeline would be whole, or nothing fits the
    memory. With `arrives`, owners that have not got their state yet get it before the step.
    """
    plan, holders = request.plan, request.holders
    left = (as_placed if arrives else left_over)(plan, holders, request.absent)
    came = nodes_without_place(request, left)
    is_whole = all(pipeline.is_whole(plan.num_layers) for pipeline in left)
    if not anyway and is_whole and sum(map(len, kept_shares(plan, left).values())) == plan.num_microbatches:
        return None
    joined = combined(left, planner.profile)
    for parts in (_filled(planner, request, joined, came), joined, Parts(pipelines=tuple(left))):
        pools = given(plan, parts.pipelines)
        if not pools:
            continue
        new = suspended(plan, parts, pools, request.generation)
        told = {w: g for w, g in holders.items() if w in new.groups_of or plan.node_of(w) in set(request.leaving)}
        try:
            moves = transfers(new, told)
        except NoReplica:
            if not arrives:
                raise
            continue  # the worker that has it has no place in the plan, and can send nothing
        new = msgspec.structs.replace(new, schedule=planner.settings.schedule, transfers=moves)
        if planner.fits(new):
            reason = reason_for(planner, request, new, new.moved_bytes)
            candidate = Candidate.of(planner, new, DROP, reason, transfer_bytes=new.moved_bytes)
            short = lacking(new, planner.settings.fault_tolerance)
            return dataclasses.replace(candidate, is_degraded=bool(short), dropped=new.dropped)
    return None


def _filled(planner: Planner, request: ReplanRequest, parts: Parts, came: Sequence[NodeId]) -> Parts:
    """Returns the parts with the nodes that came in gaps of broken pipelines: where one makes a pipeline whole, if it
    can."""
    pipelines, per_node = parts.pipelines, request.plan.devices_per_node
    for node in came:
        ranked: list[tuple[tuple[int, int, int, int], tuple[Pipeline, ...]]] = []
        for number, place in enumerate(places(pipelines, planner.profile, per_node)):
            if place.pipeline < len(pipelines) and has_room(planner, place):
                then = with_place(pipelines, place, node, per_node)
                ranked.append((_gap_rank(request, then, place, node, number), then))
        if ranked:
            pipelines = min(ranked)[1]
    return dataclasses.replace(parts, pipelines=pipelines)


def _gap_rank(
    request: ReplanRequest, then: Sequence[Pipeline], place: Place, node: NodeId, number: int
) -> tuple[int, int, int, int]:
    """Returns the rank of a gap: broken pipelines, layers that the node's still lacks, bytes to move, and the order
    found."""
    num_layers = request.plan.num_layers
    broken = sum(not pipeline.is_whole(num_layers) for pipeline in then)
    has = sum(len(stage.layers) for stage in then[place.pipeline].stages)
    return broken, num_layers - has, lacking_bytes(request, place, node), number


def reason_for(planner: Planner, request: ReplanRequest, plan: Plan, moved_bytes: int) -> str:
    """Returns the sentence for `plan`, which leaves out what broken pipelines would run."""
    before = request.plan
    lost = sorted(request.absent.intersection(before.nodes))
    came = sorted(set(plan.nodes) - set(before.nodes))
    parts = [nodes_are(nodes, what) for nodes, what in ((lost, "gone"), (came, "new")) if nodes]
    moves = f"{size(moved_bytes)} of state move to who came" if moved_bytes else "no state moves"
    short = lacking(plan, planner.settings.fault_tolerance)
    degraded = "degraded: some layer has too few replicas" if short else ""
    return told(join(parts), *_left_out(plan, "every step"), moves, degraded)


def _left_out(plan: Plan, when: str) -> Sequence[str]:
    """Returns what a plan does with broken pipelines, as parts that make a sentence each."""
    broken = sum(not pipeline.is_whole(plan.num_layers) for pipeline in plan.pipelines)
    waits = f"{count(broken, 'pipeline')} that {'is' if broken == 1 else 'are'} not whole {_waits(broken)}"
    scale = plan.num_counted / plan.num_microbatches
    left_out = (
        f"no sample of {when} is left out"
        if not plan.dropped
        else (
            f"{len(plan.dropped)} of {plan.num_microbatches} microbatches of {when} are left out "
            f"(learning rate x {scale:.3g})"
        )
    )
    return [waits if broken else "", left_out]


def _waits(number: int) -> str:
    return "waits for nodes" if number == 1 else "wait for nodes"
