"""Exact sums as integers on the grid: nothing is lost, whatever the values, and most take four bytes."""

from __future__ import annotations

import math

import pytest
import torch

from planaria.runtime.worker.compute.accumulator import grid_step
from planaria.runtime.worker.transport.grid_encoding import (
    ADD_PACKED,
    CHUNK,
    PACK,
    Beside,
    add_decoded,
    encoded,
    load_compiled,
)

STEP = grid_step(-7)


@pytest.fixture(params=["torch", "compiled"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways give the same."""
    for kernel in (PACK, ADD_PACKED):
        monkeypatch.setattr(kernel, "_jitted", None)
    if request.param == "compiled":
        load_compiled()


def on_grid(count: int, bits: int, seed: int = 0) -> torch.Tensor:
    """Values that are multiples of the grid of up to so many bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << bits), 1 << bits, (count,), generator=generator).double() * STEP


def there_and_back(values: torch.Tensor) -> tuple[list[int], float]:
    """Checks that the values arrive as they are; returns the kinds of chunks, and bytes a value."""
    encoding = encoded(values, STEP)
    total = torch.zeros_like(values)
    add_decoded(encoding, STEP, total)
    assert torch.equal(total.view(torch.int64), values.view(torch.int64))
    return encoding[2][:, 0].tolist(), sum(part.nbytes for part in encoding) / max(1, values.numel())


@pytest.mark.parametrize("count", [0, 1, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_values_of_31_bits_take_four_bytes(count: int) -> None:
    kinds, size = there_and_back(on_grid(count, 31))
    assert set(kinds) <= {Beside.FEW}
    assert size <= 4 + 8 * math.ceil(count / CHUNK) / max(1, count)


@pytest.mark.parametrize(
    ("bits", "kind", "size"), [(38, Beside.BYTE, 5), (46, Beside.TWO_BYTES, 6), (50, Beside.FLOATS, 8)]
)
def test_wide_values_take_as_many_bytes_as_they_need(bits: int, kind: Beside, size: int) -> None:
    kinds, found = there_and_back(on_grid(CHUNK, bits))
    assert kinds == [kind]
    assert found == pytest.approx(size, abs=0.01)


def test_a_few_wide_values_are_told_apart() -> None:
    values = on_grid(2 * CHUNK, 30)
    wide = torch.arange(5, 2 * CHUNK, 1000)
    values[wide] = on_grid(wide.numel(), 46, seed=1)
    values[CHUNK - 1] = (2.0**31 - 1) * STEP
    values[CHUNK] = -(2.0**31) * STEP
    values[CHUNK + 1] = 2.0**31 * STEP
    kinds, size = there_and_back(values)
    assert kinds == [Beside.FEW, Beside.FEW]
    assert size < 4.01


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**51 * STEP])
def test_what_is_no_small_integer_arrives_all_the_same(value: float) -> None:
    values = on_grid(CHUNK + 100, 30)
    values[3] = value
    kinds, _ = there_and_back(values)
    assert kinds == [Beside.FLOATS, Beside.FEW]


def test_parts_are_added_exactly() -> None:
    parts = [on_grid(1000, bits, seed=bits) for bits in (20, 33, 40, 46)]
    total = torch.zeros(1000, dtype=torch.float64)
    for part in parts:
        add_decoded(encoded(part, STEP), STEP, total)
    assert torch.equal(total, torch.stack(parts).sum(dim=0))


@pytest.mark.parametrize("exponent", [-90, 0, 60])
def test_any_grid_will_do(exponent: int) -> None:
    step = grid_step(exponent)
    values = on_grid(100, 40) / STEP * step
    total = torch.zeros_like(values)
    add_decoded(encoded(values, step), step, total)
    assert torch.equal(total, values)
