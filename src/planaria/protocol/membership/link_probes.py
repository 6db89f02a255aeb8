"""Link probes: which hosts measure the links between them, and when.

Each node that is offered is measured with a few others: of its zone and of other zones, those first that took part
least. No host takes part in two probes at once, since they would share its link. Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from planaria.plan.costs.network import HostPair, host_pair
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.thresholds import PROBED_ACROSS_ZONES, PROBED_IN_ZONE

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Party(Generic[Key]):
    host: str
    zone: str
    waits: list[Key] | None = None
    """With whom it is still to be measured; None: it is no newcomer."""
    found: list[HostLink] = field(default_factory=list)


class LinkProbes(Generic[Key]):
    """The hosts that can be measured, and the pairs that are to be."""

    def __init__(self) -> None:
        self._parties: dict[Key, _Party[Key]] = {}
        self._under_way: dict[Key, Key] = {}
        self._chosen: set[HostPair] = set()
        """Pairs that are measured, or to be."""
        self._turns: dict[str, int] = {}

    def add(self, key: Key, host: str, zone: str) -> None:
        """Adds a host that answers probes."""
        self._parties[key] = _Party(host, zone)

    def offer(self, key: Key) -> None:
        """Chooses with whom a newcomer is measured: each host once, none of those that it was measured with before."""
        own = self._parties[key]
        rooms = {True: PROBED_IN_ZONE, False: PROBED_ACROSS_ZONES}
        own.waits, hosts = [], {own.host}
        for other in sorted(self._parties, key=lambda other: self._turns.get(self._parties[other].host, 0)):
            party = self._parties[other]
            is_near = party.zone == own.zone
            if party.host in hosts or not rooms[is_near] or host_pair(own.host, party.host) in self._chosen:
                continue
            rooms[is_near] -= 1
            hosts.add(party.host)
            own.waits.append(other)
            self._chosen.add(host_pair(own.host, party.host))
            self._turns[party.host] = self._turns.get(party.host, 0) + 1

    def begin(self) -> list[tuple[Key, Key]]:
        """Returns the pairs to be measured from now on: the newcomer, which probes, and the other."""
        begun = []
        for key, party in self._parties.items():
            busy = {self._parties[one].host for pair in self._under_way.items() for one in pair}
            if not party.waits or party.host in busy:
                continue
            free = [other for other in party.waits if self._parties[other].host not in busy]
            if free:
                party.waits.remove(free[0])
                self._under_way[key] = free[0]
                begun.append((key, free[0]))
        return begun

    def answer(self, key: Key, latency_s: float, bytes_per_s: float) -> None:
        """Records what a newcomer's probe found; nothing if the other could not be reached (0 bytes a second)."""
        other = self._under_way.pop(key, None)
        if other is None:
            return
        own, party = self._parties[key], self._parties[other]
        if not bytes_per_s > 0:
            self._chosen.discard(host_pair(own.host, party.host))
            return
        own.found.append(
            HostLink(
                one=own.host,
                other=party.host,
                latency_s=latency_s,
                bytes_per_s=bytes_per_s,
                across_zones=own.zone != party.zone,
            )
        )

    def done(self) -> list[tuple[Key, tuple[HostLink, ...]]]:
        """Returns, once each, the newcomers that are measured, and their links."""
        ready = [
            (key, party)
            for key, party in self._parties.items()
            if party.waits is not None and not party.waits and key not in self._under_way
        ]
        found = [(key, tuple(party.found)) for key, party in ready]
        for _, party in ready:
            party.waits, party.found = None, []
        return found

    def remove(self, key: Key) -> None:
        """Forgets a host that is out of reach, and the probes with it."""
        if key not in self._parties:
            return
        for one, party in self._parties.items():
            left = [*(party.waits or ()), *([self._under_way[one]] if one in self._under_way else [])]
            for other in [other for other in left if key in (one, other)]:
                self._chosen.discard(host_pair(party.host, self._parties[other].host))
            if party.waits and key in party.waits:
                party.waits.remove(key)
        self._under_way = {one: other for one, other in self._under_way.items() if key not in (one, other)}
        del self._parties[key]
