"""First plans: which sets of pipelines are worth an estimate when a job begins or is restored, and which is best.

An instantiation (Oobleck, section 4.2) weighs compute alone and uses every node. Sums of gradients are cheapest between
pipelines that are cut alike, so even sets are tried as well: of all nodes, and grids, in which some stay idle. And of
the numbers of pipelines that are quickest so, the set that computes quickest, however uneven: layers do not divide as
nodes do. Which of them is best is decided as after a loss (`planaria.policy.worth`): where losses are rare that is the
fastest; where they are frequent, more replicas or a cheaper loss may be worth a longer step, and rings are tried too.
Makes no plan after a loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from planaria.plan.batch import Times, Undistributable
from planaria.plan.grid import grids
from planaria.plan.grid import shape as grid_shape
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.settings import PlannerSettings
from planaria.plan.speeds import step_times
from planaria.plan.templates import Template
from planaria.policy.candidate import Candidate
from planaria.policy.naming import told_apart
from planaria.policy.options import Option, option_of, split_of
from planaria.policy.outlook import Outlook
from planaria.policy.proposal import Proposal
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.rings import Rings
from planaria.policy.source import Offer
from planaria.policy.template_sets import even_sets
from planaria.policy.wording import join, shape
from planaria.policy.worth import Course, horizon_s, worth

CLOSE = 1.25
"""A set of pipelines whose compute alone takes so much longer than the best step, sums included, is not estimated."""

MOST_TOLD = 3
"""Candidates that the sentence names, the chosen one included; records have all."""

MOST_NODES = 2048
"""Of all plans together of which estimates are made, beyond `LEAST`: what one takes grows with its plan's nodes."""

MOST_NUMBERS = 3
"""Of pipelines, of which the quickest set by compute is tried."""

FREQUENT = 0.01
"""Of the time until the next loss, what the best plan is expected to lose by it, for rings to be tried: what shadows
compute costs some hundredths of a step at least."""

UNEVEN = 0.99
"""Such a set is left out unless a step takes so much less: a loss in its largest pipeline costs more."""

ALIKE = 0.02
"""Where workers share cores, plans worth so much less than the best are as good: all have about the same work to do.
Of those that use most nodes the one with most pipelines is taken: it has more replicas, and shorter pipelines wait less
for each other (docs/figures/benchmarks.md, shared cores)."""

LEAST = 2
"""Grids, even sets and plans with split backwards that are tried however many nodes there are, of each."""


def best_first(
    planner: ReroutePolicy,
    sizes: Sequence[Template],
    own: Proposal,
    nodes: Sequence[NodeId],
    generation: int,
    outlook: Outlook,
    rings: Rings | None,
) -> Proposal:
    """The first plan that is worth most, sums of gradients included; of equals that of the templates.

    Args:
        planner: estimates.
        sizes: a pipeline of each number of nodes that fits.
        own: what the policy `templates` proposes.
        nodes: live ones.
        generation: of the plan.
        outlook: for how long it is made.
        rings: where they come from; None: from nowhere.
    """
    offers = [_offer(f"templates ({shape(own.plan)})", own)]
    most = max(LEAST, MOST_NODES // max(1, len(set(nodes))))
    least_s = own.step_time_s
    uneven: set[str] = set()
    others = chain(
        _others(planner, sizes, nodes, generation, most),
        _of_numbers(planner, sizes, nodes, generation, offers, min(MOST_NUMBERS, most), uneven),
    )
    for name, plan, compute_s in others:
        if compute_s > CLOSE * least_s:
            continue
        if any(_same(plan, offer.proposal.plan) for offer in offers) or not planner.fits(plan):
            continue
        proposal = dataclasses.replace(planner.estimated(plan), how=own.how)
        offers.append(_offer(name, proposal))
        least_s = min(least_s, proposal.step_time_s)
    offers = told_apart(offers)
    quickest = sorted(offers, key=lambda offer: offer.proposal.step_time_s)
    close = [offer for offer in quickest if offer.proposal.step_time_s <= CLOSE * least_s]
    split = [found for found in (split_of(planner, offer) for offer in close[:most]) if found is not None]
    options = [option_of(planner, offer) for offer in [*offers, *split]]
    # Under f = 0 one pipeline may be faster; where templates keep a second replica, it is not given up for that.
    options = [option for option in options if option.exposure.peril(1.0) <= options[0].exposure.peril(1.0)]
    usual_s = min(option.step_time_s for option in options if option.offer.name.split(",")[0] not in uneven)
    options = [
        option
        for option in options
        if option.offer.name.split(",")[0] not in uneven or option.step_time_s <= UNEVEN * usual_s
    ]
    outlook = dataclasses.replace(outlook, steps_at_stake=0)
    horizon = horizon_s(outlook, usual_s)
    judged = [_candidate(planner, option, outlook, horizon) for option in options]
    best = max(judged, key=attrgetter("samples_per_s"))
    lost_s = best.risk_s + min(1.0, horizon / outlook.time_to_failure_s) * best.loss_s
    if rings is not None and lost_s > FREQUENT * horizon:
        ring = rings.first(sorted(set(nodes)), generation)
        for offer in (ring, ring and split_of(planner, ring)):
            if offer is not None:
                options.append(option_of(planner, offer))
                judged.append(_candidate(planner, options[-1], outlook, horizon))
    as_good = (1 - ALIKE) * max(one.samples_per_s for one in judged)
    is_shared = planner.settings.num_cores is not None

    def rank(at: int) -> tuple[int, int, float]:
        value, plan = judged[at].samples_per_s, options[at].offer.proposal.plan
        if not is_shared or value < as_good:
            return 0, 0, -value
        return -len(plan.nodes), -len(plan.pipelines), -value

    order = sorted(range(len(options)), key=rank)
    return _chosen(own, options[order[0]].offer.proposal, [judged[at] for at in order], len(set(nodes)))


def _others(
    planner: ReroutePolicy, sizes: Sequence[Template], nodes: Sequence[NodeId], generation: int, most: int
) -> Iterator[tuple[str, Plan, float]]:
    """Name, plan and seconds of compute; the fastest by those first."""
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
    planner: ReroutePolicy,
    sizes: Sequence[Template],
    nodes: Sequence[NodeId],
    generation: int,
    offers: Sequence[Offer],
    most: int,
    uneven: set[str],
) -> Iterator[tuple[str, Plan, float]]:
    """Name, plan and seconds of compute of the quickest sets by compute, of as many pipelines as the quickest of these
    offers have: of so many numbers at most. Where nodes differ in speed, those that go together are found by another
    search, of any number."""
    if any(speed != 1 for speed in (planner.speeds or {}).values()):
        return
    order = sorted(offers, key=lambda offer: offer.proposal.step_time_s)
    known = {template.num_nodes: step_times(template, planner.settings.num_microbatches) for template in sizes}
    for number in list(dict.fromkeys(len(offer.proposal.plan.pipelines) for offer in order))[:most]:
        try:
            plan = planner.instantiated(sizes, nodes, generation, number)
        except (PlanError, Undistributable):
            continue
        name = f"search ({shape(plan)})"
        if all(name != offer.name for offer in offers):
            uneven.add(name)
        yield name, plan, _compute_s(plan, known)


