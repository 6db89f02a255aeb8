"""The links of a run as they were measured: by probes between hosts when nodes join.

Probes are of the wire. What the workers' transport reaches over it is no better than what it reaches inside a node, and
that the profile says; so a link has the latencies of both, and the smaller bandwidth. A class of links has the median
of its pairs. Where steps take longer or shorter than links explain, all links count as so much slower; where bytes
begin to pass faster or slower between two hosts, theirs does. Pure: no clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from planaria.plan.costs.model_profile import LinkCost, Links, ModelProfile
from planaria.plan.costs.network import HostPair, host_pair
from planaria.plan.plan import NodeId
from planaria.protocol.messages.run_measurements import HostLink, KnownLinks
from planaria.protocol.messages.user import LinkFigures
from planaria.protocol.thresholds import (
    COMPARED_BYTES,
    ESTIMATE_HOLDS,
    FAR_OFF,
    MOST_SLOWDOWN,
    SLOWDOWN_HALVINGS,
    ZONES_APART,
)


class MeasuredLinks:
    """Links between hosts, by class and by pair. Classes are made when they are asked for: thousands of hosts join.

    Args:
        given: the profile that the run began with.

    Attributes:
        hosts: of the nodes that said so.
        slowdown: how many times slower than probed links count, as steps show.
    """

    def __init__(self, given: ModelProfile) -> None:
        self._given = given
        self._probed: dict[HostPair, HostLink] = {}
        self.hosts: dict[NodeId, str] = {}
        self._profile = given
        self._far_pairs: dict[HostPair, LinkCost] = {}
        self._wire_bytes_per_s = 0.0
        self._is_classified = True
        self._learnt: KnownLinks | None = None
        self.slowdown = 1.0

    @property
    def profile(self) -> ModelProfile:
        """The given profile, with the classes as measured."""
        self._classify()
        return self._profile

    @property
    def wire_bytes_per_s(self) -> float:
        """Bytes a second that the wire of a host takes inside a zone, as it was probed; 0: that is not known."""
        self._classify()
        return self._wire_bytes_per_s

    @property
    def far_pairs(self) -> dict[HostPair, LinkCost]:
        """The pairs of hosts that are far off their class."""
        self._classify()
        return self._far_pairs

    def measured(self, node: NodeId, host: str, links: Sequence[HostLink]) -> None:
        """Records what a node's host measured before it joined."""
        self.hosts[node] = host
        self._note(links)

    def forget(self, node: NodeId) -> None:
        """Forgets the host of a lost node; what was measured of it stays."""
        self.hosts.pop(node, None)

    def recall(self, known: KnownLinks) -> None:
        """Takes over what the last coordinator knew."""
        self.hosts, self.slowdown = dict(known.hosts), known.slowdown
        self._note(known.probed)

    @property
    def learnt(self) -> KnownLinks:
        """Measured links, for the next coordinator, which is told elsewhere of nodes that were lost since."""
        if self._learnt is None:
            probed = tuple(self._probed.values())
            self._learnt = KnownLinks(hosts=dict(self.hosts), probed=probed, slowdown=self.slowdown)
        return self._learnt

    def change(self, pair: HostPair, factor: float, *, across_zones: bool) -> HostLink:
        """Counts the link between two hosts as so many times faster than it was; returns what it is now.

        Args:
            pair: of hosts.
            factor: below 1 for a link that is slower.
            across_zones: the hosts are in different zones; that is not known of a pair that was never probed.
        """
        link = self._probed.get(pair)
        if link is None:
            usual = self._of_class(across=across_zones) or self._of_class(across=not across_zones)
            wire = _class_of(usual.values())
            link = HostLink(
                one=pair[0],
                other=pair[1],
                latency_s=wire.latency_s,
                bytes_per_s=wire.bandwidth_bytes_per_s,
                across_zones=across_zones,
            )
        changed = msgspec.structs.replace(link, bytes_per_s=link.bytes_per_s * factor)
        self._note([changed])
        return changed

    def explain(self, took_s: float, step_s: Callable[[MeasuredLinks], float]) -> bool:
        """Finds how much slower than probed links must be for a step to take so long, and counts them so from now on.

        Returns whether there is such a slowdown; where links cannot be the reason, nothing is changed.

        Args:
            took_s: by a step.
            step_s: estimate of a step, with links as they count then.
        """
        if not self._probed:
            return False
        before, low, high = self.slowdown, 1 / MOST_SLOWDOWN, MOST_SLOWDOWN
        for _ in range(SLOWDOWN_HALVINGS):
            middle = math.sqrt(low * high)
            self._count(middle)
            low, high = (middle, high) if step_s(self) < took_s else (low, middle)
        found = math.sqrt(low * high)
        self._count(found)
        explains = took_s > 0 and abs(step_s(self) / took_s - 1) < ESTIMATE_HOLDS
        if not explains:
            self._count(before)
        return explains

    def _count(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._note(())

    @property
    def figures(self) -> tuple[LinkFigures, ...]:
        """The links by class, then the pairs that are far off; nothing where no link was measured."""
        if not self._probed:
            return ()
        classes = {name: self._of_class(across=name == "across_zones") for name in ("between_nodes", "across_zones")}
        of_classes = [_figures(name, _class_of(pairs.values()), len(pairs)) for name, pairs in classes.items() if pairs]
        return (
            *of_classes,
            *(_figures(" - ".join(pair), _wire(self._probed[pair]), 1) for pair in sorted(self.far_pairs)),
        )

    def _note(self, links: Iterable[HostLink]) -> None:
        for link in links:
            self._probed[host_pair(link.one, link.other)] = link
        self._is_classified, self._learnt = False, None

    def _classify(self) -> None:
        if self._is_classified or not self._probed:
            return
        self._is_classified = True
        links, within = self._given.links, self._given.links.within_node
        near, far = self._of_class(across=False), self._of_class(across=True)
        over = partial(_over, within, self.slowdown)
        wires = {**near, **far}
        wire = _class_of((near or far).values())
        self._wire_bytes_per_s = wire.bandwidth_bytes_per_s
        between = over(wire)
        across = over(_class_of(far.values())) if near and far else None
        if across is not None and not _is_off(across, between, ZONES_APART):
            across = None
        of_class = {**dict.fromkeys(near, between), **dict.fromkeys(far, across or between)}
        self._far_pairs = {
            pair: cost for pair, wire in wires.items() if _is_off(cost := over(wire), of_class[pair], FAR_OFF)
        }
        links = Links(within_node=within, between_nodes=between, across_zones=across)
        # A vote goes to the coordinator and its commit comes back over the slower class.
        wire_s = max(link.latency_s for link in (between, across or between)) - within.latency_s
        step = msgspec.structs.replace(self._given.step, vote_s=self._given.step.vote_s + 2 * wire_s)
        self._profile = msgspec.structs.replace(self._given, links=links, step=step)

    def _of_class(self, *, across: bool) -> dict[HostPair, LinkCost]:
        """Returns the pairs of hosts in different zones, or in the same."""
        return {pair: _wire(link) for pair, link in self._probed.items() if link.across_zones == across}


def _wire(link: HostLink) -> LinkCost:
    return LinkCost(latency_s=link.latency_s, bandwidth_bytes_per_s=link.bytes_per_s)


def _class_of(links: Iterable[LinkCost]) -> LinkCost:
    found = list(links)
    return LinkCost(
        latency_s=statistics.median(link.latency_s for link in found),
        bandwidth_bytes_per_s=statistics.median(link.bandwidth_bytes_per_s for link in found),
    )


def _over(within: LinkCost, slowdown: float, wire: LinkCost) -> LinkCost:
    """Returns the cost of messages over a wire, of a transport that does inside a node what `within` says."""
    return LinkCost(
        latency_s=within.latency_s + wire.latency_s,
        bandwidth_bytes_per_s=min(within.bandwidth_bytes_per_s, wire.bandwidth_bytes_per_s) / slowdown,
    )


def _is_off(link: LinkCost, usual: LinkCost, factor: float) -> bool:
    """Returns whether a message takes longer or shorter than usual by this factor."""
    ratio = link.time_s(COMPARED_BYTES) / usual.time_s(COMPARED_BYTES)
    return ratio > factor or ratio < 1 / factor


def _figures(name: str, link: LinkCost, pairs: int) -> LinkFigures:
    return LinkFigures(name=name, pairs=pairs, latency_s=link.latency_s, bytes_per_s=link.bandwidth_bytes_per_s)
