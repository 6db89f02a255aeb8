"""What a commit decides, as pure functions of what was committed before: clip factor and grids."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_EXPONENT = 4
"""Grid exponent before anything is committed: gradients of up to 2**4 are far from the limit."""

LOWEST_EXPONENT = -24

NOT_APPLIED = 0.0
"""Clip factor of a step that is committed without being applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is made of one step.

    Attributes:
        loss: mean over its microbatches.
        norm: global L2 norm of its gradient: the mean over the microbatches that counted.
        is_applied: both are numbers.
        clip_factor: what gradients are multiplied by; `NOT_APPLIED` if the step is not applied. Where microbatches were
            left out, that makes a mean over those that counted of what was summed as a share of the whole batch.
        exponents: grid exponents of the next step.
        scale: what the learning rate is multiplied by: the effective batch over the global one.
    """

    loss: float
    norm: float
    is_applied: bool
    clip_factor: float
    exponents: tuple[int, ...]
    scale: float = 1.0


def outcome(
    norms: Mapping[int, float],
    losses: Mapping[int, float],
    exponents: tuple[int, ...],
    clip_norm: float,
    num_microbatches: int,
) -> Outcome:
    """Returns what a step's sums and losses make of it, for a coordinator or for a process that trains alone.

    Args:
        norms: group -> squared norm of its summed gradient.
        losses: microbatch -> loss, of those that counted.
        exponents: grid exponents of the step.
        clip_norm: limit of the gradient's norm; 0: none.
        num_microbatches: of the global batch. Those without a loss were left out.
    """
    scale = effective_share(len(losses), num_microbatches)
    norm, loss = gradient_norm(norms) / scale, mean_loss(losses)
    is_applied = is_finite(loss, norm)
    return Outcome(
        loss=loss,
        norm=norm,
        is_applied=is_applied,
        clip_factor=clip_factor(norm, clip_norm) / scale if is_applied else NOT_APPLIED,
        exponents=next_exponents(exponents, norms) if is_applied else exponents,
        scale=scale,
    )


def effective_share(num_counted: int, num_microbatches: int) -> float:
    """Returns the effective batch as a share of the global one; exactly 1 where nothing was left out."""
    return num_counted / num_microbatches


def next_exponents(exponents: Sequence[int], norms: Mapping[int, float]) -> tuple[int, ...]:
    """Returns the grid exponents of the next step.

    A group's exponent E stands for gradients of about 2**E: it rises at once with the norm and falls by at most one
    a step, so that one quiet step does not make the grid too fine for the next.

    Args:
        exponents: of the committed step, one a group.
        norms: group -> squared L2 norm of the committed gradient.
    """
    following = []
    for group, exponent in enumerate(exponents):
        norm = math.sqrt(norms[group]) if math.isfinite(norms[group]) else 0.0
        wanted = math.frexp(norm)[1] if norm > 0.0 else LOWEST_EXPONENT
        following.append(max(wanted, exponent - 1, LOWEST_EXPONENT))
    return tuple(following)


def gradient_norm(norms: Mapping[int, float]) -> float:
    """Returns the global L2 norm from the groups' squared norms, added in group order."""
    total = 0.0
    for group in sorted(norms):
        total += norms[group]
    return math.sqrt(total) if total >= 0.0 else math.nan


def clip_factor(norm: float, clip_norm: float) -> float:
    """Returns what gradients are multiplied by so that their global norm is at most `clip_norm` (0: no limit)."""
    if clip_norm <= 0.0 or not norm > clip_norm:
        return 1.0
    return clip_norm / (norm + 1e-6)


def is_finite(loss: float, norm: float) -> bool:
    """Returns whether a step with this loss and gradient norm may be applied."""
    return math.isfinite(loss) and math.isfinite(norm)


def mean_loss(losses: Mapping[int, float]) -> float:
    """Returns the mean over the step's microbatches, added in microbatch order."""
    return functools.reduce(operator.add, map(losses.__getitem__, sorted(losses)), 0.0) / len(losses)
