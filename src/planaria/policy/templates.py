"""The policy of pipeline templates (Oobleck): templates once, then instances of them, whatever is left.

An instantiation weighs compute alone. The more pipelines there are, the longer their sums take, and the longer the less
alike they are cut: where that counts, fewer, larger and even pipelines are faster. So other sets of templates are tried
beside all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from planaria.plan.costs.pipeline_time import NodeSpeeds, Template
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import MOST_EVEN_SETS, OTHER_SET_CLEARLY, PROMISING, STEPS_AHEAD
from planaria.planner.instantiation.microbatch_shares import Undistributable
from planaria.planner.reconfigure.reconfigure import How, Reconfiguration, best_of, reconfigure, searched
from planaria.planner.reconfigure.straggler_plans import candidates
from planaria.planner.reconfigure.surviving_plan import SurvivingPlan
from planaria.policy.interface import Candidate, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.sentences import begun, why, why_at_speeds

_T = TypeVar("_T", Plan, Reconfiguration)


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
            others = [*self._arranged(first, request), *candidates(request.change(self.planner))]
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
        """Returns the fastest, as simulated, of the best instantiations of all templates and of other sets; under
        Oobleck's objective the paper's own."""
        planner = self.planner
        if planner.settings.is_oobleck:
            return planner.with_speeds({}).instantiated(planner.templates, nodes, generation)
        return self._clearly_fastest(
            planner.arranged(planner.instantiated(planner.templates, nodes, generation)),
            lambda templates, _: planner.arranged(planner.instantiated(templates, nodes, generation)),
            lambda plan: plan,
            planner.step_s,
            len(nodes),
        )

    def _clearly_fastest(
        self,
        first: _T,
        made: Callable[[Sequence[Template], float], _T | None],
        plan_of: Callable[[_T], Plan],
        seconds_of: Callable[[_T], float],
        num_nodes: int,
    ) -> _T:
        """Returns the first, unless another set of templates makes one of as many nodes that is clearly faster.

        Args:
            first: what was made of the set that is fastest by compute alone.
            made: makes one of a set; None where its step takes no less than so long.
            plan_of: gives the plan of what was made.
            seconds_of: gives what a step of it takes, with its share of what comes before.
            num_nodes: how many nodes there are.
        """
        planner = self.planner
        best, plan = first, plan_of(first)
        least_s = OTHER_SET_CLEARLY * seconds_of(first)
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
            seconds = seconds_of(found)
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
        """Returns a reconfiguration with every live node; under Oobleck's objective the paper's own."""
        if self.planner.settings.is_oobleck:
            return self._made_of(self.planner.templates, request)
        if self.planner.speeds is not None:
            return self._at_speeds(request, self.planner.speeds)
        return self._with_sums(self._made_of(self.planner.templates, request), request)

    def _with_sums(self, found: Reconfiguration, request: ReplanRequest) -> Reconfiguration:
        """Returns the fastest as simulated, sums included, with the nodes arranged as is fastest; see
        `_clearly_fastest`. Transfers count as a part of each of the steps that a plan is taken to last.

        Where nodes are not dealt out anew, only the even sets are looked at: pipelines of many lengths have long sums.
        """

        def made(templates: Sequence[Template], less_than_s: float) -> Reconfiguration | None:
            left = SurvivingPlan(request.change(self.planner, templates))
            sizes = searched(left)
            step_s = self.planner.seconds_of_sizes(templates)
            if step_s is not None and not self._may_take_less(map(step_s, sizes), less_than_s):
                return None
            return best_of(left, sizes, STEPS_AHEAD, step_s)

        if found.how is How.INSTANTIATE:
            best = self._clearly_fastest(found, made, attrgetter("plan"), self._seconds_of, len(found.plan.nodes))
        else:
            best = self._even(found, request)
        least_s = OTHER_SET_CLEARLY * self._seconds_of(best)
        for other in self._arranged(best, request):
            seconds = self._seconds_of(other)
            if seconds < least_s:
                best, least_s = other, seconds
        return best

    def _may_take_less(self, seconds: Iterable[float], least_s: float) -> bool:
        """Returns whether of plans that take so long some may be taken: none need be made else."""
        return any(each < least_s for each in seconds)

    def _even(self, found: Reconfiguration, request: ReplanRequest) -> Reconfiguration:
        """Returns the quickest of the even sets where that is clearly faster, else what was found."""
        planner, num_nodes = self.planner, len(found.plan.nodes)
        least_s = OTHER_SET_CLEARLY * self._seconds_of(found)
        best: Sequence[Template] = ()
        for compute_s, templates in even_pipelines(planner.templates, num_nodes, planner.settings):
            if compute_s > PROMISING * least_s:
                continue
            seconds = planner.templates_s(templates)
            if seconds < least_s:
                best, least_s = templates, seconds
        if best:
            left = SurvivingPlan(request.change(planner))
            other = left.build(left.fitted(Counter(template.num_nodes for template in best)), How.INSTANTIATE)
            if self._seconds_of(other) < OTHER_SET_CLEARLY * self._seconds_of(found):
                return other
        return found

    def _seconds_of(self, found: Reconfiguration) -> float:
        return self.planner.step_s(found.plan) + found.transfer_s / STEPS_AHEAD

    def _arranged(self, found: Reconfiguration, request: ReplanRequest) -> Iterator[Reconfiguration]:
        """Yields pipelines of the same sizes where their state is, whatever the zones are, then with nodes exchanged;
        nothing where links or nodes are alike. See `Planner.arrangements`."""
        if not self.planner.may_arrange:
            return
        left = SurvivingPlan(dataclasses.replace(request.change(self.planner), zones={}))
        sizes = Counter(len(pipeline.nodes(found.plan.devices_per_node)) for pipeline in found.plan.pipelines)
        near = left.build(left.fitted(sizes), found.how)
        yield near
        for pipelines in self.planner.arrangements(near.plan):
            other = left.build_from(pipelines)
            if other is not None:
                yield dataclasses.replace(other, how=found.how)

    def _at_speeds(self, request: ReplanRequest, speeds: NodeSpeeds) -> Reconfiguration:
        """Returns, of the candidates that fit into memory, the one that takes least in the long run, as simulated."""
        best: Reconfiguration | None = None
        least_s = float("inf")
        for found in candidates(request.change(self.planner)):
            seconds = self._seconds_of(found)
            if (best is None or seconds < least_s) and self.planner.fits(found.plan):
                best, least_s = found, seconds
        return best or self._made_of(self.planner.templates, request)

    def _made_of(self, templates: Sequence[Template], request: ReplanRequest) -> Reconfiguration:
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
    `MOST_EVEN_SETS`."""
    return [
        list({template.num_nodes: template for template in reversed(pipelines)}.values())
        for _, pipelines in even_pipelines(templates, num_nodes, settings)
    ]


def even_pipelines(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings
) -> list[tuple[float, Sequence[Template]]]:
    """Returns the templates of pipelines that share the nodes out evenly, largest first, for a few numbers of them; and
    about how many seconds they compute."""
    known = {template.num_nodes: template for template in templates}
    found: list[tuple[float, int]] = []
    num_nodes = settings.usable(num_nodes)
    most = min(num_nodes // templates[0].num_nodes, settings.most_pipelines)
    for number in range(max(2, settings.fault_tolerance + 1), most + 1):
        size, larger = divmod(num_nodes, number)
        if size in known and (not larger or size + 1 in known):
            share = -(-settings.num_microbatches // number)
            found.append((known[size].time_s(share), number))
    limit = max(1, min(MOST_EVEN_SETS, 512 // num_nodes))
    quickest = sorted(found)[:limit]
    fewest = [one for one in found[:limit] if one not in quickest]
    sizes = [(seconds, *divmod(num_nodes, number), number) for seconds, number in (*quickest, *fewest)]
    return [(seconds, [known[size + (at < larger)] for at in range(number)]) for seconds, size, larger, number in sizes]
