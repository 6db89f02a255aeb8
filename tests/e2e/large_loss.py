"""A loss that is a thousand times as large as usual: scaled by 65,536, its gradients are too large for float16."""

from __future__ import annotations

import torch

from planaria.model.loss import token_cross_entropy


def loss(outputs: tuple[torch.Tensor, ...], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return 1000.0 * token_cross_entropy(outputs, batch)
