"""Adam (Kingma and Ba, 2015), by torch's fused kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.job.sections.train import TrainSection
from planaria.model.training.optimizer import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Two moments.

    Attributes:
        fields: of [train], with their defaults.
        kernel: torch's name of the fused update; it says what weight decay is added to.
    """

    fields: Mapping[str, Any]
    kernel: str

    def states(self, train: TrainSection) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def update(self, train: TrainSection, update: Update) -> None:
        import torch

        device = update.parameters[0].device
        getattr(torch, self.kernel)(
            update.parameters,
            update.gradients,
            update.states[0],
            update.states[1],
            [],
            [torch.tensor(float(update.step), device=device) for _ in update.parameters],
            lr=update.rate,
            beta1=train.betas[0],
            beta2=train.betas[1],
            weight_decay=update.weight_decay,
            eps=train.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=update.gradient_divisor,
        )


OPTIMIZER = Adam(fields={"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}, kernel="_fused_adam_")
"""Weight decay is added to the gradient (L2)."""
