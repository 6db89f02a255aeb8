"""What the next loss costs under a plan: the step that it strikes is finished by what goes on, or begun anew.

Closed forms (`planaria.plan.costs.PipelineCost`): it is one term among several, of every candidate. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from planaria.plan.costs import PipelineCost, pipeline_cost
from planaria.plan.plan import Plan
from planaria.plan.profile import ModelProfile

ALL_STOP = 0.5
"""Of a step: what a loss in its middle costs where all stop. Of half a step nearly all is under way between stages, and
in nobody's accumulator; 0.44 to 0.8 in virtual time, and it can be begun anew (`benchmarks/adaptive.py --virtual`)."""


def next_loss_s(plan: Plan, profile: ModelProfile, step_s: float) -> float:
    """By how much longer a step takes if a node is lost in its middle: of the pipeline that has most to do.

    Where microbatches pass through several pipelines, all of these stop.

    Args:
        plan: whose step it is.
        profile: costs.
        step_s: estimated.
    """
    at_of = {pipeline.stages: at for at, pipeline in enumerate(plan.pipelines)}
    shares: dict[int, int] = {}
    for route in plan.routes:
        at = at_of.get(route.hops)
        if at is None:
            return ALL_STOP * step_s
        shares[at] = shares.get(at, 0) + len(route.microbatches)
    if len(shares) < 2:
        return step_s / 2
    known: dict[tuple[tuple[int, int], ...], PipelineCost] = {}
    costs = {}
    for at in shares:
        cut = tuple((stage.first_layer, stage.end_layer) for stage in plan.pipelines[at].stages)
        costs[at] = known.setdefault(cut, known.get(cut) or pipeline_cost(profile, cut))
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


def _dealt(costs: Sequence[PipelineCost], loads: Sequence[int], number: int) -> list[int]:
    """Each microbatch to the pipeline that would end first with it, as `planaria.plan.salvage` does."""
    more = [0] * len(costs)
    for _ in range(number):
        place = min(range(len(costs)), key=lambda i: (costs[i].time_s(loads[i] + more[i] + 1), i))
        more[place] += 1
    return more
