"""Sums of gradients across the owners of each group, by messages between owners alone.

Every owner sends its accumulator to every other owner and adds what arrives, in worker order, into a second buffer.
Owners on one host send only where it lies, and read it in place: nobody writes to an accumulator between its sync
and the commit, except for a plan whose sync epoch makes the old sum void. So an accumulator is intact until the step
is committed, and a death inside a sync destroys nothing. The thread that computes does the adding, where it would
otherwise wait; sending and receiving go on beside it.
"""

from __future__ import annotations

import torch

from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.sums import Sum, Sums
from planaria.worker.accumulator import Accumulator, total_gradient
from planaria.worker.holdings import Holdings
from planaria.worker.mailbox import Key, Kind, Mailbox
from planaria.worker.pace import Pace
from planaria.worker.shared_memory import SharedReader
from planaria.worker.transport import Transport


class Sync:
    """The sums of one worker in the step in progress."""

    def __init__(
        self, worker: WorkerId, holdings: Holdings, transport: Transport, mailbox: Mailbox, pace: Pace
    ) -> None:
        self._worker = worker
        self._pace = pace
        self._holdings = holdings
        self._transport = transport
        self._mailbox = mailbox
        self._reader = SharedReader()
        self._sums: Sums[torch.Tensor] = Sums(worker)
        self._step = 0
        self._plan: Plan | None = None

    def begin_step(self, plan: Plan, step: int) -> None:
        if plan is not self._plan:
            self._reader.keep_only(set(plan.workers))
        self._plan, self._step = plan, step
        self._sums.clear()

    def adopt(self, plan: Plan) -> None:
        """A new plan within the step: sums whose epoch still holds go on."""
        self._plan = plan

    def start(self, group: int, epoch: int, round_: int) -> None:
        """This worker's accumulator of the group is whole; of a group whose state is on its way it has none."""
        assert self._plan is not None
        if self._sums.is_begun(group, epoch):
            return
        owners = self._plan.owners_of[group]
        accumulator = self._holdings.accumulator(group) if group in self._holdings.replicas else None
        for owner in owners:
            if owner != self._worker:
                self._send(owner, group, epoch, accumulator)
        is_empty = accumulator is None or accumulator.is_empty
        self._sums.begin(group, epoch, round_, owners, None if is_empty else self._holdings.accumulator(group).total)

    def _send(self, owner: WorkerId, group: int, epoch: int, accumulator: Accumulator | None) -> None:
        kind = Kind.SUM
        payload: tuple[torch.Tensor, ...]
        if accumulator is None or accumulator.is_empty:
            payload = ()
        elif accumulator.shared is not None and self._transport.is_on_this_host(owner):
            kind, payload = Kind.SHARED_SUM, (accumulator.shared.address(),)
        else:
            payload = (accumulator.total,)
        self._transport.send(owner, Key(kind, self._worker, self._step, epoch, group, 0), payload)

    def progress(self) -> bool:
        """Do one piece of what can be done without waiting; False when there is nothing."""
        whole = self._sums.collect(self._arrived, self._holdings.replicas)
        if whole is None:
            return False
        self._finish(*whole)
        return True

    def _arrived(self, owner: WorkerId, group: int, epoch: int) -> tuple[torch.Tensor | None] | None:
        """The owner's part if it is here."""
        sent = self._mailbox.poll(Key(Kind.SUM, owner, self._step, epoch, group, 0))
        if sent is not None:
            return (sent[0] if sent else None,)
        shared = self._mailbox.poll(Key(Kind.SHARED_SUM, owner, self._step, epoch, group, 0))
        if shared is None:
            return None
        part = self._reader.read(owner, group, shared[0], self._holdings.accumulator(group).total.dtype)
        # An owner that died before its part was mapped has not counted nothing: this sum never becomes whole.
        return None if part is None else (part,)

    def _finish(self, group: int, pending: Sum[torch.Tensor]) -> None:
        assert self._plan is not None
        replica = self._holdings.replicas[group]
        tells = self._sums.tells(self._plan, group)
        device = replica.gradient.device
        parts = [pending.parts[worker].to(device) for worker in sorted(pending.parts)]
        self._pace.add_up(group, len(parts))
        norm = total_gradient(parts, replica.gradient, with_norm=tells)
        pending.norm = norm if tells else None
        pending.is_done = True
        pending.parts.clear()

    def is_whole(self) -> bool:
        """Whether every group that this worker owns is summed for the plan's epochs."""
        assert self._plan is not None
        return self._sums.is_whole(self._plan)

    def awaited(self) -> WorkerId | None:
        """An owner whose part of a sum is not here yet."""
        return self._sums.awaited()

    @property
    def norms(self) -> dict[int, float]:
        """Squared norms of the groups whose norm is this worker's to tell."""
        return self._sums.norms
