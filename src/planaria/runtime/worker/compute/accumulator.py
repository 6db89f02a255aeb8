"""Sums gradients: exact (any order and grouping gives the same bits) or fast (float32).

Exact: a contribution is rounded to a grid of 2**-k that past commits determine, then added in float64, where sums of
multiples of the grid are exact as long as they stay under 2**(53 - k). With the group's exponent E (gradients of about
2**E, see `planaria.protocol.step.commit`), a step's sum may reach 2**(E + HEADROOM) and the grid is
2**(E + HEADROOM - 51); a single contribution beyond its share of that range is cut off at it, in every run alike.
An infinity, or a NaN, makes the sum around it NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from planaria.job.sections.train import Numerics
from planaria.plan.compiled import Kernel
from planaria.runtime.thresholds import CHUNK_FLOATS, SMALL_FLOATS
from planaria.runtime.worker.compute.device.device import Device
from planaria.runtime.worker.compute.replica import Layout, Slot, weighed_sum

HEADROOM = 12


Narrow = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]


def _add_within(total: Wide, values: Narrow, magic: float, limit: float, first: bool) -> bool:
    """Adds or sets total (+)= values, rounded by `magic`, if none is beyond the limit, as nearly always: one look at
    the values, where cutting them off would write them anew. Of a NaN, nothing is true.

    Returns:
        Whether it was done.
    """
    within = True
    for at in range(values.size):
        within &= (-limit <= values[at]) & (values[at] <= limit)
    if within and first:
        for at in range(values.size):
            total[at] = (values[at] + magic) - magic
    elif within:
        for at in range(values.size):
            total[at] += (values[at] + magic) - magic
    return bool(within)


ADD_WITHIN = Kernel(_add_within)


def load_compiled() -> None:
    """Loads the compiled `_add_within`: in half a second from a cache, in some seconds without.

    For a process that forks workers while nobody waits for it.
    """
    ADD_WITHIN.load_on(np.zeros(1), np.zeros(1, np.float32), 1.0, 1.0, False)


def add_within_by_torch(
    total: torch.Tensor, values: torch.Tensor, wide: torch.Tensor, magic: float, limit: float, first: bool
) -> bool:
    """Does the same as `_add_within` in five passes in place of two, which take twice as long.

    For where the compiled loops are not loaded: interpreted, they take a second for a million values, and each
    microbatch has a value for every parameter.
    """
    low, high = torch.aminmax(values)
    if not -limit <= low.item() <= high.item() <= limit:
        return False
    wide.copy_(values).add_(magic)
    if first:
        torch.sub(wide, magic, out=total)
    else:
        total.add_(wide.sub_(magic))
    return True


class Rounding:
    """Rounds float32 values to a grid and adds them to float64 sums, a cache-sized chunk at a time."""

    def __init__(self, device: Device) -> None:
        chunk = CHUNK_FLOATS if device.is_on_host else 1 << 22
        self._narrow = torch.empty(chunk, device=device.place)
        self._wide = torch.empty(chunk, dtype=torch.float64, device=device.place)
        self._chunk = chunk
        self._is_on_host = device.is_on_host

    def add(self, total: torch.Tensor, values: torch.Tensor, *, exponent: int, contributions: int, first: bool) -> None:
        """Does total (+)= round(values). Both flat and of one length.

        Args:
            total: float64.
            values: float32.
            exponent: the group's grid exponent.
            contributions: how many contributions a step's sum has in all.
            first: overwrite `total` instead of adding to it.
        """
        top = exponent + HEADROOM
        magic = 3.0 * 2.0**top
        limit = 2.0**top / contributions
        for begin in range(0, values.numel(), self._chunk):
            part = values[begin : begin + self._chunk]
            wide = self._wide[: part.numel()]
            target = total[begin : begin + part.numel()]
            if self._is_on_host and self._add_within(target, part, wide, magic, limit, first):
                continue
            wide.copy_(torch.clamp(part, -limit, limit, out=self._narrow[: part.numel()]))
            wide.add_(self._offset(part, magic))
            if first:
                torch.sub(wide, magic, out=target)
            else:
                target.add_(wide.sub_(magic))

    def _add_within(
        self, total: torch.Tensor, values: torch.Tensor, wide: torch.Tensor, magic: float, limit: float, first: bool
    ) -> bool:
        if ADD_WITHIN.is_loaded:
            return ADD_WITHIN.form(compiled=True)(total.numpy(), values.numpy(), magic, limit, first)
        return add_within_by_torch(total, values, wide, magic, limit, first)

    def _offset(self, part: torch.Tensor, magic: float) -> float | torch.Tensor:
        """Returns `magic`, or NaN if the part has an infinity, which clamping would hide, so that the norm shows it."""
        if self._is_on_host:
            return magic if math.isfinite(part.sum().item()) else math.nan
        return part.sum().mul(0.0) + magic  # the same without waiting for the device


class Accumulator:
    """What a worker has counted of one group in the step in progress. Intact until the next begins.

    Attributes:
        total: flat sum, float64 (exact) or float32.
        shared: where `total` lies, so that co-owners on the same host may read it in place.
        is_empty: nothing is counted; `total` then holds what an earlier step left.
        exponent: grid exponent of the step.
    """

    def __init__(
        self, layout: Layout, numerics: Numerics, rounding: Rounding, contributions: int, device: Device
    ) -> None:
        dtype = torch.float64 if numerics is Numerics.EXACT else torch.float32
        self.shared = device.vector(layout.size, dtype)
        self.total = self.shared.tensor
        self.is_empty = True
        self.exponent = 0
        self._layout = layout
        self._rounding = rounding
        self._contributions = contributions
        self._numerics = numerics
        small = [slot for slot in layout.slots if slot.count < SMALL_FLOATS]
        self._runs = _runs(small)
        span = max((end - begin for begin, end, _ in self._runs), default=0)
        self._gathered = torch.zeros(span, device=device.place)

    def reset(self, exponent: int) -> None:
        """Begins a step: nothing is counted."""
        self.is_empty = True
        self.exponent = exponent

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Counts one microbatch's gradients, by parameter name; parameters that are missing got none."""
        first = self.is_empty
        if first and len(gradients) < len(self._layout.slots):
            self.total.zero_()
            first = False
        for slot in self._layout.slots:
            if slot.count >= SMALL_FLOATS and slot.name in gradients:
                self._add(slot.offset, gradients[slot.name].reshape(-1), first)
        for begin, end, slots in self._runs:
            gathered = self._gathered[: end - begin].zero_()
            targets, sources = [], []
            for slot in slots:
                if slot.name in gradients:
                    targets.append(gathered[slot.offset - begin : slot.offset - begin + slot.count])
                    sources.append(gradients[slot.name].reshape(-1))
            if targets:
                torch._foreach_copy_(targets, sources)
            self._add(begin, gathered, first)
        self.is_empty = False

    def add_flat(self, values: torch.Tensor) -> None:
        """Counts what one microbatch gives for the whole vector."""
        self._add(0, values, self.is_empty)
        self.is_empty = False

    def add_all(self, other: Accumulator) -> None:
        """Counts what another accumulator has counted."""
        if other.is_empty:
            return
        if self.is_empty:
            self.total.copy_(other.total)
        else:
            self.total.add_(other.total)
        self.is_empty = False

    def _add(self, offset: int, values: torch.Tensor, first: bool) -> None:
        target = self.total[offset : offset + values.numel()]
        if self._numerics is Numerics.EXACT:
            self._rounding.add(target, values, exponent=self.exponent, contributions=self._contributions, first=first)
        elif first:
            target.copy_(values)
        else:
            target.add_(values)


