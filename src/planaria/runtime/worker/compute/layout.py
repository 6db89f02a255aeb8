"""How a parameter group lies in memory: one flat float32 vector, every parameter aligned, decayed ones first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from planaria.model.model import GroupSpec

ALIGNMENT = 16
"""Floats; 64 bytes, so that a parameter sees the same vector code wherever it lies."""

SMALL = 16 * 1024
"""Floats; smaller gradients are gathered before they are rounded, to save calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One parameter's place: offset and count in floats."""

    name: str
    shape: tuple[int, ...]
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Slots in memory order: large ones that decay, small ones that decay, then those that do not.

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
        """Every parameter as a view of `flat`, by name."""
        return {s.name: flat[s.offset : s.offset + s.count].view(s.shape) for s in self.slots}

    def fill(self, flat: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
        for name, view in self.views(flat).items():
            view.copy_(values[name])


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
