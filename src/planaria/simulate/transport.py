"""A simulated worker's ways to its peers: ordered, cut by a death, and now and then damaging what passes.

As in `planaria.worker.transport`, who is not in the plan gets nothing, and a way that is lost is complained of.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from planaria.plan.plan import WorkerId
from planaria.protocol.mail import Key, Kind
from planaria.protocol.messages import CutOff
from planaria.simulate.interpreter import Read
from planaria.simulate.network import Way

if TYPE_CHECKING:
    from planaria.simulate.cluster import Cluster
    from planaria.simulate.worker import Worker

CUT_OFF_S = 1.0
"""As in `planaria.worker.transport`."""

ANY = ""
"""A message of whatever kind."""


class Transport:
    """Of one worker.

    Attributes:
        damages: kind of message (as in `Kind.NAMES`, or `ANY`) -> how many of the next to any peer arrive damaged.
    """

    def __init__(self, worker: Worker, cluster: Cluster) -> None:
        self.damages: Counter[str] = Counter()
        self._worker = worker
        self._cluster = cluster
        self._clock = cluster.clock
        self._ways: dict[WorkerId, Way] = {}
        self._peers: set[WorkerId] = set()

    def set_peers(self, peers: set[WorkerId]) -> None:
        self._peers = peers
        for peer in [peer for peer in self._ways if peer not in peers]:
            self._ways.pop(peer).cut()

    def send(self, peer: WorkerId, key: Key, read: Read) -> None:
        assert peer in self._peers, f"worker {self._worker.number} sends to {peer}, which is not in its plan"
        way = self._ways.get(peer)
        if way is None:
            way = self._ways[peer] = self._cluster.way(self._worker.node, peer)
        way.send(partial(self._deliver, way, peer, key, read))

    def cut(self) -> None:
        """The process is gone."""
        for way in self._ways.values():
            way.cut()

    def block(self) -> None:
        """Nothing arrives any more on the ways that there are, and nobody is told."""
        for way in self._ways.values():
            way.is_stuck = True

    def _deliver(self, way: Way, peer: WorkerId, key: Key, read: Read) -> None:
        target = self._cluster.workers[peer]
        if not target.is_over:
            target.receive(key, read(), is_damaged=self._damages(key))
        elif not self._cluster.is_dark(target.node):
            way.is_stuck = True
            self._clock.after(CUT_OFF_S, partial(self._complain_of, way, peer))

    def _damages(self, key: Key) -> bool:
        for kind in (Kind.NAMES[key.kind], ANY):
            if self.damages[kind]:
                self.damages[kind] -= 1
                return True
        return False

    def _complain_of(self, way: Way, peer: WorkerId) -> None:
        """The way to a peer was lost, and the peer is in the plan for a while since."""
        worker = self._worker
        if self._ways.get(peer) is way and not worker.is_over and not worker.is_stopped:
            worker.control.tell(CutOff(peer=peer))
