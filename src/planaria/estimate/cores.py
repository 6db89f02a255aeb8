"""The step time where all workers are processes of one machine and have less than a core each (oversubscription).

However the work is ordered, the cores must do all of it: a step takes at least all workers' compute, messages, sums
and optimizer's steps over the number of cores. So what fills gaps (split backwards) gains nothing there, and what
adds work costs. Beside that, the machine may be slower or quicker than its profile: a measured number stretches every
estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.outline import StepEstimate
from planaria.plan.plan import Plan, WorkerId


def least_step_s(
    plan: Plan, durations: Durations, compute_s: Mapping[WorkerId, float], conditions: Conditions
) -> float:
    """Returns the seconds that the cores need at least for a step of the plan; 0 where each worker has its own.

    Args:
        plan: whose step it is.
        durations: what each instruction of the plan takes.
        compute_s: of each worker's forwards and backwards.
        conditions: how many cores there are.
    """
    if conditions.num_cores is None:
        return 0.0
    sums = sum(
        durations.sum_times(worker, group).add_s for worker, groups in plan.groups_of.items() for group in groups
    )
    applies = sum(durations.apply_s(worker) for worker in plan.workers)
    busy = sum(compute_s.values()) + _messages_s(plan, durations) + sums + applies
    return busy / conditions.num_cores + durations.vote_s


def _messages_s(plan: Plan, durations: Durations) -> float:
    """Returns the seconds for all messages of a step, activations down the routes and gradients back.

    On one machine a message is work of its cores, too.
    """
    seconds = 0.0
    for route in plan.routes:
        down = sum(
            durations.message_s(hop.worker, following.worker, hop.end_layer)
            for hop, following in pairwise(route.hops)
            if hop.worker != following.worker
        )
        seconds += 2 * len(route.microbatches) * down
    return seconds


def on_shared_cores(found: StepEstimate, plan: Plan, durations: Durations, conditions: Conditions) -> StepEstimate:
    """Returns the estimate of a step where workers share cores, from that on machines of their own: no instruction is
    quicker there than the step as a whole."""
    step_s = max(found.step_time_s, least_step_s(plan, durations, found.compute_s, conditions))
    longer = conditions.stretch * step_s / found.step_time_s if found.step_time_s else conditions.stretch
    return replace(
        found,
        step_time_s=conditions.stretch * step_s,
        longest_instruction_s=longer * found.longest_instruction_s,
    )
