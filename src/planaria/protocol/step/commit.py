"""What a commit decides, as pure functions of what was committed before: clip factor, grids and the loss's scale.

With float16, the exponents of a step are those of the groups' grids, then that of the loss's scale, then the number of
steps that were applied with it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planaria.job.sections.train import DType
from planaria.protocol.messages.to_worker import NOT_APPLIED

FIRST_EXPONENT = 4
"""Grid exponent before anything is committed: gradients of up to 2**4 are far from the limit."""

LOWEST_EXPONENT = -24

FIRST_LOSS_EXPONENT = 16
"""The loss's first scale is 2**16, as in torch.amp.GradScaler."""

STEPS_TO_DOUBLE = 2000
"""Applied steps after which the loss's scale is doubled, as in torch.amp.GradScaler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is made of one step.

    Attributes:
        loss: mean over its microbatches.
        norm: global L2 norm of its gradient: the mean over the microbatches that counted.
        is_applied: both are numbers.
        clip_factor: what gradients are multiplied by; `NOT_APPLIED` if the step is not applied. Where microbatches were
            left out, that makes a mean over those that counted of what was summed as a share of the whole batch.
        exponents: of the next step.
        overflowed: it is not applied, and the loss is scaled by less from now on: not the user's concern.
        scale: what the learning rate is multiplied by: the effective batch over the global one.
    """

    loss: float
    norm: float
    is_applied: bool
    clip_factor: float
    exponents: tuple[int, ...]
    overflowed: bool = False
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
        exponents: of the step.
        clip_norm: limit of the gradient's norm; 0: none.
        num_microbatches: of the global batch. Those without a loss were left out.
    """
    scale = effective_share(len(losses), num_microbatches)
    norm, loss = gradient_norm(norms) / scale, mean_loss(losses)
    is_applied = is_finite(loss, norm)
    scaling = exponents[len(norms) :]
    return Outcome(
        loss=loss,
        norm=norm,
        is_applied=is_applied,
        clip_factor=clip_factor(norm, clip_norm) / scale if is_applied else NOT_APPLIED,
        exponents=(next_exponents(exponents, norms) if is_applied else exponents[: len(norms)])
        + next_scaling(scaling, is_applied=is_applied),
        overflowed=not is_applied and bool(scaling) and scaling[0] > 0,
        scale=scale,
    )


def first_exponents(num_groups: int, dtype: DType) -> tuple[int, ...]:
    """Returns the exponents of a run's first step."""
    return (FIRST_EXPONENT,) * num_groups + ((FIRST_LOSS_EXPONENT, 0) if dtype is DType.FLOAT16 else ())


def loss_scale(exponents: Sequence[int], dtype: DType) -> float:
    """Returns what the loss is multiplied by in a step with these exponents, and gradients are divided by."""
    return 2.0 ** exponents[-2] if dtype is DType.FLOAT16 else 1.0


def next_scaling(scaling: Sequence[int], *, is_applied: bool) -> tuple[int, ...]:
    """Returns the exponent of the loss's scale after a step, and the steps applied with it; nothing of nothing.

    It is halved, down to 1, by a step that cannot be applied, and doubled by many that can (Micikevicius et al. 2018,
    Mixed Precision Training, section 3.2).
    """
    if not scaling:
        return ()
    exponent, applied = scaling
    if not is_applied:
        return max(exponent - 1, 0), 0
    return (exponent + 1, 0) if applied + 1 == STEPS_TO_DOUBLE else (exponent, applied + 1)


def effective_share(num_counted: int, num_microbatches: int) -> float:
    """Returns the effective batch as a share of the global one; exactly 1 where nothing was left out."""
    return num_counted / num_microbatches


def next_exponents(exponents: Sequence[int], norms: Mapping[int, float]) -> tuple[int, ...]:
    """Returns the grid exponents of the next step.

    A group's exponent E stands for gradients of about 2**E: it rises at once with the norm and falls by at most one
    a step, so that one quiet step does not make the grid too fine for the next.

    Args:
        exponents: of the committed step, one a group first.
        norms: group -> squared L2 norm of the committed gradient.
    """
    following = []
    for group, exponent in enumerate(exponents[: len(norms)]):
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
