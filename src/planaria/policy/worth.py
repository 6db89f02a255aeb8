"""What a plan is worth until the next loss: Odyssey's objective, with the risk of what too few replicas may cost.

Source: Odyssey, Eq. 8: the throughput of the next state times the share of the time between two losses that it runs.
Here a job's end may come first, some state moves beside a step, and a loss may take a layer's last replica. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from planaria.policy.outlook import DEGRADED_SAVES_S, Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What would happen under a candidate.

    Attributes:
        step_time_s: once its plan runs.
        transition_s: before that, without gain.
        peril_before: of the next losses, the share that takes a last replica while the transition lasts.
        peril: likewise under the plan.
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
    """Of a course.

    Attributes:
        risk_s: expected seconds that a last replica's loss costs.
        steps_per_s: mean over the horizon; not below 0.
    """

    risk_s: float
    steps_per_s: float


def horizon_s(outlook: Outlook, least_step_s: float) -> float:
    """The seconds over which candidates are compared: to the next loss, or the end of the job at the fastest step."""
    if outlook.steps_left is None:
        return outlook.time_to_failure_s
    return min(outlook.time_to_failure_s, max(1, outlook.steps_left) * least_step_s)


def worth(course: Course, outlook: Outlook, seconds: float) -> Worth:
    """Over a horizon of so many seconds. The next loss is as likely at any moment until it is expected."""
    before_s = min(course.transition_s, seconds)
    share = (course.peril_before * before_s + course.peril * (seconds - before_s)) / outlook.time_to_failure_s
    risk_s = share * _at_stake_s(course, outlook, seconds)
    loss_s = min(1.0, seconds / outlook.time_to_failure_s) * course.loss_s
    gained_s = max(0.0, seconds - course.transition_s - risk_s - loss_s)
    return Worth(risk_s=risk_s, steps_per_s=gained_s / (seconds * course.step_time_s))


def _at_stake_s(course: Course, outlook: Outlook, seconds: float) -> float:
    """What is lost with the last replica, on average over the horizon: it grows from what is at stake now, and begins
    anew with each checkpoint. Under a degraded plan the first is written as soon as a step is done, if none is written
    otherwise."""
    step_s = course.step_time_s
    now_s = outlook.steps_at_stake * step_s
    intervals = [seconds for seconds in (outlook.checkpoint_every * step_s, outlook.checkpoint_every_s) if seconds]
    every_s = min(intervals, default=0.0)
    if every_s:
        until_s = max(0.0, every_s - now_s)
    elif course.is_degraded:
        until_s, every_s = course.transition_s + step_s, DEGRADED_SAVES_S
    else:
        return outlook.restore_s + now_s + seconds / 2
    until_s = min(until_s, seconds)
    rest_s = seconds - until_s
    work_s = until_s * (now_s + until_s / 2) + rest_s * min(rest_s, every_s) / 2
    return outlook.restore_s + work_s / seconds
