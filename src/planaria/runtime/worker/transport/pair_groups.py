"""Messages by torch's process groups: NCCL between GPUs, gloo between processors.

A group has two members: who sends, and who receives. So the death of one worker breaks its own groups and nobody
else's, as with connections, and messages of two ways never wait for each other. That a message comes, what it is and
what shape it has is told over the sender's TCP connection, in the order in which the group carries them; the members
find each other by the same way. A message has come when its receiver's host knows that all of it is there: nothing
waits on a device for a peer that may be dead.

A sender aborts its group to whoever leaves the plan, a receiver when the sender's connection has ended: whatever waits
in it ends. The group is gone then, and the next message makes another.
NCCL has not run on GPUs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store

from planaria.plan.plan import WorkerId
from planaria.protocol.worker.mail import Key, Kind
from planaria.runtime.thresholds import GROUP_CONNECT_S, GROUP_END_S
from planaria.runtime.worker.transport.frames import DTYPES, Carried, TensorMeta, meta_of

log = logging.getLogger(__name__)

_SENDER, _RECEIVER = 0, 1
"""Ranks in a group."""
_FOR_EVER = timedelta(days=365)
"""Who is waited for is dropped by a plan, or dies; no wait ends by itself."""
_AT_ONCE = timedelta(milliseconds=1)
_UNUSED_TAG = 1


class Backend(ABC):
    """What carries tensors between two members. Its methods return when the host knows that it is done.

    Attributes:
        device_type: of the tensors that it carries.
    """

    device_type: str

    @abstractmethod
    def group(self, store: Store, rank: int) -> Any:
        """Returns a group of two, once the other member makes it too."""

    @abstractmethod
    def send(self, group: Any, data: torch.Tensor) -> None: ...

    @abstractmethod
    def empty(self, size_bytes: int) -> torch.Tensor:
        """Returns bytes to receive into."""

    @abstractmethod
    def receive(self, group: Any, data: torch.Tensor) -> None: ...

    @abstractmethod
    def abort(self, group: Any) -> None:
        """Ends whatever waits in the group; may be called from any thread."""


class Gloo(Backend):
    """Carries tensors of processors.

    Args:
        host: by which the others reach this one.
    """

    device_type = "cpu"

    def __init__(self, host: str) -> None:
        self._host = host

    def group(self, store: Store, rank: int) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=GROUP_CONNECT_S)
        return dist.ProcessGroupGloo(store, rank, 2, options)

    def send(self, group: Any, data: torch.Tensor) -> None:
        group.send([data], _RECEIVER, 0).wait(_FOR_EVER)

    def empty(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def receive(self, group: Any, data: torch.Tensor) -> None:
        group.recv([data], _SENDER, 0).wait(_FOR_EVER)

    def abort(self, group: Any) -> None:
        """Lets a receipt run out of time, which ends all that waits; gloo's own abort does not."""
        with contextlib.suppress(RuntimeError):
            group.recv([torch.empty(1)], 1 - group.rank(), _UNUSED_TAG).wait(_AT_ONCE)


class Nccl(Backend):
    """Carries tensors of GPUs. It has not run on one.

    Args:
        place: the GPU of this worker.
    """

    device_type = "cuda"

    def __init__(self, place: torch.device) -> None:
        self._place = place
        # Else torch ends the process when a peer is gone.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        self._own = threading.local()

    def group(self, store: Store, rank: int) -> Any:
        torch.cuda.set_device(self._place)  # of this thread
        self._own.stream = torch.cuda.Stream(self._place)  # type: ignore[no-untyped-call]
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _FOR_EVER
        return dist.ProcessGroupNCCL(store, rank, 2, options)

    def send(self, group: Any, data: torch.Tensor) -> None:
        with torch.cuda.stream(self._own.stream):
            group.send([data], _RECEIVER, 0).wait()
        self._own.stream.synchronize()

    def empty(self, size_bytes: int) -> torch.Tensor:
        with torch.cuda.stream(self._own.stream):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._place)

    def receive(self, group: Any, data: torch.Tensor) -> None:
        with torch.cuda.stream(self._own.stream):
            group.recv([data], _SENDER, 0).wait()
        self._own.stream.synchronize()

    def abort(self, group: Any) -> None:
        group.abort()


