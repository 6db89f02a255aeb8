"""The policy of pipeline templates (Oobleck): templates once, then instances of them, whatever is left."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Self, TypeVar

from planaria.estimate import pipeline_rounds
from planaria.estimate.conditions import Conditions
from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.rest import Stretch
from planaria.estimate.step_time import Known, Outline, outline
from planaria.estimate.transition import wait_s
from planaria.plan.batch import Undistributable
from planaria.plan.compiled import numba_is_loaded
from planaria.plan.instantiate import initial_plan
from planaria.plan.ledger import Ledger
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.reconfigure import STEPS_AHEAD, Change, How, Reconfiguration, reconfigure
from planaria.plan.replicas import lacking
from planaria.plan.respeed import candidates
from planaria.plan.salvage import LayerHolders, left_undone
from planaria.plan.settings import PlannerSettings
from planaria.plan.speeds import Speeds
from planaria.plan.takeover import resume
from planaria.plan.templates import Template, make_templates
from planaria.plan.warm_up import warm_up
from planaria.plan.zones import Zones
from planaria.policy.finishing import quickest
from planaria.policy.outlook import Outlook
from planaria.policy.proposal import Proposal
from planaria.policy.reasons import begun, finished, taken_over, who_changes, why, why_at_speeds
from planaria.policy.shapes import Shapes
from planaria.policy.template_sets import other_sets
from planaria.policy.wording import size

_T = TypeVar("_T", Plan, Reconfiguration)

CLEARLY = 0.95
"""An instantiation that weighs compute alone is left for one that takes so much less, sums of gradients included."""


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
        self._conditions = Conditions(num_cores=settings.num_cores)
        self._known = Known()
        """Pipelines that were estimated before: most of a plan's are as in the one before."""
        self._shapes = Shapes()
        self.templates = make_templates(profile, settings)
        if numba_is_loaded():
            pipeline_rounds.load()  # now, as decisions are waited for
        if not self.templates:
            raise PlanError(
                f"No split onto {settings.min_nodes} nodes or more fits devices of {size(settings.memory_bytes)}. "
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
        policy._conditions = dataclasses.replace(self._conditions, node_speeds=policy._speeds)
        return policy

    def with_stretch(self, stretch: float) -> Self:
        """The same templates, where everything takes so many times longer than the profile says."""
        policy = copy.copy(self)
        policy._conditions = dataclasses.replace(self._conditions, stretch=stretch)
        return policy

    def with_zones(self, zones: Zones) -> Self:
        """The same templates, for nodes in these zones."""
        policy = copy.copy(self)
        policy._zones = dict(zones)
        return policy

    def with_fault_tolerance(self, fault_tolerance: int) -> Self:
        """The same templates, for plans of so many replicas and one."""
        policy = copy.copy(self)
        policy._settings = dataclasses.replace(self._settings, fault_tolerance=fault_tolerance)
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
        reason = begun(plan, len(set(nodes)), self._settings.fault_tolerance + 1)
        return self._proposal(plan, reason, 0, "initial")

    def _fastest(self, nodes: Sequence[NodeId], generation: int) -> Plan:
        """The fastest, as simulated, of the best instantiations of all templates and of other sets."""
        return self._clearly_fastest(
            self.instantiated(self.templates, nodes, generation),
            lambda templates, _: self.instantiated(templates, nodes, generation),
            lambda plan: plan,
            len(nodes),
        )

    def _clearly_fastest(
        self,
        first: _T,
        made: Callable[[Sequence[Template], float], _T | None],
        plan_of: Callable[[_T], Plan],
        num_nodes: int,
    ) -> _T:
        """The first, unless another set of templates makes one of as many nodes that is clearly faster.

        Args:
            first: by compute alone.
            made: of a set; None where its step takes no less than so long.
            plan_of: what was made.
            num_nodes: that are there.
        """
        best, plan = first, plan_of(first)
        least_s = CLEARLY * self._outline(plan).step_time_s
        seen, num_placed = {plan.pipelines}, len(plan.nodes)
        for templates in other_sets(self.templates, num_nodes, self._settings):
            try:
                found = made(templates, least_s)
            except PlanError:
                continue  # too few nodes for f + 1 pipelines of that size
            if found is None:
                continue
            plan = plan_of(found)
            if plan.pipelines in seen or len(plan.nodes) != num_placed:
                continue
            seen.add(plan.pipelines)
            seconds = self._outline(plan).step_time_s
            if seconds < least_s:
                best, least_s = found, seconds
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
            return why(plan, lost, result)
        return why_at_speeds(plan, lost, result, self._speeds)

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

    def ponder(self, plan: Plan, lost: Collection[NodeId], holders: Holders, *, at_once: bool = True) -> Iterator[None]:
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
        found = self._made_of(self.templates, plan, absent, holders, generation, leaving)
        return self._with_sums(found, plan, absent, holders, leaving)

    def _with_sums(
        self,
        found: Reconfiguration,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        leaving: Collection[NodeId],
    ) -> Reconfiguration:
        """Where the nodes are dealt out anew, the fastest as simulated; see `_clearly_fastest`."""
        if found.how is not How.INSTANTIATE:
            return found
        generation = found.plan.generation
        change = self.change(plan, lost, holders, generation, leaving)

        def step_s(one: Plan) -> float:
            return self._outline(one).step_time_s

        def made(templates: Sequence[Template], less_than_s: float) -> Reconfiguration | None:
            if not self._shapes.may_take_less(change, templates, less_than_s, step_s):
                return None
            return self._made_of(templates, plan, lost, holders, generation, leaving, search=True)

        return self._clearly_fastest(found, made, attrgetter("plan"), len(found.plan.nodes))

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
            return self._made_of(self.templates, plan, lost, holders, generation, leaving)
        return best

    def _made_of(
        self,
        templates: Sequence[Template],
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId],
        *,
        search: bool = False,
    ) -> Reconfiguration:
        """Whatever the speeds are."""
        return reconfigure(
            self._profile,
            templates,
            self._settings,
            plan,
            lost,
            holders,
            generation,
            leaving,
            search=search,
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
        reason = f"{who_changes(plan, target.plan)} after this step; what has to move moves beside it."
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
            return self._proposal(resumed, taken_over(plan, resumed, live), 0, "finish step")
        undone = left_undone(plan, live, halted, counted, holders, generation)
        found = quickest(undone, self._profile, self._conditions, so_far, self.fits)
        reason = finished(plan, found.plan, live, crosses=found.crosses)
        proposal = self._proposal(found.plan, reason, 0, "finish step")
        # What was left out of the step before has left every accumulator.
        rest_s = self._rest_s(proposal, so_far) if found.rest_s is None else found.rest_s
        return dataclasses.replace(proposal, dropped=plan.dropped, rest_s=rest_s)

    def _rest_s(self, finishing: Proposal, so_far: Sequence[Stretch]) -> float:
        """At least what runs again alone, and what a whole step takes longer than what has passed of it."""
        plan = finishing.plan
        again = tuple(route for route in plan.routes if route.born == plan.generation)
        alone_s = self._outline(plan.renewed(routes=again)).step_time_s if again else 0.0
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
