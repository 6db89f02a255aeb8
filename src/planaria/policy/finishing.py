"""The rest of a step after a loss within it: what is missing runs again where it is done soonest.

The usual way is over whole pipelines, beside which the survivors of broken ones idle. Others let those take part; they
are tried where the busiest worker has less to do so, and taken where the rest of the step is clearly shorter: after
them a further loss stops all whose ways cross. What counts is the same under each, so the bits are.

Deterministic, and bounded by the number of units of work that are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from planaria.estimate.step_remainder import PlanInterval, StepProgress, num_units
from planaria.plan.costs.stage_costs import stage_costs
from planaria.plan.plan import Plan, Route, WorkerId
from planaria.plan.thresholds import (
    CROSSING_CLEARLY,
    FINISHING_BUDGET,
    FINISHING_HEADS,
    FINISHING_SHARE,
    FINISHING_SPARE,
    SIMULATED_UNIT_S,
)
from planaria.planner.finish_step.rerun_routes import along_owners, in_whole_microbatches
from planaria.planner.finish_step.salvage import Undone
from planaria.planner.reroute.plans import layer_units
from planaria.planner.reroute.routes import Freedom
from planaria.policy.planner import Planner


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A plan that finishes a step.

    Attributes:
        plan: the plan.
        rest_s: estimated seconds until the step is done; None: it is too large to be looked at closely.
        crosses: survivors of broken pipelines take part.
    """

    plan: Plan
    rest_s: float | None
    crosses: bool


def quickest(undone: Undone, planner: Planner, so_far: Sequence[PlanInterval]) -> Finished:
    """Returns the plan that finishes the step soonest, by estimate, as far as that is worth the search.

    Args:
        undone: what is left of the step, and which workers.
        planner: costs and memory.
        so_far: the plans under which the step was done so far.
    """
    profile, conditions = planner.profile, planner.conditions
    usual = undone.finished_by(undone.usual(profile))
    own, budget = num_units(usual), _budget(undone.plan, planner)
    if 3 * own > budget:
        return Finished(plan=usual, rest_s=None, crosses=False)
    recent, past = _recent(so_far, budget - 2 * own)
    progress = StepProgress(profile, conditions, recent)
    best = Finished(plan=usual, rest_s=progress.rest_s(usual), crosses=False)
    if not undone.missing or undone.pipelines == undone.intact:
        return best
    most = CROSSING_CLEARLY * best.rest_s if best.rest_s is not None else 0.0
    tries = (budget - past) // own - 2  # one is the usual way, and one says how busy all are
    for routes, busiest_s in _others(undone, planner, progress):
        if tries <= 0:
            break
        if busiest_s >= most:
            continue
        tries -= 1
        plan = _within(undone.finished_by(routes), planner)
        if plan is None:
            continue
        rest_s = progress.rest_s(plan)
        if rest_s < most:
            best, most = Finished(plan=plan, rest_s=rest_s, crosses=True), rest_s
    return best


def roughly(plan: Plan, planner: Planner) -> Plan:
    """Returns the plan to estimate for one that finishes a step: itself, unless it is large."""
    return plan if num_units(plan) <= FINISHING_BUDGET else in_whole_microbatches(plan, planner.profile)


def _budget(plan: Plan, planner: Planner) -> int:
    """Returns the units that may be simulated. A step is taken to last as long as its work does, spread evenly."""
    profile = planner.profile
    microbatch_s = stage_costs(profile).compute_s(0, plan.num_layers, profile.device_counts[0])
    even_s = plan.num_microbatches * microbatch_s / max(1, len(plan.workers))
    return min(FINISHING_BUDGET, int(FINISHING_SHARE * even_s / SIMULATED_UNIT_S))


def _recent(so_far: Sequence[PlanInterval], most: int) -> tuple[Sequence[PlanInterval], int]:
    """Returns the last plans that have at most so many units, and how many they have. What was done under others, and
    goes on, is thought not to be done."""
    units = 0
    for number, stretch in enumerate(reversed(so_far)):
        more = num_units(stretch.plan)
        if units + more > most:
            return so_far[len(so_far) - number :], units
        units += more
    return so_far, units


def _others(undone: Undone, planner: Planner, progress: StepProgress) -> Iterator[tuple[tuple[Route, ...], float]]:
    """Yields routes over all owners, each once, and how long the busiest worker computes."""
    plan = undone.plan
    kept = undone.finished_by(())
    busy_s = progress.busy_s(kept)
    speeds: Mapping[WorkerId, float] = {
        stage.worker: planner.conditions.speed(plan.node_of(stage.worker))
        for pipeline in undone.pipelines
        for stage in pipeline.stages
    }
    seen = set()
    for head in FINISHING_HEADS:
        for freedom in (Freedom.BOTH, Freedom.HOME, Freedom.FREE):
            routes, busiest_s = along_owners(
                undone.pipelines,
                busy_s,
                undone.missing,
                undone.generation,
                planner.profile,
                freedom=freedom,
                head=head,
                speeds=speeds,
            )
            if routes not in seen:
                seen.add(routes)
                yield routes, busiest_s


def _within(plan: Plan, planner: Planner) -> Plan | None:
    """Returns the plan with room for microbatches held up, if there is; None where it does not fit even without."""
    ordered = msgspec.structs.replace(plan, layer_units=layer_units(planner.profile))
    roomy = msgspec.structs.replace(ordered, spare_in_flight=max(FINISHING_SPARE, plan.spare_in_flight))
    return next((one for one in (roomy, ordered) if planner.fits(one)), None)
