"""Foresight: decisions for losses that have not happened, prepared while nothing else is to be done.

For every node of the plan in force the policy is asked what it would do without it, and at last whether it would leave
the plan by itself, one short piece at a time; nothing follows from that but that the same answer comes sooner. It owns
whose turn it is, and when there is time: after a commit or a plan there is as long as a step takes until votes come in,
and near their time nothing is begun. Never does it decide, or keep anybody waiting.
"""

from __future__ import annotations

from collections.abc import Iterator

from planaria.plan.plan import NodeId, Plan
from planaria.policy.proposal import Policy
from planaria.protocol.kept import Holders

BEFORE_VOTES = 0.8
"""Of a step's expected time, after which no piece is begun that is not sure to be done when votes come in."""


class Foresight:
    """Of one run.

    Attributes:
        longest_s: of the pieces so far, in seconds of the driver's clock.
        answered: of the plan in force, nodes for whose loss the answer is there.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.answered: list[NodeId] = []
        self._of: tuple[object, ...] = ()
        self._ahead: list[NodeId | None] = []
        self._piece: Iterator[None] | None = None
        self._turn: NodeId | None = None

    def took(self, seconds: float) -> None:
        """The last piece did."""
        self.longest_s = max(self.longest_s, seconds)

    def has_time(self, now: float, began: float, step_s: float) -> bool:
        """Whether a piece is done well before votes are expected."""
        return now + 1.5 * self.longest_s < began + BEFORE_VOTES * step_s

    def look(self, policy: Policy, plan: Plan, num_live: int, gone: frozenset[NodeId]) -> bool:
        """What may be lost is what it was, or the work begins anew; returns whether anything is left to be done.

        Args:
            policy: for the nodes' speeds as they are known by now.
            plan: in force.
            num_live: workers.
            gone: nodes that the next plan does without whatever happens.
        """
        of = (policy, plan.generation, num_live, gone)
        if of != self._of:
            self._of, self._piece, self._turn = of, None, None
            self.answered = []
            nodes = sorted({plan.node_of(stage.worker) for stage in plan.stages()} - gone)
            self._ahead = [*nodes, None] if not gone else list(nodes)
        return self._piece is not None or bool(self._ahead)

    def think(self, policy: Policy, plan: Plan, holders: Holders, gone: frozenset[NodeId]) -> None:
        """One piece of it.

        Arguments as `look`, which has been asked; `holders`: of each group, when a step under the plan is committed.
        """
        if self._piece is None:
            node = self._turn = self._ahead.pop(0)
            left = {worker: groups for worker, groups in holders.items() if plan.node_of(worker) != node}
            self._piece = policy.ponder(plan, () if node is None else sorted({*gone, node}), left)
        try:
            next(self._piece)
        except StopIteration:
            if self._turn is not None:
                self.answered.append(self._turn)
            self._piece = self._turn = None
