"""Stochastic gradient descent, with momentum (Sutskever et al., 2013) or without, by torch's fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from planaria.job.sections.train import TrainSection
from planaria.model.training.optimizer import Update


class Sgd:
    """One buffer, or none without momentum. Weight decay is added to the gradient (L2)."""

    fields: ClassVar[Mapping[str, Any]] = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}

    def states(self, train: TrainSection) -> tuple[str, ...]:
        return ("momentum_buffer",) if train.momentum else ()

    def update(self, train: TrainSection, update: Update) -> None:
        import torch

        torch._fused_sgd_(
            update.parameters,
            update.gradients,
            update.states[0] if update.states else [],
            weight_decay=update.weight_decay,
            momentum=train.momentum,
            lr=update.rate,
            dampening=0.0,
            nesterov=train.nesterov,
            maximize=False,
            is_first_step=False,
            grad_scale=update.gradient_divisor,
        )


OPTIMIZER = Sgd()
