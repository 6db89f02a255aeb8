"""Whether the placement in force is still valid: its nodes, those that came since, and those kept despite a notice."""

from __future__ import annotations

from collections.abc import Collection, Set

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import PlanValidityState


class PlanValidity:
    """Validity of the placement in force, from one placement to the next.

    Attributes:
        newcomers: nodes that came since the placement was made, and that no placement was tried with.
    """

    def __init__(self) -> None:
        self.newcomers: set[NodeId] = set()
        self._placed: frozenset[NodeId] = frozenset()
        self._needed: frozenset[NodeId] = frozenset()
        self._is_warming = False

    def place(self, nodes: Collection[NodeId], needed: Set[NodeId] = frozenset()) -> None:
        """Records a placement onto these nodes; the needed ones gave notice, and stay for as long as they live."""
        self._placed = frozenset(nodes)
        self._needed = frozenset(needed) & self._placed
        self._is_warming = False
        self.newcomers.clear()

    def keep(self, needed: Set[NodeId]) -> None:
        """Records that no better placement was found: the nodes that gave notice stay needed."""
        self._needed = frozenset(needed)
        self.newcomers.clear()

    def warm(self, *, is_warming: bool) -> None:
        """Sets whether the next placement gets its state beside this step."""
        self._is_warming = is_warming

    @property
    def is_warming(self) -> bool:
        """Whether the next placement gets its state beside this step."""
        return self._is_warming

    @property
    def stand(self) -> PlanValidityState:
        return PlanValidityState(
            placed=tuple(sorted(self._placed)),
            needed=tuple(sorted(self._needed)),
            newcomers=tuple(sorted(self.newcomers)),
            is_warming=self._is_warming,
        )

    @classmethod
    def of(cls, stand: PlanValidityState, newcomers: Collection[NodeId]) -> PlanValidity:
        """Returns the validity as it was written down, with the nodes that came since."""
        standing = cls()
        standing._placed = frozenset(stand.placed)
        standing._needed = frozenset(stand.needed)
        standing._is_warming = stand.is_warming
        standing.newcomers = set(newcomers)
        return standing

    @classmethod
    def unknown(cls) -> PlanValidity:
        """Returns a validity of which nothing is known, so that another placement is made after the step."""
        standing = cls()
        standing._is_warming = True
        return standing

    def lost(self, node: NodeId) -> None:
        self.newcomers.discard(node)

    def stands(self, live: Set[NodeId], staying: Set[NodeId]) -> bool:
        """Returns whether the placement's nodes are there and stay, and no others came."""
        return self._placed <= staying | (self._needed & live) and not self.newcomers and not self._is_warming

    def has_lost_nobody(self, live: Set[NodeId]) -> bool:
        """Returns whether no node is lost and the last step moved no state: changes can be prepared beside a step."""
        return self._placed <= live and not self._is_warming
