"""What a worker sends: at once what is in the host's memory, and what is on its way there from the device as it comes.

One thread does both, the one that computes: it looks whether bytes have come between two instructions, and waits for
them where it has nothing else to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping

from planaria.model.model import Tensors
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.runtime.worker.compute.device.device import LateTensors
from planaria.runtime.worker.transport.mailbox import Key
from planaria.runtime.worker.transport.transport import Transport


class Outbox:
    """Messages to peers, each sent once its bytes are in the host's memory.

    Args:
        transport: sends them.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._late: deque[tuple[WorkerId, Key, LateTensors]] = deque()

    def send(self, peer: WorkerId, key: Key, tensors: Tensors | LateTensors) -> None:
        """Sends without waiting; see `Transport.send`."""
        if isinstance(tensors, tuple):
            self._transport.send(peer, key, tensors)
        else:
            self._late.append((peer, key, tensors))

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        """Sets the peers of the plan, once all is sent that is for those of the last one."""
        self.finish()
        self._transport.set_peers(addresses)

    def host_of(self, worker: WorkerId) -> Hashable:
        return self._transport.host_of(worker)

    def memory_of(self, worker: WorkerId) -> Hashable:
        return self._transport.memory_of(worker)

    def pace(self, peers: Collection[WorkerId], bytes_per_s: float | None) -> None:
        self._transport.pace(peers, bytes_per_s)

    def flows(self) -> dict[WorkerId, Flow]:
        return self._transport.flows()

    def send_what_came(self) -> None:
        """Sends what has come from the device meanwhile."""
        while self._late and self._late[0][2].are_here:
            self.send_next()

    def send_next(self) -> bool:
        """Waits for the oldest message's bytes, and sends it; returns False if there is none."""
        if not self._late:
            return False
        peer, key, late = self._late.popleft()
        self._transport.send(peer, key, late.tensors())
        return True

    def finish(self) -> None:
        """Sends all that is left."""
        while self.send_next():
            pass

    def close(self) -> None:
        self._transport.close()
