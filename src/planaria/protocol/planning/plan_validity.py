"""Whether the placement in force is still valid: its nodes, those that came since, and those kept despite a notice; and
when a plan is weighed again though nobody came or went. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import PlanValidityState
from planaria.protocol.thresholds import FAILURES_RARER


class PlanValidity:
    """Validity of the placement in force, from one placement to the next.

    Attributes:
        newcomers: nodes that came since the placement was made, and that no placement was tried with.
        left_bytes: state for the next placement that is not moved beside this step, and can be beside later ones.
    """

    def __init__(self) -> None:
        self.newcomers: set[NodeId] = set()
        self.left_bytes = 0
        self._placed: frozenset[NodeId] = frozenset()
        self._needed: frozenset[NodeId] = frozenset()
        self._is_warming = False
        self._lacks_device = False

    def place(self, nodes: Collection[NodeId], needed: Set[NodeId] = frozenset()) -> None:
        """Records a placement onto these nodes; the needed ones gave notice, and stay for as long as they live."""
        self._placed = frozenset(nodes)
        self._needed = frozenset(needed) & self._placed
        self._lacks_device = False
        self.warm(is_warming=False)
        self.newcomers.clear()

    def keep(self, needed: Set[NodeId]) -> None:
        """Records that no better placement was found: the nodes that gave notice stay needed."""
        self._needed = frozenset(needed)
        self.newcomers.clear()

    def warm(self, *, is_warming: bool, left_bytes: int = 0) -> None:
        """Sets whether the next placement gets its state beside this step, and how much of it later."""
        self._is_warming, self.left_bytes = is_warming, left_bytes

    @property
    def needed(self) -> Set[NodeId]:
        """Nodes that gave notice, and without which no placement was found."""
        return self._needed

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
            left_bytes=self.left_bytes,
            lacks_device=self._lacks_device,
        )

    @classmethod
    def of(cls, stand: PlanValidityState, newcomers: Collection[NodeId]) -> PlanValidity:
        """Returns the validity as it was written down, with the nodes that came since."""
        standing = cls()
        standing._placed = frozenset(stand.placed)
        standing._needed = frozenset(stand.needed)
        standing.warm(is_warming=stand.is_warming, left_bytes=stand.left_bytes)
        standing.newcomers = set(newcomers)
        standing._lacks_device = stand.lacks_device
        return standing

    @classmethod
    def unknown(cls) -> PlanValidity:
        """Returns a validity of which nothing is known, so that another placement is made after the step."""
        standing = cls()
        standing.warm(is_warming=True)
        return standing

    def lost(self, node: NodeId) -> None:
        """Forgets a lost node. State that is left to move is of a placement that may not come any more."""
        self.newcomers.discard(node)
        self.left_bytes = 0

    def lost_device(self) -> None:
        """Records that a node has a device less than the placement was made for."""
        self._lacks_device = True
        self.left_bytes = 0

    def stands(self, live: Set[NodeId], staying: Set[NodeId]) -> bool:
        """Returns whether the placement's nodes are there and stay, and no others came."""
        is_changed = bool(self.newcomers) or self._is_warming or self._lacks_device
        return self._placed <= staying | (self._needed & live) and not is_changed

    @property
    def follows_at_once(self) -> bool:
        """Whether the next placement has all of its state after this step."""
        return self._is_warming and not self.left_bytes

    def has_lost_nobody(self, live: Set[NodeId]) -> bool:
        """Returns whether no node or device is lost and the next placement has not all of its state: changes can be
        prepared beside a step."""
        return self._placed <= live and not self._lacks_device and not self.follows_at_once


class SecondLook:
    """Decides, for one run, when a plan that was weighed is weighed again though no node came or went.

    It was chosen for the time until the next loss. Where no loss comes, that time is soon thought to be longer, and
    another plan may be worth its price by then.

    Attributes:
        chosen_for_s: for how far a next loss the plan in force was chosen; None: it was not weighed.
    """

    def __init__(self) -> None:
        self.chosen_for_s: float | None = None

    def chosen(self, time_to_failure_s: float) -> None:
        """Records that a plan was chosen among several, with the next loss expected in so many seconds."""
        self.chosen_for_s = time_to_failure_s

    def is_due(self, time_to_failure_s: float) -> bool:
        """Returns, once, whether the plan is to be weighed again; then not until the time has doubled once more."""
        if self.chosen_for_s is None or time_to_failure_s < FAILURES_RARER * self.chosen_for_s:
            return False
        self.chosen_for_s = time_to_failure_s
        return True

    def forget(self) -> None:
        """Records that the plan in force was not weighed."""
        self.chosen_for_s = None
