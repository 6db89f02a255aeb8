"""The network: ordered connections that a sender's death cuts short, and partitions that hold up what is under way.

What TCP promises of one connection holds: bytes arrive in order, none is missing in the middle, and the end comes last.
Between connections nothing is promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from tests.testkit.cluster.clock import Action, Clock

COORDINATOR = -1
"""The coordinator's place, beside the nodes' numbers."""


class Network:
    """The network: which places can reach which."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._islands: list[frozenset[int]] = []
        self._held: list[Way] = []

    def reaches(self, place: int, other: int) -> bool:
        return all((place in island) == (other in island) for island in self._islands)

    def part(self, island: Collection[int]) -> frozenset[int]:
        """Parts these places from all others: nothing passes between them from now on."""
        apart = frozenset(island)
        self._islands.append(apart)
        return apart

    def heal(self, island: frozenset[int]) -> None:
        self._islands.remove(island)
        held, self._held = self._held, []
        for way in held:
            way.release()

    def hold(self, way: Way) -> None:
        self._held.append(way)


class Way:
    """One direction of one connection.

    Args:
        network: that it lies in.
        source: place of the sender.
        target: place of the receiver.
        mean_s: of a message's delay.

    Attributes:
        is_stuck: nothing arrives any more, and nobody is told.
    """

    def __init__(self, network: Network, source: int, target: int, mean_s: float) -> None:
        self.is_stuck = False
        self._network = network
        self._source = source
        self._target = target
        self._mean_s = mean_s
        self._last_s = 0.0
        self._under_way: deque[tuple[Action, Action | None]] = deque()
        self._num_held = 0

    def send(self, action: Action, takes_s: float | None = None, at_cut: Action | None = None) -> None:
        """Sends something; `action` is the arrival; what is known to take so long goes when the last such message has
        gone. `at_cut` is done if the connection is cut while it is under way, and it still arrives."""
        clock = self._network.clock
        if takes_s is None:
            self._last_s = max(self._last_s, clock.now + clock.vary(self._mean_s))
        else:
            self._last_s = max(self._last_s, clock.now) + takes_s
        self._under_way.append((action, at_cut))
        clock.at(self._last_s, self._arrive)

    def cut(self) -> None:
        """Cuts the connection, as its sender is gone or has closed: the last few things under way may never arrive."""
        for _ in range(self._network.clock.random.randint(0, len(self._under_way))):
            self._under_way.pop()
        for _, at_cut in self._under_way:
            if at_cut is not None:
                at_cut()

    def release(self) -> None:
        """Releases what a partition held up, now that it is healed."""
        number, self._num_held = self._num_held, 0
        for _ in range(number):
            self._last_s = max(self._last_s, self._network.clock.now + self._network.clock.vary(self._mean_s))
            self._network.clock.at(self._last_s, self._arrive)

    def _arrive(self) -> None:
        if not self._network.reaches(self._source, self._target):
            if not self._num_held:
                self._network.hold(self)
            self._num_held += 1
        elif self._under_way and not self.is_stuck:
            # The first of what is under way, whichever message this arrival was meant for.
            arrive, _ = self._under_way.popleft()
            arrive()
