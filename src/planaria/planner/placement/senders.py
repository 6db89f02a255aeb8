"""Senders: how early all that moves between nodes can be sent, if every group may come from several holders in parts.

The devices of a node share its way to other nodes, so what a node sends is counted per node. Bytes are of parameters;
the optimizer's state goes along in proportion.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.thresholds import ROUNDING
from planaria.planner.placement.matching import Bools, Ints, fill

Holders = Mapping[WorkerId, Collection[int]]
"""For each live worker, the groups that it holds an up-to-date replica of."""


_T = TypeVar("_T")


def distinct(many: Collection[_T]) -> Collection[_T]:
    """Returns each distinct object once: of thousands of workers, many hold the very same groups or layers."""
    return dict(zip(map(id, many), many, strict=True)).values()


def unheld(wanted: Iterable[int], held: Iterable[Iterable[int]]) -> list[int]:
    """Returns the wanted numbers that no one holds, ascending."""
    lacking = set(wanted)
    for own in held:
        lacking.difference_update(own)
        if not lacking:
            break
    return sorted(lacking)


def _classes(holders: Holders, devices_per_node: int) -> dict[frozenset[int], list[NodeId]]:
    """Returns the nodes that hold anything, ascending, by the groups that some device of theirs holds."""
    members: defaultdict[frozenset[int], list[NodeId]] = defaultdict(list)
    if devices_per_node == 1:
        alike: defaultdict[int, list[WorkerId]] = defaultdict(list)  # many hold the very same
        for worker, groups in holders.items():
            alike[id(groups)].append(worker)
        for workers in alike.values():
            members[frozenset(holders[workers[0]])] += cast("list[NodeId]", workers)
    else:
        held: dict[NodeId, frozenset[int]] = {}
        for worker, groups in holders.items():
            node = NodeId(worker // devices_per_node)
            held[node] = held.get(node, frozenset()).union(groups)
        for node, own in held.items():
            members[own].append(node)
    members.pop(frozenset(), None)
    for nodes in members.values():
        nodes.sort()
    return dict(sorted(members.items(), key=lambda one: one[1][0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Busiest:
    """The least that the busiest sender has to send.

    Attributes:
        size_bytes: the bytes that the busiest sender sends at least.
        groups: marks the groups that make it so: their holders together cannot do with less.
        needed: bytes of each group.
        merged: needed groups with the same holders, as one.
        merged_flow: bytes of these that each class of nodes sends then.
    """

    size_bytes: int
    groups: Bools
    needed: Ints
    merged: Sequence[Sequence[int]]
    merged_flow: Ints

    @property
    def flow(self) -> Ints:
        """Returns the bytes that each class of nodes sends of each group: merged groups in turn, classes in order."""
        result = np.zeros((len(self.needed), self.merged_flow.shape[1]), np.int64)
        for row, groups in zip(self.merged_flow, self.merged, strict=True):
            left = Counter({group: int(self.needed[group]) for group in groups})
            queue = list(groups)
            for at in np.flatnonzero(row).tolist():
                amount = int(row[at])
                while amount:
                    part = min(amount, left[queue[0]])
                    result[queue[0], at] += part
                    amount -= part
                    left[queue[0]] -= part
                    if not left[queue[0]]:
                        queue.pop(0)
        return result


class Sources:
    """The nodes that hold anything, by class: nodes of a class hold the same groups.

    Attributes:
        classes: for each class, its nodes, ascending.
        counts: of each class, how many nodes.
        holds: for each class and group, whether its nodes hold the group.
    """

    def __init__(self, holders: Holders, devices_per_node: int, num_groups: int) -> None:
        members = _classes(holders, devices_per_node)
        self.classes: tuple[tuple[NodeId, ...], ...] = tuple(map(tuple, members.values()))
        self.holds = np.zeros((len(members), num_groups), np.bool_)
        for at, groups in enumerate(members):
            self.holds[at, list(groups)] = True
        self.counts = np.array([len(nodes) for nodes in self.classes], np.int64)

    def num_holders(self, groups: Bools) -> int:
        """Returns the number of nodes that hold at least one of the groups."""
        return int(self.counts[self.holds[:, groups].any(axis=1)].sum())

    def most_bytes(self, needed: Ints) -> int:
        """Returns the bytes that the busiest node sends if each group comes from all its holders alike, leaving out
        what nobody holds: `busiest` finds nothing above it."""
        holding = self.counts @ self.holds
        each = np.divide(needed, holding, out=np.zeros(len(needed)), where=holding > 0)
        # Rounding cannot take the bound below the exact sum.
        return math.ceil(float((self.holds @ each).max(initial=0.0)) * (1 + ROUNDING))

    def busiest(self, needed: Ints, at_least: int = 0) -> Busiest:
        """Returns how to send so many bytes of each group, so that the busiest node sends as little as can be.

        Exact, for bytes may be split at will: the least is the largest, over sets of groups, of what is needed of
        them over the number of nodes that hold one of them. From the bound that all groups give, a maximum flow
        finds a set that needs more, until none does (Newton's method on that ratio).

        Args:
            needed: bytes of each group. Each needed group has a holder.
            at_least: do not look for less than this.
        """
        rows, columns = self._merged(needed)
        supply = np.array([int(needed[groups].sum()) for groups in columns], np.int64)
        allowed = np.array(rows, np.bool_).reshape(len(columns), len(self.classes))
        culprits = needed > 0
        least = -(-int(supply.sum()) // max(self.num_holders(culprits), 1))
        if least < at_least:
            least, culprits = at_least, np.zeros_like(culprits)
        while (filling := fill(supply, least * self.counts, allowed)).stuck is not None:
            culprits = np.zeros_like(culprits)
            for at in np.flatnonzero(filling.stuck):
                culprits[columns[at]] = True
            more = -(-int(needed[culprits].sum()) // self.num_holders(culprits))
            assert more > least, f"{more} bytes a sender after {least}"
            least = more
        return Busiest(size_bytes=least, groups=culprits, needed=needed, merged=columns, merged_flow=filling.flow)

    def _merged(self, needed: Ints) -> tuple[list[tuple[bool, ...]], list[list[int]]]:
        """Merges needed groups with the same holders; for each, returns which classes hold it, and the groups."""
        merged: dict[tuple[bool, ...], list[int]] = {}
        for group in np.flatnonzero(needed).tolist():
            merged.setdefault(tuple(self.holds[:, group].tolist()), []).append(group)
        return list(merged), list(merged.values())
