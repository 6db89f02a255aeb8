"""The ledger: for each layer, which microbatches' gradients are in an accumulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

Mask = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$", max_length=1 << 16)]


def mask_of(microbatches: Sequence[int]) -> int:
    """Returns the bit mask of ascending microbatches; quick for consecutive ones, as those of a route are."""
    if not microbatches:
        return 0
    first, last = microbatches[0], microbatches[-1]
    if last - first + 1 == len(microbatches):
        return (1 << len(microbatches)) - 1 << first
    return sum(1 << microbatch for microbatch in microbatches)


def members_of(mask: int) -> list[int]:
    """Returns the microbatches of a bit mask, ascending; quick where few of many are set."""
    members: list[int] = []
    while mask:
        members.append((mask & -mask).bit_length() - 1)
        mask &= mask - 1
    return members


class Ledger(msgspec.Struct, frozen=True):
    """Sets of microbatch numbers, one for each layer, as hexadecimal bit masks (JSON has no big integers).

    Attributes:
        masks: entry l holds bit m when microbatch m is counted for layer l.
    """

    masks: tuple[Mask, ...]

    @classmethod
    def of(cls, counted: Iterable[Iterable[int]]) -> Ledger:
        """Returns the ledger made from the counted microbatches of each layer."""
        return cls(tuple(f"{sum(1 << m for m in set(microbatches)):x}" for microbatches in counted))

    @classmethod
    def from_bits(cls, bits: Iterable[int]) -> Ledger:
        return cls(tuple(f"{mask:x}" for mask in bits))

    @classmethod
    def empty(cls, num_layers: int) -> Ledger:
        return cls(("0",) * num_layers)

    def bits(self) -> tuple[int, ...]:
        """Returns each layer's mask as an integer."""
        return tuple(int(mask, 16) for mask in self.masks)

    def microbatches(self, layer: int) -> tuple[int, ...]:
        mask = int(self.masks[layer], 16)
        return tuple(m for m in range(mask.bit_length()) if mask >> m & 1)

    def without(self, left_out: int) -> Ledger:
        """Returns the ledger without the microbatches of the bit mask `left_out`."""
        return Ledger.from_bits(mask & ~left_out for mask in self.bits())

    @property
    def is_empty(self) -> bool:
        return all(mask == "0" for mask in self.masks)


def combine(ledgers: Iterable[Ledger], num_layers: int) -> tuple[Ledger, int]:
    """Returns the union of ledgers, and how many (layer, microbatch) entries more than one of them holds."""
    union = [0] * num_layers
    twice = 0
    for ledger in ledgers:
        for layer, text in enumerate(ledger.masks):
            if text == "0":
                continue  # of thousands of workers, each counts a few layers
            mask = int(text, 16)
            twice += (union[layer] & mask).bit_count()
            union[layer] |= mask
    return Ledger.from_bits(union), twice
