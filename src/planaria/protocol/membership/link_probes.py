"""Link probes: which hosts measure the links between them, and when.

Each node that is offered is measured with a few others: of its zone and of other zones, those first that took part
least. No host takes part in two probes at once, since they would share its link. Thousands of hosts may be offered at
once, so nothing here looks at all of them for one. Pure: no clock.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from planaria.plan.costs.network import HostPair, host_pair
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.thresholds import PROBED_ACROSS_ZONES, PROBED_IN_ZONE

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Party(Generic[Key]):
    number: int
    """In the order in which they came."""
    host: str
    zone: str
    waits: list[Key] | None = None
    """With whom it is still to be measured; None: it is no newcomer."""
    found: list[HostLink] = field(default_factory=list)


class LinkProbes(Generic[Key]):
    """The hosts that can be measured, and the pairs that are to be."""

    def __init__(self) -> None:
        self._parties: dict[Key, _Party[Key]] = {}
        self._num_added = 0
        self._on_host: dict[str, dict[Key, None]] = {}
        self._by_turns: dict[str, list[tuple[int, int, Key]]] = {}
        """Each zone's hosts in order, those that took part least first: (turns, number, key)."""
        self._turns: dict[str, int] = {}
        self._chosen: set[HostPair] = set()
        """Pairs that are measured, or to be."""
        self._wanted_by: dict[Key, dict[Key, None]] = {}
        """Newcomers that wait to be measured with this one."""
        self._under_way: dict[Key, Key] = {}
        self._probed_by: dict[Key, Key] = {}
        """The pairs under way, the other way round."""
        self._busy: set[str] = set()
        self._stirred: dict[Key, None] = {}
        """Newcomers whose next probe may be able to begin."""
        self._measured: dict[Key, None] = {}

    def add(self, key: Key, host: str, zone: str) -> None:
        """Adds a host that answers probes."""
        party = self._parties[key] = _Party(self._num_added, host, zone)
        self._num_added += 1
        self._on_host.setdefault(host, {})[key] = None
        insort(self._by_turns.setdefault(zone, []), (self._turns.get(host, 0), party.number, key))

    def offer(self, key: Key) -> None:
        """Chooses with whom a newcomer is measured: each host once, none of those that it was measured with before."""
        own = self._parties[key]
        if own.waits is not None:
            return
        hosts = {own.host}
        near = self._by_turns[own.zone]
        far = heapq.merge(*(others for zone, others in self._by_turns.items() if zone != own.zone))
        own.waits = []
        for others, most in ((near, PROBED_IN_ZONE), (far, PROBED_ACROSS_ZONES)):
            room = most
            for _, _, other in others:
                if not room:
                    break
                host = self._parties[other].host
                if host not in hosts and host_pair(own.host, host) not in self._chosen:
                    own.waits.append(other)
                    hosts.add(host)
                    room -= 1
        for other in own.waits:
            self._wanted_by.setdefault(other, {})[key] = None
            self._chosen.add(host_pair(own.host, self._parties[other].host))
            self._takes_part(self._parties[other].host)
        self._stirred[key] = None
        self._look(key)

    def _takes_part(self, host: str) -> None:
        """Counts one more turn of a host."""
        turns = self._turns.get(host, 0)
        self._turns[host] = turns + 1
        for key in self._on_host[host]:
            party = self._parties[key]
            in_zone = self._by_turns[party.zone]
            del in_zone[bisect_left(in_zone, (turns, party.number))]
            insort(in_zone, (turns + 1, party.number, key))

    def begin(self) -> list[tuple[Key, Key]]:
        """Returns the pairs to be measured from now on: the newcomer, which probes, and the other."""
        begun = []
        for key in self._stirred:
            party = self._parties[key]
            if not party.waits or party.host in self._busy:
                continue
            other = next((other for other in party.waits if self._parties[other].host not in self._busy), None)
            if other is not None:
                party.waits.remove(other)
                del self._wanted_by[other][key]
                self._under_way[key], self._probed_by[other] = other, key
                self._busy |= {party.host, self._parties[other].host}
                begun.append((key, other))
        self._stirred.clear()
        return begun

    def answer(self, key: Key, latency_s: float, bytes_per_s: float) -> None:
        """Records what a newcomer's probe found; nothing if the other could not be reached (0 bytes a second)."""
        other = self._under_way.get(key)
        if other is None:
            return
        own, party = self._parties[key], self._parties[other]
        self._end(key, other)
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

    def _end(self, key: Key, other: Key) -> None:
        """Ends a probe: both hosts are free for others."""
        del self._under_way[key], self._probed_by[other]
        for host in (self._parties[key].host, self._parties[other].host):
            self._busy.discard(host)
            for one in self._on_host[host]:
                self._stirred[one] = None
                self._stirred.update(self._wanted_by.get(one, {}))
        self._look(key)

    def _look(self, key: Key) -> None:
        """Notes a newcomer with which nothing is left to be measured."""
        waits = self._parties[key].waits
        if waits is not None and not waits and key not in self._under_way:
            self._measured[key] = None

    def done(self) -> list[tuple[Key, tuple[HostLink, ...]]]:
        """Returns, once each, the newcomers that are measured, and their links."""
        found = []
        for key in self._measured:
            party = self._parties[key]
            found.append((key, tuple(party.found)))
            party.waits, party.found = None, []
        self._measured.clear()
        return found

    def remove(self, key: Key) -> None:
        """Forgets a host that is out of reach, and the probes with it."""
        party = self._parties.get(key)
        if party is None:
            return
        for one, other in ((key, self._under_way.get(key)), (self._probed_by.get(key), key)):
            if one is not None and other is not None:
                self._forget_pair(one, other)
                self._end(one, other)
        for other in party.waits or ():
            self._forget_pair(key, other)
            del self._wanted_by[other][key]
        for one in self._wanted_by.pop(key, {}):
            self._forget_pair(one, key)
            waits = self._parties[one].waits
            assert waits is not None
            waits.remove(key)
            self._look(one)
        in_zone = self._by_turns[party.zone]
        del in_zone[bisect_left(in_zone, (self._turns.get(party.host, 0), party.number))]
        del self._on_host[party.host][key]
        for known in (self._stirred, self._measured):
            known.pop(key, None)
        del self._parties[key]

    def _forget_pair(self, one: Key, other: Key) -> None:
        self._chosen.discard(host_pair(self._parties[one].host, self._parties[other].host))
