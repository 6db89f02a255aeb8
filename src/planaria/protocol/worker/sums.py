"""Sums: which of a worker's groups are being summed in the step in progress, which parts are missing, which are done.

A sum belongs to a sync epoch; one of an older epoch is void, and is begun anew. What parts are made of and how they are
added up is a subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.worker.holdings import Accumulator, HeldState
from planaria.protocol.worker.mail import Key, Kind, MailStore, Payload, Ways

Part = TypeVar("Part")


@dataclass(slots=True)
class Sum(Generic[Part]):
    """One group's sum under way.

    Attributes:
        missing: owners whose part is not here yet.
        parts: of owners that counted something.
        norm: squared norm of the sum, where it is this worker's to tell.
    """

    epoch: int
    round: int
    missing: list[WorkerId]
    parts: dict[WorkerId, Part] = field(default_factory=dict)
    norm: float | None = None
    is_done: bool = False


class Sums(ABC, Generic[Accumulator, Payload, Part]):
    """Sums of one worker's groups in the step in progress.

    Every owner sends its part to every other owner, and adds up what arrives, in worker order, into a second buffer. So
    an accumulator is intact until the step is committed, and a death inside a sum destroys nothing.

    Args:
        worker: whose.
        holdings: the worker's.
        ways: to the other owners.
        mail: what has come from them.
    """

    def __init__(
        self, worker: WorkerId, holdings: HeldState[Any, Accumulator], ways: Ways[Payload], mail: MailStore[Any]
    ) -> None:
        self._worker = worker
        self._holdings = holdings
        self._ways = ways
        self._mail = mail
        self._sums: dict[int, Sum[Part]] = {}
        self._step = 0
        self._plan: Plan | None = None

    @abstractmethod
    def _own(self, accumulator: Accumulator) -> Part:
        """Returns this worker's own part of a sum."""

    @abstractmethod
    def _parcel(self, owner: WorkerId, accumulator: Accumulator | None) -> tuple[str, Payload]:
        """Returns the kind of message, and what an owner is sent; `accumulator` is None where nothing was counted."""

    @abstractmethod
    def _part(self, kind: str, owner: WorkerId, group: int, sent: Any) -> tuple[Part | None] | None:
        """Returns the part sent as a `_parcel`, as (part,), or (None,) if nothing was counted; None: out of reach."""

    @abstractmethod
    def _add_up(self, group: int, parts: Sequence[Part], *, with_norm: bool) -> float:
        """Adds the parts, in worker order, into the replica's gradient; returns its squared norm if that is wanted."""

    def begin_step(self, plan: Plan, step: int) -> None:
        self._plan, self._step = plan, step
        self._sums.clear()

    def adopt(self, plan: Plan) -> None:
        """Adopts a new plan within the step: sums whose epoch still holds go on."""
        self._plan = plan

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def start(self, group: int, epoch: int, round_: int) -> None:
        """Starts the sum of a group whose accumulator is whole here; where its state is on its way there is none."""
        if group in self._sums and self._sums[group].epoch == epoch:
            return
        owners = self.plan.owners_of[group]
        accumulator = self._holdings.accumulator(group) if group in self._holdings.replicas else None
        if accumulator is not None and accumulator.is_empty:
            accumulator = None
        for owner in owners:
            if owner != self._worker:
                self._send(owner, group, epoch, accumulator)
        missing = [owner for owner in owners if owner != self._worker]
        own = {} if accumulator is None else {self._worker: self._own(accumulator)}
        self._sums[group] = Sum(epoch, round_, missing, own)

    def _send(self, owner: WorkerId, group: int, epoch: int, accumulator: Accumulator | None) -> None:
        kind, payload = self._parcel(owner, accumulator)
        self._ways.send(owner, Key(kind, self._worker, self._step, epoch, group, 0), payload)

    def collect(self) -> tuple[int, Sum[Part]] | None:
        """Returns the first group, lowest round first, all of whose parts are here.

        It waits for the replica that the sum belongs to, where that is on its way.
        """
        for group, pending in sorted(self._sums.items(), key=lambda item: (item[1].round, item[0])):
            if pending.is_done or group not in self._holdings.replicas:
                continue
            for owner in list(pending.missing):
                part = self._arrived(owner, group, pending.epoch)
                if part is not None:
                    pending.missing.remove(owner)
                    if part[0] is not None:
                        pending.parts[owner] = part[0]
            if not pending.missing:
                return group, pending
        return None

    def _arrived(self, owner: WorkerId, group: int, epoch: int) -> tuple[Part | None] | None:
        """Returns the owner's part if it is here."""
        for kind in (Kind.SUM, Kind.SHARED_SUM):
            sent = self._mail.poll(Key(kind, owner, self._step, epoch, group, 0))
            if sent is not None:
                return self._part(kind, owner, group, sent)
        return None

    def finish(self, group: int, pending: Sum[Part]) -> None:
        """Adds up the parts that were collected."""
        owners = self.plan.owners_of[group]
        tells = owners[group % len(owners)] == self._worker
        norm = self._add_up(group, [pending.parts[owner] for owner in sorted(pending.parts)], with_norm=tells)
        pending.norm = norm if tells else None
        pending.is_done = True
        pending.parts.clear()

    def is_whole(self) -> bool:
        """Returns whether every group that this worker owns is summed for the plan's epochs."""
        return all(
            (found := self._sums.get(group)) is not None
            and found.is_done
            and found.epoch == self.plan.sync_epochs[group]
            for group in self.plan.groups_of[self._worker]
        )

    def awaited(self) -> WorkerId | None:
        """Returns an owner whose part of a sum is not here yet."""
        return next((owner for pending in self._sums.values() for owner in pending.missing), None)

    @property
    def norms(self) -> dict[int, float]:
        """Squared norms of the groups whose norm is this worker's to tell."""
        return {group: s.norm for group, s in sorted(self._sums.items()) if s.norm is not None}
