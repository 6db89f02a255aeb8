"""Closed forms of a step's time, as the papers give them, each with what it misses.

For comparison and for quick questions; plans are judged by `planaria.estimate.step_time`. How far each is from it is
measured by benchmarks/closed_forms.py on random instances; docs/explanation/estimates.md has the whole table. A
positive bias means that the form says more than the simulation. Times are in seconds, of one microbatch where nothing
else is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from planaria.plan.plan import PlanError


def oobleck_s(stages_s: Sequence[float], num_microbatches: int) -> float:
    """Returns a 1F1B pipeline's T1 + T2 + T3 (Oobleck, 4.1.2): way in and out, slowest stage's share, way back.

    T1 is one forward and backward of every stage, T2 = (N - S + k* - 1) times the slowest stage's, T3 that of all
    stages from the slowest on. k* counts from 0, and of equally slow stages the last is taken.

    Exact for even stages without messages, whatever k*. It knows no messages and no stage but the slowest in
    the steady phase, and so is never too high with one ratio of backward to forward. Measured bias: -0.3% on average
    and -7% at worst with stages uneven by 20%, -2% and -18% by 50%; -14% and -16% where messages take 10% of a stage.

    Args:
        stages_s: forward and backward of each stage.
        num_microbatches: N; the paper plans with 4 S, which compares different amounts of work for different S.
    """
    if not stages_s or num_microbatches < 1:
        raise PlanError(
            f"A pipeline of {len(stages_s)} stages and {num_microbatches} microbatches has no step. Give 1 at least."
        )
    slowest = max(range(len(stages_s)), key=lambda k: (stages_s[k], k))
    steady = (num_microbatches - len(stages_s) + slowest - 1) * stages_s[slowest]
    return sum(stages_s) + steady + sum(stages_s[slowest:])


def symmetric_s(num_stages: int, num_microbatches: int, stage_s: float) -> float:
    """Returns the time of even 1F1B pipelines (Odyssey, Eq. 9): (N_pp + N_m - 1) (T_f + T_b).

    Exact without messages; `stage_s` is T_f + T_b. With uneven stages it depends on whose T_f + T_b is meant: with
    the slowest stage's it is too high (measured, stages uneven by 20%: +7% on average, +23% at worst), with the mean's
    too low (-6%, -14%).
    """
    return (num_stages + num_microbatches - 1) * stage_s


def asymmetric_s(pipelines: Iterable[tuple[Sequence[tuple[float, float]], int]]) -> float:
    """Returns the longest time of uneven pipelines side by side (Odyssey, Eq. 10 and 11), each in 1F1B by recurrence.

    Each computation starts when the stage's previous one and the one it depends on in the neighbour have ended. Exact
    without messages and sums. Measured bias where messages take 10% of a stage: -9% to -14% on average, -16% at worst.

    Args:
        pipelines: of each, the (forward, backward) seconds of its stages, and its number of microbatches.
    """
    return max(_one_f_one_b_s(stages, number) for stages, number in pipelines)


def _one_f_one_b_s(stages: Sequence[tuple[float, float]], number: int) -> float:
    depth = len(stages)
    forward = [[0.0] * number for _ in stages]
    backward = [[0.0] * number for _ in stages]
    free = [0.0] * depth
    done = [0] * depth
    orders = [_order(depth - 1 - k, number) for k in range(depth)]
    progress = True
    while progress:
        progress = False
        for k, (forward_s, backward_s) in enumerate(stages):
            while done[k] < len(orders[k]):
                is_forward, m = orders[k][done[k]]
                if is_forward:
                    needed = forward[k - 1][m] if k else 1e-300
                else:
                    needed = backward[k + 1][m] if k + 1 < depth else forward[k][m]
                if not needed:
                    break
                free[k] = max(free[k], needed) + (forward_s if is_forward else backward_s)
                (forward if is_forward else backward)[k][m] = free[k]
                done[k] += 1
                progress = True
    return max(free)


def _order(ahead: int, number: int) -> list[tuple[bool, int]]:
    ahead = min(ahead, number)
    order = [(True, m) for m in range(ahead)]
    for m in range(number):
        if ahead + m < number:
            order.append((True, ahead + m))
        order.append((False, m))
    return order


def one_failure_s(num_pipelines: int, num_stages: int, num_microbatches: int, stage_s: float) -> float:
    """Returns the time rerouted after one failure (Odyssey, Eq. 12): (N_pp + N_m - 1 + N_m / (N_dp - 1)) (T_f + T_b).

    Measured bias: +5% on average under GPipe (-5% to +22%), none under eager 1F1B (-9% to +14%).

    Raises:
        PlanError: there is no peer.
    """
    _check_failures(num_pipelines, [1])
    return (num_stages + num_microbatches - 1 + num_microbatches / (num_pipelines - 1)) * stage_s


def failures_s(num_pipelines: int, failures: Sequence[int], num_microbatches: int, stage_s: float) -> float:
    """Returns the time rerouted after any failures (Odyssey, Eq. 13): N_pp + N_m - 1 and, for each place i of a
    pipeline, N_m F_i / (N_dp - F_i) periods more.

    It adds up the delays of places that work side by side, so it is the higher above the truth the more of them
    lost somebody; `busiest_s` takes the largest. Measured bias under GPipe: +16% on average at 2 failures, +53% at 6
    (+126% at worst); under eager 1F1B +8% and +47%.

    Args:
        num_pipelines: N_dp.
        failures: F_i of each place i.
        num_microbatches: N_m, of each pipeline.
        stage_s: T_f + T_b.

    Raises:
        PlanError: a place has lost everybody. (The paper's limit is F_i > N_dp; with F_i = N_dp nobody is left.)
    """
    _check_failures(num_pipelines, failures)
    more = sum(num_microbatches * f / (num_pipelines - f) for f in failures)
    return (len(failures) + num_microbatches - 1 + more) * stage_s


def busiest_s(num_pipelines: int, failures: Sequence[int], num_microbatches: int, stage_s: float) -> float:
    """Returns the busiest place's time after failures: (N_pp - 1 + max_i ceil(N_m N_dp / (N_dp - F_i))) (T_f + T_b).

    Arguments and errors as `failures_s`. Near what a list schedule with memory to spare reaches. Measured bias under
    GPipe at 2 to 6 failures: below 2% on average, -6% to +15%; under eager 1F1B -3% to -6%, at worst -16%. Split
    backwards are faster than it says: it knows nothing of what they spare at both ends.
    """
    _check_failures(num_pipelines, failures)
    busiest = max(ceil(num_microbatches * num_pipelines / (num_pipelines - f)) for f in failures)
    return (len(failures) - 1 + busiest) * stage_s


def _check_failures(num_pipelines: int, failures: Sequence[int]) -> None:
    for place, failed in enumerate(failures):
        if not 0 <= failed < num_pipelines:
            raise PlanError(
                f"{failed} of {num_pipelines} workers failed at place {place}: nobody is left to carry their work. "
                "Plan new pipelines instead."
            )
