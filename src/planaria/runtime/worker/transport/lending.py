"""Messages that stay in the device's memory: a peer that reads it is told where they lie, and copies them from there.

What lies in a vector of the device is lent where it is: nobody writes to it before the commit. All else is copied into
a slot, and the slot is free again once the peer says that it has read it, or two steps later: what was wanted of a step
has been read when it is committed. A slot that a peer had which is no longer in the plan is given back to the device.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from planaria.model.model import Tensors
from planaria.plan.plan import WorkerId
from planaria.runtime.worker.compute.device.device import Device, LateTensors
from planaria.runtime.worker.compute.device.queues import Vector
from planaria.runtime.worker.compute.shared_memory import SharedReader
from planaria.runtime.worker.transport.frames import DTYPES, Loan, TensorMeta, meta_of
from planaria.runtime.worker.transport.mailbox import Key, Lent, Mailbox

log = logging.getLogger(__name__)

_STEPS_KEPT = 2


@dataclass(frozen=True, slots=True)
class _Out:
    peer: WorkerId
    step: int
    slots: tuple[Vector, ...]


class Lending:
    """What a worker has lent to peers, and reads of theirs.

    Args:
        device: whose memory it is.

    Attributes:
        place: where torch has that.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.place = device.place
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._out: dict[int, _Out] = {}
        self._free: dict[int, list[Vector]] = defaultdict(list)
        """Slots by their bytes."""
        self._reader = SharedReader(device.opened)
        self._was_read = False

    def lend(self, peer: WorkerId, step: int, tensors: Sequence[torch.Tensor]) -> tuple[Loan, Tensors | LateTensors]:
        """Lends tensors of the device to a peer; returns what to tell it, and with it, once they may be read, where
        they lie."""
        self._take_back(step)
        slots: list[Vector] = []
        lying: list[tuple[Vector, int]] = []
        copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor in tensors:
            vector = self._device.vector_of(tensor) if tensor.is_contiguous() else None
            if vector is not None:
                lying.append((vector, int(tensor.storage_offset()) * tensor.element_size()))
                continue
            slots.append(slot := self._slot(tensor.nbytes))
            lying.append((slot, 0))
            copied.append((tensor, _typed(slot.tensor, meta_of(tensor), 0)))
        number = next(self._numbers) if slots else 0
        if slots:
            with self._lock:
                self._out[number] = _Out(peer, step, tuple(slots))
        loan = Loan(number, tuple(map(meta_of, tensors)), tuple([offset for _, offset in lying]))
        return loan, self._device.lent(copied, [vector for vector, _ in lying])

    def _slot(self, size_bytes: int) -> Vector:
        with self._lock:
            free = self._free[size_bytes]
            if free:
                return free.pop()
        return self._device.vector(size_bytes, torch.uint8)

    def _take_back(self, step: int) -> None:
        with self._lock:
            over = [number for number, out in self._out.items() if abs(step - out.step) >= _STEPS_KEPT]
        for number in over:
            self.returned(number)

    def returned(self, number: int) -> None:
        """Notes that a peer has read what was lent to it. May be called from any thread."""
        with self._lock:
            out = self._out.pop(number, None)
            for slot in out.slots if out is not None else ():
                self._free[slot.tensor.numel()].append(slot)

    def arrived(self, mailbox: Mailbox, key: Key, loan: Loan | None, addresses: Sequence[torch.Tensor]) -> None:
        """Takes a message that was lent, or read (None). Called from the thread that reads messages."""
        if loan is None:
            self.returned(key.item)
        elif (lent := self._borrowed(WorkerId(key.sender), loan, addresses)) is not None:
            mailbox.put(key, lent)

    def _borrowed(self, sender: WorkerId, loan: Loan, addresses: Sequence[torch.Tensor]) -> Lent | None:
        """Returns what a peer has lent; None: it has ended before, which the coordinator will tell."""
        reader = self._reader
        try:
            return self._read(reader, sender, loan, addresses)
        except (RuntimeError, ValueError) as error:
            if not self._was_read:
                raise  # nothing can be read here
            # It gave that memory back: the message is of a plan that is no more.
            log.warning("what worker %d lent is not there any more: %s", sender, error)
            return None

    def _read(
        self, reader: SharedReader, sender: WorkerId, loan: Loan, addresses: Sequence[torch.Tensor]
    ) -> Lent | None:
        made = []
        for meta, offset, address in zip(loan.tensors, loan.offsets, addresses, strict=True):
            vector = reader.read(sender, hash(address.numpy().tobytes()), address, torch.uint8)
            if vector is None:
                return None
            made.append(_typed(vector, meta, offset))
        self._was_read = True
        return Lent(tuple(made), sender, loan.number)

    def keep_only(self, peers: Collection[WorkerId]) -> None:
        """Forgets who is no longer in the plan, slots that nobody has, and what of others' memory it had opened."""
        self._device.finish()  # a device may wait for all that it was given before memory is closed
        with self._lock:
            self._free.clear()
            for number in [number for number, out in self._out.items() if out.peer not in peers]:
                del self._out[number]
        self._reader = SharedReader(self._device.opened)


def _typed(memory: torch.Tensor, meta: TensorMeta, offset: int) -> torch.Tensor:
    """Returns the tensor that lies in bytes of memory."""
    dtype = DTYPES[meta.dtype]
    size = dtype.itemsize * torch.Size(meta.shape).numel()
    return memory[offset : offset + size].view(dtype).view(meta.shape)
