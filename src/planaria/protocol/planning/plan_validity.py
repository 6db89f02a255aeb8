"""Whether the placement in force can go on: who it was made of, who came since, and who is kept despite a notice."""

from __future__ import annotations

from collections.abc import Collection, Set

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import PlanValidityState


class PlanValidity:
    """Of one placement after another.

    Attributes:
        newcomers: nodes that came since the placement was made, and that no placement was tried with.
    """

    def __init__(self) -> None:
        self.newcomers: set[NodeId] = set()
        self._placed: frozenset[NodeId] = frozenset()
        self._needed: frozenset[NodeId] = frozenset()
        self._is_warming = False

    def place(self, nodes: Collection[NodeId], needed: Set[NodeId] = frozenset()) -> None:
        """A placement onto these nodes; the needed ones gave notice, and stay for as long as they live."""
        self._placed = frozenset(nodes)
        self._needed = frozenset(needed) & self._placed
        self._is_warming = False
        self.newcomers.clear()

    def keep(self, needed: Set[NodeId]) -> None:
        """No better placement was found: nodes that gave notice cannot be done without."""
        self._needed = frozenset(needed)
        self.newcomers.clear()

    def warm(self, *, is_warming: bool) -> None:
        """The next placement gets its state beside this step; or no longer."""
        self._is_warming = is_warming

    @property
    def is_warming(self) -> bool:
        """The next placement gets its state beside this step."""
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
        """As it was written down, with those that came by now."""
        standing = cls()
        standing._placed = frozenset(stand.placed)
        standing._needed = frozenset(stand.needed)
        standing._is_warming = stand.is_warming
        standing.newcomers = set(newcomers)
        return standing

    @classmethod
    def unknown(cls) -> PlanValidity:
        """Nothing was written down of the placement in force: another is made after the step."""
        standing = cls()
        standing._is_warming = True
        return standing

    def lost(self, node: NodeId) -> None:
        self.newcomers.discard(node)

    def stands(self, live: Set[NodeId], staying: Set[NodeId]) -> bool:
        """Its nodes are there and stay, and no others came."""
        return self._placed <= staying | (self._needed & live) and not self.newcomers and not self._is_warming

    def has_lost_nobody(self, live: Set[NodeId]) -> bool:
        """What changes it can therefore be prepared beside a step; unless that is what the last step was for."""
        return self._placed <= live and not self._is_warming
