"""The policy of data rerouting (ReCycle): after a loss, peers that own the same layers run what the dead did.

No state moves, so training goes on at once, slower by what the bubbles do not hold. Its plans may be degraded (some
layer with fewer than f + 1 replicas); then the sentence says so. It makes new pipelines, as templates do, where it
cannot reroute: some layer has no live owner, or the memory is short; and when nodes came that can end a degraded state
in no other way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from planaria.plan.costs import StageCosts
from planaria.plan.detours import Detours, unowned
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.refill import Place, places, with_place
from planaria.plan.replicas import lacking
from planaria.plan.reroute import as_placed, carriers, left_over
from planaria.plan.transfers import moved
from planaria.policy.detour_search import Rerouted, detours_in_pieces
from planaria.policy.pieces import Pieces, finished
from planaria.policy.proposal import Proposal
from planaria.policy.templates import TemplatesPolicy
from planaria.policy.wording import count, join, nodes_are, size

REROUTE = "reroute"
"""How a plan was made."""

WORTH_MOVING = 0.99
"""New pipelines are made where nodes that came have no place otherwise, and steps take so much less with them."""

_Rank = tuple[int, float, float, int]
"""Of a place: replicas that are still lacking then, the busiest worker's load, how uneven loads are, bytes to move."""


class ReroutePolicy(TemplatesPolicy):
    """Proposes plans on what is left. The first plan, and the rest of a step after a loss, are those of templates."""

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """A plan for the next steps: detours around those who are gone; nodes that came take the places of the lost.

        Raises:
            TooFewNodes: it cannot be rerouted, and fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        gone = {*lost, *leaving}
        left = left_over(plan, holders, gone)
        came = self._came(plan, left, holders, gone)
        rerouted = self.on_what_is_left(plan, lost, holders, generation, leaving)
        # Who gave notice lives, and is named as lost when its time has come: it can still make the next plan full.
        lives = {plan.node_of(worker) for worker in holders}
        can_be_full = bool(came) or not gone.isdisjoint(lives)
        is_wanting = rerouted is not None and rerouted.is_degraded and can_be_full
        idle = set() if rerouted is None else set(came).difference(rerouted.plan.nodes)
        if rerouted is not None and not is_wanting and not idle:
            return rerouted
        try:
            made = super().reconfigure(plan, lost, holders, generation, leaving)
            if rerouted is None or is_wanting or made.step_time_s < WORTH_MOVING * rerouted.step_time_s:
                return made
            return rerouted
        except PlanError:
            if rerouted is None:
                rerouted = self.as_it_is(plan, lost, holders, generation, leaving)
            if rerouted is None:
                raise
            return rerouted

    def as_it_is(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal | None:
        """What is left goes on, as nothing else is possible. None where that is not either.

        Though nodes came: they are too few for more pipelines. Or though of some layer no owner has the state in place:
        it comes to him before the step; or who holds it beside the plan becomes an owner.
        """
        gone = {*lost, *leaving}
        left = left_over(plan, holders, gone)
        came = self._came(plan, left, holders, gone)
        found = finished(self._rerouted(plan, left, came, holders, generation, gone, leaving)) if came else None
        if found is not None:
            return found
        placed = as_placed(plan, holders, gone)
        return finished(self._rerouted(plan, placed, (), holders, generation, gone, leaving))

    def on_what_is_left(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal | None:
        """Detours around those who are gone, and nodes that came in the places of the lost.

        None where some layer would have no owner, nothing fits the memory, or nodes came and none has a place to take.
        """
        return finished(self.on_what_is_left_in_pieces(plan, lost, holders, generation, leaving))

    def on_what_is_left_in_pieces(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Pieces[Proposal | None]:
        """`on_what_is_left`, with pauses."""
        gone = {*lost, *leaving}
        left = left_over(plan, holders, gone)
        came = self._came(plan, left, holders, gone)
        whole = all(pipeline.is_whole(plan.num_layers) for pipeline in left)
        has_place = not whole or not gone.isdisjoint(plan.nodes)
        if came and not has_place:
            return None
        return (yield from self._rerouted(plan, left, came, holders, generation, gone, leaving))

    def _came(self, plan: Plan, left: Sequence[Pipeline], holders: Holders, absent: Collection[NodeId]) -> list[NodeId]:
        """The live nodes, all of their workers there, that have no place yet."""
        workers: dict[NodeId, int] = {}
        for worker in holders:
            workers[plan.node_of(worker)] = workers.get(plan.node_of(worker), 0) + 1
        placed = {plan.node_of(stage.worker) for pipeline in left for stage in pipeline.stages}
        complete = {node for node, number in workers.items() if number == plan.devices_per_node}
        return sorted(complete - placed - set(absent))

    def _rerouted(
        self,
        plan: Plan,
        left: Sequence[Pipeline],
        came: Sequence[NodeId],
        holders: Holders,
        generation: int,
        gone: Collection[NodeId],
        leaving: Collection[NodeId],
    ) -> Pieces[Proposal | None]:
        """None where some layer would have no owner, or nothing fits the memory."""
        filled = self._filled(plan, left, came, holders)
        for pipelines in (filled, left) if filled != left else (left,):
            if not pipelines or unowned(pipelines, plan.num_layers):
                continue
            found = yield from detours_in_pieces(
                self._profile, self._settings, pipelines, generation, conditions=self._conditions
            )
            if found is None:
                continue
            sources = {w: g for w, g in holders.items() if plan.node_of(w) not in gone or plan.node_of(w) in leaving}
            return self._sentence(plan, found, moved(found.plan, sources, leaving, plan.devices_of), gone)
        return None

    def _filled(
        self, plan: Plan, left: Sequence[Pipeline], came: Sequence[NodeId], holders: Holders
    ) -> tuple[Pipeline, ...]:
        """The pipelines with the nodes that came, each in the place where it helps most, as long as one helps."""
        pipelines, num_gaps = tuple(left), len(left)
        for node in came:
            now = self._rank(pipelines, 0)
            ranked: list[tuple[_Rank, int, tuple[Pipeline, ...]]] = []
            for place in places(pipelines, self._profile, plan.devices_per_node):
                if not self._has_room(place):
                    continue
                then = with_place(pipelines, place, node, plan.devices_per_node)
                rank = self._rank(then, self._lacking_bytes(plan, place, node, holders))
                is_gap = place.pipeline < num_gaps
                if is_gap or rank[:1] < now[:1] or rank[1] < 0.99 * now[1]:
                    ranked.append((rank, len(ranked), then))
            if ranked:
                pipelines = min(ranked)[2]
        return pipelines

    def _rank(self, pipelines: Sequence[Pipeline], size_bytes: int) -> _Rank:
        nodes: list[set[int]] = [set() for _ in range(self._profile.num_layers)]
        for pipeline in pipelines:
            for stage in pipeline.stages:
                for layer in stage.layers:
                    nodes[layer].add(stage.worker // self._settings.devices_per_node)
        needed = self._settings.fault_tolerance + 1
        short = sum(max(0, needed - len(on)) for on in nodes)
        if not all(nodes):
            return short, float("inf"), float("inf"), size_bytes
        workers = (stage.worker for pipeline in pipelines for stage in pipeline.stages)
        speeds = {
            worker: self._conditions.speed(NodeId(worker // self._settings.devices_per_node)) for worker in workers
        }
        detours = Detours(pipelines, StageCosts(self._profile), self._profile.num_layers, speeds=speeds)
        busiest, uneven = detours.deal(self._settings.num_microbatches).rank
        return short, busiest, uneven, size_bytes

    def _has_room(self, place: Place) -> bool:
        """Whether one microbatch at a time fits beside the state."""
        limit = self._settings.memory_bytes
        costs = StageCosts(self._profile, self._settings.schedule)
        return all(
            num_devices in self._profile.device_counts
            and (not limit or costs.memory_bytes(first, end, 1, num_devices) <= limit)
            for _, num_devices, first, end in place.parts
        )

    def _lacking_bytes(self, plan: Plan, place: Place, node: NodeId, holders: Holders) -> int:
        """Of state that the node would get."""
        lacks = 0
        for stage in place.stages(node, plan.devices_per_node):
            held = set(holders.get(WorkerId(stage.worker), ()))
            lacks += sum(
                group.moved_bytes
                for number, group in enumerate(plan.groups)
                if number not in held and not set(group.layers).isdisjoint(stage.layers)
            )
        return lacks

    def _sentence(self, before: Plan, found: Rerouted, plan: Plan, gone: Collection[NodeId]) -> Proposal:
        """The proposal, with its reason."""
        moved = sum(move.moved_bytes(plan.groups[move.group]) for move in plan.transfers)
        proposal = self._proposal(plan, "", moved, REROUTE)
        short = lacking(plan, self._settings.fault_tolerance)
        proposal = dataclasses.replace(proposal, is_degraded=bool(short), gap=found.gap)
        return dataclasses.replace(proposal, reason=self.reason(before, gone, proposal, plan))

    def reason(self, before: Plan, gone: Collection[NodeId], proposal: Proposal, plan: Plan) -> str:
        """The sentence for a rerouted plan: `plan` after `before`, as the proposal has it."""
        short = lacking(plan, self._settings.fault_tolerance)
        reason = f"{_happened(before, plan, gone)}; {_detours(plan, proposal.gap)}"
        if proposal.transfer_bytes:
            reason += f", and {size(proposal.transfer_bytes)} of state move"
        else:
            reason += ", and no state moves"
        if short:
            reason += f". Degraded: {_replicas(short, self._settings.fault_tolerance)}"
        return f"{reason}."


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
    text = join(parts) or "the nodes changed"
    return text[:1].upper() + text[1:]


def _are(things: Sequence[object]) -> str:
    return "are" if len(things) > 1 else "is"


def _detours(plan: Plan, gap_share: float) -> str:
    carried = carriers(plan)
    if not carried:
        return "the microbatches are dealt out over whole pipelines"
    gap = f" (a step at most {100 * gap_share:.0f}% longer than the best possible)" if gap_share >= 0.005 else ""
    owns = "owns" if len(carried) == 1 else "own"
    return f"{count(len(carried), 'peer')} that {owns} the same layers run what is missing{gap}"


def _replicas(short: dict[int, int], fault_tolerance: int) -> str:
    layers = sorted(short)
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    where = join([f"{low}" if low == high else f"{low}-{high}" for low, high in runs])
    fewest = min(short.values())
    return (
        f"layer{'s' if len(layers) > 1 else ''} {where} {'have' if len(layers) > 1 else 'has'} "
        f"{'as few as ' if len(set(short.values())) > 1 else ''}{count(fewest, 'replica')} of {fault_tolerance + 1}"
    )
