"""A simulated worker's connections to its peers: ordered, cut by a death, and now and then damaging what passes.

Who is not in the plan gets nothing, and a way that is lost is complained of.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import CutOff
from planaria.protocol.thresholds import CUT_OFF_S
from planaria.protocol.worker.mail import Key, Kind
from planaria.protocol.worker.sums import read_share
from tests.testkit.cluster.network import Way
from tests.testkit.worker.interpreter import Read

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.worker.worker import Worker

ANY = ""
"""A message of whatever kind."""


class Transport:
    """The transport of one worker.

    Attributes:
        damages: kind of message (as in `Kind.NAMES`, or `ANY`) -> how many of the next to any peer arrive damaged.
        twice: of the next messages to any peer, seconds after which they arrive once more.
    """

    def __init__(self, worker: Worker, cluster: Cluster) -> None:
        self.damages: Counter[str] = Counter()
        self.twice: deque[float] = deque()
        self._worker = worker
        self._cluster = cluster
        self._clock = cluster.clock
        self._is_exact = cluster.weather.is_exact
        self._ways: dict[WorkerId, Way] = {}
        self._read_at = 0.0
        self._peers: dict[WorkerId, str] = {}

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        for peer in [peer for peer in self._ways if addresses.get(peer) != self._peers.get(peer)]:
            self._ways.pop(peer).cut()
        self._peers = dict(addresses)

    def send(self, peer: WorkerId, key: Key, read: Read, size_bytes: int | None = None) -> None:
        """Sends a message. Of a state the size is given, that of other messages is known."""
        assert peer in self._peers, f"worker {self._worker.number} sends to {peer}, which is not in its plan"
        way = self._ways.get(peer)
        if way is None:
            way = self._ways[peer] = self._cluster.way(self._worker.node, peer, partial(self._broke, peer))
        takes_s, read_bytes = None, 0.0
        if self._is_exact:
            takes_s, read_bytes = self._takes_s(peer, key, size_bytes), self._read_bytes(peer, key)
        payload, target = _Payload(read), self._cluster.workers[peer]
        way.send(partial(self._deliver, way, target, key, payload, read_bytes), takes_s, payload.leave)

    def _takes_s(self, peer: WorkerId, key: Key, size_bytes: int | None) -> float:
        """Returns seconds on the link; of a sum's part, until it can be read."""
        if key.kind in Kind.SUMS:
            return self._link(peer).latency_s
        if size_bytes is None:
            size_bytes = self._cluster.profile.layers[key.layer - 1].output_bytes
        return self._link(peer).time_s(size_bytes)

    def _read_bytes(self, peer: WorkerId, key: Key) -> float:
        """Returns the bytes that a peer reads of a sum's part."""
        if key.kind not in Kind.SUMS:
            return 0.0
        share = read_share(key, peer, self._worker.interpreter.sums.slices(key.item))
        return share * self._cluster.profile.groups[key.item].size_bytes

    def _link(self, peer: WorkerId) -> LinkCost:
        same_node = self._cluster.workers[peer].node == self._worker.node
        return self._cluster.profile.links.of(same_node=same_node)

    def cut(self) -> None:
        """Cuts all connections, as the process is gone."""
        for way in self._ways.values():
            way.cut()

    @property
    def is_blocked(self) -> bool:
        """Whether nothing arrives any more on some connection to a process that is there."""
        return any(way.is_stuck and not self._cluster.workers[peer].is_over for peer, way in self._ways.items())

    def block(self) -> None:
        """Blocks the present connections: nothing arrives on them any more, and nobody is told."""
        for way in self._ways.values():
            way.is_stuck = True

    def _deliver(self, way: Way, target: Worker, key: Key, sent: _Payload, read_bytes: float) -> None:
        if not target.is_over:
            payload, is_damaged = sent.read(), bool(self.damages) and self._damages(key)
            if self._is_exact and key.kind in Kind.SUMS and payload != (None,):
                target.transport.hear(self._worker.number, key, payload, read_bytes, is_damaged=is_damaged)
            else:
                target.receive(key, payload, is_damaged=is_damaged)
                if self.twice:
                    again = partial(target.receive, key, payload, is_damaged=is_damaged)
                    self._clock.after(self.twice.popleft(), again)
        elif not self._cluster.is_dark(target.node):
            way.is_stuck = True
            self._broke(target.number, way)

    def _broke(self, peer: WorkerId, way: Way) -> None:
        """Complains of a peer whose connection broke, unless it is out of the plan a while later."""
        self._clock.after(CUT_OFF_S, partial(self._complain_of, way, peer))

    def hear(self, peer: WorkerId, key: Key, payload: Any, read_bytes: float, *, is_damaged: bool) -> None:
        """Schedules the reading of a sum's part: one after another, whichever worker it is of."""
        seconds = read_bytes / self._link(peer).bandwidth_bytes_per_s
        self._read_at = max(self._read_at, self._clock.now) + seconds
        self._clock.at(self._read_at, partial(self._read, key, payload, is_damaged=is_damaged))

    def _read(self, key: Key, payload: Any, *, is_damaged: bool) -> None:
        if not self._worker.is_over:
            self._worker.receive(key, payload, is_damaged=is_damaged)

    def _damages(self, key: Key) -> bool:
        for kind in (Kind.NAMES[key.kind], ANY):
            if self.damages[kind]:
                self.damages[kind] -= 1
                return True
        return False

    def _complain_of(self, way: Way, peer: WorkerId) -> None:
        """Reports that the connection to a peer was lost, and that the peer is in the plan for a while since."""
        worker = self._worker
        if self._ways.get(peer) is way and not worker.is_over and not worker.is_stopped:
            worker.control.send(CutOff(peer=peer, address=self._peers[peer]))


class _Payload:
    """A message's payload, read from the sender's memory when it arrives, or when the connection is cut, after which
    the sender may write over it."""

    __slots__ = ("read",)

    def __init__(self, read: Read) -> None:
        self.read = read

    def leave(self) -> None:
        """Leaves the sender's memory."""
        payload = self.read()
        self.read = lambda: payload
