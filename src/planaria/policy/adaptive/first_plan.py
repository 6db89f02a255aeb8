"""First plans: which sets of pipelines are worth an estimate when a job begins or is restored, and which is best.

An instantiation (Oobleck, section 4.2) weighs compute alone and uses every node. Sums of gradients are cheapest between
pipelines that are cut alike, so even sets are tried as well: of all nodes, and grids, in which some stay idle. And of
the numbers of pipelines that are quickest so, the set that computes quickest, however uneven: layers do not divide as
nodes do. Which of them is best is decided as after a loss (`planaria.policy.adaptive.objective`): where losses are rare
that is the fastest; where they are frequent, more replicas or a cheaper loss may be worth a longer step, and rings are
tried too.
Makes no plan after a loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from planaria.plan.costs.pipeline_time import Template, Times, step_times
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.thresholds import (
    ALIKE,
    FREQUENT_LOSSES,
    LEAST_TRIED,
    MOST_NODES_ESTIMATED,
    MOST_NUMBERS_TRIED,
    SETS_CLOSE,
    UNEVEN_CLEARLY,
)
from planaria.planner.instantiation.grids import grids
from planaria.planner.instantiation.grids import shape as grid_shape
from planaria.planner.instantiation.microbatch_shares import Undistributable
from planaria.policy.adaptive.candidates import completed, told_apart, with_split_backwards
from planaria.policy.adaptive.objective import Course, judged
from planaria.policy.adaptive.rings import first_ring
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate
from planaria.policy.morph import quickest_depths
from planaria.policy.planner import Planner
from planaria.policy.sentences import join, shape
from planaria.policy.templates import even_sets

MOST_TOLD = 3
"""Candidates that the sentence names, the chosen one included; records have all."""


def best_first(
    planner: Planner,
    sizes: Sequence[Template],
    own: Candidate,
    nodes: Sequence[NodeId],
    generation: int,
    forecast: FailureForecast,
    ringing: Planner,
) -> Candidate:
    """Returns the first plan that is worth most, sums of gradients included; of equals that of the templates.

    Args:
        planner: estimates.
        sizes: a pipeline of each number of nodes that fits.
        own: what the policy `templates` proposes.
        nodes: the live nodes.
        generation: the new plan's generation.
        forecast: for how long it is made.
        ringing: of whose templates rings are made.
    """
    most = max(LEAST_TRIED, MOST_NODES_ESTIMATED // max(1, len(set(nodes))))
    uneven: set[str] = set()
    offered = _offered(planner, sizes, own, nodes, generation, most, uneven)
    known, usual_s = _as_safe(planner, offered, most, uneven)
    forecast = dataclasses.replace(forecast, steps_at_stake=0)
    horizon = forecast.horizon_s(usual_s)
    told = [_judged(planner, candidate, forecast, horizon) for candidate in known]
    best = max(told, key=attrgetter("samples_per_s"))
    lost_s = best.risk_s + min(1.0, horizon / forecast.time_to_failure_s) * best.loss_s
    if lost_s > FREQUENT_LOSSES * horizon:
        ring = first_ring(ringing, sorted(set(nodes)), generation)
        for found in (ring, ring and with_split_backwards(planner, ring)):
            if found is not None:
                known.append(completed(planner, found))
                told.append(_judged(planner, known[-1], forecast, horizon))
    as_good = (1 - ALIKE) * max(one.samples_per_s for one in told)
    is_shared = planner.settings.num_cores is not None

    def rank(at: int) -> tuple[int, int, float]:
        value, plan = told[at].samples_per_s, known[at].plan
        if not is_shared or value < as_good:
            return 0, 0, -value
        return -len(plan.nodes), -len(plan.pipelines), -value

    order = sorted(range(len(known)), key=rank)
    return _chosen(own, known[order[0]], [told[at] for at in order], len(set(nodes)))


def _offered(
    planner: Planner,
    sizes: Sequence[Template],
    own: Candidate,
    nodes: Sequence[NodeId],
    generation: int,
    most: int,
    uneven: set[str],
) -> list[Candidate]:
    """Returns the plan of templates, and others that are nearly as fast as the best so far. Names of uneven sets are
    added to `uneven`."""
    offered = [dataclasses.replace(own, name=f"templates ({shape(own.plan)})")]
    least_s = own.step_time_s
    others = chain(
        _others(planner, sizes, nodes, generation, most),
        _of_numbers(planner, sizes, nodes, generation, offered, min(MOST_NUMBERS_TRIED, most), uneven),
    )
    for name, plan, compute_s in others:
        if compute_s > SETS_CLOSE * least_s:
            continue
        if any(_same(plan, other.plan) for other in offered) or not planner.fits(plan):
            continue
        offered.append(dataclasses.replace(Candidate.of(planner, plan, own.how), name=name))
        arranged = planner.arranged(plan)
        if arranged is not plan:
            by_links = dataclasses.replace(Candidate.of(planner, arranged, own.how), name=f"{name}, arranged by links")
            offered.append(by_links)
        least_s = min(least_s, offered[-1].step_time_s)
    return told_apart(offered)


def _as_safe(
    planner: Planner, offered: Sequence[Candidate], most: int, uneven: Collection[str]
) -> tuple[list[Candidate], float]:
    """Returns the candidates, split backwards among them, that are as safe as templates' plan, and the seconds of the
    quickest that is not uneven; an uneven one must be clearly quicker.

    Under f = 0 one pipeline may be faster; where templates keep a second replica, it is not given up for that.
    """
    quickest = sorted(offered, key=attrgetter("step_time_s"))
    close = [candidate for candidate in quickest if candidate.step_time_s <= SETS_CLOSE * quickest[0].step_time_s]
    split = [found for found in (with_split_backwards(planner, one) for one in close[:most]) if found is not None]
    known = [completed(planner, candidate) for candidate in [*offered, *split]]
    peril = known[0].exposure.peril(1.0)
    safe = [(one.name.split(",")[0] in uneven, one) for one in known if one.exposure.peril(1.0) <= peril]
    usual_s = min(one.step_time_s for is_uneven, one in safe if not is_uneven)
    clearly_s = UNEVEN_CLEARLY * usual_s
    return [one for is_uneven, one in safe if not is_uneven or one.step_time_s <= clearly_s], usual_s


def _others(
    planner: Planner, sizes: Sequence[Template], nodes: Sequence[NodeId], generation: int, most: int
) -> Iterator[tuple[str, Plan, float]]:
    """Yields name, plan and seconds of compute of grids and even sets, the fastest by compute first."""
    found: list[tuple[float, str, Plan]] = []
    settings = planner.settings
    ordered = sorted(set(nodes))
    depths = quickest_depths(planner.templates, len(ordered), settings, most)
    for grid in grids(planner.profile, depths, settings, ordered, generation, speeds=planner.speeds):
        if len(grid.plan.pipelines) > settings.fault_tolerance:
            found.append((grid.step_time_s, f"grid ({grid_shape(grid.plan)})", grid.plan))
    known = {template.num_nodes: step_times(template, settings.num_microbatches) for template in sizes}
    slowest = min((planner.speeds or {}).values(), default=1.0)
    for templates in even_sets(sizes, len(ordered), settings)[: 4 * most]:
        try:
            plan = planner.instantiated(templates, ordered, generation)
        except (PlanError, Undistributable):
            continue
        found.append((_compute_s(plan, known) if slowest >= 1 else 0.0, f"search ({shape(plan)})", plan))
    for seconds, name, plan in sorted(found, key=lambda one: one[:2]):
        yield name, plan, seconds


def _of_numbers(
    planner: Planner,
    sizes: Sequence[Template],
    nodes: Sequence[NodeId],
    generation: int,
    offered: Sequence[Candidate],
    most: int,
    uneven: set[str],
) -> Iterator[tuple[str, Plan, float]]:
    """Yields name, plan and seconds of compute of the quickest sets by compute, of as many pipelines as the quickest of
    these candidates have: of so many numbers at most. Where nodes differ in speed, those that go together are found by
    another search, of any number."""
    if any(speed != 1 for speed in (planner.speeds or {}).values()):
        return
    order = sorted(offered, key=lambda one: one.step_time_s)
    known = {template.num_nodes: step_times(template, planner.settings.num_microbatches) for template in sizes}
    for number in list(dict.fromkeys(len(one.plan.pipelines) for one in order))[:most]:
        try:
            plan = planner.instantiated(sizes, nodes, generation, number)
        except (PlanError, Undistributable):
            continue
        name = f"search ({shape(plan)})"
        if all(name != one.name for one in offered):
            uneven.add(name)
        yield name, plan, _compute_s(plan, known)


def _compute_s(plan: Plan, known: Mapping[int, Times]) -> float:
    """Returns the seconds of the pipeline that computes longest."""
    return max(
        float(known[len({plan.node_of(stage.worker) for stage in route.hops})][len(route.microbatches) - 1])
        for route in plan.routes
    )


def _same(one: Plan, other: Plan) -> bool:
    return one.pipelines == other.pipelines and one.routes == other.routes


def _chosen(own: Candidate, best: Candidate, told: Sequence[CandidateRecord], num_nodes: int) -> Candidate:
    reason = own.reason
    if best.plan.redundancy is not None:
        reason = best.reason
    elif best.plan.pipelines != own.plan.pipelines:
        idle = num_nodes - len(best.plan.nodes)
        number = len(best.plan.pipelines)
        rest = f" ({idle} idle)" if idle else ""
        reason = f"{num_nodes} nodes make {number} pipelines of {shape(best.plan)} nodes{rest}."
    first, *others = told[:MOST_TOLD]
    if others:
        rivals = join([f"{other.name} {other.samples_per_s:.4g}" for other in others])
        alike = max(other.samples_per_s for other in others) > first.samples_per_s
        most = f" It has most pipelines of those within {ALIKE:.0%} of the best." if alike else ""
        reason = f"{reason} Chosen: {first.name}, {first.samples_per_s:.4g} samples/s.{most} Next: {rivals}."
    return dataclasses.replace(best, reason=reason, how=own.how, is_degraded=own.is_degraded, candidates=tuple(told))


def _judged(planner: Planner, candidate: Candidate, forecast: FailureForecast, horizon: float) -> CandidateRecord:
    course = Course(
        step_time_s=candidate.step_time_s,
        transition_s=0.0,
        peril_before=0.0,
        peril=candidate.exposure.peril(forecast.nodes_together),
        loss_s=candidate.loss_s,
    )
    return judged(candidate, course, forecast, horizon, planner.profile.microbatch_size)
