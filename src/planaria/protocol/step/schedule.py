"""The learning rate of each step: a pure function of the job, and of where the run's schedule ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planaria.job.sections.train import LrSchedule, TrainSection

Ends = tuple[tuple[int, int], ...]
"""(step, train.steps) pairs: after that step, the learning rate's schedule ended there. A run that was made longer has
more than one: steps that were trained keep their rates."""


def learning_rate(train: TrainSection, step: int, ends: Ends = (), factors: Sequence[float] = ()) -> float:
    """Returns the learning rate of `step` (the first is 1): linear warm-up, then the schedule's.

    Args:
        train: peak, schedule, warm-up.
        step: whose rate is asked for.
        ends: where the decay ends, since which step; empty: at train.steps, all along.
        factors: of a schedule that is a function: what it gives for each step, from the first on.
    """
    if train.lr_schedule not in [*LrSchedule]:
        return train.learning_rate * factors[step - 1]
    if step <= train.warmup_steps:
        return train.learning_rate * step / train.warmup_steps
    end = next((steps for since, steps in reversed(ends) if since < step), train.steps)
    match LrSchedule(train.lr_schedule):
        case LrSchedule.CONSTANT:
            return train.learning_rate
        case LrSchedule.INVERSE_SQRT:
            return train.learning_rate * math.sqrt(max(1, train.warmup_steps) / step)
        case LrSchedule.WSD:
            begin = max(train.warmup_steps, end - (train.decay_steps or math.ceil(end / 10)))
            share = 1.0 - _progress(step, begin, end)
        case LrSchedule.LINEAR:
            share = 1.0 - _progress(step, train.warmup_steps, end)
        case LrSchedule.COSINE:
            share = 0.5 * (1.0 + math.cos(math.pi * _progress(step, train.warmup_steps, end)))
    return train.learning_rate * (train.min_lr_ratio + (1.0 - train.min_lr_ratio) * share)


def _progress(step: int, begin: int, end: int) -> float:
    """Returns how much of a decay is over."""
    return min(1.0, max(0, step - begin) / max(1, end - begin))
