"""Plans for nodes whose speeds are known to differ: every way to give a slow node less to do.

Its pipeline gets fewer microbatches, its stage fewer layers, or it comes into another pipeline. (The fourth way, to do
without it, is the same question asked of the other nodes.) Which way is best is the estimate's to say: these are the
candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from planaria.plan.plan import PlanError
from planaria.plan.thresholds import PROMISING
from planaria.planner.reconfigure.rebalance_layers import recut
from planaria.planner.reconfigure.reconfigure import full
from planaria.planner.reconfigure.surviving_plan import Change, Reconfiguration, SurvivingPlan


def candidates(change: Change) -> list[Reconfiguration]:
    """Returns plans worth an estimate: the pipelines of now, and the best ones of all templates and of those without
    the smallest (see `planaria.planner.reconfigure.reconfigure.full`); each as it is, and cut for the speeds. Of them,
    the promising ones of those with the most nodes: to do without one is a question that the caller asks.

    Raises:
        TooFewNodes: fewer than (f + 1) n0 nodes are left.
        NoReplica: a group has no live holder.
        PlanError: fewer microbatches than pipelines needed; a speed that is none.
    """
    left = SurvivingPlan(change)
    found = [*_both(left, change, left.build_from(change.plan.pipelines)), *_both(left, change, full(change))]
    smallest = 1
    while smallest < len(change.templates):
        try:
            larger = full(dataclasses.replace(change, templates=change.templates[smallest:]))
        except PlanError:
            break  # too few nodes for f + 1 pipelines of that size
        found += _both(left, change, larger)
        smallest *= 2
    most = max(len(result.plan.nodes) for result in found)
    different = {(result.plan.pipelines, result.plan.routes): result for result in found}
    least_s = min(result.step_time_s for result in found if len(result.plan.nodes) == most)
    return [
        result
        for result in different.values()
        if len(result.plan.nodes) == most and result.step_time_s <= PROMISING * least_s
    ]


def _both(left: SurvivingPlan, change: Change, found: Reconfiguration | None) -> Iterator[Reconfiguration]:
    if found is None:
        return
    yield found
    if all(speed == 1.0 for speed in change.speeds.values()):
        return
    per_node = change.plan.devices_per_node
    anew = [recut(pipeline, change.profile, change.speeds, per_node) for pipeline in found.plan.pipelines]
    again = left.build_from(anew) if tuple(anew) != found.plan.pipelines else None
    if again is not None:
        yield again
