"""Exposure: which losses would take the last replica of something. Pure.

Nodes go alone, or several at a time: of spot instances in bulks, from one zone (Bamboo, section 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from planaria.plan.plan import NodeId


@dataclass(frozen=True, slots=True)
class Exposure:
    """Of nodes that hold parameter groups.

    Attributes:
        num_nodes: all that hold something, or could.
        last: for sets of nodes that alone hold some group: among how many nodes a bulk that takes all of a set is
            drawn, how many the set has, and how many such sets there are.
    """

    num_nodes: int
    last: tuple[tuple[int, int, int], ...]

    def peril(self, together: float) -> float:
        """Of the next losses, the share that takes a last replica; at most 1. The bulks' sizes are geometric.

        A bulk of M nodes takes all of m certain ones among n with a chance of M (M - 1) ... (M - m + 1) over
        n (n - 1) ... (n - m + 1), and the mean of the former is m! mean (mean - 1)^(m - 1). Chances are added up.

        Args:
            together: nodes that go together, on average; at least 1.
        """
        chance = 0.0
        for among, size, number in self.last:
            drawn = together / among
            for taken in range(1, size):
                drawn *= (taken + 1) * (together - 1) / (among - taken)
            chance += number * among / self.num_nodes * min(1.0, drawn)
        return min(1.0, chance)


def exposure(
    holders: Iterable[tuple[NodeId, Collection[int]]], num_groups: int, zones: Mapping[NodeId, str] | None = None
) -> Exposure:
    """Of nodes that hold these parameter groups.

    Args:
        holders: each node, or worker of it, with what it holds.
        num_groups: of the model.
        zones: of nodes, where they are known: a bulk comes from one.
    """
    held: list[set[NodeId]] = [set() for _ in range(num_groups)]
    nodes: set[NodeId] = set()
    for node, groups in holders:
        nodes.add(node)
        for group in groups:
            held[group].add(node)
    sets = {frozenset(on) for on in held if on}
    zone_of = {node: (zones or {}).get(node, "") for node in nodes}
    populations = Counter(zone_of.values())
    found: Counter[tuple[int, int]] = Counter()
    for on in sets:
        where = {zone_of[node] for node in on}
        if len(where) == 1 and not any(other < on for other in sets):
            found[populations[where.pop()], len(on)] += 1
    return Exposure(len(nodes), tuple((among, size, number) for (among, size), number in sorted(found.items())))
