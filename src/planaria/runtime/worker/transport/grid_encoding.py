"""Exact sums at about the bytes of float32: float64 values on a grid, as 32-bit integers and what does not fit them.

Values are whole multiples of the grid's step, nearly all below 2^31 of them. A chunk of values is its integers' lower
32 bits, and beside these, by what the chunk needs: (index, upper bits) of those few that do not fit; or the upper 8 or
16 bits of all; or the upper half of the float64s themselves, for what is no integer below 2^47 (NaN, infinity).
Nothing is lost, whatever the values are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from planaria.plan.compiled import Kernel

CHUNK: Final = 1 << 16
"""Values of a chunk: an index within it has 16 bits."""

Encoded = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Lower 32 bits of each value (int32); what is beside them (uint8); of each chunk (`Beside`, bytes beside) (int32)."""


class Beside(enum.IntEnum):
    """What a chunk has beside its values' lower 32 bits."""

    FEW = 0
    """Index (uint16) and upper bits (int16) of each value that does not fit 32 bits."""
    BYTE = 1
    """The upper 8 bits of each value."""
    TWO_BYTES = 2
    """The upper 16 bits of each value."""
    FLOATS = 3
    """The lower 32 bits are those of the float64s, and here are the upper ones."""


_MOST: Final = float((1 << 47) - (1 << 32))


def _pack(
    values: npt.NDArray[np.float64],
    scale: float,
    lower: npt.NDArray[np.int32],
    places: npt.NDArray[np.uint16],
    upper: npt.NDArray[np.int16],
) -> int:
    """Writes the lower bits of a chunk, and the places and upper bits of those that do not fit; returns how many these
    are: -1 where they do not suffice."""
    count = 0
    for begin in range(0, values.size, 128):
        end, fit = min(begin + 128, values.size), True
        for at in range(begin, end):
            scaled = values[at] * scale
            fit &= (scaled >= -2147483648.0) & (scaled <= 2147483647.0)
            lower[at] = np.int32(scaled)
        for at in range(begin, begin if fit else end):
            scaled = values[at] * scale
            if not -2147483648.0 <= scaled <= 2147483647.0:
                if count == places.size or not -_MOST < scaled < _MOST or np.int64(scaled) != scaled:
                    return -1
                lower[at] = np.int32(np.int64(scaled))
                places[count] = at
                upper[count] = (np.int64(scaled) - lower[at]) >> 32
                count += 1
    return count


def _add_packed(
    lower: npt.NDArray[np.int32],
    places: npt.NDArray[np.uint16],
    upper: npt.NDArray[np.int16],
    step: float,
    total: npt.NDArray[np.float64],
) -> None:
    """Adds what was packed: on a grid, in two steps as in one."""
    for at in range(lower.size):
        total[at] += lower[at] * step
    for at in range(places.size):
        total[places[at]] += upper[at] * 4294967296.0 * step


PACK = Kernel(_pack)
ADD_PACKED = Kernel(_add_packed)


def load_compiled() -> None:
    """Loads compiled loops for chunks whose values nearly all fit, which take a third of torch's time. For a process
    that forks workers."""
    lower, places, upper = np.zeros(1, np.int32), np.zeros(1, np.uint16), np.zeros(1, np.int16)
    PACK.load_on(np.zeros(1), 1.0, lower, places, upper)
    ADD_PACKED.load_on(lower, places, upper, 1.0, np.zeros(1))


def encoded(values: torch.Tensor, step: float) -> Encoded:
    """Returns the encoding of values that are multiples of a grid.

    Args:
        values: flat float64.
        step: of the grid, a power of two.
    """
    lower = torch.empty(values.numel(), dtype=torch.int32, device=values.device)
    beside: list[torch.Tensor] = []
    chunks: list[tuple[int, int]] = []
    for begin, end in _chunks(values.numel()):
        kind, more = _encode(values[begin:end], step, lower[begin:end])
        chunks.append((kind, more.numel()))
        if more.numel():
            beside.append(more)
    nothing = torch.empty(0, dtype=torch.uint8, device=values.device)
    return lower, torch.cat(beside) if beside else nothing, torch.tensor(chunks, dtype=torch.int32).reshape(-1, 2)