def _runs(slots: Sequence[Slot]) -> list[tuple[int, int, list[Slot]]]:
    """Groups neighbouring small slots, as (begin, end, slots)."""
    runs: list[tuple[int, int, list[Slot]]] = []
    for slot in sorted(slots, key=lambda s: s.offset):
        end = slot.offset + slot.count
        if runs and slot.offset - runs[-1][1] < 16:
            begin, _, members = runs[-1]
            runs[-1] = (begin, end, [*members, slot])
        else:
            runs.append((slot.offset, end, [slot]))
    return runs


def grid_step(exponent: int) -> float:
    """Returns the step of the grid of a group with this exponent: all its accumulators are multiples of it."""
    return 2.0 ** (exponent + HEADROOM - 51)


def digest_of_counts(counts: Accumulator) -> int | None:
    """Returns a digest of an exact accumulator that adds up as its counts do; None: something in it is no multiple of
    the grid, or infinite, or no number."""
    steps = counts.total / grid_step(counts.exponent)
    whole = steps.to(torch.int64)
    return weighed_sum(whole) if torch.equal(whole.to(torch.float64), steps) else None


def add_up(parts: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Sets out = sum of the parts, 0 without any.

    Args:
        parts: flat, float64 (exact) or float32, of one size; their order matters for float32 alone.
        out: flat, of their type or float32.
    """
    size = out.numel()
    chunk = CHUNK_FLOATS if out.device.type == "cpu" else max(size, 1)
    for begin in range(0, size, chunk):
        end = min(size, begin + chunk)
        _add_up([part[begin:end] for part in parts], out[begin:end])


def squared_norm(gradient: torch.Tensor) -> float:
    """Returns the squared L2 norm of a flat float32 vector, added up in float64."""
    squared = 0.0
    size = gradient.numel()
    chunk = CHUNK_FLOATS if gradient.device.type == "cpu" else max(size, 1)
    for begin in range(0, size, chunk):
        wide = gradient[begin : begin + chunk].double()
        squared += float(torch.dot(wide, wide))
    return squared


def _add_up(parts: list[torch.Tensor], target: torch.Tensor) -> None:
    """Writes to `target` the sum of the parts in their order, made in their own precision."""
    if not parts:
        target.zero_()
        return
    if len(parts) == 1:
        target.copy_(parts[0])
        return
    total = target if parts[0].dtype is target.dtype else torch.empty_like(parts[0])
    torch.add(parts[0], parts[1], out=total)
    for part in parts[2:]:
        total.add_(part)
    if total is not target:
        target.copy_(total)
