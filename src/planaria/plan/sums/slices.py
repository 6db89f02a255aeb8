"""Slices of a sum: which part of a group's gradients each owner adds up, and who carries what between hosts.

A group's flat vector is cut into a slice for each owner: first into equal shares for the hosts, so that no host's
wire carries more than another's, then each share into equal slices for the owners there. Owners on one host read each
other's memory. Between hosts, each host's part of a slice is sent once, to the slice's owner, and the slice's total
once back to each host (reduce-scatter, then all-gather): 2 (H - 1) / H of the vector leaves a host where H hosts have
owners, however many owners there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planaria.plan.plan import WorkerId

ALIGNMENT = 16
"""Floats to whose multiples slices are cut."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """The slices of one group's sum. A slice is named by its owner. Each is equal to itself alone, and made once.

    Attributes:
        hosts: owners by host, in the order of the vector.
        places: of each owner, its host's place, its own place there, and its own among all.
    """

    hosts: tuple[tuple[WorkerId, ...], ...]
    places: dict[WorkerId, tuple[int, int, int]]

    @property
    def owners(self) -> tuple[WorkerId, ...]:
        return tuple(self.places)

    def on_host_of(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Returns the owners on the worker's host, itself included."""
        return self.hosts[self.places[worker][0]]

    def carriers(self, owner: WorkerId) -> tuple[WorkerId, ...]:
        """Returns of each other host the owner that sends its host's part of this slice, and is sent the total."""
        host, _, turn = self.places[owner]
        return tuple([others[turn % len(others)] for at, others in enumerate(self.hosts) if at != host])

    def carrier_at(self, worker: WorkerId, owner: WorkerId) -> WorkerId:
        """Returns which owner on the worker's host carries the slice of an owner on another host."""
        here = self.on_host_of(worker)
        return here[self.places[owner][2] % len(here)]

    def carried_by(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Returns the slices of other hosts that the worker carries for its own."""
        own, place, _ = self.places[worker]
        turns = len(self.hosts[own])
        return tuple([owner for owner, (host, _, turn) in self.places.items() if host != own and turn % turns == place])

    def share(self, owner: WorkerId) -> float:
        """Returns the owner's slice as a share of the vector."""
        return 1.0 / (len(self.hosts) * len(self.on_host_of(owner)))

    def bounds(self, owner: WorkerId, size: int) -> tuple[int, int]:
        """Returns where the owner's slice of a vector of `size` floats begins and ends."""
        host, place, _ = self.places[owner]
        own = len(self.hosts[host])
        parts, at = len(self.hosts) * own, host * own + place
        return _cut(size * at, parts, size), _cut(size * (at + 1), parts, size)


def _cut(floats: int, parts: int, size: int) -> int:
    return min(size, -(-floats // (parts * ALIGNMENT)) * ALIGNMENT)


def slices_of(owners: Sequence[WorkerId], hosts: Sequence[Hashable]) -> Slices:
    """Returns the slices of a group with these owners, each on its host.

    Args:
        owners: in worker order.
        hosts: of each owner.
    """
    at: dict[Hashable, int] = {}
    return _slices(tuple(owners), tuple([at.setdefault(host, len(at)) for host in hosts]))


@lru_cache(maxsize=1024)
def _slices(owners: tuple[WorkerId, ...], host_of: tuple[int, ...]) -> Slices:
    hosts: list[list[WorkerId]] = [[] for _ in range(max(host_of, default=-1) + 1)]
    for owner, host in zip(owners, host_of, strict=True):
        hosts[host].append(owner)
    places = ((owner, host, place) for host, own in enumerate(hosts) for place, owner in enumerate(own))
    return Slices(
        hosts=tuple(map(tuple, hosts)),
        places={owner: (host, place, turn) for turn, (owner, host, place) in enumerate(places)},
    )
