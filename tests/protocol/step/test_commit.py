"""What a commit decides, as functions of what was committed."""

from __future__ import annotations

import math

import pytest

from planaria.job.settings import LrSchedule, TrainSection
from planaria.protocol.step.commit import (
    FIRST_EXPONENT,
    LOWEST_EXPONENT,
    clip_factor,
    gradient_norm,
    learning_rate,
    mean_loss,
    next_exponents,
    outcome,
)


def train(**changes: object) -> TrainSection:
    fields: dict[str, object] = {"steps": 10, "global_batch": 4, "microbatch": 1, "sequence_length": 8}
    return TrainSection(**(fields | changes))  # type: ignore[arg-type]


def test_exponents_rise_at_once_and_fall_slowly() -> None:
    risen = next_exponents([FIRST_EXPONENT], {0: 1000.0**2})
    assert risen == (10,)
    assert next_exponents(risen, {0: 1e-6**2}) == (9,)
    assert next_exponents([LOWEST_EXPONENT], {0: 0.0}) == (LOWEST_EXPONENT,)


def test_norm_and_clip() -> None:
    assert gradient_norm({1: 16.0, 0: 9.0}) == 5.0
    assert clip_factor(5.0, 0.0) == 1.0
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(5.0, 1.0) == pytest.approx(0.2)
    assert clip_factor(math.nan, 1.0) == 1.0


def test_mean_loss_does_not_depend_on_the_order_of_arrival() -> None:
    losses = {0: 0.1, 1: 0.2, 2: 0.3}
    assert mean_loss(losses) == mean_loss(dict(reversed(losses.items())))


@pytest.mark.parametrize(
    ("schedule", "last"), [(LrSchedule.CONSTANT, 1.0), (LrSchedule.LINEAR, 0.1), (LrSchedule.COSINE, 0.1)]
)
def test_learning_rate(schedule: LrSchedule, last: float) -> None:
    section = train(learning_rate=1.0, warmup_steps=4, lr_schedule=schedule, min_lr_ratio=0.1)
    rates = [learning_rate(section, step) for step in range(1, 11)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[-1] == pytest.approx(last)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_what_is_left_out_leaves_a_mean_over_the_rest() -> None:
    """Contributions are shares of the whole batch: the mean over three of four is four thirds of their sum."""
    norms, losses = {0: 9.0, 1: 16.0}, {0: 1.0, 1: 2.0, 3: 3.0}
    whole = outcome(norms, {**losses, 2: 2.0}, (4, 4), 2.5, 4)
    assert (whole.scale, whole.norm, whole.clip_factor) == (1.0, 5.0, clip_factor(5.0, 2.5))
    part = outcome(norms, losses, (4, 4), 2.5, 4)
    assert (part.scale, part.loss) == (0.75, 2.0)
    assert part.norm == 5.0 / 0.75
    assert part.clip_factor * 5.0 == pytest.approx(2.5)
    assert outcome(norms, losses, (4, 4), 0.0, 4).clip_factor == 1 / 0.75
    assert part.exponents == whole.exponents
