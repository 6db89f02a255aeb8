"""The network: ordered connections that a sender's death cuts short, and partitions that hold up what is under way.

What TCP promises of one connection holds: bytes arrive in order, none is missing in the middle, and the end comes last.
Between connections nothing is promised. A partition may be of one direction: what is sent the other way still arrives,
until TCP, which hears nothing, sends no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from planaria.runtime.thresholds import LOST_AFTER_S
from tests.testkit.cluster.clock import Action, Clock

COORDINATOR = -1
"""The coordinator's place, beside the nodes' numbers."""

RETRANSMITS_AFTER_S = 0.3
"""Seconds for which a connection carries anything while nothing comes back; then TCP only repeats the first of it."""

INWARDS, OUTWARDS, PEERS = "inwards", "outwards", "peers"
"""What else a partition may stop: only what goes to its nodes, only what they send, or only what they and other nodes
send to one another, not what the coordinator does."""


@dataclass(frozen=True, eq=False, slots=True)
class Island:
    """Places that are parted from all others, and of what: `INWARDS`, `OUTWARDS`, `PEERS`; "": everything."""

    places: frozenset[int]
    what: str

    def stops(self, source: int, target: int) -> bool:
        """Returns whether nothing passes from one place to another."""
        is_inwards = target in self.places
        if (source in self.places) == is_inwards or (self.what == PEERS and COORDINATOR in (source, target)):
            return False
        return self.what not in (INWARDS, OUTWARDS) or is_inwards == (self.what == INWARDS)


class Network:
    """The network: which places can reach which.

    Attributes:
        arrives: called with a connection on which something is about to arrive.
        islands: the partitions that there are now.
        postpones: says of such a connection whether it keeps what would arrive, until it is told to `resume`.
        lost_at_cut: says how many of so many last things under way are lost when their connection is cut.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.arrives: Callable[[Way], None] | None = None
        self.postpones: Callable[[Way], bool] | None = None
        self.lost_at_cut: Callable[[int], int] = lambda number: clock.random.randint(0, number)
        self.islands: tuple[Island, ...] = ()
        self._held: list[Way] = []

    def passes(self, source: int, target: int) -> bool:
        return not self.islands or not any(island.stops(source, target) for island in self.islands)

    def reaches(self, place: int, other: int) -> bool:
        """Returns whether a connection can be made between the two places."""
        return self.passes(place, other) and self.passes(other, place)

    def part(self, places: Collection[int], what: str = "") -> Island:
        """Parts these places from all others: nothing passes between them from now on; or less, see `Island`."""
        island = Island(frozenset(places), what)
        self.islands = (*self.islands, island)
        return island

    def heal(self, island: Island) -> None:
        """Heals a partition, unless that was done before."""
        self.islands = tuple(other for other in self.islands if other is not island)
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
        broken: called with it when the connection is given up, as nothing that was sent is acknowledged; None: it never
            is.
        lost_after_s: for how long nothing is until then.

    Attributes:
        source: place of the sender.
        target: place of the receiver.
        is_stuck: nothing arrives any more, and nobody is told.
    """

    def __init__(
        self,
        network: Network,
        source: int,
        target: int,
        mean_s: float,
        broken: Callable[[Way], None] | None = None,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self.is_stuck = False
        self._broken = broken
        self._lost_after_s = lost_after_s
        self._network = network
        self._clock = network.clock
        self.source = source
        self.target = target
        self._mean_s = mean_s
        self._last_s = 0.0
        self._under_way: deque[tuple[Action, Action | None]] = deque()
        self._num_held = 0
        self._held_since_s = 0.0
        self._unheard_since_s: float | None = None

    def send(self, action: Action, takes_s: float | None = None, at_cut: Action | None = None) -> None:
        """Sends something; `action` is the arrival; what is known to take so long goes when the last such message has
        gone. `at_cut` is done if the connection is cut while it is under way, and it still arrives."""
        clock = self._clock
        if takes_s is None:
            arrives_s = clock.now + clock.vary(self._mean_s)
            if arrives_s > self._last_s:
                self._last_s = arrives_s
        else:
            self._last_s = max(self._last_s, clock.now) + takes_s
        self._under_way.append((action, at_cut))
        clock.at(self._last_s, self._arrive)

    def cut(self) -> None:
        """Cuts the connection, as its sender is gone or has closed: the last few things under way may never arrive."""
        for _ in range(self._network.lost_at_cut(len(self._under_way))):
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

    def resume(self) -> None:
        """Lets what was postponed arrive now, and what came behind it."""
        number, self._num_held = self._num_held, 0
        for _ in range(number):
            self._network.clock.after(0.0, self._arrive)

    def _arrive(self) -> None:
        if not self._may_arrive():
            if not self._num_held:
                self._network.hold(self)
                self._held_since_s = self._network.clock.now
                if self._broken is not None:
                    self._network.clock.after(self._lost_after_s, partial(self._break, self._held_since_s))
            self._num_held += 1
        elif self._under_way and not self.is_stuck:
            if self._network.postpones is not None and self._network.postpones(self):
                self._num_held += 1
                return
            if self._network.arrives is not None:
                self._network.arrives(self)
            if self._under_way:
                # The first of what is under way, whichever message this arrival was meant for.
                arrive, _ = self._under_way.popleft()
                arrive()

    def _may_arrive(self) -> bool:
        network = self._network
        if self._num_held:
            return False
        if not network.islands:
            self._unheard_since_s = None
            return True
        if not network.passes(self.source, self.target):
            return False
        if network.passes(self.target, self.source):
            self._unheard_since_s = None
            return True
        if self._unheard_since_s is None:
            self._unheard_since_s = network.clock.now
        return network.clock.now - self._unheard_since_s <= RETRANSMITS_AFTER_S

    def _break(self, since_s: float) -> None:
        if self._num_held and self._held_since_s == since_s and not self.is_stuck:
            self.is_stuck = True
            assert self._broken is not None
            self._broken(self)
