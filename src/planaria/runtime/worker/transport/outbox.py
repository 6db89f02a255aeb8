"""What a worker sends: at once what is in the host's memory, and what is on its way there from the device as it comes;
to a peer that reads the device's memory, where it lies.

One thread does both, the one that computes: it looks whether bytes have come between two instructions, and waits for
them where it has nothing else to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from planaria.model.model import Tensors
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.runtime.worker.compute.device.device import Device, LateTensors, are_here, here
from planaria.runtime.worker.transport.frames import Loan
from planaria.runtime.worker.transport.lending import Lending
from planaria.runtime.worker.transport.mailbox import Key, Kind, Lent, Message
from planaria.runtime.worker.transport.transport import Transport


@dataclass(frozen=True, slots=True)
class _Late:
    """A message whose bytes, or the addresses of what is lent, are to be sent once they may be. What is being read of
    another worker's memory is kept until then, whether or not (None) anything is sent."""

    peer: WorkerId
    key: Key | None
    tensors: Tensors | LateTensors
    loan: Loan | None = None
    read: Lent | None = None


class Outbox:
    """Messages to peers, each sent once its bytes are in the host's memory, or may be read in the device's.

    Args:
        worker: whose.
        transport: sends them.
        device: where they come from.
    """

    def __init__(self, worker: WorkerId, transport: Transport, device: Device) -> None:
        self._worker = worker
        self._transport = transport
        self._device = device
        self._lending = Lending(device)
        self._late: deque[_Late] = deque()
        self._peers: frozenset[WorkerId] = frozenset()
        transport.serve(self._lending)

    def give(self, peer: WorkerId, key: Key, tensors: Sequence[torch.Tensor]) -> None:
        """Sends tensors of the device, as they are when what it was given so far is done, without waiting."""
        if self._device.lends and self.memory_of(peer) == self.memory_of(self._worker):
            loan, late = self._lending.lend(peer, key.step, tensors)
            self._post(_Late(peer, key, late, loan))
        elif self._transport.carries_devices_memory:
            self.send(peer, key, self._device.made([tensor.detach().contiguous() for tensor in tensors]))
        else:
            self.send(peer, key, self._device.copied_out(tensors))

    def brought_in(self, message: Message) -> Tensors:
        """Returns what came on the device; has its sender told, once it is read, where that has lent it."""
        if not isinstance(message, Lent):
            return self._device.copied_in(message)
        made, late = self._device.copied_over(message.tensors)
        is_told = message.number and message.sender in self._peers
        key = Key(Kind.READ, self._worker, 0, 0, message.number, 0) if is_told else None
        self._post(_Late(message.sender, key, late, read=message))
        return made

    def send(self, peer: WorkerId, key: Key, tensors: Tensors | LateTensors) -> None:
        """Sends what is on the host, or on its way there, without waiting; see `Transport.send`."""
        self._post(_Late(peer, key, tensors))

    def _post(self, late: _Late) -> None:
        if isinstance(late.tensors, tuple):
            self._send(late)
        else:
            self._late.append(late)

    def _send(self, late: _Late) -> None:
        tensors = here(late.tensors)
        if late.key is not None:
            self._transport.send(late.peer, late.key, tensors, late.loan)

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        """Sets the peers of the plan, once all is sent that is for those of the last one."""
        self.finish()
        self._peers = frozenset(addresses)
        self._transport.set_peers(addresses)
        self._lending.keep_only(addresses)

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
        while self._late and are_here(self._late[0].tensors):
            self.send_next()

    def send_next(self) -> bool:
        """Waits for the oldest message's bytes, and sends it; returns False if there is none."""
        if not self._late:
            return False
        self._send(self._late.popleft())
        return True

    def finish(self) -> None:
        """Sends all that is left."""
        while self.send_next():
            pass

    def close(self) -> None:
        self._transport.close()
