"""Samples, numbered from 0: what the rest must know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from planaria.data.order import Numbers

IGNORED_LABEL = -100
"""Label of a position that is not predicted."""

Batch = dict[str, torch.Tensor]
"""Tensors by name, one row for each sample; `labels`, where there are any, are what must be predicted."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What no window holds.

    Attributes:
        documents: how many there are.
        too_long: how many are longer than a window.
        dropped: how many are in no window: too long, or with nothing to learn in what a window holds of them.
    """

    documents: int
    too_long: int
    dropped: int

    def __bool__(self) -> bool:
        return bool(self.too_long or self.dropped)

    def __str__(self) -> str:
        dropped = f"; {self.dropped} are left out" if self.dropped else ""
        return f"{self.too_long} of {self.documents} documents are longer than a window{dropped}"


class Samples(Protocol):
    """Samples that a sampler deals to microbatches."""

    @property
    def named(self) -> str:
        """The job's field and its value, for messages: "data.source = 'corpus'"."""
        ...

    @property
    def unit(self) -> str:
        """Returns what messages call them: "samples"."""
        ...

    @property
    def order(self) -> str:
        """In which they come, see `planaria.data.order`."""
        ...

    def __len__(self) -> int: ...

    def batch(self, numbers: Numbers, chance: np.random.Generator) -> Batch:
        """Returns the samples of these numbers, row by row: a function of the numbers and of `chance`, as it is now.

        Raises:
            DataError: one of them cannot be had.
        """
        ...
