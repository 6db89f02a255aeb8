"""Sums of gradients across the owners of each group, by messages between owners alone.

Every owner sends its accumulator to every other owner and adds what arrives, in worker order, into a second buffer.
So an accumulator is intact until the step is committed, and a death inside a sync destroys nothing. The thread that
computes does the adding, where it would otherwise wait; sending and receiving go on beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from planaria.plan.plan import Plan, WorkerId
from planaria.worker.accumulator import total_gradient
from planaria.worker.holdings import Holdings
from planaria.worker.mailbox import Key, Kind, Mailbox
from planaria.worker.transport import Transport


@dataclass(slots=True)
class _Sum:
    """One group's sum under way."""

    epoch: int
    round: int
    missing: list[WorkerId]
    parts: dict[WorkerId, torch.Tensor] = field(default_factory=dict)
    norm: float | None = None
    done: bool = False


class Sync:
    """The sums of one worker in the step in progress."""

    def __init__(self, worker: WorkerId, holdings: Holdings, transport: Transport, mailbox: Mailbox) -> None:
        self._worker = worker
        self._holdings = holdings
        self._transport = transport
        self._mailbox = mailbox
        self._sums: dict[int, _Sum] = {}
        self._step = 0
        self._plan: Plan | None = None

    def begin_step(self, plan: Plan, step: int) -> None:
        self._plan, self._step = plan, step
        self._sums.clear()

    def adopt(self, plan: Plan) -> None:
        """A new plan within the step: sums whose epoch still holds go on."""
        self._plan = plan

    def start(self, group: int, epoch: int, round_: int) -> None:
        """This worker's accumulator of the group is whole."""
        assert self._plan is not None
        if group in self._sums and self._sums[group].epoch == epoch:
            return
        owners = self._plan.owners_of[group]
        accumulator = self._holdings.accumulator(group)
        payload = () if accumulator.is_empty else (accumulator.total,)
        others = [owner for owner in owners if owner != self._worker]
        key = Key(Kind.SUM, self._worker, self._step, epoch, group, 0)
        for owner in others:
            self._transport.send(owner, key, payload)
        parts = {self._worker: accumulator.total} if payload else {}
        self._sums[group] = _Sum(epoch, round_, others, parts)

    def progress(self) -> bool:
        """Do one piece of what can be done without waiting; False when there is nothing."""
        for group, pending in sorted(self._sums.items(), key=lambda item: (item[1].round, item[0])):
            if not pending.done and self._collect(group, pending):
                self._finish(group, pending)
                return True
        return False

    def _collect(self, group: int, pending: _Sum) -> bool:
        for owner in list(pending.missing):
            arrived = self._mailbox.poll(Key(Kind.SUM, owner, self._step, pending.epoch, group, 0))
            if arrived is not None:
                pending.missing.remove(owner)
                if arrived:
                    pending.parts[owner] = arrived[0]
        return not pending.missing

    def _finish(self, group: int, pending: _Sum) -> None:
        assert self._plan is not None
        owners = self._plan.owners_of[group]
        replica = self._holdings.replicas[group]
        tells = owners[group % len(owners)] == self._worker
        device = replica.gradient.device
        parts = [pending.parts[worker].to(device) for worker in sorted(pending.parts)]
        norm = total_gradient(parts, replica.gradient, with_norm=tells)
        pending.norm = norm if tells else None
        pending.done = True
        pending.parts.clear()

    def is_whole(self) -> bool:
        """Whether every group that this worker owns is summed for the plan's epochs."""
        assert self._plan is not None
        return all(
            (found := self._sums.get(group)) is not None and found.done and found.epoch == self._plan.sync_epochs[group]
            for group in self._plan.groups_of[self._worker]
        )

    @property
    def norms(self) -> dict[int, float]:
        """Squared norms of the groups whose norm is this worker's to tell."""
        return {group: s.norm for group, s in sorted(self._sums.items()) if s.norm is not None}
