"""The search for the fastest detours: assignments of microbatches, and orders of work, judged by simulated steps.

Deterministic, and bounded by the number of units of work that are simulated, not by a clock: a small plan is tried in
many ways, a large one in few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from planaria.estimate.conditions import AS_PROFILED, Conditions
from planaria.estimate.lower_bound import least_rerouted_s
from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import NodeId, Pipeline, Plan, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import DETOUR_BUDGET, DETOUR_HEADS, DETOUR_SPARES, STEPS_EQUAL
from planaria.planner.reroute.plans import rerouted
from planaria.planner.reroute.routes import Detours, Freedom, MicrobatchAssignment
from planaria.policy.interface import Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerouted:
    """The best plan found.

    Attributes:
        plan: the plan.
        step_time_s: the simulated seconds of a step.
        lower_bound_s: of every plan on the same stages.
    """

    plan: Plan
    step_time_s: float
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """The share of the bound by which the step may be longer than the best."""
        return self.step_time_s / self.lower_bound_s - 1 if self.lower_bound_s > 0 else 0.0


def detours_in_pieces(
    profile: ModelProfile,
    settings: PlannerSettings,
    pipelines: Sequence[Pipeline],
    generation: int,
    *,
    conditions: Conditions = AS_PROFILED,
    budget: int = DETOUR_BUDGET,
) -> Pieces[Rerouted | None]:
    """Finds the plan with the shortest step on these stages, which own every layer; None where none fits the memory.

    Backwards are split where the memory allows for it, but for a plan at full strength: that keeps the job's schedule.
    It pauses before each simulated step.
    """
    return _Search(profile, settings, pipelines, generation, conditions, budget).run()


_Order = tuple[ScheduleKind, int]
"""An order of work: a schedule, and the spare microbatches in flight."""


class _Search:
    def __init__(
        self,
        profile: ModelProfile,
        settings: PlannerSettings,
        pipelines: Sequence[Pipeline],
        generation: int,
        conditions: Conditions,
        budget: int,
    ) -> None:
        self._profile = profile
        self._settings = settings
        self._pipelines = pipelines
        self._generation = generation
        self._costs = StageCosts(profile)
        self._conditions = conditions
        workers = [stage.worker for pipeline in pipelines for stage in pipeline.stages]
        self._speeds = {w: conditions.speed(NodeId(w // settings.devices_per_node)) for w in workers}
        self._bound_s = self._least_s(max(self._speeds.values()))
        self._all_whole = all(pipeline.is_whole(profile.num_layers) for pipeline in pipelines)
        nodes = {worker // settings.devices_per_node for worker in workers}
        self._is_full = self._all_whole and len(nodes) >= settings.num_nodes
        hops = max(len(pipeline.stages) for pipeline in pipelines)
        self._left = max(2, budget // (3 * hops * settings.num_microbatches))
        """Simulations that are left."""
        self._best: tuple[float, MicrobatchAssignment, _Order, Plan] | None = None

    def _least_s(self, highest_speed: float) -> float:
        """Returns a lower bound of a step's seconds: on cores that all share, also that of all microbatches' work."""
        profile, number = self._profile, self._settings.num_microbatches
        least_s = least_rerouted_s(profile, self._pipelines, number, highest_speed=highest_speed)
        if (cores := self._conditions.num_cores) is not None:
            work_s = number * self._costs.compute_s(0, profile.num_layers) / highest_speed
            least_s = max(least_s, work_s / cores)
        return self._conditions.stretch * least_s

    def run(self) -> Pieces[Rerouted | None]:
        assignments = self._assignments()
        first = next(assignments)
        order = next((order for order in self._orders() if self._fits(self._plan(first, order))), None)
        if order is None:
            return None
        yield
        self._try(first, order)
        for assignment in assignments:
            if self._is_close() or self._left <= 1:
                break
            yield
            self._try(assignment, order)
        yield from self._other_orders()
        assert self._best is not None
        seconds, _, _, plan = self._best
        return Rerouted(plan=plan, step_time_s=seconds, lower_bound_s=self._bound_s)

    def _assignments(self) -> Iterator[MicrobatchAssignment]:
        """Yields each assignment once, in the order in which they are worth a simulation."""
        seen = set()
        freedoms = [Freedom.HOME] if self._all_whole else list(Freedom)
        ways = [
            Detours(self._pipelines, self._costs, self._profile.num_layers, freedom, self._speeds)
            for freedom in freedoms
        ]
        for head in DETOUR_HEADS:
            for detours in ways:
                assignment = detours.deal(self._settings.num_microbatches, head)
                if assignment.hops not in seen:
                    seen.add(assignment.hops)
                    yield assignment

    def _orders(self) -> Iterable[_Order]:
        """Returns the orders of work by preference; the last keeps the fewest activations."""
        own = self._settings.schedule
        if self._is_full:
            return [(own, 0)]
        kinds = dict.fromkeys((ScheduleKind.ZERO_BUBBLE_H1, own, ScheduleKind.ONE_F_ONE_B))
        return [(kind, spare) for kind in kinds for spare in DETOUR_SPARES if spare <= DETOUR_SPARES[0]]

    def _other_orders(self) -> Pieces[None]:
        """Tries orders for the best assignment: less memory where it is free, more where it gains time, the job's."""
        assert self._best is not None
        _, assignment, (kind, spare), _ = self._best
        if self._is_full:
            return
        for less in sorted((other for other in DETOUR_SPARES if other < spare), reverse=True):
            yield
            if self._left <= 0 or not self._try(assignment, (kind, less), instead=True):
                break
        if spare < DETOUR_SPARES[0]:
            return  # memory is short
        for more in sorted(other for other in DETOUR_SPARES if other > spare):
            yield
            if self._is_close() or self._left <= 0 or not self._try(assignment, (kind, more)):
                break
        if kind is not self._settings.schedule and self._left > 0 and not self._is_close():
            yield
            self._try(assignment, (self._settings.schedule, 0))

    def _is_close(self) -> bool:
        """Returns whether the best is so near the bound that nothing much shorter can be found."""
        return self._best is not None and self._best[0] <= (1 + STEPS_EQUAL) * self._bound_s

    def _plan(self, assignment: MicrobatchAssignment, order: _Order) -> Plan:
        return rerouted(
            self._profile,
            self._pipelines,
            assignment,
            devices_per_node=self._settings.devices_per_node,
            generation=self._generation,
            schedule=order[0],
            spare_in_flight=order[1],
        )

    def _try(self, assignment: MicrobatchAssignment, order: _Order, *, instead: bool = False) -> bool:
        """Takes a plan if it fits and is clearly faster than the best, or `instead` of it as fast; returns whether."""
        plan = self._plan(assignment, order)
        most_s = (
            float("inf") if self._best is None else self._best[0] * (1 + STEPS_EQUAL if instead else 1 - STEPS_EQUAL)
        )
        self._left -= 1
        seconds = step_time_s(plan, self._profile, self._conditions)
        if seconds > most_s or not self._fits(plan):
            return False
        self._best = seconds, assignment, order, plan
        return True

    def _fits(self, plan: Plan) -> bool:
        limit = self._settings.memory_bytes
        return not limit or fullest_device_bytes(plan, self._profile, self._settings.audit) <= limit
