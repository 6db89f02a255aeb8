"""The policy of checkpoint and morph (Varuna): symmetric grids, and a loss takes the job back to the last checkpoint.

Nobody finishes a step that a loss struck: all workers begin at the last checkpoint again, under the best grid of the
nodes that are left; those that live keep their processes. Where nobody is lost (nodes come, give notice or are slow)
state moves from live workers, as under the other policies, and nothing is trained twice.

Varuna knows no f: the checkpoint is what it relies on. Here grids of f + 1 pipelines or more come first; where the
nodes are too few for any, one with fewer is taken, and it says that it is degraded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import msgspec

from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.restore_time import morph_time
from planaria.plan.costs.pipeline_time import Template, step_times
from planaria.plan.errors import TooFewNodes
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError
from planaria.plan.quantities import count, size
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import GRIDS_CLOSE
from planaria.plan.validate import lacking
from planaria.planner.instantiation.grids import Grid, grids, is_grid, shape
from planaria.planner.placement.placement import Holders
from planaria.planner.reconfigure.surviving_plan import SurvivingPlan
from planaria.planner.templates.templates import of_shape
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, Policy, ReplanRequest
from planaria.policy.sentences import nodes_are, time, told

MORPH = "morph"
"""The policy's name, as that of how a plan was made."""


