"""A learning rate's schedule that is a function of the user's: called once for each step, before the run begins."""

from __future__ import annotations

import math
from numbers import Real

from planaria.job.errors import UserCodeError, UserError
from planaria.job.sections.train import TrainSection
from planaria.job.users_code import import_function, users_trace
from planaria.job.values import is_function


def rate_factors(train: TrainSection) -> tuple[float, ...]:
    """Returns what the job's function gives for each step, from the first; nothing where the schedule is none.

    Raises:
        UserError: it cannot be imported, or does not give finite numbers of at least 0.
    """
    if not is_function(train.lr_schedule):
        return ()
    function = import_function(train.lr_schedule, "train.lr_schedule")
    field = f"train.lr_schedule = {train.lr_schedule!r}"
    factors: list[float] = []
    for step in range(1, train.steps + 1):
        try:
            given = function(step)
            factor = float(given) if isinstance(given, Real) else math.nan
        except Exception as error:  # the user's function may raise anything
            raise UserCodeError(
                f"{field} fails at step {step} with {type(error).__name__}: {error}. Mend it there.",
                users_trace(error),
            ) from error
        if not math.isfinite(factor) or factor < 0:
            raise UserError(
                f"{field} gives {given!r} for step {step}. Return a finite number of at least 0, by which "
                "learning_rate is multiplied."
            )
        factors.append(factor)
    return tuple(factors)
