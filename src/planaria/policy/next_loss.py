"""What the next loss costs under a plan: the step that it strikes is finished by what goes on, or begun anew.

Closed forms (`planaria.plan.costs.PipelineCost`): it is one term among several, of every candidate. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from planaria.plan.costs import PipelineCost, pipeline_cost
from planaria.plan.plan import Plan, Redundancy
from planaria.plan.profile import ModelProfile
from planaria.plan.program.routes import redundant_ring, redundant_workers

ALL_STOP = 0.5
"""Of a step: what a loss in its middle costs where all stop. Of half a step nearly all is under way between stages, and
in nobody's accumulator; 0.44 to 0.8 in virtual time, and it can be begun anew (`benchmarks/adaptive.py --virtual`)."""

TAKEN_OVER = {Redundancy.EAGER_EAGER: 0.3, Redundancy.EAGER_LAZY: 0.65, Redundancy.LAZY_LAZY: 0.8}
"""Of a step: what a loss costs where a shadow goes on, which then does the work of two. Means over all nodes and five
moments of a step, of five rings of one to four pipelines in virtual time: 0.55 to 0.8 for eager-lazy."""


def next_loss_s(plan: Plan, profile: ModelProfile, step_s: float) -> float:
    """By how much longer a step takes if a node is lost in its middle: of the pipeline that has most to do.

    Where microbatches pass through several pipelines, all of these stop. Where shadows compute, they take over.

    Args:
        plan: whose step it is.
        profile: costs.
        step_s: estimated.
    """
    if plan.redundancy is not None:
        bare = bare_share(plan)
        whole = msgspec.structs.replace(plan, redundancy=None)
        without_s = next_loss_s(whole, profile, step_s) if bare else 0.0
        return (1 - bare) * TAKEN_OVER[plan.redundancy] * step_s + bare * without_s
    at_of = {pipeline.stages: at for at, pipeline in enumerate(plan.pipelines)}
    shares: dict[int, int] = {}
    for route in plan.routes:
        at = at_of.get(route.hops)
        if at is None:
            return ALL_STOP * step_s
        shares[at] = shares.get(at, 0) + len(route.microbatches)
    if len(shares) < 2:
        return step_s / 2
    known: dict[tuple[tuple[int, int, int], ...], PipelineCost] = {}
    costs = {}
    for at in shares:
        cut = tuple((stage.first_layer, stage.end_layer, stage.num_devices) for stage in plan.pipelines[at].stages)
        costs[at] = known.setdefault(cut, known.get(cut) or _cost(profile, cut))
    lost = max(shares, key=lambda at: (shares[at], -at))
    others = sorted(shares.keys() - {lost})
    before_s = max(costs[at].time_s(shares[at]) for at in shares)
    more = _dealt([costs[at] for at in others], [shares[at] for at in others], shares[lost])
    whole_s = max(costs[at].time_s(shares[at] + more[place]) for place, at in enumerate(others))
    alone_s = max(costs[at].time_s(more[place]) for place, at in enumerate(others))
    # In the units of the estimate: it knows the order of work, and these forms do not.
    scale = step_s / before_s if before_s > 0 else 1.0
    rest_s = max(whole_s * scale - step_s / 2, alone_s * scale)
    return max(0.0, min(rest_s, step_s) - step_s / 2)


def _cost(profile: ModelProfile, cut: Sequence[tuple[int, int, int]]) -> PipelineCost:
    """Of a pipeline of such stages, each taken to be on a node of its own."""
    return pipeline_cost(
        profile, [(first, end) for first, end, _ in cut], [(place, count) for place, (*_, count) in enumerate(cut)]
    )


def bare_share(plan: Plan) -> float:
    """Of the stages, the share that nobody computes with."""
    runs_again = [worker for pipeline in plan.pipelines for worker in redundant_workers(plan, pipeline.stages)]
    ring = redundant_ring(plan, sorted(p.stages[0].worker for p in plan.pipelines if len(p.stages) == 1))
    return (runs_again.count(None) - len(ring)) / len(runs_again)


def _dealt(costs: Sequence[PipelineCost], loads: Sequence[int], number: int) -> list[int]:
    """Each microbatch to the pipeline that would end first with it, as `planaria.plan.salvage` does."""
    more = [0] * len(costs)
    for _ in range(number):
        place = min(range(len(costs)), key=lambda i: (costs[i].time_s(loads[i] + more[i] + 1), i))
        more[place] += 1
    return more
