"""Weights whose copies in autocast's dtype are made once a step, for all its microbatches, not at each use.

Each use of a weight within a run of its layer has a cast of its own in autograd's graph: then gradients of two uses are
added in float32. So a copy serves one use in each run; further ones, and products other than those below, are left to
autocast. The numbers are autocast's in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planaria.model.tensors.virtual_shards import slices

_PRODUCTS = frozenset(
    {
        functional.linear,
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
        torch.addmm,
        torch.matmul,
        torch.mm,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        slices,
    }
)
"""What autocast computes in its dtype on every kind of device, given weights as arguments; and what slices them for
such products."""


class CopiedWeight(nn.Parameter):
    """A float32 weight that hands its copy to products under autocast.

    Whoever changes the weight drops the copy: not every operation that changes a tensor can be told by its version.
    """

    dtype_of_copy = torch.bfloat16
    _copy: torch.Tensor | None = None
    _is_used = False

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _PRODUCTS:
                args = tuple(arg._given() if isinstance(arg, CopiedWeight) else arg for arg in args)
            return func(*args, **(kwargs or {}))

    def _given(self) -> torch.Tensor:
        """Returns what a product is given."""
        kind = self.device.type
        dtype = self.dtype_of_copy
        if self._is_used or not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != dtype:
            return self
        self._is_used = True
        if self._copy is None:
            with torch.enable_grad():  # it serves runs with and without
                self._copy = self.to(dtype)
        return self._copy


def parameter(values: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    """Returns a module's parameter with these values, copied if it is a matrix: vectors are hardly worth it."""
    if values.dim() < 2:
        return nn.Parameter(values)
    weight = CopiedWeight(values)
    weight.dtype_of_copy = dtype
    return weight


def begin_run(parameters: Iterable[torch.Tensor]) -> None:
    """Begins a run of the layer that has these parameters: every copy may be used again."""
    for weight in parameters:
        if isinstance(weight, CopiedWeight):
            weight._is_used = False


def copies_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the copies that were made of these parameters."""
    found = (weight._copy for weight in parameters if isinstance(weight, CopiedWeight))
    return [copy for copy in found if copy is not None]


def drop_copies(parameters: Iterable[torch.Tensor]) -> None:
    """Drops copies: their weights change, or go. (A copy and its weight keep each other alive through the graph.)"""
    for weight in parameters:
        if isinstance(weight, CopiedWeight):
            weight._copy = None
