"""Sums gradients across the owners of each group, as tensors (`planaria.protocol.worker.sums`).

Owners on one host read each other's accumulators and totals where they lie: nobody writes to an accumulator between its
sync and the commit, nor to a total before the next step's, except for a plan whose sync epoch makes the old sum void.
The thread that computes does the adding; sending and receiving go on beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import SupportsFloat

import torch

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.sums.slices import Slices
from planaria.protocol.worker.sums import Piece, Sums
from planaria.runtime.worker.compute.accumulator import Accumulator, add_up, grid_step
from planaria.runtime.worker.compute.device.device import LateTensors, here
from planaria.runtime.worker.compute.device_clock import DeviceClock
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.shared_memory import SharedReader, SharedVector
from planaria.runtime.worker.transport.grid_encoding import add_decoded, encoded
from planaria.runtime.worker.transport.mailbox import Mailbox
from planaria.runtime.worker.transport.outbox import Outbox
from planaria.runtime.worker.transport.pacing import Pacing

Tensors = tuple[torch.Tensor, ...]
Part = Tensors | LateTensors


class Sync(Sums[Accumulator, Part, Part]):
    """The sums of one worker in the step in progress. A part is a vector in place, or a device's that is on its way to
    the host, or what came: a slice, encoded.

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
        self._counts = SharedReader()
        self._totals = SharedReader()
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

    def do(self, piece: Piece[Part]) -> None:
        self._pace.add_up(piece)
        with self._device.on_sums():
            super().do(piece)

    def _host_of(self, worker: WorkerId) -> Hashable:
        return self._outbox.host_of(worker) if self._holdings.is_on_host else worker

    def _own(self, accumulator: Accumulator, slices: Slices) -> Part:
        if len(slices.host_of) == 1:
            return (accumulator.total,)  # nobody else's is added
        return self._device.copied_out((accumulator.total,))

    def _place(self, accumulator: Accumulator | None) -> Tensors:
        return () if accumulator is None else _address(accumulator.shared)

    def _part_at(self, owner: WorkerId, group: int, sent: Tensors) -> tuple[Tensors | None] | None:
        if not sent:
            return (None,)
        part = self._counts.read(owner, group, sent[0], self._holdings.sum_dtype)
        return None if part is None else ((part,),)

    def _encoded(self, group: int, about: WorkerId, slices: Slices, parts: Sequence[Part]) -> Tensors:
        if not parts:
            return ()
        counts = [here(part)[0] for part in parts]
        begin, end = slices.bounds(about, counts[0].numel())
        own = [count[begin:end] for count in counts]
        total = own[0] if len(own) == 1 else torch.empty_like(own[0])
        if total is not own[0]:
            add_up(own, total)
        return encoded(total, self._grid_step(group)) if total.dtype is torch.float64 else (total,)

    def _grid_step(self, group: int) -> float:
        return grid_step(self._holdings.exponents[group])

    def _came(self, sent: Tensors) -> Tensors | None:
        return sent or None

    def _add_up(self, group: int, slices: Slices, in_place: Sequence[Part], came: Sequence[Part]) -> None:
        target = self._slice(group, self._worker, slices)
        begin, end = slices.bounds(self._worker, self._gradient(group).numel())
        if not came and all(isinstance(part, tuple) for part in in_place):
            add_up([here(part)[0][begin:end] for part in in_place], target)
            self._note_added_up(group, slices)
            return
        total = torch.empty(end - begin, dtype=self._holdings.sum_dtype)
        add_up([here(part)[0][begin:end] for part in in_place], total)
        for part in map(here, came):
            if total.dtype is torch.float64:
                add_decoded((part[0], part[1], part[2]), self._grid_step(group), total)
            else:
                total += part[0]
        self._device.fill(target, total)
        self._note_added_up(group, slices)

    def _gradient(self, group: int) -> torch.Tensor:
        gradient: torch.Tensor = self._holdings.replicas[group].gradient
        return gradient

    def _slice(self, group: int, about: WorkerId, slices: Slices) -> torch.Tensor:
        gradient = self._gradient(group)
        begin, end = slices.bounds(about, gradient.numel())
        return gradient[begin:end]

    def _total(self, group: int, about: WorkerId, slices: Slices) -> Part:
        return self._device.copied_out((self._slice(group, about, slices),))

    def _total_place(self, group: int) -> Tensors:
        return _address(self._holdings.replicas[group].shared_gradient)

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


def _address(shared: SharedVector | None) -> Tensors:
    assert shared is not None, "a vector that other workers of the host read is in its memory"
    return (shared.address(),)
