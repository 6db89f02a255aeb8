"""Lion (Chen et al., 2023): the sign of a blend of gradient and momentum. torch has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from planaria.job.sections.train import TrainSection
from planaria.model.training.optimizer import Update

CHUNK_FLOATS = 1 << 18
"""Values updated at a time: what is held beside the vectors stays small."""


class Lion:
    """One momentum. Weight decay shrinks the parameters, apart from the gradient."""

    fields: ClassVar[Mapping[str, Any]] = {"betas": (0.9, 0.99), "weight_decay": 0.1}

    def states(self, train: TrainSection) -> tuple[str, ...]:
        return ("exp_avg",)

    def update(self, train: TrainSection, update: Update) -> None:
        import torch

        blend, decay = train.betas
        for whole in zip(update.parameters, update.gradients, update.states[0], strict=True):
            for parameters, gradients, momentum in zip(
                *(torch.split(flat, CHUNK_FLOATS) for flat in whole), strict=True
            ):
                gradients.mul_(update.clip_factor)
                direction = torch.lerp(momentum, gradients, 1.0 - blend).sign_()
                parameters.mul_(1.0 - update.rate * update.weight_decay).sub_(direction, alpha=update.rate)
                momentum.lerp_(gradients, 1.0 - decay)


OPTIMIZER = Lion()
