"""The network of a run: between which nodes a message costs what, where that is not the same everywhere.

A profile knows links by class. Which class a pair of nodes is of follows from hosts and zones; single pairs of hosts
that are far off their class have a cost of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from planaria.plan.costs.model_profile import LinkCost, Links
from planaria.plan.plan import NodeId

HostPair = tuple[str, str]
"""Two hosts, in the order of their names."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """The nodes' places, and pairs of hosts that are far off.

    Attributes:
        zones: of the nodes that said where they are; all others count as one zone.
        hosts: of the nodes of which it is known.
        pairs: links that are far off their class.
    """

    zones: Mapping[NodeId, str] = field(default_factory=dict)
    hosts: Mapping[NodeId, str] = field(default_factory=dict)
    pairs: Mapping[HostPair, LinkCost] = field(default_factory=dict)

    def link(self, links: Links, one: NodeId, other: NodeId) -> LinkCost:
        """Returns the cost of the link between two nodes, or within one."""
        if one == other:
            return links.within_node
        if self.hosts:
            here, there = self.hosts.get(one, ""), self.hosts.get(other, "")
            if here and here == there:
                return links.within_node
            pair = self.pairs.get(host_pair(here, there))
            if pair is not None:
                return pair
        if links.across_zones is not None and self.zones.get(one, "") != self.zones.get(other, ""):
            return links.across_zones
        return links.between_nodes

    def is_even(self, links: Links) -> bool:
        """Returns whether all links between nodes cost the same."""
        has_far_zones = links.across_zones is not None and len(set(self.zones.values())) > 0
        return not (self.pairs or has_far_zones or self._shares_hosts)

    @cached_property
    def key(self) -> object:
        """All that links depend on, hashable."""
        parts = (self.zones, self.hosts, self.pairs)
        return tuple(tuple(sorted(part.items(), key=lambda item: item[0])) for part in parts)

    @cached_property
    def _shares_hosts(self) -> bool:
        return len(set(self.hosts.values())) < len(self.hosts)


def host_pair(one: str, other: str) -> HostPair:
    """Returns two hosts in the order of their names."""
    return (one, other) if one <= other else (other, one)
