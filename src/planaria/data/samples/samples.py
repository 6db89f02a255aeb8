"""Samples, numbered from 0: what the rest must know of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from planaria.data.order import Numbers

Batch = dict[str, torch.Tensor]
"""Tensors by name, one row for each sample; `labels`, where there are any, are what must be predicted."""


class Samples(Protocol):
    """Samples that a sampler deals to microbatches."""

    @property
    def named(self) -> str:
        """The job's field and its value, for messages: "data.source = 'corpus'"."""
        ...

    @property
    def unit(self) -> str:
        """What they are, for messages: "samples"."""
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
