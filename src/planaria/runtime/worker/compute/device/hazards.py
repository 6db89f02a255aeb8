"""Finds uses of memory that nothing orders: a write and another use of the same bytes, by two streams or the host.

Each actor (a stream, the host) has a vector clock: how much of every actor's work is surely done before what it does
next. A recorded event carries its stream's clock on to who waits for it. So what is found depends on the orders that
were asked for alone, not on who happened to be late.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch

Actor = Hashable
Clock = Mapping[Actor, int]


class Hazard(AssertionError):
    """Two uses of the same memory, at least one a write, that are in no order."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of bytes of a buffer: from `begin` to `end`, by the actor's work number `time`."""

    begin: int
    end: int
    actor: Actor
    time: int
    is_write: bool
    what: str


@dataclass(slots=True)
class Buffer:
    """Memory, and who has used it.

    Attributes:
        owner: the actor at whose request it was made; what is made later may lie there once it is gone.
        is_device: whether it is the device's memory; None: nobody knows yet.
        uses: those that a later one may have to be ordered with.
        told: actors of whom the allocator was told.
    """

    owner: Actor
    is_device: bool | None
    uses: list[Use] = field(default_factory=list)
    told: set[Actor] = field(default_factory=set)


class Clocks:
    """Vector clocks of actors, and what they used."""

    def __init__(self) -> None:
        self._given_back: dict[Actor, list[Use]] = {}
        """Uses that others may still be at, of memory that is nobody's any more, by who owned it."""
        self._clocks: dict[Actor, dict[Actor, int]] = {}
        self._buffers: dict[int, Buffer] = {}

    # Order

    def now(self, actor: Actor) -> Clock:
        """Returns the clock of what the actor does now, to be carried by an event."""
        return dict(self._clock(actor))

    def after(self, actor: Actor, clock: Clock) -> None:
        """Has the actor go on after all that a clock knows of."""
        own = self._clock(actor)
        for other, time in clock.items():
            own[other] = max(own.get(other, 0), time)

    def has_seen(self, actor: Actor, clock: Clock) -> bool:
        """Returns whether all that a clock knows of is done before what the actor does next."""
        own = self._clock(actor)
        return all(own.get(other, 0) >= time for other, time in clock.items())

    def begin(self, actor: Actor, host: Actor) -> None:
        """Begins a piece of work, which the host gives to the actor after all that the host knows to be done.

        Raises:
            Hazard: it may be given memory that another actor still uses.
        """
        own = self._clock(actor)
        if actor != host:
            self.after(actor, self._clock(host))
        for use in self._given_back.pop(actor, ()):
            if own.get(use.actor, 0) < use.time:
                raise Hazard(f"memory of {actor} is given back in the middle of: {_words(use)}")
        own[actor] = own.get(actor, 0) + 1

    def _clock(self, actor: Actor) -> dict[Actor, int]:
        return self._clocks.setdefault(actor, {})

    # Memory

    def buffer(self, tensor: torch.Tensor, owner: Actor) -> Buffer:
        """Returns the memory that a tensor lies in; it is the owner's if it is seen for the first time."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self._buffers.get(key)
        if found is None:
            found = self._buffers[key] = Buffer(owner, None)
            weakref.finalize(storage, self._gone, key).atexit = False
        return found

    def use(self, actor: Actor, tensor: torch.Tensor, what: str, *, is_write: bool) -> None:
        """Notes that the work which the actor has begun uses a tensor.

        Raises:
            Hazard: another use of the same bytes is in no order with this one.
        """
        span = _span(tensor)
        if span is None:
            return
        buffer, clock = self.buffer(tensor, actor), self._clock(actor)
        begin, end = span
        use = Use(begin, end, actor, clock[actor], is_write, what)
        staying = []
        for other in buffer.uses:
            if other.end <= begin or end <= other.begin:
                staying.append(other)
                continue
            if (is_write or other.is_write) and clock.get(other.actor, 0) < other.time:
                raise Hazard(f"{_words(use)}, and no event orders that with: {_words(other)}")
            is_within = begin <= other.begin and other.end <= end
            if not (is_within and (is_write or (other.actor == actor and not other.is_write))):
                staying.append(other)
        buffer.uses = [*staying, use]

    def _gone(self, key: int) -> None:
        """Notes that memory is nobody's any more: its owner's next work may be given it."""
        buffer = self._buffers.pop(key)
        if buffer.is_device:
            uses = [use for use in buffer.uses if use.actor not in (buffer.owner, *buffer.told)]
            self._given_back.setdefault(buffer.owner, []).extend(uses)


def _words(use: Use) -> str:
    return f"{use.what} on {use.actor} {'writes' if use.is_write else 'reads'} bytes {use.begin} to {use.end}"


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns the bytes of its memory between which a tensor lies; None: it has none."""
    if tensor.numel() == 0:
        return None
    size = tensor.element_size()
    begin = int(tensor.storage_offset()) * size
    last = sum((length - 1) * stride for length, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return begin, begin + size * (1 + last)
