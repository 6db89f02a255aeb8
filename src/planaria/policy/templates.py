"""The policy of pipeline templates (Oobleck): templates once, then instances of them, whatever is left.

An instantiation weighs compute alone. The more pipelines there are, the longer their sums take, and the longer the less
alike they are cut: where that counts, fewer, larger and even pipelines are faster. So other sets of templates are tried
beside all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from planaria.plan.costs.pipeline_time import NodeSpeeds, Template, step_times
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import OTHER_SET_CLEARLY
from planaria.planner.instantiation.microbatch_shares import Undistributable
from planaria.planner.reconfigure.reconfigure import STEPS_AHEAD, How, Reconfiguration, reconfigure
from planaria.planner.reconfigure.straggler_plans import candidates
from planaria.policy.interface import Candidate, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.sentences import begun, why, why_at_speeds

_T = TypeVar("_T", Plan, Reconfiguration)

MOST_EVEN = 8
"""Even sets that are estimated: so many of the best by compute, and as many of the fewest pipelines; of
hundreds of nodes fewer, as estimates take longer there."""


class TemplatesPolicy(Policy):
    """Proposes plans made of pipeline templates."""

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns a job's first plan, or the first after a restore.

        Raises:
            PlanError: too few nodes or microbatches.
        """
        plan = self._initial_plan(sorted(nodes), generation)
        reason = begun(plan, len(set(nodes)), self.planner.settings.fault_tolerance + 1)
        return Candidate.of(self.planner, plan, "initial", reason)

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns a plan for the next steps, after nodes were lost or came (`planner.reconfigure`).

        Raises:
            TooFewNodes: fewer than (f + 1) n0 nodes are left.
            NoReplica: a group has no live holder.
        """
        return reconfigured(self.planner, request, self._reconfiguration(request))

    def reconfigurations(self, request: ReplanRequest) -> Iterator[Reconfiguration]:
        """Yields the reconfiguration of this policy, then the others that are worth an estimate and fit the memory.

        Raises:
            PlanError: there is none, see `reconfigure`.
        """
        first = self._reconfiguration(request)
        yield first
        try:
            others = candidates(request.change(self.planner))
        except PlanError:  # more nodes than the microbatches are enough for; the first way leaves some idle
            return
        seen = {(first.plan.pipelines, first.plan.routes)}
        for found in others:
            if (found.plan.pipelines, found.plan.routes) not in seen and self.planner.fits(found.plan):
                yield found

    # First plans

    def _initial_plan(self, nodes: Sequence[NodeId], generation: int) -> Plan:
        """Returns a first plan of all nodes; of more than the job began with, as many as a step's microbatches are
        enough for."""
        while True:
            try:
                return self._fastest(nodes, generation)
            except Undistributable:
                if len(nodes) <= self.planner.settings.num_nodes:
                    raise
                nodes = nodes[:-1]

    def _fastest(self, nodes: Sequence[NodeId], generation: int) -> Plan:
        """Returns the fastest, as simulated, of the best instantiations of all templates and of other sets."""
        planner = self.planner
        return self._clearly_fastest(
            planner.instantiated(planner.templates, nodes, generation),
            lambda templates, _: planner.instantiated(templates, nodes, generation),
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
        """Returns the first, unless another set of templates makes one of as many nodes that is clearly faster.

        Args:
            first: by compute alone.
            made: of a set; None where its step takes no less than so long.
            plan_of: what was made.
            num_nodes: that are there.
        """
        planner = self.planner
        best, plan = first, plan_of(first)
        least_s = OTHER_SET_CLEARLY * planner.step_s(plan)
        seen, num_placed = {plan.pipelines}, len(plan.nodes)
        for templates in other_sets(planner.templates, num_nodes, planner.settings):
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
            seconds = planner.step_s(plan)
            if seconds < least_s:
                best, least_s = found, seconds
        return best

    # After a change

    def _reconfiguration(self, request: ReplanRequest) -> Reconfiguration:
        """Returns a reconfiguration with every node, or as many as a step's microbatches are enough for. Nodes that
        came last are idle first."""
        try:
            return self._with_all(request)
        except Undistributable as error:
            too_many = error
        plan = request.plan
        live = {plan.node_of(worker) for worker in request.holders} - request.absent
        placed = {plan.node_of(stage.worker) for stage in plan.stages()}
        order = sorted(live, key=lambda node: (node in placed, -node))
        for num_idle in range(1, len(order)):
            try:
                return self._with_all(dataclasses.replace(request, lost=(*request.lost, *order[:num_idle])))
            except Undistributable as error:
                too_many = error
            except PlanError:
                break
        raise too_many

    def _with_all(self, request: ReplanRequest) -> Reconfiguration:
        """Returns a reconfiguration with every live node."""
        if self.planner.speeds is not None:
            return self._at_speeds(request, self.planner.speeds)
        return self._with_sums(self._made_of(self.planner.templates, request), request)

    def _with_sums(self, found: Reconfiguration, request: ReplanRequest) -> Reconfiguration:
        """Returns the fastest as simulated where the nodes are dealt out anew; see `_clearly_fastest`."""
        if found.how is not How.INSTANTIATE:
            return found

        def made(templates: Sequence[Template], less_than_s: float) -> Reconfiguration | None:
            if not self.planner.may_take_less(request.change(self.planner, templates), less_than_s):
                return None
            return self._made_of(templates, request, search=True)

        return self._clearly_fastest(found, made, attrgetter("plan"), len(found.plan.nodes))

    def _at_speeds(self, request: ReplanRequest, speeds: NodeSpeeds) -> Reconfiguration:
        """Returns, of the candidates that fit into memory, the one that takes least in the long run, as simulated."""
        best: Reconfiguration | None = None
        least_s = float("inf")
        for found in candidates(request.change(self.planner)):
            seconds = STEPS_AHEAD * self.planner.step_s(found.plan) + found.transfer_s
            if (best is None or seconds < least_s) and self.planner.fits(found.plan):
                best, least_s = found, seconds
        return best or self._made_of(self.planner.templates, request)

    def _made_of(
        self, templates: Sequence[Template], request: ReplanRequest, *, search: bool = False
    ) -> Reconfiguration:
        """Returns a reconfiguration of these templates, whatever the speeds are."""
        planner = self.planner
        return reconfigure(
            planner.profile,
            templates,
            planner.settings,
            request.plan,
            request.lost,
            request.holders,
            request.generation,
            request.leaving,
            search=search,
            zones=planner.zones,
        )


def reconfigured(planner: Planner, request: ReplanRequest, result: Reconfiguration) -> Candidate:
    """Returns the candidate of this very reconfiguration."""
    return Candidate.of(
        planner,
        result.plan,
        result.how.value,
        reason_of(planner, request.plan, request.lost, result),
        transfer_bytes=result.transfer_bytes,
        transfer_s=result.transfer_s,
    )


def reason_of(planner: Planner, before: Plan, lost: Collection[NodeId], result: Reconfiguration) -> str:
    """Returns the sentence for a reconfiguration."""
    if planner.speeds is None:
        return why(before, lost, result)
    return why_at_speeds(before, lost, result, planner.speeds)


# Sets of templates from which a plan may be instantiated, beside all of them


def other_sets(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings
) -> Iterator[Sequence[Template]]:
    """Yields sets of templates without the smallest, then those of even sizes."""
    yield from _without_smallest(templates)
    yield from even_sets(templates, num_nodes, settings)


def _without_smallest(templates: Sequence[Template]) -> Iterator[Sequence[Template]]:
    """Yields all templates but the first, all but the first two, four, and so on."""
    smallest = 1
    while smallest < len(templates):
        yield templates[smallest:]
        smallest *= 2


def even_sets(templates: Sequence[Template], num_nodes: int, settings: PlannerSettings) -> list[Sequence[Template]]:
    """Returns for each number of pipelines the one or two sizes that share the nodes out evenly: a few, see
    `MOST_EVEN`."""
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
