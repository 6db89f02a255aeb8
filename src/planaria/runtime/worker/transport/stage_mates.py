"""Adds up what the devices of a stage compute of one microbatch, by a fixed tree, as each of them needs the whole sum.

In each round a device exchanges its sum so far with one that has the sum of the neighbouring devices, and adds the two
in the devices' order: so all come to the same bits, those of the tree over all shards, whatever their number. A wait
ends when there is an order. Then the layer is put down and perhaps run again, also after others and under another plan,
so what was exchanged for it is kept until it is done: nothing is sent twice, or waited for that has come. Who is done
with it has sent all that the others need. So devices that do the rest of a step in the same order, each without what it
has done, never wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.worker.mail import Key, Kind
from planaria.protocol.worker.progress import Work

Exchange = Callable[[WorkerId, Key, torch.Tensor | None], torch.Tensor]
"""Sends a peer a part under that key, if one is given, and returns the peer's own; raises Interrupted on an order. The
step in progress is put into the key."""

_MOST_ROUNDS = 8


class StageMates:
    """The devices of a worker's stage, where they share each microbatch.

    Args:
        worker: whose.
        exchange: with one of the others.
    """

    def __init__(self, worker: WorkerId, exchange: Exchange) -> None:
        self._worker = worker
        self._exchange = exchange
        self._mates: tuple[WorkerId, ...] = (worker,)
        self._sent: set[Key] = set()
        self._came: dict[Key, torch.Tensor] = {}

    def adopt(self, plan: Plan) -> None:
        """Adopts a plan. What was exchanged for microbatches that go on stays: they have the same devices."""
        own = (mates for mates in plan.stage_mates if self._worker in mates) if plan.shares_microbatches else iter(())
        self.share_with(next(own, (self._worker,)))

    def share_with(self, mates: Sequence[WorkerId]) -> None:
        """Sets the devices that share microbatches from now on, this one among them, in the order of their places."""
        self._mates = tuple(mates)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Shares nothing while this is open."""
        mates, self._mates = self._mates, (self._worker,)
        try:
            yield
        finally:
            self._mates = mates

    @property
    def number(self) -> int:
        """Number of devices that share a microbatch with this one, itself included."""
        return len(self._mates)

    @property
    def place(self) -> int:
        """Place of this device among them, from 0."""
        return self._mates.index(self._worker)

    def add_up(self, work: Work, name: int, part: torch.Tensor, among: int) -> torch.Tensor:
        """Returns the sum of what so many neighbouring devices, a power of two, have of a sum of that name.

        Args:
            work: the microbatch, and when its route was made.
            name: of the sum, among those of the microbatch.
            part: what this device has; of the same shape and dtype on each.
            among: on how many devices it is; this one is one of them.

        Raises:
            Interrupted: there is an order. Asked again for the same sum, this goes on.
        """
        place, distance, rounds = self.place, 1, 0
        while distance < among:
            peer = self._mates[place ^ distance]
            key = Key(Kind.PARTIAL, self._worker, 0, work[1], work[0], name * _MOST_ROUNDS + rounds)
            if key not in self._came:
                given = None if key in self._sent else part
                self._sent.add(key)
                self._came[key] = self._exchange(peer, key, given)
            other = self._came[key]
            part = other + part if place & distance else part + other
            distance, rounds = 2 * distance, rounds + 1
        return part

    def forget(self, keep: Callable[[Work, int], bool]) -> None:
        """Forgets what was exchanged for sums, of a microbatch and by name, that nobody will go on with."""
        for key in [key for key in self._sent if not keep((key.item, key.epoch), key.layer // _MOST_ROUNDS)]:
            self._sent.remove(key)
            self._came.pop(key, None)