def _encode(values: torch.Tensor, step: float, lower: torch.Tensor) -> tuple[Beside, torch.Tensor]:
    """Writes the lower bits of a chunk; returns what it has beside them."""
    if PACK.is_loaded:
        places, upper = np.empty(values.numel() // 4, np.uint16), np.empty(values.numel() // 4, np.int16)
        count = PACK.form(compiled=True)(values.numpy(), 1.0 / step, lower.numpy(), places, upper)
        if count >= 0:
            few = places[:count], upper[:count].view(np.uint16)
            return Beside.FEW, torch.from_numpy(np.concatenate(few).view(np.uint8))
    return _encode_by_torch(values, step, lower)


def _encode_by_torch(values: torch.Tensor, step: float, lower: torch.Tensor) -> tuple[Beside, torch.Tensor]:
    scaled = values * (1.0 / step)
    if not _is_beyond(scaled, 31):
        lower.copy_(scaled)
        return Beside.FEW, lower.new_empty(0, dtype=torch.uint8)
    whole = scaled.to(torch.int64)
    lower.copy_(whole)  # the lower 32 bits, as they are
    places = (lower != whole).nonzero().reshape(-1)
    upper = (whole[places] - lower[places]) >> 32
    if not torch.equal(whole[places].double(), scaled[places]) or _is_beyond(upper, 15):
        halves = values.contiguous().view(torch.int32).reshape(-1, 2)
        lower.copy_(halves[:, 0])
        return Beside.FLOATS, _bytes(halves[:, 1])
    if 4 * places.numel() <= values.numel():
        return Beside.FEW, torch.cat([_bytes(places.to(torch.int16)), _bytes(upper.to(torch.int16))])
    uppers = (whole - lower) >> 32
    if _is_beyond(upper, 7):
        return Beside.TWO_BYTES, _bytes(uppers.to(torch.int16))
    return Beside.BYTE, _bytes(uppers.to(torch.int8))


def _is_beyond(numbers: torch.Tensor, bits: int) -> bool:
    """Returns whether one of the numbers needs more than so many bits and a sign, or is none."""
    low, high = torch.aminmax(numbers)
    return not -(1 << bits) <= low.item() <= high.item() < 1 << bits


def add_decoded(encoding: Encoded, step: float, total: torch.Tensor) -> None:
    """Adds the values that were encoded.

    Args:
        encoding: as from `encoded`.
        step: of the grid.
        total: flat float64, to which they are added.
    """
    lower, beside, chunks = encoding
    at = 0
    for (begin, end), (kind, size) in zip(_chunks(total.numel()), chunks.tolist(), strict=True):
        more = beside[at : at + size]
        if kind == Beside.FEW and ADD_PACKED.is_loaded:
            places, upper = more.numpy().copy().view(np.uint16).reshape(2, -1)
            add = ADD_PACKED.form(compiled=True)
            add(lower[begin:end].numpy(), places, upper.view(np.int16), step, total[begin:end].numpy())
        else:
            total[begin:end] += _decode(lower[begin:end], Beside(kind), more, step)
        at += size


def _decode(lower: torch.Tensor, kind: Beside, more: torch.Tensor, step: float) -> torch.Tensor:
    match kind:
        case Beside.FLOATS:
            return torch.stack([lower, _numbers(more, torch.int32)], dim=1).view(torch.float64).reshape(-1)
        case Beside.BYTE:
            upper = _numbers(more, torch.int8)
        case Beside.TWO_BYTES:
            upper = _numbers(more, torch.int16)
        case Beside.FEW:
            values = lower.double()
            if more.numel():
                half = more.numel() // 2
                places = _numbers(more[:half], torch.int16).long() & 0xFFFF
                values[places] += _numbers(more[half:], torch.int16).double() * 2.0**32
            return values.mul_(step)
    return (lower.double() + upper.double() * 2.0**32).mul_(step)


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK))


def _bytes(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.contiguous().view(torch.uint8)


def _numbers(more: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns bytes as numbers; what was cut out of a longer run of bytes may lie anywhere."""
    return more.clone().view(dtype)
