"""What an optimizer is: elementwise, with some values of state for each parameter.

Each value of a parameter is updated from its own gradient and state alone. So parameters may lie in any order in flat
vectors, and a replica's state may be moved and saved in any parts, whatever the optimizer is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from planaria.job.sections.train import TrainSection
from planaria.plan.costs.byte_counts import NUMERICS, ValueBytes

if TYPE_CHECKING:
    import torch

STATE_BYTES = 4
"""Of one value of state: float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer step of some flat float32 vectors, all treated alike.

    Attributes:
        parameters: changed in place.
        gradients: of the same lengths; they are not needed afterwards.
        states: for each name of `Optimizer.states`, vectors of the same lengths, changed in place; 0 at first.
        step: the committed step; the first is 1. Steps that were not applied count.
        rate: the learning rate of these parameters.
        weight_decay: of these parameters.
        clip_factor: what gradients are multiplied by.
    """

    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor]
    states: Sequence[list[torch.Tensor]]
    step: int
    rate: float
    weight_decay: float
    clip_factor: float

    @property
    def gradient_divisor(self) -> torch.Tensor | None:
        """Returns what torch's fused kernels divide gradients by; None: nothing."""
        if self.clip_factor == 1.0:
            return None
        import torch

        return torch.tensor(1.0 / self.clip_factor, device=self.parameters[0].device)


class Optimizer(Protocol):
    """An optimizer."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of [train] that it heeds, and what each is where the job does not say."""
        ...

    def states(self, train: TrainSection) -> tuple[str, ...]:
        """Returns the names of the values that are kept for each parameter, as checkpoints have them."""
        ...

    def update(self, train: TrainSection, update: Update) -> None:
        """Makes one step. Equal vectors get equal bits, however they are put together."""
        ...


def optimizer_of(train: TrainSection) -> Optimizer:
    """Returns the job's optimizer."""
    optimizer: Optimizer = train.optimizer.load()
    return optimizer


def value_bytes(train: TrainSection) -> ValueBytes:
    """Returns the bytes that a worker of the job holds and moves for each parameter that is trained."""
    return replace(NUMERICS[train.numerics], optimizer=STATE_BYTES * len(optimizer_of(train).states(train)))
