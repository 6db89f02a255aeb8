"""What a commit decides, as functions of what was committed."""

from __future__ import annotations

import math

import pytest

from planaria.protocol.step.commit import (
    FIRST_EXPONENT,
    LOWEST_EXPONENT,
    clip_factor,
    gradient_norm,
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
