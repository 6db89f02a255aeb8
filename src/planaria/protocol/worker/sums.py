"""Sums: which of a worker's groups are being summed in the step in progress, which parts are missing, which are done.

Each owner of a group adds up one slice of it and hands the total back (`planaria.plan.sums.slices`); who counts of a
group and does not keep it whole gives what it counted, and gets nothing. A sum belongs to a sync epoch; one of an older
epoch is void, and is begun anew. What parts are made of and how they are added up is a subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, NamedTuple, SupportsFloat, TypeVar

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.sums.slices import Slices, slices_in
from planaria.protocol.worker.holdings import Accumulator, HeldState
from planaria.protocol.worker.mail import Key, Kind, MailStore, Payload, Ways

Part = TypeVar("Part")

News = tuple[str, WorkerId, WorkerId]
"""Names a message of a sum: its kind, its sender, and the slice that it is about."""


@dataclass(slots=True)
class Sum(Generic[Part]):
    """One group's sum under way at one worker that counts of it.

    Attributes:
        slices: of the group.
        unheard: others on this host whose counts are not known yet; nobody, where nothing is added up here.
        counts: of those on this host that counted something, where they lie.
        carried: slices of other hosts whose part of this host is still to be sent from here.
        awaited: those that carry the other hosts' parts of this worker's slice, and have not sent them yet.
        parts: of those that had something, as they came.
        totals: slices whose total is not here yet; none at a giver.
        news: messages that may have come and were not looked for yet: kind, sender, slice.
        ready: slices whose total may have come, and was not taken yet.
        norm: squared norm of the sum, where it is this worker's to tell.
    """

    epoch: int
    round: int
    slices: Slices
    unheard: list[WorkerId]
    carried: list[WorkerId]
    awaited: list[WorkerId]
    totals: list[WorkerId]
    news: set[News] = field(default_factory=set)
    ready: set[WorkerId] = field(default_factory=set)
    counts: dict[WorkerId, Part] = field(default_factory=dict)
    parts: dict[WorkerId, Part] = field(default_factory=dict)
    norm: SupportsFloat | None = None

    @property
    def is_done(self) -> bool:
        return not self.totals and not self.carried

    @property
    def in_place(self) -> list[Part]:
        """Returns what was counted on this host, in worker order."""
        return [self.counts[owner] for owner in sorted(self.counts)]


class Piece(NamedTuple, Generic[Part]):
    """Something that can be done for a sum without waiting.

    Attributes:
        about: slice of it.
        total: the slice's total that has come; None: the slice is added up here, or for its owner on another host.
        is_carried: it is another host's, and only this host's part of it is added up.
    """

    group: int
    sum: Sum[Part]
    about: WorkerId
    total: Any = None
    is_carried: bool = False

    @property
    def num_parts(self) -> int:
        """Returns how many parts are added up."""
        if self.total is not None:
            return 0
        return len(self.sum.counts) + (0 if self.is_carried else len(self.sum.parts))


class _Exchange(NamedTuple):
    """What one owner or giver exchanges with the others.

    Attributes:
        mates: others on its host whose counts it adds up.
        adding: others on its host that add up its counts.
        owners: other owners on its host.
        awaited: those that carry the other hosts' parts of its slice.
        carried: slices of other hosts whose part of this host it carries.
        totals: slices whose totals it needs.
        sources: how each other slice's total comes to it: the kind of message, and the sender.
        news: messages that come to it.
    """

    mates: tuple[WorkerId, ...]
    adding: tuple[WorkerId, ...]
    owners: tuple[WorkerId, ...]
    awaited: tuple[WorkerId, ...]
    carried: tuple[WorkerId, ...]
    totals: tuple[WorkerId, ...]
    sources: dict[WorkerId, tuple[str, WorkerId]]
    news: frozenset[News]


@lru_cache(maxsize=1024)
def _exchange_of(slices: Slices, worker: WorkerId) -> _Exchange:
    def others(workers: Sequence[WorkerId]) -> tuple[WorkerId, ...]:
        return tuple([other for other in workers if other != worker])

    host = slices.host_of[worker]
    owners = slices.owners_at(host)
    adding = owners or [giver for giver in slices.adding_at(host) if slices.carried_by(giver)]
    mates = others(slices.on_host_of(worker)) if worker in adding else ()
    awaited, totals = (slices.carriers(worker), slices.owners) if worker in owners else ((), ())
    sources = dict[WorkerId, tuple[str, WorkerId]]()
    for about in others(totals):
        carrier = about if about in owners else slices.carrier_at(worker, about)
        sources[about] = (Kind.TOTAL, about) if carrier == worker else (Kind.SHARED_TOTAL, carrier)
    news = {(Kind.SHARED_SUM, mate, mate) for mate in mates} | {(Kind.SUM, carrier, worker) for carrier in awaited}
    news |= {(kind, sender, about) for about, (kind, sender) in sources.items()}
    carried = slices.carried_by(worker)
    return _Exchange(mates, others(adding), others(owners), awaited, carried, totals, sources, frozenset(news))


def read_share(key: Key, reader: WorkerId, slices: Slices) -> float:
    """Returns how much of a group's vector the reader reads of what a sum's message is about, as a share of it."""
    if key.kind == Kind.SHARED_SUM:
        return slices.share(reader) + sum(slices.share(owner) for owner in slices.carried_by(reader))
    return slices.share(WorkerId(key.layer))


class Sums(ABC, Generic[Accumulator, Payload, Part]):
    """Sums of one worker's groups in the step in progress.

    Accumulators are only read, and totals are made in a second buffer. So an accumulator is intact until the step is
    committed, and a death inside a sum destroys nothing.

    Args:
        worker: the worker whose half this is.
        holdings: what the worker holds.
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
        self._open: set[tuple[int, int]] = set()
        """Round and group of the sums for which something may be to do."""
        self._step = 0
        self._plan: Plan | None = None

    # What a worker does for it

    @abstractmethod
    def _host_of(self, worker: WorkerId) -> Hashable:
        """Returns the host in whose memory the worker's vectors can be read; the same at every owner."""

    @abstractmethod
    def _own(self, accumulator: Accumulator) -> Part:
        """Returns what this worker counted, in place."""

    @abstractmethod
    def _place(self, accumulator: Accumulator | None) -> Payload:
        """Returns where an accumulator lies, for owners on this host; None: nothing was counted."""

    @abstractmethod
    def _part_at(self, owner: WorkerId, group: int, sent: Any) -> tuple[Part | None] | None:
        """Returns the part at a `_place`, as (part,), or (None,) if nothing was counted; None: out of reach."""

    @abstractmethod
    def _encoded(self, group: int, about: WorkerId, slices: Slices, parts: Sequence[Part]) -> Payload:
        """Returns the sum of the parts in a slice, to be sent to its owner."""

    @abstractmethod
    def _came(self, sent: Any) -> Part | None:
        """Returns a part sent as `_encoded`; None: nothing was counted."""

    @abstractmethod
    def _add_up(self, group: int, slices: Slices, in_place: Sequence[Part], came: Sequence[Part]) -> None:
        """Adds the parts of this worker's slice, in this order, into the replica's gradient."""

    @abstractmethod
    def _total(self, group: int, about: WorkerId, slices: Slices) -> Payload:
        """Returns a slice of the replica's gradient, for another host."""

    @abstractmethod
    def _total_place(self, group: int) -> Payload:
        """Returns where the replica's gradient lies, for owners on this host."""

    @abstractmethod
    def _take(self, group: int, about: WorkerId, slices: Slices, sent: Any) -> None:
        """Takes a slice's total, sent as `_total`, into the replica's gradient."""

    @abstractmethod
    def _take_from(self, group: int, about: WorkerId, slices: Slices, owner: WorkerId, sent: Any) -> bool:
        """Takes a slice's total from an owner's gradient at a `_total_place`; returns False if that is out of reach."""

    @abstractmethod
    def _norm(self, group: int) -> SupportsFloat:
        """Returns the squared norm of the replica's gradient."""

    # Plans and steps

    def begin_step(self, plan: Plan, step: int) -> None:
        self._plan, self._step = plan, step
        self._sums.clear()
        self._open.clear()

    def adopt(self, plan: Plan) -> None:
        """Adopts a new plan within the step: sums whose epoch still holds go on, the others are void."""
        self._plan = plan
        epochs = plan.sync_epochs
        self._sums = {group: pending for group, pending in self._sums.items() if pending.epoch == epochs[group]}
        self._open = {(pending.round, group) for group, pending in self._sums.items()}

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def start(self, group: int, epoch: int, round_: int) -> None:
        """Starts the sum of a group whose accumulator is whole here; where its state is on its way there is none."""
        if group in self._sums:
            return
        slices = self.slices(group)
        accumulator = self._holdings.accumulator(group) if group in self._holdings.replicas else None
        if accumulator is not None and accumulator.is_empty:
            accumulator = None
        exchange = _exchange_of(slices, self._worker)
        pending: Sum[Part] = Sum(
            epoch,
            round_,
            slices,
            unheard=[*exchange.mates],
            carried=[*exchange.carried],
            awaited=[*exchange.awaited],
            totals=[*exchange.totals],
            news={*exchange.news},  # all may have come before
        )
        if accumulator is not None:
            pending.counts[self._worker] = self._own(accumulator)
        self._sums[group] = pending
        self._open.add((round_, group))
        for owner in exchange.adding:
            self._send(owner, Kind.SHARED_SUM, pending, group, self._worker, self._place(accumulator))

    def slices(self, group: int) -> Slices:
        """Returns the slices of a group under the plan."""
        return slices_in(self.plan, group, self._host_of)

    def _send(
        self, owner: WorkerId, kind: str, pending: Sum[Part], group: int, about: WorkerId, payload: Payload
    ) -> None:
        self._ways.send(owner, Key(kind, self._worker, self._step, pending.epoch, group, about), payload)

    def _arrived(self, kind: str, sender: WorkerId, pending: Sum[Part], group: int, about: WorkerId) -> Any:
        return self._mail.poll(Key(kind, sender, self._step, pending.epoch, group, about))

    # Pieces

    def next_piece(self) -> Piece[Part] | None:
        """Returns what can be done without waiting, lowest round first; None: nothing."""
        for key in self._mail.news_of_sums():
            pending = self._sums.get(key.item)
            if pending is not None and not pending.is_done:
                pending.news.add((key.kind, WorkerId(key.sender), WorkerId(key.layer)))
                self._open.add((pending.round, key.item))
        if not self._open:
            return None
        for round_, group in sorted(self._open):
            pending = self._sums[group]
            piece = None if pending.is_done else self._next_of(group, pending)
            if piece is not None:
                return piece
            if pending.is_done or group in self._holdings.replicas:
                self._open.remove((round_, group))
        return None

    def _next_of(self, group: int, pending: Sum[Part]) -> Piece[Part] | None:
        """Returns what can be done for one sum. What is sent to others comes first.

        A total waits for the replica that it belongs to, where that is on its way.
        """
        if pending.news:
            self._hear(group, pending)
        if not pending.unheard and pending.carried:
            return Piece(group, pending, pending.carried[0], is_carried=True)
        if group not in self._holdings.replicas:
            return None
        for about in pending.totals:
            if about == self._worker:
                if not pending.unheard and not pending.awaited:
                    return Piece(group, pending, about)
            elif about in pending.ready:
                pending.ready.remove(about)
                total = self._arrived(*self._source(pending.slices, about), pending, group, about)
                if total is not None:
                    return Piece(group, pending, about, total)
        return None

    def _hear(self, group: int, pending: Sum[Part]) -> None:
        """Takes the parts that have come, and notes the totals."""
        for kind, sender, about in sorted(pending.news):
            if kind in (Kind.TOTAL, Kind.SHARED_TOTAL):
                pending.ready.add(about)
            elif (sent := self._arrived(kind, sender, pending, group, about)) is None:
                pass
            elif kind == Kind.SUM and sender in pending.awaited:
                pending.awaited.remove(sender)
                if (part := self._came(sent)) is not None:
                    pending.parts[sender] = part
            # An owner that died before its part was mapped has not counted nothing: this sum never becomes whole.
            elif sender in pending.unheard and (found := self._part_at(sender, group, sent)) is not None:
                pending.unheard.remove(sender)
                if found[0] is not None:
                    pending.counts[sender] = found[0]
        pending.news.clear()

    def _source(self, slices: Slices, about: WorkerId) -> tuple[str, WorkerId]:
        """Returns how another slice's total comes, and from whom."""
        return _exchange_of(slices, self._worker).sources[about]

    def do(self, piece: Piece[Part]) -> None:
        """Does a piece, as long as its sum is not void by now."""
        group, pending, about = piece.group, piece.sum, piece.about
        if self._sums.get(group) is not pending:
            return
        if piece.is_carried:
            pending.carried.remove(about)
            payload = self._encoded(group, about, pending.slices, pending.in_place)
            self._send(about, Kind.SUM, pending, group, about, payload)
        elif self._has_total(piece):
            pending.totals.remove(about)
            self._hand_on(group, pending, about)
        if pending.is_done:
            self._finish(group, pending)

    def _has_total(self, piece: Piece[Part]) -> bool:
        """Brings a slice's total into the replica's gradient; returns False if it is out of reach."""
        group, pending, about = piece.group, piece.sum, piece.about
        if about == self._worker:
            came = [pending.parts[owner] for owner in sorted(pending.parts)]
            self._add_up(group, pending.slices, pending.in_place, came)
            return True
        kind, source = self._source(pending.slices, about)
        if kind == Kind.SHARED_TOTAL:
            return self._take_from(group, about, pending.slices, source, piece.total)
        self._take(group, about, pending.slices, piece.total)
        return True

    def _hand_on(self, group: int, pending: Sum[Part], about: WorkerId) -> None:
        """Sends a slice's total to the other hosts, if it was made here; tells this host's owners where it lies."""
        if about == self._worker:
            for carrier in pending.slices.takers(about):
                self._send(carrier, Kind.TOTAL, pending, group, about, self._total(group, about, pending.slices))
        if about == self._worker or self._source(pending.slices, about)[0] == Kind.TOTAL:
            for owner in _exchange_of(pending.slices, self._worker).owners:
                self._send(owner, Kind.SHARED_TOTAL, pending, group, about, self._total_place(group))

    def _finish(self, group: int, pending: Sum[Part]) -> None:
        owners = pending.slices.owners
        if self._worker in owners and sorted(owners)[group % len(owners)] == self._worker:
            pending.norm = self._norm(group)
        pending.counts.clear()
        pending.parts.clear()

    # The step's end

    def is_whole(self) -> bool:
        """Returns whether every group that this worker counts of is summed, as far as it needs the sum."""
        return all(map(self.is_summed, self.plan.groups_of[self._worker]))

    def is_summed(self, group: int) -> bool:
        """Returns whether the group's whole sum is here, if it is needed, and all is sent that others need of it."""
        return group in self._sums and self._sums[group].is_done

    def awaited(self) -> WorkerId | None:
        """Returns an owner from which something of a sum is not here yet."""
        for pending in self._sums.values():
            if pending.unheard or pending.awaited:
                return (pending.unheard or pending.awaited)[0]
            for about in pending.totals:
                if about != self._worker:
                    return self._source(pending.slices, about)[1]
        return None

    @property
    def norms(self) -> dict[int, float]:
        """Squared norms of the groups whose norm is this worker's to tell."""
        return {group: float(s.norm) for group, s in sorted(self._sums.items()) if s.norm is not None}
