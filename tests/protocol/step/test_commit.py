"""What a commit decides, as functions of what was committed."""

from __future__ import annotations

import math

import pytest

from planaria.job.sections.train import DType
from planaria.protocol.step.commit import (
    FIRST_EXPONENT,
    FIRST_LOSS_EXPONENT,
    LOWEST_EXPONENT,
    STEPS_TO_DOUBLE,
    clip_factor,
    first_exponents,
    gradient_norm,
    loss_scale,
    mean_loss,
    next_exponents,
    outcome,
)


def test_exponents_rise_at_once_and_fall_slowly() -> None:
    risen = next_exponents([FIRST_EXPONENT], {0: 1000.0**2})
    assert risen == (10,)
    assert next_exponents(risen, {0: 1e-6**2}) == (9,)
    assert next_exponents([LOWEST_EXPONENT], {0: 0.0}) == (LOWEST_EXPONENT,)


def test_a_norm_above_the_limit_is_clipped() -> None:
    assert gradient_norm({1: 16.0, 0: 9.0}) == 5.0
    assert gradient_norm({0: 0.0}) == 0.0
    assert clip_factor(5.0, 0.0) == 1.0
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(5.0, 1.0) == pytest.approx(0.2)
    assert clip_factor(math.nan, 1.0) == 1.0


def test_mean_loss_does_not_depend_on_the_order_of_arrival() -> None:
    losses = {0: 0.1, 1: 0.2, 2: 0.3}
    assert mean_loss(losses) == mean_loss(dict(reversed(losses.items())))


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


def test_the_loss_is_scaled_by_half_after_a_step_that_cannot_be_applied() -> None:
    exponents = first_exponents(1, DType.FLOAT16)
    assert loss_scale(exponents, DType.FLOAT16) == 65536.0
    for exponent in reversed(range(FIRST_LOSS_EXPONENT)):
        found = outcome({0: math.inf}, {0: 1.0}, exponents, 1.0, 1)
        assert (found.is_applied, found.overflowed) == (False, True)
        assert found.exponents == (FIRST_EXPONENT, exponent, 0)
        exponents = found.exponents
    found = outcome({0: math.nan}, {0: 1.0}, exponents, 1.0, 1)
    assert not found.overflowed, "it is not the scale that makes it so"
    assert found.exponents == exponents


def test_the_loss_is_scaled_by_twice_as_much_after_many_applied_steps() -> None:
    exponents = outcome({0: 1.0}, {0: 1.0}, (FIRST_EXPONENT, 3, STEPS_TO_DOUBLE - 2), 1.0, 1).exponents
    assert exponents[1:] == (3, STEPS_TO_DOUBLE - 1)
    assert outcome({0: 1.0}, {0: 1.0}, exponents, 1.0, 1).exponents[1:] == (4, 0)


def test_other_dtypes_have_no_scale() -> None:
    assert first_exponents(2, DType.BFLOAT16) == (FIRST_EXPONENT, FIRST_EXPONENT)
    assert loss_scale((3, 5), DType.FLOAT32) == 1.0
    assert not outcome({0: math.inf}, {0: 1.0}, (3,), 1.0, 1).overflowed
