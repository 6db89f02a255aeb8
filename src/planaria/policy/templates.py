"""The policy of pipeline templates (Oobleck): templates once, then instances of them, whatever is left."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self

import msgspec

from planaria.estimate.conditions import AS_PROFILED, Conditions
from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.rest import Stretch
from planaria.estimate.step_time import Known, Outline, outline
from planaria.estimate.transition import wait_s
from planaria.plan.batch import Undistributable
from planaria.plan.instantiate import initial_plan
from planaria.plan.ledger import Ledger
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.reconfigure import STEPS_AHEAD, Change, How, Reconfiguration, reconfigure
from planaria.plan.replicas import lacking
from planaria.plan.respeed import candidates
from planaria.plan.salvage import LayerHolders, left_undone
from planaria.plan.settings import PlannerSettings
from planaria.plan.speeds import Speeds, step_times
from planaria.plan.takeover import resume
from planaria.plan.templates import Template, make_templates
from planaria.plan.warm_up import warm_up
from planaria.plan.zones import Zones
from planaria.policy.finishing import quickest
from planaria.policy.outlook import Outlook
from planaria.policy.proposal import Proposal
from planaria.policy.wording import count as _count
from planaria.policy.wording import join as _join
from planaria.policy.wording import size as _bytes

CLEARLY = 0.95
"""An instantiation that weighs compute alone is left for one that takes so much less, sums of gradients included."""

MOST_EVEN = 8
"""Even sets that are estimated: so many of the best by compute, and as many of the fewest pipelines; of
hundreds of nodes fewer, as estimates take longer there."""


class TemplatesPolicy:
    """Proposes plans made of pipeline templates.

    Attributes:
        templates: made once, for every number of nodes that a pipeline may have.
    """

    def __init__(self, profile: ModelProfile, settings: PlannerSettings) -> None:
        """Make the templates.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        self._profile = profile
        self._settings = settings
        self._speeds: Speeds | None = None
        self._zones: Zones = {}
        self._conditions = AS_PROFILED
        self._known: Known = {}
        """Pipelines that were estimated before: most of a plan's are as in the one before."""
        self.templates = make_templates(profile, settings)
        if not self.templates:
            raise PlanError(
                f"No split onto {settings.min_nodes} nodes or more fits devices of {_bytes(settings.memory_bytes)}. "
                "Set a lower resilience.min_nodes_per_pipeline, or use devices with more memory."
            )

    @classmethod
    def like(cls, other: TemplatesPolicy) -> Self:
        """One with the same templates, for another one's use."""
        policy = object.__new__(cls)
        policy.__dict__.update(other.__dict__)
        return policy

    @property
    def profile(self) -> ModelProfile:
        """Costs."""
        return self._profile

    @property
    def speeds(self) -> Speeds | None:
        """Of nodes; None: all are as profiled."""
        return self._speeds

    @property
    def zones(self) -> Zones:
        """Of nodes, as far as they are known."""
        return self._zones

    @property
    def settings(self) -> PlannerSettings:
        """Of the job."""
        return self._settings

    def with_speeds(self, speeds: Speeds) -> Self:
        """The same templates, for nodes that compute so fast.

        Raises:
            PlanError: a speed that is none.
        """
        policy = copy.copy(self)
        policy._speeds = dict(speeds)
        policy._conditions = Conditions(node_speeds=policy._speeds)
        return policy

    def with_zones(self, zones: Zones) -> Self:
        """The same templates, for nodes in these zones."""
        policy = copy.copy(self)
        policy._zones = dict(zones)
        return policy

    def with_outlook(self, outlook: Outlook) -> Self:
        """The same policy: it makes the same plans at any time."""
        return self

    def estimated(self, plan: Plan) -> Proposal:
        """This very plan, with what it is thought to cost."""
        return self._proposal(plan, "The plan stays.", 0, "unchanged")

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Proposal:
        """A job's first plan, or the first after a restore.

        Raises:
            PlanError: too few nodes or microbatches.
        """
        plan = self._initial_plan(sorted(nodes), generation)
        sizes = Counter(len(_nodes(plan, pipeline)) for pipeline in plan.pipelines)
        shapes = _join([f"{count} of {_count(size, 'node')}" for size, count in sorted(sizes.items())])
        verb = "make" if len(set(nodes)) != 1 else "makes"
        reason = (
            f"{_count(len(set(nodes)), 'node')} {verb} {_count(len(plan.pipelines), 'pipeline')} ({shapes}), "
            f"the fastest way to keep {_count(self._settings.fault_tolerance + 1, 'replica')}."
        )
        return self._proposal(plan, reason, 0, "initial")

    def _fastest(self, nodes: Sequence[NodeId], generation: int) -> Plan:
        """The fastest, as simulated, of the best instantiations of all templates, those without the smallest, and those
        of even sizes.

        An instantiation weighs compute alone. The more pipelines there are, the longer their sums take, and the longer
        the less alike they are cut: where that counts, fewer, larger and even pipelines are faster.
        """
        best = self.instantiated(self.templates, nodes, generation)
        least_s = CLEARLY * self._outline(best).step_time_s
        seen = {best.pipelines}
        for templates in (*_without_smallest(self.templates), *even_sets(self.templates, len(nodes), self._settings)):
            try:
                plan = self.instantiated(templates, nodes, generation)
            except PlanError:
                continue  # too few nodes for f + 1 pipelines of that size
            if plan.pipelines in seen or len(plan.nodes) != len(best.nodes):
                continue
            seen.add(plan.pipelines)
            seconds = self._outline(plan).step_time_s
            if seconds < least_s:
                best, least_s = plan, seconds
        return best

    def instantiated(
        self, templates: Sequence[Template], nodes: Sequence[NodeId], generation: int, number: int | None = None
    ) -> Plan:
        """The first plan of these templates alone, by compute; of so many pipelines, where that is given.

        Raises:
            PlanError: too few nodes or microbatches.
        """
        return initial_plan(
            self._profile,
            templates,
            self._settings,
            nodes,
            generation,
            speeds=self._speeds,
            zones=self._zones,
            number=number,
        )

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """A plan for the next steps, after nodes were lost or came. See `planaria.plan.reconfigure`.

        Raises:
            TooFewNodes: fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        return self.reconfigured(plan, lost, self._reconfiguration(plan, lost, holders, generation, leaving))

    def reconfigured(self, plan: Plan, lost: Collection[NodeId], result: Reconfiguration) -> Proposal:
        """The proposal of this very reconfiguration."""
        reason = self.reason_of(plan, lost, result)
        return self._proposal(result.plan, reason, result.transfer_bytes, result.how.value, result.transfer_s)

    def reason_of(self, plan: Plan, lost: Collection[NodeId], result: Reconfiguration) -> str:
        """The sentence for a reconfiguration."""
        if self._speeds is None:
            return _why(plan, lost, result)
        return _why_at_speeds(plan, lost, result, self._speeds)

    def reconfigurations(
        self, plan: Plan, lost: Collection[NodeId], holders: Holders, generation: int, leaving: Collection[NodeId] = ()
    ) -> Iterator[Reconfiguration]:
        """The one that is taken under this policy, then the others that are worth an estimate and fit the memory.

        Raises:
            PlanError: there is none, see `reconfigure`.
        """
        first = self._reconfiguration(plan, lost, holders, generation, leaving)
        yield first
        try:
            others = candidates(self.change(plan, lost, holders, generation, leaving))
        except PlanError:  # more nodes than the microbatches are enough for; the first way leaves some idle
            return
        seen = {(first.plan.pipelines, first.plan.routes)}
        for found in others:
            if (found.plan.pipelines, found.plan.routes) not in seen and self.fits(found.plan):
                yield found

    def change(
        self, plan: Plan, lost: Collection[NodeId], holders: Holders, generation: int, leaving: Collection[NodeId] = ()
    ) -> Change:
        """What plans after it are made from."""
        return Change(
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

    def ponder(self, plan: Plan, lost: Collection[NodeId], holders: Holders) -> Iterator[None]:
        """Nothing: each question is answered when it is asked."""
        return iter(())

    def _initial_plan(self, nodes: Sequence[NodeId], generation: int) -> Plan:
        """Of more nodes than the job began with, as many as a step's microbatches are enough for."""
        while True:
            try:
                return self._fastest(nodes, generation)
            except Undistributable:
                if len(nodes) <= self._settings.num_nodes:
                    raise
                nodes = nodes[:-1]

    def _reconfiguration(
        self, plan: Plan, lost: Collection[NodeId], holders: Holders, generation: int, leaving: Collection[NodeId]
    ) -> Reconfiguration:
        """With every node, or as many as a step's microbatches are enough for. Those that came last are idle first."""
        try:
            return self._without(plan, tuple(lost), holders, generation, leaving)
        except Undistributable as error:
            too_many = error
        live = {plan.node_of(worker) for worker in holders} - set(lost) - set(leaving)
        placed = {plan.node_of(stage.worker) for stage in plan.stages()}
        order = sorted(live, key=lambda node: (node in placed, -node))
        for num_idle in range(1, len(order)):
            try:
                return self._without(plan, (*lost, *order[:num_idle]), holders, generation, leaving)
            except Undistributable as error:
                too_many = error
            except PlanError:
                break
        raise too_many

    def _without(
        self,
        plan: Plan,
        absent: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId],
    ) -> Reconfiguration:
        """With every node but the absent ones."""
        if self._speeds is not None:
            return self._at_speeds(plan, absent, holders, generation, leaving, self._speeds)
        found = self._as_ever(plan, absent, holders, generation, leaving)
        return self._with_sums(found, plan, absent, holders, leaving)

    def _with_sums(
        self,
        found: Reconfiguration,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        leaving: Collection[NodeId],
    ) -> Reconfiguration:
        """Where the nodes are dealt out anew, the fastest as simulated; see `_fastest`."""
        if found.how is not How.INSTANTIATE:
            return found
        generation, num_nodes = found.plan.generation, len(found.plan.nodes)
        least_s = CLEARLY * self._outline(found.plan).step_time_s
        seen = {found.plan.pipelines}
        for templates in (*_without_smallest(self.templates), *even_sets(self.templates, num_nodes, self._settings)):
            try:
                other = reconfigure(
                    self._profile,
                    templates,
                    self._settings,
                    plan,
                    lost,
                    holders,
                    generation,
                    leaving,
                    search=True,
                    zones=self._zones,
                )
            except PlanError:
                continue  # too few nodes for f + 1 pipelines of that size
            if other.plan.pipelines in seen or len(other.plan.nodes) != num_nodes:
                continue
            seen.add(other.plan.pipelines)
            seconds = self._outline(other.plan).step_time_s
            if seconds < least_s:
                found, least_s = other, seconds
        return found

    def _at_speeds(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId],
        speeds: Speeds,
    ) -> Reconfiguration:
        """Of the candidates that fit into memory, the one that takes least in the long run, as simulated."""
        change = dataclasses.replace(self.change(plan, lost, holders, generation, leaving), speeds=speeds)
        best: Reconfiguration | None = None
        least_s = float("inf")
        for found in candidates(change):
            seconds = STEPS_AHEAD * self._outline(found.plan).step_time_s + found.transfer_s
            if (best is None or seconds < least_s) and self.fits(found.plan):
                best, least_s = found, seconds
        if best is None:
            return self._as_ever(plan, lost, holders, generation, leaving)
        return best

    def _as_ever(
        self, plan: Plan, lost: Collection[NodeId], holders: Holders, generation: int, leaving: Collection[NodeId]
    ) -> Reconfiguration:
        """Whatever the speeds are."""
        return reconfigure(
            self._profile,
            self.templates,
            self._settings,
            plan,
            lost,
            holders,
            generation,
            leaving,
            zones=self._zones,
        )

    def fits(self, plan: Plan) -> bool:
        """Whether no device has to hold more than it may."""
        limit = self._settings.memory_bytes
        return not limit or fullest_device_bytes(plan, self._profile) <= limit

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        """One more step of `plan`, beside which the workers of `target` get their state; None where that would not fit
        into the devices' memory. See `planaria.plan.warm_up`.
        """
        new = warm_up(plan, target.plan, generation)
        if not self.fits(new):
            return None
        reason = f"{_changes(plan, target.plan)} after this step; what has to move moves beside it."
        proposal = self._proposal(new, reason, target.transfer_bytes, "warm up")
        # The plan in force may be another policy's, and lack replicas.
        short = lacking(new, self._settings.fault_tolerance)
        return dataclasses.replace(proposal, dropped=plan.dropped, is_degraded=bool(short))

    def finishes(self, plan: Plan, lost: Collection[NodeId], holders: Holders) -> bool:
        """Always: what is intact is not done twice."""
        return True

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
        """A plan to finish the step that a loss interrupted, where shadows cannot go on in the places of the lost
        (`planaria.plan.takeover`) as under every policy: see `planaria.policy.finishing`.

        Raises:
            NoReplica: a layer has no live holder.
        """
        resumed = resume(plan, live, halted, counted, holders, generation)
        if resumed is not None:
            return self._proposal(resumed, _taken_over(plan, resumed, live), 0, "finish step")
        undone = left_undone(plan, live, halted, counted, holders, generation)
        found = quickest(undone, self._profile, self._conditions, so_far, self.fits)
        new = found.plan
        added = [route for route in new.routes if route.born == generation]
        again = {microbatch for route in added for microbatch in route.microbatches}
        carriers = {hop.worker for route in added for hop in route.hops}
        lost = sorted({plan.node_of(worker) for worker in set(plan.workers) - set(live)})
        happened = _losses(plan, lost) or "The live nodes changed"
        if again:
            run = "runs" if len(again) == 1 else "run"
            what = (
                f"{_count(len(again), 'microbatch', 'microbatches')} of {plan.num_microbatches} {run} again, "
                f"where lost, on {_count(len(carriers), 'live worker')}"
                f"{', survivors of broken pipelines among them' if found.crosses else ''}"
            )
        else:
            what = "every microbatch is in a live accumulator or under way, so nothing runs again"
        proposal = self._proposal(new, f"{happened}; {what}.", 0, "finish step")
        # What was left out of the step before has left every accumulator.
        rest_s = self._rest_s(proposal, so_far) if found.rest_s is None else found.rest_s
        return dataclasses.replace(proposal, dropped=plan.dropped, rest_s=rest_s)

    def _rest_s(self, finishing: Proposal, so_far: Sequence[Stretch]) -> float:
        """At least what runs again alone, and what a whole step takes longer than what has passed of it."""
        plan = finishing.plan
        again = tuple(route for route in plan.routes if route.born == plan.generation)
        alone_s = self._outline(msgspec.structs.replace(plan, routes=again)).step_time_s if again else 0.0
        return max(alone_s, finishing.step_time_s - sum(stretch.seconds for stretch in so_far))

    def _outline(self, plan: Plan) -> Outline:
        return outline(plan, self._profile, self._conditions, self._known)

    def wait_s(self, plan: Plan, come_s: Mapping[WorkerId, float]) -> float:
        """By how much longer the plan's first step is, because these workers have their state so late."""
        return wait_s(plan, self._profile, come_s, self._conditions, self._known)

    def _proposal(self, plan: Plan, reason: str, transfer_bytes: int, how: str, transfer_s: float = 0.0) -> Proposal:
        step = self._outline(plan)
        return Proposal(
            plan=plan,
            reason=reason,
            step_time_s=step.step_time_s,
            transfer_bytes=transfer_bytes,
            longest_s=step.longest_instruction_s,
            how=how,
            transfer_s=transfer_s,
            compute_s=step.compute_s if not self._conditions.node_speeds else self._as_profiled(plan, step),
        )

    def _as_profiled(self, plan: Plan, step: Outline) -> dict[WorkerId, float]:
        """Seconds of each worker's compute, on a node as fast as the profile says."""
        speed = self._conditions.speed
        return {worker: seconds * speed(plan.node_of(worker)) for worker, seconds in step.compute_s.items()}


