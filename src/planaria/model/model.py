"""A model as a list of layers: what the rest of Planaria needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
Batch = dict[str, torch.Tensor]
"""One microbatch: tensors of shape (microbatch, sequence_length), by name; a label of -100 is none."""


class ModelError(ValueError):
    """A model that cannot be built or cut; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """A parameter of the model.

    Attributes:
        name: unique in the model; for a Hugging Face model, its name in the state dict.
        shape: the tensor's shape.
        decays: whether weight decay applies (two or more dimensions).
        uses: (layer, name within that layer's module), ascending; more than one when it is tied.
        is_statistic: it is no parameter but a running statistic (a buffer), moved on by what microbatches are like.
    """

    name: str
    shape: tuple[int, ...]
    decays: bool
    uses: tuple[tuple[int, str], ...]
    is_statistic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A parameter group (see `planaria.plan.plan.Group`) with its parameters, or running statistics, in name order."""

    layers: tuple[int, ...]
    parameters: tuple[ParameterSpec, ...]

    @property
    def is_statistics(self) -> bool:
        """Whether it is of running statistics, which no optimizer moves. A layer's are a group of their own."""
        return self.parameters[0].is_statistic


class Model(Protocol):
    """A model that can be cut between any two of its layers."""

    @property
    def layer_names(self) -> tuple[str, ...]: ...

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Returns the groups of the parameters that are trained: own ones of layers, in layer order; then tied ones, by
        first layer and name. Running statistics are groups too.

        Parameters that the same set of layers shares are one tied group.
        """
        ...

    @property
    def frozen(self) -> tuple[ParameterSpec, ...]:
        """Returns the parameters that are not trained, in name order: constants of the job, so in no replica."""
        ...

    @property
    def masked_lm(self) -> bool:
        """Whether the data hides tokens for the model to predict; otherwise labels are the next tokens."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Returns the names of the batch's tensors that the first layer takes, in order."""
        ...

    def build_layer(self, index: int) -> nn.Module:
        """Makes a new module for layer `index`: float32, in training mode, buffers valid.

        Frozen parameters have their values and require no gradient; those of others are arbitrary. Its forward takes
        the tensors that the layer before returns (the first: the batch's `inputs`) and returns a tensor or a tuple of
        tensors.
        """
        ...

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        """Returns initial values of a group's parameters, by `ParameterSpec.name`: a function of (seed, group)."""
        ...

    def loss(self, outputs: Tensors, batch: Batch) -> torch.Tensor:
        """Returns a microbatch's scalar float32 loss, from the last layer's outputs: mean over what is predicted."""
        ...
