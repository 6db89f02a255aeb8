"""The objective: what a plan is worth until the next loss (Odyssey), with the risk of too few replicas.

Source: Odyssey, Eq. 8: the throughput of the next state times the share of the time between two losses that it runs.
Here a job's end may come first, some state moves beside a step, a loss may take a layer's last replica, and the step
that it strikes is finished by what goes on, or begun anew. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import PipelineCost, pipeline_cost
from planaria.plan.plan import Plan, Redundancy
from planaria.plan.program.routes import redundant_ring, redundant_workers
from planaria.plan.thresholds import ALL_STOP_SHARE, DEGRADED_SAVES_S, TAKEN_OVER_SHARES
from planaria.planner.placement.zones import Zones
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.forecast import FailureForecast, exposure
from planaria.policy.interface import Candidate, ReplanRequest

TAKEN_OVER = dict(
    zip((Redundancy.EAGER_EAGER, Redundancy.EAGER_LAZY, Redundancy.LAZY_LAZY), TAKEN_OVER_SHARES, strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The course of things under a candidate.

    Attributes:
        step_time_s: seconds of a step once its plan runs.
        transition_s: seconds before that, without gain.
        peril_before: of the next losses, the share that takes a last replica while the transition lasts.
        peril: of the next losses, the share that takes a last replica under the plan.
        loss_s: by how much longer the step takes under the plan in which the next node is lost.
        is_degraded: so the state is saved beside training, also where no checkpoint is written on the way.
    """

    step_time_s: float
    transition_s: float
    peril_before: float
    peril: float
    loss_s: float = 0.0
    is_degraded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The worth of a course.

    Attributes:
        risk_s: expected seconds that a last replica's loss costs.
        steps_per_s: mean over the horizon; not below 0.
    """

    risk_s: float
    steps_per_s: float


def worth(course: Course, forecast: FailureForecast, seconds: float) -> Worth:
    """Returns what a course is worth over a horizon of so many seconds. The next loss is as likely at any moment until
    it is expected."""
    before_s = min(course.transition_s, seconds)
    share = (course.peril_before * before_s + course.peril * (seconds - before_s)) / forecast.time_to_failure_s
    risk_s = share * _at_stake_s(course, forecast, seconds)
    loss_s = min(1.0, seconds / forecast.time_to_failure_s) * course.loss_s
    gained_s = max(0.0, seconds - course.transition_s - risk_s - loss_s)
    return Worth(risk_s=risk_s, steps_per_s=gained_s / (seconds * course.step_time_s))


def _at_stake_s(course: Course, forecast: FailureForecast, seconds: float) -> float:
    """Returns the seconds that are lost with the last replica, on average over the horizon. They grow from what is at
    stake now, and begin anew with each checkpoint. Under a degraded plan the first is written as soon as a step is
    done, if none is written otherwise."""
    step_s = course.step_time_s
    now_s = forecast.steps_at_stake * step_s
    intervals = [seconds for seconds in (forecast.checkpoint_every * step_s, forecast.checkpoint_every_s) if seconds]
    every_s = min(intervals, default=0.0)
    if every_s:
        until_s = max(0.0, every_s - now_s)
    elif course.is_degraded:
        until_s, every_s = course.transition_s + step_s, DEGRADED_SAVES_S
    else:
        return forecast.restore_s + now_s + seconds / 2
    until_s = min(until_s, seconds)
    rest_s = seconds - until_s
    work_s = until_s * (now_s + until_s / 2) + rest_s * min(rest_s, every_s) / 2
    return forecast.restore_s + work_s / seconds


def judged(
    candidate: Candidate, course: Course, forecast: FailureForecast, seconds: float, microbatch_size: int
) -> CandidateRecord:
    """Returns the figures of a candidate that takes this course, over a horizon of so many seconds."""
    value = worth(course, forecast, seconds)
    samples = candidate.plan.num_counted * microbatch_size
    return CandidateRecord(
        name=candidate.name,
        step_time_s=candidate.step_time_s,
        transition_s=course.transition_s,
        transfer_bytes=candidate.transfer_bytes,
        memory_bytes=candidate.memory_bytes,
        is_degraded=candidate.is_degraded,
        risk_s=value.risk_s,
        loss_s=candidate.loss_s,
        samples_per_s=samples * value.steps_per_s,
        samples=samples,
    )


def peril_now(request: ReplanRequest, zones: Zones, forecast: FailureForecast) -> float:
    """Returns of the next losses the share that takes a last replica as state lies now, without the nodes that go."""
    plan, absent = request.plan, request.absent
    live = [(plan.node_of(w), groups) for w, groups in request.holders.items() if plan.node_of(w) not in absent]
    return exposure(live, len(plan.groups), zones).peril(forecast.nodes_together)


def transition_s(candidate: Candidate, forecast: FailureForecast, before_s: float = 0.0) -> float:
    """Returns the seconds without gain until the plan runs. State sent during a step delays workers only at the vote.

    Args:
        candidate: whose plan it is.
        forecast: of the time to come.
        before_s: of a step of the plan of now, beside which state moves where the plan is not for the next step.
    """
    step_s = candidate.step_time_s
    if candidate.restored is not None:
        load_s = forecast.storage.time_s(candidate.restored.busiest_bytes, candidate.restored.total_bytes)
        return max(forecast.change_s + load_s, forecast.restore_s) + forecast.steps_at_stake * step_s
    moves_s = candidate.transfer_s * forecast.transfer_stretch
    second_s = forecast.change_s + forecast.decision_s  # after the step beside which state moved it is decided again
    if candidate.beside is not None:
        waits_s = second_s + max(0.0, max(candidate.beside.step_time_s, moves_s) - step_s)
    elif forecast.at_once or not moves_s:
        waits_s = max(0.0, candidate.wait_s + moves_s - candidate.transfer_s)
    else:
        waits_s = second_s + max(0.0, max(before_s, moves_s) - step_s)
    return forecast.change_s + waits_s


# What the next loss costs. In closed forms (`planaria.plan.costs.stage_costs.PipelineCost`): it is one term among
# several, of every candidate.


def next_loss_s(plan: Plan, profile: ModelProfile, step_s: float) -> float:
    """Returns by how much longer a step takes if a node is lost in its middle, of the pipeline that has most to do.

    Where microbatches pass through several pipelines, all of these stop. Where shadows compute, they take over.

    Args:
        plan: whose step it is.
        profile: what layers and links cost.
        step_s: estimated seconds of a step.
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
            return ALL_STOP_SHARE * step_s
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
    """Returns the cost of a pipeline of such stages, each taken to be on a node of its own."""
    return pipeline_cost(
        profile, [(first, end) for first, end, _ in cut], [(place, count) for place, (*_, count) in enumerate(cut)]
    )


def bare_share(plan: Plan) -> float:
    """Returns the share of the stages that no other worker computes with."""
    runs_again = [worker for pipeline in plan.pipelines for worker in redundant_workers(plan, pipeline.stages)]
    ring = redundant_ring(plan, sorted(p.stages[0].worker for p in plan.pipelines if len(p.stages) == 1))
    return (runs_again.count(None) - len(ring)) / len(runs_again)


def _dealt(costs: Sequence[PipelineCost], loads: Sequence[int], number: int) -> list[int]:
    """Returns how many microbatches each pipeline gets: each goes where it would end first, as in
    `planaria.planner.finish_step.salvage`."""
    more = [0] * len(costs)
    for _ in range(number):
        place = min(range(len(costs)), key=lambda i: (costs[i].time_s(loads[i] + more[i] + 1), i))
        more[place] += 1
    return more
