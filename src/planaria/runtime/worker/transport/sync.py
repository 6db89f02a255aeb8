"""Sums gradients across the owners of each group, as tensors (`planaria.protocol.worker.sums`).

Owners in one memory read each other's accumulators and totals where they lie: nobody writes to an accumulator between
its sync and the commit, nor to a total before the next step's, except for a plan whose sync epoch makes the old sum
void. The thread that computes does the adding; sending and receiving go on beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import torch

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.sums.slices import Slices
from planaria.protocol.worker.sums import Piece, Sums
from planaria.runtime.worker.compute.accumulator import Accumulator, add_up, grid_step
from planaria.runtime.worker.compute.device.device import LateTensors
from planaria.runtime.worker.compute.device_clock import DeviceClock
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.shared_memory import SharedReader
from planaria.runtime.worker.transport.grid_encoding import add_decoded, encoded
from planaria.runtime.worker.transport.mailbox import Mailbox
from planaria.runtime.worker.transport.outbox import Outbox
from planaria.runtime.worker.transport.pacing import Pacing

Tensors = tuple[torch.Tensor, ...]
Sent = Tensors | LateTensors


class Sync(Sums[Accumulator, Sent, Tensors]):
    """The sums of one worker in the step in progress. A part is a vector in place, or what came: a slice, encoded.

    Attributes:
        wire_bytes_per_s: what the wire of a host takes; 0: that is not known.
    """

    _holdings: Holdings

    def __init__(
        self, worker: WorkerId, holdings: Holdings, outbox: Outbox, mailbox: Mailbox, pace: DeviceClock
    ) -> None:
        super().__init__(worker, holdings, outbox, mailbox)
        self._outbox = outbox
        self._device = holdings.device
        self._pace = pace
        self._counts = SharedReader(self._device.opened)
        self._totals = SharedReader(self._device.opened)
        self._pacing = Pacing()
        self._far: dict[WorkerId, Hashable] = {}
        self._begun: Plan | None = None
        """Under which the last step was begun; another may have finished it."""
        self.wire_bytes_per_s = 0.0

    def begin_step(self, plan: Plan, step: int) -> None:
        if plan is not self._begun:
            self._begun = plan
            self._counts.keep_only(set(plan.workers))
            self._totals.keep_only(set(plan.workers))
            self._outbox.pace(self._far, None)
            self._far = self._far_owners(plan)
            self._pacing.begin_plan(self.wire_bytes_per_s, len(set(self._far.values())))
        super().begin_step(plan, step)
        if self._pacing.is_on:
            flows = {peer: flow for peer, flow in self._outbox.flows().items() if peer in self._far}
            self._outbox.pace(self._far, self._pacing.next_step(flows))

    def _far_owners(self, plan: Plan) -> dict[WorkerId, Hashable]:
        """Returns the other owners of this worker's groups that are on other hosts, with those."""
        here = self._outbox.host_of(self._worker)
        owners = {owner for group in plan.groups_of[self._worker] for owner in plan.owners_of[group]} - {self._worker}
        hosts = {owner: self._outbox.host_of(owner) for owner in owners}
        return {owner: host for owner, host in hosts.items() if host != here}

    def progress(self) -> bool:
        """Does one piece of what can be done without waiting; False when there is nothing."""
        piece = self.next_piece()
        if piece is not None:
            self.do(piece)
        return piece is not None

    def do(self, piece: Piece[Tensors]) -> None:
        self._pace.add_up(piece)
        with self._device.on_sums():
            super().do(piece)

    def _host_of(self, worker: WorkerId) -> Hashable:
        return self._outbox.memory_of(worker)

    def _own(self, accumulator: Accumulator) -> Tensors:
        return (accumulator.total,)

    def _place(self, accumulator: Accumulator | None) -> Sent:
        return () if accumulator is None else self._device.place_of(accumulator.shared)

    def _part_at(self, owner: WorkerId, group: int, sent: Tensors) -> tuple[Tensors | None] | None:
        if not sent:
            return (None,)
        part = self._counts.read(owner, group, sent[0], self._holdings.sum_dtype)
        return None if part is None else ((part,),)

    def _encoded(self, group: int, about: WorkerId, slices: Slices, parts: Sequence[Tensors]) -> Sent:
        if not parts:
            return ()
        begin, end = slices.bounds(about, parts[0][0].numel())
        own = [count[begin:end] for (count,) in parts]
        total = own[0] if len(own) == 1 else torch.empty_like(own[0])
        if total is not own[0]:
            add_up(own, total)
        out, step = self._device.copied_out((total,)), self._grid_step(group)
        if total.dtype is not torch.float64:
            return out
        return encoded(out[0], step) if isinstance(out, tuple) else _ToEncode(out, step)

    def _grid_step(self, group: int) -> float:
        return grid_step(self._holdings.exponents[group])

    def _came(self, sent: Tensors) -> Tensors | None:
        return sent or None

    def _add_up(self, group: int, slices: Slices, in_place: Sequence[Tensors], came: Sequence[Tensors]) -> None:
        target = self._slice(group, self._worker, slices)
        begin, end = slices.bounds(self._worker, self._gradient(group).numel())
        own = [part[begin:end] for (part,) in in_place]
        if not came:
            add_up(own, target)
            self._note_added_up(group, slices)
            return
        total = torch.empty(end - begin, dtype=self._holdings.sum_dtype, device=self._device.place)
        add_up(own, total)
        if total.dtype is not torch.float64:
            for part in came:
                total += self._device.copied_in((part[0],))[0]
        else:
            wide = total if self._device.is_on_host else torch.zeros(end - begin, dtype=total.dtype)
            for part in came:
                add_decoded((part[0], part[1], part[2]), self._grid_step(group), wide)
            if wide is not total:
                total += self._device.copied_in((wide,))[0]
        target.copy_(total)
        self._note_added_up(group, slices)

    def _gradient(self, group: int) -> torch.Tensor:
        gradient: torch.Tensor = self._holdings.replicas[group].gradient
        return gradient

    def _slice(self, group: int, about: WorkerId, slices: Slices) -> torch.Tensor:
        gradient = self._gradient(group)
        begin, end = slices.bounds(about, gradient.numel())
        return gradient[begin:end]

    def _total(self, group: int, about: WorkerId, slices: Slices) -> Sent:
        return self._device.copied_out((self._slice(group, about, slices),))

    def _total_place(self, group: int) -> Sent:
        shared = self._holdings.replicas[group].shared_gradient
        assert shared is not None, "an owner has the whole sum"
        return self._device.place_of(shared)

    def _take(self, group: int, about: WorkerId, slices: Slices, sent: Tensors) -> None:
        self._note_taken(group, about, slices)
        self._device.fill(self._slice(group, about, slices), sent[0])

    def _take_from(self, group: int, about: WorkerId, slices: Slices, owner: WorkerId, sent: Tensors) -> bool:
        gradient = self._totals.read(owner, group, sent[0], torch.float32)
        if gradient is None:
            return False
        begin, end = slices.bounds(about, gradient.numel())
        self._note_taken(group, about, slices)
        self._slice(group, about, slices).copy_(gradient[begin:end])
        return True

    def _note_added_up(self, group: int, slices: Slices) -> None:
        if len(slices.owners) > 1:  # else nobody else says what the sum is
            self._holdings.note_added_up(group, *slices.bounds(self._worker, self._gradient(group).numel()))

    def _note_taken(self, group: int, about: WorkerId, slices: Slices) -> None:
        self._holdings.note_taken(group, *slices.bounds(about, self._gradient(group).numel()))

    def _norm(self, group: int) -> SupportsFloat:
        return self._holdings.squared_norm(group)


@dataclass(frozen=True, slots=True)
class _ToEncode:
    """A slice on its way from the device, which is encoded on the host; see `LateTensors`."""

    out: LateTensors
    step: float

    @property
    def are_here(self) -> bool:
        return self.out.are_here

    def tensors(self) -> Tensors:
        return encoded(self.out.tensors()[0], self.step)
