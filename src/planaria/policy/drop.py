"""The policy of sample dropping: a pipeline that lost a node is suspended, and its share of the batch is left out.

Nothing runs again and nothing waits: the step of a loss commits with the microbatches of the whole pipelines, and so do
the steps after it, with the learning rate scaled by the effective batch. The survivors' replicas stay up to date, and
whole pipelines are made again of the parts of broken ones, and of nodes that come. Where no pipeline is whole, or as
many nodes live as the job was made for, it makes new pipelines as templates do, and nothing is left out.

It is the only policy that may leave samples out (Bamboo, section 3, compares itself with it), and its plans say which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import msgspec

from planaria.estimate.rest import Stretch
from planaria.plan.dropping import Parts, Pool, combined, finish_without, kept_shares, left_out, shares, suspended
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.recut import pipeline_times
from planaria.plan.refill import Place, places, with_place
from planaria.plan.replicas import lacking
from planaria.plan.reroute import as_placed, left_over
from planaria.plan.salvage import LayerHolders
from planaria.plan.transfers import transfers
from planaria.policy.proposal import Proposal
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from planaria.policy.wording import count, join, nodes_are, size

DROP = "drop"
"""How a plan was made."""


class DropPolicy(ReroutePolicy):
    """Proposes to go on with whole pipelines. First plans are those of templates; gaps are filled as for rerouting."""

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """A plan for the next steps: whole pipelines run their microbatches, and what nobody has is left out.

        Raises:
            TooFewNodes: no pipeline is whole, and fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        gone = {*lost, *leaving}
        left = left_over(plan, holders, gone)
        came = self._came(plan, left, holders, gone)
        placed = {plan.node_of(stage.worker) for pipeline in left for stage in pipeline.stages}
        is_complete = len(placed) + len(came) >= self._settings.num_nodes
        question = plan, lost, holders, generation, leaving
        proposal = None if is_complete else self.on_whole_pipelines(*question)
        if proposal is not None and not (came and (proposal.is_degraded or set(came) - set(proposal.plan.nodes))):
            return proposal
        try:
            return TemplatesPolicy.reconfigure(self, *question)
        except PlanError:
            proposal = proposal or self.on_whole_pipelines(*question, anyway=True)
            if proposal is None:  # of a pipeline that is whole but for state that was on its way to it, others have it
                proposal = self.on_whole_pipelines(*question, anyway=True, arrives=True)
            if proposal is None:
                raise
            return proposal

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
        """The rest of a step without the microbatches of broken pipelines; as for templates where none is whole.

        Raises:
            NoReplica: a layer has no live holder.
        """
        dropped = left_out(plan, live, halted)
        if dropped is None:
            return super().finish_step(plan, live, halted, counted, holders, generation, so_far)
        new = finish_without(plan, dropped, live, halted, counted, holders, generation, self._profile)
        proposal = self._proposal(new, "", 0, "finish step")
        nodes = sorted({plan.node_of(worker) for worker in set(plan.workers) - set(live)})
        happened = f"{'Nodes' if len(nodes) > 1 else 'Node'} {join(nodes)} lost" if nodes else "The live nodes changed"
        return dataclasses.replace(proposal, reason=f"{happened}; {_left_out(new, 'this step')}.", dropped=dropped)

    def on_whole_pipelines(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
        *,
        anyway: bool = False,
        arrives: bool = False,
    ) -> Proposal | None:
        """To go on with whole pipelines alone, nodes that came in the gaps of others.

        None where nothing is broken or left out (but for `anyway`), no pipeline would be whole, or nothing fits the
        memory. With `arrives`, owners who have not got their state yet get it before the step.
        """
        gone = {*lost, *leaving}
        left = (as_placed if arrives else left_over)(plan, holders, gone)
        came = self._came(plan, left, holders, gone)
        is_whole = all(pipeline.is_whole(plan.num_layers) for pipeline in left)
        if not anyway and is_whole and sum(map(len, kept_shares(plan, left).values())) == plan.num_microbatches:
            return None
        joined = combined(left, self._profile, plan.devices_per_node)
        for parts in (self._filled_parts(plan, joined, came, holders), joined, Parts(pipelines=tuple(left))):
            given = self._given(plan, parts.pipelines)
            if not given:
                continue
            new = suspended(plan, parts, given, generation)
            told = {w: g for w, g in holders.items() if w in new.groups_of or plan.node_of(w) in set(leaving)}
            try:
                moves = transfers(new, told)
            except NoReplica:
                if not arrives:
                    raise
                continue  # who has it has no place in the plan, and can send nothing
            new = msgspec.structs.replace(new, schedule=self._settings.schedule, transfers=moves)
            if self.fits(new):
                return self._told(plan, new, gone)
        return None

    def _filled_parts(self, plan: Plan, parts: Parts, came: Sequence[NodeId], holders: Holders) -> Parts:
        """With the nodes that came in the gaps of broken pipelines: where one makes a pipeline whole, if it can."""
        pipelines = parts.pipelines
        for node in came:
            ranked: list[tuple[tuple[int, int, int, int], tuple[Pipeline, ...]]] = []
            for number, place in enumerate(places(pipelines, self._profile, plan.devices_per_node)):
                if place.pipeline < len(pipelines) and self._has_room(place):
                    then = with_place(pipelines, place, node, plan.devices_per_node)
                    ranked.append((self._gap_rank(plan, then, place, node, holders, number), then))
            if ranked:
                pipelines = min(ranked)[1]
        return dataclasses.replace(parts, pipelines=pipelines)

    def _gap_rank(
        self,
        plan: Plan,
        then: Sequence[Pipeline],
        place: Place,
        node: NodeId,
        holders: Holders,
        number: int,
    ) -> tuple[int, int, int, int]:
        """Broken pipelines, layers that the node's still lacks, bytes to move, and the order in which it was found."""
        broken = sum(not pipeline.is_whole(plan.num_layers) for pipeline in then)
        has = sum(len(stage.layers) for stage in then[place.pipeline].stages)
        return broken, plan.num_layers - has, self._lacking_bytes(plan, place, node, holders), number

    def _given(self, plan: Plan, pipelines: Sequence[Pipeline]) -> Mapping[int, Pool]:
        """The microbatches of each whole pipeline, by its number."""
        settings = self._settings
        times = {
            at: pipeline_times(
                pipeline,
                self._profile,
                self._speeds or {},
                plan.devices_per_node,
                settings.num_microbatches,
            )
            for at, pipeline in enumerate(pipelines)
            if pipeline.is_whole(plan.num_layers)
        }
        if not times:
            return {}
        return shares(kept_shares(plan, pipelines), times, settings.num_microbatches, len(plan.pipelines))

    def _told(self, before: Plan, plan: Plan, gone: Collection[NodeId]) -> Proposal:
        """The proposal, with its reason."""
        moved = sum(move.moved_bytes(plan.groups[move.group]) for move in plan.transfers)
        proposal = self._proposal(plan, self.reason_for(before, plan, gone, moved), moved, DROP)
        short = lacking(plan, self._settings.fault_tolerance)
        return dataclasses.replace(proposal, is_degraded=bool(short), dropped=plan.dropped)

    def reason_for(self, before: Plan, plan: Plan, gone: Collection[NodeId], moved_bytes: int) -> str:
        """The sentence for `plan`, which leaves out what broken pipelines would run, after `before`."""
        lost = sorted(set(gone).intersection(before.nodes))
        came = sorted(set(plan.nodes) - set(before.nodes))
        parts = [nodes_are(nodes, what) for nodes, what in ((lost, "gone"), (came, "new")) if nodes]
        happened = f"{join(parts)}; " if parts else ""
        moves = f"{size(moved_bytes)} of state move to who came" if moved_bytes else "no state moves"
        short = lacking(plan, self._settings.fault_tolerance)
        degraded = " Degraded: some layer has too few replicas." if short else ""
        reason = f"{happened}{_left_out(plan, 'every step')}, and {moves}.{degraded}"
        return reason[:1].upper() + reason[1:]


def _left_out(plan: Plan, when: str) -> str:
    """What a plan does with broken pipelines, for people."""
    broken = sum(not pipeline.is_whole(plan.num_layers) for pipeline in plan.pipelines)
    waits = f"{count(broken, 'pipeline')} that {'is' if broken == 1 else 'are'} not whole {_waits(broken)}, and "
    if not plan.dropped:
        return f"{waits if broken else ''}no sample of {when} is left out"
    scale = plan.num_counted / plan.num_microbatches
    return (
        f"{waits if broken else ''}{len(plan.dropped)} of {plan.num_microbatches} microbatches of {when} are left out "
        f"(learning rate x {scale:.3g})"
    )


def _waits(number: int) -> str:
    return "waits for nodes" if number == 1 else "wait for nodes"
