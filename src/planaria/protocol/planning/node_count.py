"""How many nodes a run is to have: it grows from its least to its most, and gives back what brings too little. Pure.

What a node brings is the estimate's: the share of the throughput that is lost without it, beside its share of the
cost. It is asked seldom, and after a node was given back none is taken in its place for a while that doubles, so that
numbers do not swing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set

from planaria.plan.plan import NodeId
from planaria.policy.interface import Candidate
from planaria.protocol.messages.run_measurements import GivenBack
from planaria.protocol.thresholds import LEAST_WORTH, STEPS_BEFORE_GIVING_BACK, STEPS_UNTIL_WANTED_AGAIN


class NodeCount:
    """The number of nodes of one run.

    Args:
        least: on which it starts, and which it never gives back.
        most: that it grows to; None: it takes all that come, and gives none back.

    Attributes:
        learnt: which nodes brought too little, for the next coordinator.
    """

    def __init__(self, least: int, most: int | None) -> None:
        self.least = least
        self._most = most
        self._asked_with: frozenset[NodeId] = frozenset()
        self._asks_at = self._pause_steps = 0
        self.learnt = GivenBack()

    def recall(self, learnt: GivenBack) -> None:
        """Takes over what the last coordinator knew."""
        self.learnt = learnt

    def wanted(self, step: int) -> int | None:
        """Returns how many nodes are wanted in this step, whatever they cost; None: as many as come."""
        if self._most is None or self.learnt.most is None or step >= self.learnt.until:
            return self._most
        return min(self._most, self.learnt.most)

    def refusal(self, step: int, number: int) -> str | None:
        """Returns why so many nodes are too many; None: they are not."""
        wanted = self.wanted(step)
        if wanted is None or number <= wanted:
            return None
        if wanted == self._most:
            return f"the run has {wanted} nodes, the most that cluster.nodes allows"
        return f"the run has {wanted} nodes, and another one brought too little"

    def is_due(self, step: int, nodes: Set[NodeId]) -> bool:
        """Returns whether to ask after this step what one of these nodes brings: when they were the same for a while,
        and then each time after twice as long."""
        if self._most is None or len(nodes) <= self.least:
            return False
        if nodes != self._asked_with:
            self._asked_with, self._pause_steps = frozenset(nodes), STEPS_BEFORE_GIVING_BACK
            self._asks_at = step + self._pause_steps
        if step < self._asks_at:
            return False
        self._pause_steps *= 2
        self._asks_at = step + self._pause_steps
        return True

    def look_again(self) -> None:
        """Has it asked soon what nodes bring, because they cost something else."""
        self._asked_with = frozenset()

    def gave_back(self, step: int, left: int) -> None:
        """Records that a node that brought too little is given back, so that so many are left."""
        pause_steps = 2 * self.learnt.pause_steps or STEPS_UNTIL_WANTED_AGAIN
        self.learnt = GivenBack(most=left, until=step + pause_steps, pause_steps=pause_steps)


def least_useful(
    nodes: Collection[NodeId],
    used: Collection[NodeId],
    speeds: Mapping[NodeId, float],
    price_of: Callable[[NodeId], float],
) -> NodeId:
    """Returns the node that would be given back first: one that the plan does not use, then the slowest, then the
    dearest, then the youngest."""
    return min(nodes, key=lambda node: (node in used, speeds.get(node, 1.0), -price_of(node), -node))


def too_little(stay: Candidate, without: Candidate, share: float) -> str | None:
    """Returns why a node is given back: what it brings is too little; None: it is not.

    Args:
        stay: the plan in force.
        without: the plan without the node.
        share: of the cost that is the node's.
    """
    lost = 1 - stay.batch_s / without.batch_s
    if without.is_degraded or len(without.plan.dropped) > len(stay.plan.dropped) or lost >= LEAST_WORTH * share:
        return None
    return f"it brings {max(0.0, lost):.1%} of the throughput for {share:.1%} of the cost"
