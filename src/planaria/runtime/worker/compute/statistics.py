"""Running statistics of batch norms: a microbatch adds its share of a step's moving average, as it adds gradients.

Over the M microbatches of a step, a norm of momentum a gives r' = (1 - a)^M r + sum of a (1 - a)^(M - 1 - i) x_i, where
x_i is what microbatch i is like. The terms and their weights are added on the exact grid, in any order and grouping; so
r' = (1 - sum of weights) r + sum of terms, and for a microbatch that is left out r stands in.

Statistics have scales that no step before foretells. So each term is added as two numbers, a multiple of a coarse step
and the rest of it, on a grid that never changes. Together they hold what is below 2**47 / M to within 2**-35, or to the
last bit of float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from planaria.model.tensors.batch_norms import COUNT, MEAN, VARIANCE, tracking_norms
from planaria.runtime.worker.compute.replica import Layout

GRID_EXPONENT = 4
"""Of groups of statistics: takes the place of what past steps say."""

_COARSE_STEP = 2.0**-4
_COARSE_SCALE = 2.0**31
"""What a multiple of the coarse step is divided by, so that it is one of the grid's too."""


class RunningStatistics:
    """The batch norms of one layer. In training they tell what a microbatch is like; what runs on is in replicas.

    Args:
        module: the layer's; its norms are changed to tell.
        views: the running statistics in the replicas' memory, by name within the layer.
        num_microbatches: of a step.

    Raises:
        RuntimeError: a norm has run more than once for a microbatch.
    """

    def __init__(self, module: nn.Module, views: Mapping[str, torch.Tensor], num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches
        self._views = views
        self._norms = dict(tracking_norms(module))
        self._momenta = {path: float(norm.momentum or 0.0) for path, norm in self._norms.items()}
        for norm in self._norms.values():
            norm.momentum = 1.0  # of what was before, nothing is left
            for name in (MEAN, VARIANCE, COUNT):
                norm._buffers[name] = torch.zeros_like(getattr(norm, name))

    def take(self, microbatch: int) -> dict[str, torch.Tensor]:
        """Returns what the forward that has just run adds to the step's sums, by name within the layer.

        Of each statistic: its values times their weight, then that weight; float64. Nothing of norms that have not run.
        """
        found: dict[str, torch.Tensor] = {}
        for path, norm in self._norms.items():
            calls = int(norm._buffers[COUNT].item())  # type: ignore[union-attr]
            if calls > 1:
                raise RuntimeError(f"{path or 'it'} runs {calls} times for one microbatch. Use as many batch norms.")
            momentum = self._momenta[path]
            weight = momentum * (1.0 - momentum) ** (self._num_microbatches - 1 - microbatch)
            for name, factor, share in ((MEAN, weight, weight), (VARIANCE, weight, weight), (COUNT, 1.0, 0.0)):
                buffer = norm._buffers[name]
                assert buffer is not None
                if calls:
                    values = buffer.double().reshape(-1) * factor
                    found[f"{path}.{name}" if path else name] = torch.cat([values, values.new_tensor([share])])
                norm._buffers[name] = torch.zeros_like(buffer)  # autograd has the other, and sees whether it changes
        return found

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Has the norms go by the running statistics inside."""
        own = {path: dict(norm._buffers) for path, norm in self._norms.items()}
        try:
            for path, norm in self._norms.items():
                for name in (MEAN, VARIANCE):
                    norm._buffers[name] = self._views[f"{path}.{name}" if path else name]
            yield
        finally:
            for path, norm in self._norms.items():
                norm._buffers.update(own[path])


def encoded(layout: Layout, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns what `take` gave as float32, in the places of a sum's vector: the rests, then the coarse parts."""
    half = layout.size // 2
    flat: torch.Tensor | None = None
    for slot in layout.slots:
        part = parts.get(slot.name)
        if part is not None:
            flat = part.new_zeros(half) if flat is None else flat
            flat[slot.offset : slot.offset + slot.count + 1] = part
    assert flat is not None, "a microbatch adds something"
    coarse = (torch.round(flat / _COARSE_STEP) * (_COARSE_STEP / _COARSE_SCALE)).float()
    return torch.cat([(flat - coarse.double() * _COARSE_SCALE).float(), coarse])


def update(layout: Layout, statistics: torch.Tensor, total: torch.Tensor) -> None:
    """Moves running statistics on by one step, in place.

    Args:
        layout: of both.
        statistics: flat, as a replica holds them.
        total: the sum of what `encoded` gave.
    """
    half = layout.size // 2
    wide = total[:half].double() + total[half:].double() * _COARSE_SCALE
    for slot in layout.slots:
        end = slot.offset + slot.count
        own = statistics[slot.offset : end]
        own.copy_(own.double() * (1.0 - wide[end]) + wide[slot.offset : end])