def _without_smallest(templates: Sequence[Template]) -> Iterator[Sequence[Template]]:
    """All but the first, all but the first two, four, and so on."""
    smallest = 1
    while smallest < len(templates):
        yield templates[smallest:]
        smallest *= 2


def even_sets(templates: Sequence[Template], num_nodes: int, settings: PlannerSettings) -> list[Sequence[Template]]:
    """For each number of pipelines the one or two sizes that share the nodes out evenly: a few, see `MOST_EVEN`."""
    known = {template.num_nodes: template for template in templates}
    found: list[tuple[float, int, Sequence[Template]]] = []
    most = min(num_nodes // templates[0].num_nodes, settings.num_microbatches)
    for number in range(max(2, settings.fault_tolerance + 1), most + 1):
        size, larger = divmod(num_nodes, number)
        sizes = (size, size + 1) if larger else (size,)
        if all(one in known for one in sizes):
            share = -(-settings.num_microbatches // number)
            seconds = float(step_times(known[size], settings.num_microbatches)[share - 1])
            found.append((seconds, number, [known[one] for one in sizes]))
    limit = max(1, min(MOST_EVEN, 512 // num_nodes))
    quickest = sorted(found, key=lambda one: one[:2])[:limit]
    fewest = [one for one in found[:limit] if one not in quickest]
    return [templates for _, _, templates in (*quickest, *fewest)]


def _changes(before: Plan, after: Plan) -> str:
    """Who comes and goes, as the beginning of a sentence."""
    parts = []
    come, go = set(after.nodes) - set(before.nodes), set(before.nodes) - set(after.nodes)
    for verb, nodes in (("join", come), ("leave", go)):
        if nodes:
            one = len(nodes) == 1
            parts.append(f"node{'' if one else 's'} {_join(sorted(nodes))} {verb}{'s' if one else ''}")
    text = _join(parts) or "the pipelines change"
    return text[:1].upper() + text[1:]


def _nodes(plan: Plan, pipeline: Pipeline) -> list[NodeId]:
    return sorted(pipeline.nodes(plan.devices_per_node))


def _losses(plan: Plan, lost: Collection[NodeId]) -> str:
    """Which pipeline lost which nodes, as the beginning of a sentence; empty when none did."""
    parts: list[str] = []
    away = set(lost)
    for at, pipeline in enumerate(plan.pipelines):
        gone = sorted(away.intersection(pipeline.nodes(plan.devices_per_node)))
        if gone:
            parts.append(f"pipeline {at} lost node{'s' if len(gone) > 1 else ''} {_join(gone)}")
        elif not pipeline.is_whole(plan.num_layers):
            parts.append(f"pipeline {at} is not whole")
    text = _join(parts)
    return text[:1].upper() + text[1:]


def _taken_over(plan: Plan, resumed: Plan, live: Collection[WorkerId]) -> str:
    """The sentence for a step in which shadows go on."""
    lost = sorted({plan.node_of(worker) for worker in set(plan.workers) - set(live)})
    left = {m for route in resumed.routes if route.reached is not None for m in route.microbatches}
    many = len(lost) > 1
    return (
        f"{'Nodes' if many else 'Node'} {_join(lost)} {'are' if many else 'is'} gone; "
        f"{'their predecessors take' if many else 'its predecessor takes'} over where "
        f"{_count(len(left), 'microbatch', 'microbatches')} of {plan.num_microbatches} "
        f"{'was' if len(left) == 1 else 'were'}, with all that survives of them."
    )


def _why(plan: Plan, lost: Collection[NodeId], result: Reconfiguration) -> str:
    """The sentence for a reconfiguration."""
    return f"{_losses(plan, lost) or 'The nodes changed'}; {_remedy(result)}; {_moved(result)}."


def _why_at_speeds(plan: Plan, lost: Collection[NodeId], result: Reconfiguration, speeds: Speeds) -> str:
    """The sentence for a plan that knows of speeds. Slow nodes that it does without live, and rest."""
    slow = {node: speed for node, speed in speeds.items() if speed != 1}
    told = [
        f"node{'s' if len(nodes) > 1 else ''} {_join(nodes)} at {speed:g}"
        for speed in sorted(set(slow.values()))
        if (nodes := sorted(node for node in slow if slow[node] == speed and node in result.plan.nodes))
    ]
    parts = [_losses(plan, [node for node in lost if node not in slow]) or "The nodes or their speeds changed"]
    if resting := sorted(node for node in slow if node not in result.plan.nodes):
        parts.append(f"slow node{'s' if len(resting) > 1 else ''} {_join(resting)} can be done without")
    with_whom = f"with {_join(told)} of the others' speed" if told else "with nodes of one speed"
    shares = Counter[tuple[tuple[int, int, int], ...]]()
    for route in result.plan.routes:
        shares[route.key] += len(route.microbatches)
    dealt = _join(list(shares.values()))
    return f"{'; '.join(parts)}; {with_whom}, the pipelines run {dealt} microbatches; {_moved(result)}."


def _remedy(result: Reconfiguration) -> str:
    plan = result.plan
    sizes = _join(sorted({len(_nodes(plan, plan.pipelines[at])) for at in result.rebuilt}))
    number = len(result.rebuilt)
    template = f"the {sizes}-node template" if "and" not in sizes else f"the {sizes}-node templates"
    if not number:
        return "the other pipelines go on as they are"
    made = f"{_count(number, 'pipeline')} {'are' if number > 1 else 'is'} made again from {template}"
    match result.how:
        case How.SIMPLE:
            return made
        case How.BORROW:
            return f"nodes are borrowed from larger pipelines, and {made}"
        case How.MERGE:
            return f"too few of its nodes are left and none can be borrowed, so it is merged: {made}"
        case How.INSTANTIATE:
            return f"the nodes are dealt out anew, and {made}"


def _moved(result: Reconfiguration) -> str:
    if not result.plan.transfers:
        return "no state has to move"
    layers = {layer for move in result.plan.transfers for layer in result.plan.groups[move.group].layers}
    moves = "move" if len(layers) > 1 else "moves"
    return f"{_count(len(layers), 'layer')} ({_bytes(result.transfer_bytes)}) {moves} from surviving replicas"
