"""A replica: one group's parameters and AdamW state as a worker holds them, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from planaria.job.settings import TrainSection
from planaria.model.model import GroupSpec

NamedState = tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]


class Replica:
    """Parameters and optimizer state of a group, as three flat float32 vectors.

    Attributes:
        step: the last step that it has been through; one that was not applied counts.
        gradient: flat float32, the step's whole sum; valid between the sync and the apply.
    """

    def __init__(self, spec: GroupSpec, device: torch.device) -> None:
        self.layout = Layout.of(spec)
        self.parameters = torch.zeros(self.layout.size, device=device)
        self.moment = torch.zeros(self.layout.size, device=device)
        self.moment_squared = torch.zeros(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size, device=device)
        self.step = 0

    def initialise(self, values: Mapping[str, torch.Tensor]) -> None:
        self.layout.fill(self.parameters, values)
        self.moment.zero_()
        self.moment_squared.zero_()
        self.step = 0

    @property
    def state(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns what is moved and saved."""
        return self.parameters, self.moment, self.moment_squared

    def load(self, state: Sequence[torch.Tensor], step: int) -> None:
        for own, given in zip(self.state, state, strict=True):
            own.copy_(given)
        self.step = step

    def part(self, first: int, end: int, whole: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the state from `first` to `end` of `whole` equal pieces, as views. Parts that meet omit nothing."""
        floats = slice(first * self.layout.size // whole, end * self.layout.size // whole)
        return self.parameters[floats], self.moment[floats], self.moment_squared[floats]

    def named_state(self) -> NamedState:
        """Returns the state by parameter name, as views."""
        views = tuple(self.layout.views(flat) for flat in self.state)
        return views[0], views[1], views[2]

    def copy_of_state(self) -> NamedState:
        """Returns the state by parameter name, in memory of its own on the host."""
        views = tuple(self.layout.views(flat.detach().to("cpu", copy=True)) for flat in self.state)
        return views[0], views[1], views[2]

    def load_named(self, state: NamedState, step: int) -> None:
        for own, given in zip(self.state, state, strict=True):
            self.layout.fill(own, given)
        self.step = step


@torch.no_grad()
def apply_adamw(
    replicas: Sequence[Replica], train: TrainSection, step: int, clip_factor: float, learning_rate: float
) -> None:
    """Makes one AdamW step (Loshchilov and Hutter, 2019) on each replica, with its gradient times `clip_factor`.

    Args:
        replicas: those that the worker owns.
        train: betas, decay.
        step: the committed step; the first is 1. Bias correction goes by it, whether or not all before were applied.
        clip_factor: from the commit.
        learning_rate: from the commit.
    """
    device = replicas[0].parameters.device if replicas else torch.device("cpu")
    scale = torch.tensor(1.0 / clip_factor, device=device) if clip_factor != 1.0 else None
    for decayed in (True, False):
        parts = [
            tuple(
                flat[: replica.layout.decay_end] if decayed else flat[replica.layout.decay_end :]
                for flat in (replica.parameters, replica.gradient, replica.moment, replica.moment_squared)
            )
            for replica in replicas
        ]
        parts = [part for part in parts if part[0].numel()]
        if not parts:
            continue
        parameters, gradients, moments, squares = (list(column) for column in zip(*parts, strict=True))
        torch._fused_adamw_(
            parameters,
            gradients,
            moments,
            squares,
            [],
            [torch.tensor(float(step), device=device) for _ in parameters],
            lr=learning_rate,
            beta1=train.betas[0],
            beta2=train.betas[1],
            weight_decay=train.weight_decay if decayed else 0.0,
            eps=train.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
        )
    for replica in replicas:
        replica.step = step


ALIGNMENT = 16
"""Alignment in floats; 64 bytes, so that a parameter sees the same vector code wherever it lies."""

SMALL = 16 * 1024
"""Floats below which gradients are gathered before they are rounded, to save calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of one parameter: offset and count in floats."""

    name: str
    shape: tuple[int, ...]
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The slots in memory order: large ones that decay, small ones that decay, then those that do not.

    Attributes:
        slots: every parameter of the group.
        size: floats in all, padding included.
        decay_end: weight decay applies below this offset.
    """

    slots: tuple[Slot, ...]
    size: int
    decay_end: int

    @classmethod
    def of(cls, spec: GroupSpec) -> Layout:
        def rank(index: int) -> tuple[bool, bool, int]:
            parameter = spec.parameters[index]
            return not parameter.decays, _count(parameter.shape) < SMALL, index

        slots = []
        offset = 0
        decay_end = 0
        for index in sorted(range(len(spec.parameters)), key=rank):
            parameter = spec.parameters[index]
            count = _count(parameter.shape)
            slots.append(Slot(name=parameter.name, shape=parameter.shape, offset=offset, count=count))
            offset += -(-count // ALIGNMENT) * ALIGNMENT
            if parameter.decays:
                decay_end = offset
        return cls(slots=tuple(slots), size=offset, decay_end=decay_end)

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns every parameter as a view of `flat`, by name."""
        return {s.name: flat[s.offset : s.offset + s.count].view(s.shape) for s in self.slots}

    def fill(self, flat: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
        for name, view in self.views(flat).items():
            view.copy_(values[name])


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