@dataclass(frozen=True, eq=False)
class MorphPolicy(Policy):
    """Proposes grids. Their pipelines are cut as the templates of that many nodes.

    Attributes:
        forecast: of the time to come.
    """

    forecast: FailureForecast = field(default_factory=FailureForecast)

    def with_forecast(self, forecast: FailureForecast) -> Self:
        """Returns the same policy under this forecast."""
        return replace(self, forecast=forecast)

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns a job's first plan, or the first after a restore: the fastest grid.

        Raises:
            PlanError: too few nodes for one pipeline.
        """
        number = len(set(nodes))
        found = self._built(self._grids(sorted(set(nodes)), generation), "initial", self._arranged)
        best, judged = self._best(found, lambda candidate: 0.0)
        makes = "make" if number != 1 else "makes"
        rows = f"{_rows(best.plan)}{_idle(number - len(best.plan.nodes))}"
        return self._chosen(best, judged, f"{count(number, 'node')} {makes} a grid of {rows}. It is the fastest grid.")

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        """Returns the best grid of the live nodes: from the last checkpoint if an owner of layers was lost, else by
        live moves.

        Raises:
            TooFewNodes: fewer than n0 nodes are left.
            NoReplica: nobody was lost, and a group has no live holder.
        """
        plan = request.plan
        dead = {plan.node_of(worker) for worker in plan.layers_of} - {
            plan.node_of(worker) for worker in request.holders
        }
        return self._back(request, sorted(dead)) if dead else self._moved(request)

    def finishes(self, request: ReplanRequest) -> bool:
        """Returns False where an owner of layers was lost. A node that was about to get its first state is no loss to
        the step."""
        return set(request.plan.layers_of) <= set(request.holders)

    # After a loss

    def _back(self, request: ReplanRequest, dead: Sequence[NodeId]) -> Candidate:
        forecast, nodes = self.forecast, request.complete_nodes
        lost_steps = forecast.steps_at_stake

        def transition_s(candidate: Candidate) -> float:
            return morph_time(
                candidate.plan,
                forecast.storage,
                lost_steps=lost_steps,
                step_time_s=candidate.step_time_s,
                change_s=forecast.change_s,
            ).transition_s

        best, judged = self._best(
            self._built(self._grids(nodes, request.generation), MORPH, self._arranged), transition_s
        )
        again = "no step is trained again"
        if lost_steps:
            again = f"{count(lost_steps, 'step')} {'is' if lost_steps == 1 else 'are'} trained again"
        reason = told(
            nodes_are(dead, "lost"),
            f"back to the last checkpoint on a grid of {_rows(best.plan)}{_idle(len(nodes) - len(best.plan.nodes))}",
            again,
            f"{time(judged[0].transition_s)} pass without gain",
        )
        return replace(self._chosen(best, judged, reason), restores=True)

    # While nobody is lost

    def _moved(self, request: ReplanRequest) -> Candidate:
        plan, nodes = request.plan, request.complete_nodes
        change = request.change(self.planner)
        left = SurvivingPlan(replace(change, settings=replace(change.settings, fault_tolerance=0), zones={}))

        def with_state(pipelines: Sequence[Pipeline]) -> Plan | None:
            found = left.build_from(pipelines)
            return None if found is None or not self.planner.fits(found.plan) else found.plan

        # Else it was made by another policy, or when there were too few nodes for what is asked for.
        may_stay = is_grid(plan) and self._is_as_asked(plan, len(nodes))
        kept = with_state(plan.pipelines) if may_stay else None
        found = self._built(
            self._grids(nodes, request.generation, request.holders),
            MORPH,
            lambda grid: with_state(grid.plan.pipelines),
            kept=None if kept is None else _dealt_as(plan, kept),
        )
        best, judged = self._best(found, self._moving_s)
        state = (
            f"{size(best.transfer_bytes)} of state move from live workers" if best.transfer_bytes else "no state moves"
        )
        idle = _idle(len(nodes) - len(best.plan.nodes))
        reason = told("nobody is lost", f"the best grid has {_rows(best.plan)}{idle}", state)
        return self._chosen(best, judged, reason)

    def _is_as_asked(self, plan: Plan, num_nodes: int) -> bool:
        """Returns whether the pipelines are those that are asked for, or so many nodes are too few for them."""
        settings = self.planner.settings
        depths = [len(pipeline.nodes(plan.devices_per_node)) for pipeline in plan.pipelines]
        return not settings.is_enough(num_nodes) or (len(depths), depths[0]) == settings.shape

    def _moving_s(self, candidate: Candidate) -> float:
        """Returns the seconds without gain of a plan whose state moves from live workers: before its first step, or
        beside the step before that."""
        plan, forecast = candidate.plan, self.forecast
        if not plan.transfers:
            return 0.0
        moved = self.planner.transfer_time(plan)
        moves_s = moved.time_s * forecast.transfer_stretch
        if forecast.at_once:
            return forecast.change_s + max(0.0, self.planner.wait_s(plan, moved.come_s) + moves_s - moved.time_s)
        return 2 * forecast.change_s + forecast.decision_s + max(0.0, moves_s - candidate.step_time_s)

    # Grids, and which is best

    def _grids(self, nodes: Sequence[NodeId], generation: int, holders: Holders | None = None) -> list[Grid]:
        """Returns the grids that fit, fastest by their templates' times first: those with f + 1 pipelines, or else all
        that there are.

        Raises:
            TooFewNodes: not even one pipeline.
            PlanError: no grid fits the memory.
        """
        planner = self.planner
        needed = planner.templates[0].num_nodes
        if len(nodes) < needed:
            raise TooFewNodes(needed, len(nodes), 1)
        every = grids(
            planner.profile,
            planner.templates,
            planner.settings,
            nodes,
            generation,
            speeds=planner.speeds,
            holders=holders,
        )
        made = [grid for grid in every if planner.fits(grid.plan)]
        if not made:
            raise PlanError(f"No grid of {count(len(nodes), 'node')} fits the devices' memory. Add nodes.")
        full = [grid for grid in made if len(grid.plan.pipelines) > planner.settings.fault_tolerance]
        return sorted(full or made, key=lambda grid: grid.step_time_s)

    def _arranged(self, grid: Grid) -> Plan:
        return self.planner.arranged(grid.plan)

    def _built(
        self,
        grids: Sequence[Grid],
        how: str,
        build: Callable[[Grid], Plan | None] = lambda grid: grid.plan,
        kept: Plan | None = None,
    ) -> list[Candidate]:
        """Returns each grid with its estimate. Where the pipelines alone take much longer than the best step, sums of
        gradients included, neither that grid nor those after it are built."""
        found = [] if kept is None else [self._candidate(kept, how)]
        for grid in grids:
            is_short = len(grid.plan.pipelines) <= self.planner.settings.fault_tolerance
            rivals = [candidate.step_time_s for candidate in found if is_short or not candidate.is_degraded]
            if grid.step_time_s > GRIDS_CLOSE * min(rivals, default=float("inf")):
                break
            plan = build(grid)
            if plan is not None:
                found.append(self._candidate(plan, how))
        return found

    def _candidate(self, plan: Plan, how: str) -> Candidate:
        short = lacking(plan, self.planner.settings.fault_tolerance)
        return replace(Candidate.of(self.planner, plan, how, transfer_bytes=plan.moved_bytes), is_degraded=bool(short))

    def _best(
        self, found: Sequence[Candidate], transition_s: Callable[[Candidate], float]
    ) -> tuple[Candidate, tuple[CandidateRecord, ...]]:
        """Returns the best candidate, and the records of all in their order. Those with f + 1 replicas come first, then
        those that train most until the next loss or the end; of equals the faster, then the one with the shorter
        transition."""
        if not found:
            raise PlanError("No grid of the live nodes fits the devices' memory. Add nodes.")
        horizon = self.forecast.horizon_s(min(candidate.step_time_s for candidate in found))
        judged = [self._record(candidate, transition_s(candidate), horizon) for candidate in found]

        def rank(at: int) -> tuple[bool, float, float, float]:
            told = judged[at]
            return told.is_degraded, -told.samples_per_s, told.step_time_s, told.transition_s

        order = sorted(range(len(found)), key=rank)
        return found[order[0]], tuple(judged[at] for at in order)

    def _record(self, candidate: Candidate, transition_s: float, horizon: float) -> CandidateRecord:
        samples = self.planner.settings.num_microbatches * self.planner.profile.microbatch_size
        gained = max(0.0, 1 - transition_s / horizon)
        return CandidateRecord(
            name=f"grid {shape(candidate.plan)}",
            step_time_s=candidate.step_time_s,
            transition_s=transition_s,
            transfer_bytes=candidate.transfer_bytes,
            memory_bytes=fullest_device_bytes(candidate.plan, self.planner.profile, self.planner.settings.audit),
            is_degraded=candidate.is_degraded,
            risk_s=0.0,
            samples_per_s=gained * samples / candidate.step_time_s,
            samples=samples,
        )

    def _chosen(self, best: Candidate, told: tuple[CandidateRecord, ...], reason: str) -> Candidate:
        if best.is_degraded:
            wanted = self.planner.settings.fault_tolerance + 1
            reason = f"{reason} Degraded: it has {len(best.plan.pipelines)} of {wanted} replicas."
        return replace(best, reason=reason, candidates=told)


def _dealt_as(before: Plan, plan: Plan) -> Plan:
    """Returns the grid with the shares that its pipelines had, where these were whole."""
    if any(len(route.counted) < plan.num_layers for route in before.routes):
        return plan
    routes = tuple(msgspec.structs.replace(route, born=plan.generation) for route in before.routes)
    is_whole = sum(len(route.microbatches) for route in routes) == plan.num_microbatches
    return msgspec.structs.replace(plan, routes=routes) if is_whole else plan


def _rows(plan: Plan) -> str:
    depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
    return f"{count(len(plan.pipelines), 'pipeline')} of {count(depth, 'node')}"


def _idle(number: int) -> str:
    return f" ({count(number, 'node')} idle)" if number else ""


def quickest_depths(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings, most: int
) -> list[Template]:
    """Returns the templates of grids with f + 1 rows that take least by compute, before any is placed."""
    seconds: dict[int, float] = {}
    templates = of_shape(templates, num_nodes, settings)
    for at, template in enumerate(templates):
        rows = min(num_nodes // template.num_nodes, settings.most_pipelines)
        if rows > settings.fault_tolerance:
            share = -(-settings.num_microbatches // rows)
            seconds[at] = float(step_times(template, settings.num_microbatches)[share - 1])
    return [templates[at] for at in sorted(sorted(seconds, key=lambda at: (seconds[at], at))[:most])]
