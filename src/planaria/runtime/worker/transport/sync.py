"""Sums gradients across the owners of each group, as tensors (`planaria.protocol.worker.sums`).

Owners on one host send only where their accumulator lies, and read it in place: nobody writes to an accumulator between
its sync and the commit, except for a plan whose sync epoch makes the old sum void. The thread that computes does the
adding, where it would otherwise wait; sending and receiving go on beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.worker.sums import Sums
from planaria.runtime.worker.compute.accumulator import Accumulator, total_gradient
from planaria.runtime.worker.compute.device_clock import DeviceClock
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.shared_memory import SharedReader
from planaria.runtime.worker.transport.mailbox import Kind, Mailbox
from planaria.runtime.worker.transport.transport import Transport


class Sync(Sums[Accumulator, tuple[torch.Tensor, ...], torch.Tensor]):
    """The sums of one worker in the step in progress."""

    def __init__(
        self, worker: WorkerId, holdings: Holdings, transport: Transport, mailbox: Mailbox, pace: DeviceClock
    ) -> None:
        super().__init__(worker, holdings, transport, mailbox)
        self._transport = transport
        self._pace = pace
        self._reader = SharedReader()

    def begin_step(self, plan: Plan, step: int) -> None:
        if plan is not self._plan:
            self._reader.keep_only(set(plan.workers))
        super().begin_step(plan, step)

    def progress(self) -> bool:
        """Does one piece of what can be done without waiting; False when there is nothing."""
        whole = self.collect()
        if whole is not None:
            self.finish(*whole)
        return whole is not None

    def _own(self, accumulator: Accumulator) -> torch.Tensor:
        return accumulator.total

    def _parcel(self, owner: WorkerId, accumulator: Accumulator | None) -> tuple[str, tuple[torch.Tensor, ...]]:
        if accumulator is None:
            return Kind.SUM, ()
        if accumulator.shared is not None and self._transport.is_on_this_host(owner):
            return Kind.SHARED_SUM, (accumulator.shared.address(),)
        return Kind.SUM, (accumulator.total,)

    def _part(
        self, kind: str, owner: WorkerId, group: int, sent: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor | None] | None:
        if kind == Kind.SUM:
            return (sent[0] if sent else None,)
        part = self._reader.read(owner, group, sent[0], self._holdings.accumulator(group).total.dtype)
        # An owner that died before its part was mapped has not counted nothing: this sum never becomes whole.
        return None if part is None else (part,)

    def _add_up(self, group: int, parts: Sequence[torch.Tensor], *, with_norm: bool) -> float:
        gradient: torch.Tensor = self._holdings.replicas[group].gradient
        self._pace.add_up(group, len(parts))
        return total_gradient([part.to(gradient.device) for part in parts], gradient, with_norm=with_norm)