class _PairStore(Store):
    """Where the members of one group find each other: what one sets, the other is told over TCP.

    Args:
        tell: sends a name and what is set to the other.
    """

    def __init__(self, tell: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._tell = tell
        self._known: dict[str, bytes] = {}
        self._condition = threading.Condition()
        self._is_closed = False

    def put(self, name: str, value: bytes) -> None:
        with self._condition:
            self._known[name] = value
            self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode("latin-1") if isinstance(value, str) else bytes(value)
        self.put(key, data)
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        with self._condition:
            self._condition.wait_for(lambda: key in self._known or self._is_closed)
            if key not in self._known:
                raise RuntimeError("the other member of the group is gone")
            return self._known[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        with self._condition:
            return all(key in self._known for key in keys)


class _Link:
    """One member's end of a group, and the thread that works on it.

    Attributes:
        store: where the other end is found.
        is_closed: nothing comes or goes any more.
    """

    def __init__(
        self,
        backend: Backend,
        rank: int,
        tell: Callable[[str, bytes], None],
        broken: Callable[[RuntimeError], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._backend = backend
        self._rank = rank
        self.store = _PairStore(tell)
        self._broken = broken
        self._failed = failed
        self._work: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self._group: Any = None
        self._lock = threading.Lock()
        self.is_closed = False
        self._threads: list[threading.Thread] = []
        self._start(("send", "receive")[rank] + " by a group", self._run)

    def then(self, do: Callable[[Any], None]) -> None:
        """Does this with the group after all that was asked before."""
        self._work.put(do)

    def close(self) -> None:
        """Ends it, and all that waits in it; does not wait for that."""
        with self._lock:
            self.is_closed, group = True, self._group
        self.store.close()
        self._work.put(None)
        if group is not None:
            self._start("abort by a group", lambda: self._backend.abort(group))

    def join(self) -> None:
        """Waits until what was closed has ended, for a while: torch aborts a process that ends while it is at work."""
        for thread in self._threads:
            thread.join(GROUP_END_S)

    @property
    def is_at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        try:
            group = self._backend.group(self.store, self._rank)
            with self._lock:
                self._group = group
            while not self.is_closed and (do := self._work.get()) is not None:
                do(group)
        except RuntimeError as error:
            if not self.is_closed:
                self.close()  # so the other end learns of it
                self._broken(error)
        except BaseException as error:
            self._failed(error)


@dataclass(frozen=True, slots=True)
class _In:
    """A group by which a peer sends.

    Attributes:
        address: of the peer.
        connection: number of the one by which it told of the group.
    """

    serial: int
    link: _Link
    address: str
    connection: int


class PairGroups:
    """The groups of one worker with its peers.

    Args:
        worker: whose.
        backend: what carries the tensors.
        address: of this worker.
        send: sends a message over TCP to a peer, or to who is at an address.
        broken: told of a peer to which a group broke. From any thread.
        arrived: takes a message that has come. From any thread.
        failed: takes an error for which the worker has to end.
    """

    def __init__(
        self,
        worker: WorkerId,
        backend: Backend,
        address: str,
        send: Callable[[WorkerId, str | None, Key, tuple[torch.Tensor, ...]], None],
        broken: Callable[[WorkerId], None],
        arrived: Callable[[Key, tuple[torch.Tensor, ...]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._worker = worker
        self._backend = backend
        self._address = address
        self._send = send
        self._broken = broken
        self._arrived = arrived
        self._failed = failed
        self._serials = itertools.count(1)
        self._out: dict[WorkerId, tuple[int, _Link]] = {}
        self._in: dict[WorkerId, _In] = {}
        self._ended: list[_Link] = []
        """Those that may still be at work."""
        self._lock = threading.Lock()

    def carries(self, tensors: Collection[torch.Tensor]) -> bool:
        """Returns whether a group would carry these; TCP does the others."""
        on_device = all(tensor.device.type == self._backend.device_type for tensor in tensors)
        return on_device and any(tensor.numel() for tensor in tensors)

    def send(self, peer: WorkerId, tensors: Sequence[torch.Tensor]) -> Carried:
        """Sends tensors without waiting; returns what to tell the peer over TCP, before anything else by a group."""
        with self._lock:
            found = self._out.get(peer)
            if found is None:
                found = self._out[peer] = self._open(peer)
        serial, link = found
        for data in map(_bytes_of, tensors):
            if data.numel():
                link.then(lambda group, data=data: self._backend.send(group, data))  # type: ignore[misc]
        return Carried(serial, tuple(map(meta_of, tensors)))

    def _open(self, peer: WorkerId) -> tuple[int, _Link]:
        serial = next(self._serials)
        self._send(peer, None, self._key(serial, _SENDER), (_packed(self._address.encode()),))
        tell = self._teller(peer, None, serial, _SENDER)

        def broken(error: RuntimeError) -> None:
            log.warning("the group to worker %d broke: %s", peer, str(error).partition("\n")[0])
            self._broken(peer)

        return serial, _Link(self._backend, _SENDER, tell, broken, self._failed)

    def _key(self, serial: int, rank: int) -> Key:
        return Key(Kind.GROUP, self._worker, 0, 0, serial, rank)

    def _teller(self, peer: WorkerId, address: str | None, serial: int, rank: int) -> Callable[[str, bytes], None]:
        key = self._key(serial, rank)
        return lambda name, value: self._send(peer, address, key, (_packed(name.encode()), _packed(value)))

    def told(self, key: Key, tensors: Sequence[torch.Tensor], connection: int) -> None:
        """Takes what another member has told of a group. From the thread that reads messages.

        Args:
            key: of the message.
            tensors: of it: a name and what was set, or the address of a member that sends first.
            connection: number of the one that it came by.
        """
        peer, serial = WorkerId(key.sender), key.item
        first, *rest = (tensor.numpy().tobytes() for tensor in tensors)
        with self._lock:
            if not rest:
                self._opened(peer, serial, first.decode(), connection)
            elif key.layer == _SENDER and peer in self._in and self._in[peer].serial == serial:
                self._in[peer].link.store.put(first.decode(), rest[0])
            elif key.layer == _RECEIVER and self._out.get(peer, (0, None))[0] == serial:
                self._out[peer][1].store.put(first.decode(), rest[0])

    def _opened(self, peer: WorkerId, serial: int, address: str, connection: int) -> None:
        known = self._in.get(peer)
        if known is not None and known.address == address and known.serial > serial:
            return  # it was opened later
        if known is not None:
            self._end(known.link)
        tell = self._teller(peer, address, serial, _RECEIVER)
        # Whoever sends learns of an error too, and tells it.
        link = _Link(self._backend, _RECEIVER, tell, lambda error: None, self._failed)
        self._in[peer] = _In(serial, link, address, connection)

    def ended(self, sender: int, connection: int) -> None:
        """Ends the group of a sender whose connection has ended: it is dead, or has dropped this worker. Not before: it
        may be of a plan that is not known here yet."""
        with self._lock:
            known = self._in.get(WorkerId(sender))
            if known is not None and known.connection == connection:
                self._end(self._in.pop(WorkerId(sender)).link)

    def announced(self, key: Key, carried: Carried) -> None:
        """Has a message received that was announced. From the thread that reads messages."""
        with self._lock:
            known = self._in.get(WorkerId(key.sender))
        if known is not None and known.serial == carried.serial:
            known.link.then(lambda group: self._receive(known.link, group, key, carried.tensors))

    def _receive(self, link: _Link, group: Any, key: Key, metas: Sequence[TensorMeta]) -> None:
        made = []
        for meta in metas:
            dtype, shape = DTYPES[meta.dtype], torch.Size(meta.shape)
            try:
                data = self._backend.empty(dtype.itemsize * shape.numel())
            except RuntimeError as error:  # there is no memory
                self._failed(error)
                raise
            if data.numel():
                self._backend.receive(group, data)
            made.append(data.view(dtype).view(shape))
        if not link.is_closed:  # what an abort has ended is not whole
            self._arrived(key, tuple(made))

    def drop(self, peers: Collection[WorkerId]) -> None:
        """Aborts the groups by which this worker sends to these peers."""
        with self._lock:
            for peer in peers:
                if peer in self._out:
                    self._end(self._out.pop(peer)[1])

    def _end(self, link: _Link) -> None:
        link.close()
        self._ended = [*(other for other in self._ended if other.is_at_work), link]

    def close(self) -> None:
        with self._lock:
            for link in [*(link for _, link in self._out.values()), *(known.link for known in self._in.values())]:
                self._end(link)
            ended = self._ended
        for link in ended:
            link.join()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _packed(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
