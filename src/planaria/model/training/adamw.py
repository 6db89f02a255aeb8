"""AdamW: decoupled weight decay (Loshchilov and Hutter, 2019), by torch's fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from planaria.job.sections.train import TrainSection
from planaria.model.training.optimizer import Update


class AdamW:
    """Two moments. Weight decay shrinks the parameters, apart from the gradient."""

    fields: ClassVar[Mapping[str, Any]] = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}

    def states(self, train: TrainSection) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def update(self, train: TrainSection, update: Update) -> None:
        import torch

        device = update.parameters[0].device
        torch._fused_adamw_(
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


OPTIMIZER = AdamW()