def _compute_s(plan: Plan, known: Mapping[int, Times]) -> float:
    """Of the pipeline that computes longest."""
    return max(
        float(known[len({plan.node_of(stage.worker) for stage in route.hops})][len(route.microbatches) - 1])
        for route in plan.routes
    )


def quickest_depths(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings, most: int
) -> list[Template]:
    """Of grids with f + 1 rows, those that take least by compute, before any is placed."""
    seconds: dict[int, float] = {}
    for at, template in enumerate(templates):
        rows = min(num_nodes // template.num_nodes, settings.num_microbatches)
        if rows > settings.fault_tolerance:
            share = -(-settings.num_microbatches // rows)
            seconds[at] = float(step_times(template, settings.num_microbatches)[share - 1])
    return [templates[at] for at in sorted(sorted(seconds, key=lambda at: (seconds[at], at))[:most])]


def _offer(name: str, proposal: Proposal) -> Offer:
    return Offer(name=name, proposal=proposal, explain=lambda asked, plan: proposal.reason)


def _same(one: Plan, other: Plan) -> bool:
    return one.pipelines == other.pipelines and one.routes == other.routes


def _chosen(own: Proposal, best: Proposal, told: Sequence[Candidate], num_nodes: int) -> Proposal:
    reason = own.reason
    if best.plan.redundancy is not None:
        reason = best.reason
    elif best.plan.pipelines != own.plan.pipelines:
        idle = num_nodes - len(best.plan.nodes)
        number = len(best.plan.pipelines)
        rest = f" ({idle} idle)" if idle else ""
        reason = f"{num_nodes} nodes make {number} pipelines of {shape(best.plan)} nodes{rest}."
    rivals = [f"{other.name} {other.samples_per_s:.4g}" for other in told[1:MOST_TOLD]]
    if rivals:
        reason = f"{reason} Chosen: {told[0].name}, {told[0].samples_per_s:.4g} samples a second; {join(rivals)}."
    return dataclasses.replace(best, reason=reason, how=own.how, candidates=tuple(told))


def _candidate(planner: ReroutePolicy, option: Option, outlook: Outlook, horizon: float) -> Candidate:
    course = Course(
        step_time_s=option.step_time_s,
        transition_s=0.0,
        peril_before=0.0,
        peril=option.exposure.peril(outlook.nodes_together),
        loss_s=option.loss_s,
    )
    value = worth(course, outlook, horizon)
    return Candidate(
        name=option.name,
        step_time_s=option.step_time_s,
        transition_s=0.0,
        transfer_bytes=0,
        memory_bytes=option.memory_bytes,
        is_degraded=option.is_degraded,
        risk_s=value.risk_s,
        loss_s=option.loss_s,
        samples_per_s=planner.settings.num_microbatches * planner.profile.microbatch_size * value.steps_per_s,
    )
