"""Slices of a sum: which part of a group's gradients each owner adds up, and who carries what between hosts.

Owners here are those that need the total. Where the devices of a stage spread the optimizer's state, other devices
count of the group too, and give what they counted to its owners: givers.

A group's flat vector is cut into a slice for each owner: first into equal shares for the hosts, so that no host's
wire carries more than another's, then each share into equal slices for the owners there. Owners on one host read each
other's memory. Between hosts, each host's part of a slice is sent once, to the slice's owner, and the slice's total
once back to each host with owners (reduce-scatter, then all-gather): 2 (H - 1) / H of the vector leaves a host where H
hosts have owners, however many owners there are. A host that has givers alone sends its part of all slices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planaria.plan.plan import Plan, WorkerId

ALIGNMENT = 16
"""Floats to whose multiples slices are cut."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """The slices of one group's sum. A slice is named by its owner. Each is equal to itself alone, and made once.

    Attributes:
        hosts: owners by host, in the order of the vector.
        givers: givers by host: of those with owners, in the same order, and then of others.
        places: of each owner, its host's place, its own place there, and its own among all.
        host_of: of each owner and giver, its host's place.
    """

    hosts: tuple[tuple[WorkerId, ...], ...]
    givers: tuple[tuple[WorkerId, ...], ...]
    places: dict[WorkerId, tuple[int, int, int]]
    host_of: dict[WorkerId, int]

    @property
    def owners(self) -> tuple[WorkerId, ...]:
        return tuple(self.places)

    def on_host_of(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Returns the owners and givers on the worker's host, itself included."""
        host = self.host_of[worker]
        return self.owners_at(host) + self.givers[host]

    def owners_at(self, host: int) -> tuple[WorkerId, ...]:
        return self.hosts[host] if host < len(self.hosts) else ()

    def adding_at(self, host: int) -> tuple[WorkerId, ...]:
        """Returns those on a host that add up its part of slices: its owners, or else its givers."""
        return self.owners_at(host) or self.givers[host]

    def carriers(self, owner: WorkerId) -> tuple[WorkerId, ...]:
        """Returns of each other host the one that sends its host's part of this slice."""
        host, _, turn = self.places[owner]
        adding = [self.adding_at(at) for at in range(len(self.givers)) if at != host]
        return tuple([others[turn % len(others)] for others in adding])

    def takers(self, owner: WorkerId) -> tuple[WorkerId, ...]:
        """Returns of each other host with owners the one that is sent the total of this slice: its carrier there."""
        return self.carriers(owner)[: len(self.hosts) - 1]

    def carrier_at(self, worker: WorkerId, owner: WorkerId) -> WorkerId:
        """Returns who on the worker's host carries the slice of an owner on another host."""
        here = self.adding_at(self.host_of[worker])
        return here[self.places[owner][2] % len(here)]

    def carried_by(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """Returns the slices of other hosts that the worker carries for its own."""
        own = self.host_of[worker]
        adding = self.adding_at(own)
        if worker not in adding:
            return ()
        turns, place = len(adding), adding.index(worker)
        return tuple([owner for owner, (host, _, turn) in self.places.items() if host != own and turn % turns == place])

    def share(self, worker: WorkerId) -> float:
        """Returns the worker's slice as a share of the vector; of a giver 0."""
        return 1.0 / (len(self.hosts) * len(self.hosts[self.host_of[worker]])) if worker in self.places else 0.0

    def bounds(self, owner: WorkerId, size: int) -> tuple[int, int]:
        """Returns where the owner's slice of a vector of `size` floats begins and ends."""
        host, place, _ = self.places[owner]
        own = len(self.hosts[host])
        parts, at = len(self.hosts) * own, host * own + place
        return _cut(size * at, parts, size), _cut(size * (at + 1), parts, size)


def _cut(floats: int, parts: int, size: int) -> int:
    return min(size, -(-floats // (parts * ALIGNMENT)) * ALIGNMENT)


def slices_in(plan: Plan, group: int, host_of: Callable[[WorkerId], Hashable]) -> Slices:
    """Returns the slices of a group under a plan, whose workers are on these hosts."""
    owners, keepers = plan.owners_of[group], plan.keepers_of[group]
    keeping = set(keepers)
    givers = () if keepers is owners else [owner for owner in owners if owner not in keeping]
    return slices_of(keepers, list(map(host_of, keepers)), givers, list(map(host_of, givers)))


def slices_of(
    owners: Sequence[WorkerId],
    hosts: Sequence[Hashable],
    givers: Sequence[WorkerId] = (),
    givers_hosts: Sequence[Hashable] = (),
) -> Slices:
    """Returns the slices of a group with these owners, each on its host.

    Args:
        owners: in worker order.
        hosts: of each owner.
        givers: who counts and is no owner, in worker order.
        givers_hosts: of each giver.
    """
    at: dict[Hashable, int] = {}
    places = tuple([at.setdefault(host, len(at)) for host in (*hosts, *givers_hosts)])
    return _slices(tuple(owners), tuple(givers), places)


@lru_cache(maxsize=1024)
def _slices(owners: tuple[WorkerId, ...], givers: tuple[WorkerId, ...], host_of: tuple[int, ...]) -> Slices:
    num_hosts = max(host_of[: len(owners)], default=-1) + 1
    hosts: list[list[WorkerId]] = [[] for _ in range(num_hosts)]
    giving: list[list[WorkerId]] = [[] for _ in range(max(host_of, default=-1) + 1)]
    at = dict(zip((*owners, *givers), host_of, strict=True))
    for owner in owners:
        hosts[at[owner]].append(owner)
    for giver in givers:
        giving[at[giver]].append(giver)
    places = ((owner, host, place) for host, own in enumerate(hosts) for place, owner in enumerate(own))
    return Slices(
        hosts=tuple(map(tuple, hosts)),
        givers=tuple(map(tuple, giving)),
        places={owner: (host, place, turn) for turn, (owner, host, place) in enumerate(places)},
        host_of=at,
    )
