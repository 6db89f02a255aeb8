"""Batch norms: which buffers of a module are running statistics, and what they begin with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"


def tracking_norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Yields the batch norms with running statistics in a module, by path there."""
    for path, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.track_running_stats:
            yield path, part


def statistics(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the running statistics in a module by name there."""
    for path, norm in tracking_norms(module):
        for name in (MEAN, VARIANCE, COUNT):
            yield f"{path}.{name}" if path else name, getattr(norm, name)


def first_values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns what a running statistic of this name begins with."""
    return torch.ones(shape) if name.endswith(VARIANCE) else torch.zeros(shape)


def refusal(module: nn.Module) -> str | None:
    """Returns what is wrong with a module's running statistics, and the remedy; None: nothing."""
    for part in module.modules():
        if not isinstance(part, _NormBase) or not part.track_running_stats:
            continue
        if not isinstance(part, _BatchNorm):
            return f"of {type(part).__name__} running statistics are not kept. Set track_running_stats=False"
        if part.momentum is None:
            return f"of {type(part).__name__} momentum is None, an average over all steps. Give it a number, as 0.1"
    return None
