"""The model and the dataset of job.toml: a network tells whether points lie inside a circle."""

from __future__ import annotations

import torch
from torch import nn


def network(width: int, depth: int) -> nn.Sequential:
    """Returns the model; its members are the layers between which it is cut."""
    blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(2, width), *blocks, nn.Linear(width, 2))


class Points:
    """Points of a square, by number: the same in every process. A pair is what the model takes, and its label."""

    def __init__(self, count: int, first: int) -> None:
        self._count, self._first = count, first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        point = 2 * torch.rand(2, generator=torch.Generator().manual_seed(self._first + index)) - 1
        return point, int(float(point.norm()) < 0.8)


def points(count: int, first: int = 0) -> Points:
    """Returns the dataset."""
    return Points(count, first)
