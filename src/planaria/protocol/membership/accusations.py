"""Which of two nodes goes when the way between them is lost, though both reach the coordinator. Pure.

One report does not tell whose link is broken, so whoever reports goes: it knows of a loss, the other may not. A node
that was part of such a pair before is the likelier culprit: otherwise one bad link would take its peers one by one.
"""

from __future__ import annotations

from collections import Counter

from planaria.plan.plan import NodeId


class Accusations:
    """Of one run."""

    def __init__(self) -> None:
        self._involved: Counter[NodeId] = Counter()

    def judge(self, reporter: NodeId, peer: NodeId) -> NodeId:
        """The node to lose."""
        culprit = peer if self._involved[peer] > self._involved[reporter] else reporter
        self._involved.update((reporter, peer))
        return culprit
