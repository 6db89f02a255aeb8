"""A loss that is a thousand times as large as usual: scaled by 65,536, its gradients are too large for float16.

It leaves it to autocast that it is computed in float32.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def loss(outputs: tuple[torch.Tensor, ...], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return 1000.0 * functional.cross_entropy(outputs[0].flatten(0, -2), batch["labels"].flatten())
