"""The data plane between workers: a TCP connection for each direction of each pair that talks, and one for state.

A connection belongs to its two ends alone, so the death of one worker touches nobody else's: there is no group to
abort or to build again. A message is named by its `Key`; the receiver asks for keys, so what a dead plan left under
way is never taken. Sends never block the caller: what the kernel does not take at once, a thread sends. There are as
many threads with one peer as with hundreds.
"""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING

import torch

from planaria.job.sections.cluster import TransportKind
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.protocol.thresholds import CUT_OFF_S
from planaria.runtime.wire.listener import PeerListener, greeting
from planaria.runtime.wire.tls import Security
from planaria.runtime.worker.compute.shared_memory import HOST_MEMORY
from planaria.runtime.worker.transport.frames import Arrived, Carried, DamagedFrame, Loan, data_frame
from planaria.runtime.worker.transport.incoming import Incoming
from planaria.runtime.worker.transport.lending import Lending
from planaria.runtime.worker.transport.mailbox import Key, Kind, Lent, Mailbox
from planaria.runtime.worker.transport.outgoing import Connection, Outgoing

if TYPE_CHECKING:
    from planaria.runtime.worker.transport.pair_groups import PairGroups

_MEMORY = "/"
"""In an address, what comes before the name of a memory other than processors'."""


class _Way(enum.Enum):
    """What a connection to a peer is for."""

    STEPS = enum.auto()
    STATE = enum.auto()
    """It gives way to all others."""
    ANSWERS = enum.auto()
    """To the other member of a process group, which may be of a plan that is not known here yet."""


class Transport:
    """Sends to peers, and puts what they send into the mailbox.

    Args:
        worker: the number of this worker.
        token: the job's token.
        mailbox: for what arrives.
        host: to listen on.
        cut_off: told, from another thread, of a peer in the plan to which the connection is lost, and of its address.
        security: what peers have to show, and are shown; None: connections are plain.
        kind: by which way tensors go to peers that do not read this one's memory.
        memory: name of the memory that workers of a host with the same name read in place; "": nobody reads this one's.
    """

    def __init__(
        self,
        worker: WorkerId,
        token: str,
        mailbox: Mailbox,
        host: str = "127.0.0.1",
        cut_off: Callable[[WorkerId, str], None] = lambda peer, address: None,
        security: Security | None = None,
        memory: str = HOST_MEMORY,
        kind: TransportKind = TransportKind.AUTO,
    ) -> None:
        self._worker = worker
        self._memory = memory
        self._kind = kind
        self._address = ""
        self._token = token
        self._mailbox = mailbox
        self._host = host
        self._cut_off = cut_off
        self._connections: dict[tuple[WorkerId, str, _Way], Connection] = {}
        """By peer and its address, and what they are for."""
        self._lock = threading.Lock()
        self._addresses: dict[WorkerId, str] = {}
        self._lending: Lending | None = None
        self._groups: PairGroups | None = None
        self._early: list[tuple[Arrived, int]] | None = []
        """What waits for the device, and the connections that it came by; None: there is one."""
        self._early_lock = threading.Lock()
        self._outgoing = Outgoing(security)
        self._incoming = Incoming(
            self._arrived, mailbox.place, self._header_damaged, mailbox.put_error, self._connection_ended
        )
        self._greeter = PeerListener(token, self._incoming.add, security)

    def start(self) -> str:
        """Begins to listen; returns the address that peers need."""
        self._incoming.start()
        memory = "" if self._memory == HOST_MEMORY else f"{_MEMORY}{self._memory}"
        self._address = f"{self._host}:{self._greeter.start(self._host)}{memory}"
        return self._address

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        """Sets the peers of the plan. Connections to all others are closed; those that stay are not touched."""
        gone = {peer: address for peer, address in self._addresses.items() if addresses.get(peer) != address}
        if self._groups is not None:
            self._groups.drop(tuple(gone))
        with self._lock:
            for way in [way for way in self._connections if gone.get(way[0]) == way[1]]:
                self._connections.pop(way).close()
            self._addresses = dict(addresses)

    def host_of(self, worker: WorkerId) -> Hashable:
        """Returns the host of a worker."""
        return self._host if worker == self._worker else self._addresses[worker].rpartition(":")[0]

    def memory_of(self, worker: WorkerId) -> Hashable:
        """Returns the memory that a worker's vectors are in: who has the same one reads them in place."""
        if worker == self._worker:
            name = self._memory
        else:
            _, mark, name = self._addresses[worker].partition(_MEMORY)
            name = name if mark else HOST_MEMORY
        return (self.host_of(worker), name) if name else worker

    def _connection(self, peer: WorkerId, address: str, way: _Way) -> Connection:
        with self._lock:
            found = self._connections.get((peer, address, way))
            if found is None:
                found = self._connections[peer, address, way] = self._outgoing.connect(
                    address.partition(_MEMORY)[0],
                    greeting(self._worker, self._token),
                    lambda: self._broken(peer, address),
                    gives_way=way is _Way.STATE,
                )
            return found

    def _broken(self, peer: WorkerId, address: str) -> None:
        """Tells `cut_off` of a peer whose connection broke, if that peer is still in the plan a while later."""

        def check() -> None:
            if self._addresses.get(peer) == address:
                self._cut_off(peer, address)

        timer = threading.Timer(CUT_OFF_S, check)
        timer.daemon = True
        timer.start()

    def send(self, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...], loan: Loan | None = None) -> None:
        """Sends without waiting. The tensors must not change until the peer has them (a later commit says so).

        Args:
            peer: to which.
            key: of the message.
            tensors: the message, on the host, or the addresses of what is lent.
            loan: tells which of both.
        """
        way = _Way.STATE if key.kind == Kind.STATE else _Way.STEPS
        elsewhere: Loan | Carried | None = loan
        if self._groups is not None and loan is None and self._groups.carries(tensors):
            # All that a group carries is told on one connection: it is received in that order.
            way, elsewhere, tensors = _Way.STEPS, self._groups.send(peer, tensors), ()
        self._connection(peer, self._addresses[peer], way).send(data_frame(key, tensors, elsewhere))

    @property
    def carries_devices_memory(self) -> bool:
        """Whether `send` takes tensors of a GPU."""
        return self._kind is TransportKind.NCCL

    def _tell(self, peer: WorkerId, address: str | None, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        """Sends to a peer of the plan, or to a worker that is at an address. From any thread."""
        way = _Way.STEPS if address is None else _Way.ANSWERS
        if (address := address or self._addresses.get(peer)) is not None:
            self._connection(peer, address, way).send(data_frame(key, tensors))

    def _put_carried(self, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        """Puts down what a group has brought; in a GPU's memory it lies as what is lent does."""
        lent = Lent(tensors, WorkerId(key.sender), 0) if self.carries_devices_memory else tensors
        self._mailbox.put(key, lent)

    def _group_broken(self, peer: WorkerId) -> None:
        address = self._addresses.get(peer)
        if address is not None:
            self._broken(peer, address)

    def serve(self, lending: Lending) -> None:
        """Sets who lends and borrows, once there is a device: until then what is lent, or comes by a group, waits."""
        self._lending = lending
        if self._kind in (TransportKind.GLOO, TransportKind.NCCL):
            from planaria.runtime.worker.transport import pair_groups  # torch.distributed takes a while to import

            is_gloo = self._kind is TransportKind.GLOO
            self._groups = pair_groups.PairGroups(
                self._worker,
                pair_groups.Gloo(self._host) if is_gloo else pair_groups.Nccl(lending.place),
                self._address,
                self._tell,
                self._group_broken,
                self._put_carried,
                self._mailbox.put_error,
            )
        with self._early_lock:
            early, self._early = self._early, None
            for arrived, connection in early or ():
                self._arrived_elsewhere(arrived, connection)

    def pace(self, peers: Collection[WorkerId], bytes_per_s: float | None) -> None:
        """Sends to each of the peers no faster from now on, state aside; None: as fast as it goes."""
        for peer in peers:
            way = peer, self._addresses.get(peer, ""), _Way.STEPS
            if (connection := self._connections.get(way)) is not None:
                connection.pace(bytes_per_s)

    def flows(self) -> dict[WorkerId, Flow]:
        """Returns what peers on other hosts have got from here so far, state aside: it has to wait for the rest."""
        far = {
            peer: connection.sent()
            for (peer, _, way), connection in list(self._connections.items())
            if way is _Way.STEPS and self.host_of(peer) != self._host
        }
        return {peer: Flow(*flow) for peer, flow in far.items() if flow is not None and flow[0]}

    def _connection_ended(self, sender: int, connection: int) -> None:
        if self._groups is not None:
            self._groups.ended(sender, connection)

    def _arrived(self, sender: int, arrived: Arrived, connection: int) -> None:
        key, tensors, elsewhere = arrived
        if tensors is None:
            self._tell_damage(sender, f"{key} is damaged")
            self._mailbox.put_damaged(key)
            if key.kind == Kind.GROUP:  # nobody asks for it, and without it no group is made
                self._cut_off_at(sender)
        elif elsewhere is None and key.kind not in (Kind.READ, Kind.GROUP):
            self._mailbox.put(key, tensors)
        else:
            with self._early_lock:
                if self._early is not None:
                    self._early.append((arrived, connection))
                    return
            self._arrived_elsewhere(arrived, connection)

    def _arrived_elsewhere(self, arrived: Arrived, connection: int) -> None:
        key, tensors, elsewhere = arrived
        assert self._lending is not None
        assert tensors is not None
        if self._groups is not None and isinstance(elsewhere, Carried):
            self._groups.announced(key, elsewhere)
        elif self._groups is not None and key.kind == Kind.GROUP:
            self._groups.told(key, tensors, connection)
        elif not isinstance(elsewhere, Carried):
            self._lending.arrived(self._mailbox, key, elsewhere, tensors)

    def _header_damaged(self, sender: int, damaged: DamagedFrame) -> None:
        self._tell_damage(sender, str(damaged))
        self._cut_off_at(sender)

    def _cut_off_at(self, sender: int) -> None:
        address = self._addresses.get(WorkerId(sender))
        if address is not None:
            self._cut_off(WorkerId(sender), address)

    def _tell_damage(self, sender: int, what: str) -> None:
        said = f"worker {self._worker}: a message of worker {sender} failed its checksum and is dropped: {what}"
        print(said, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._greeter.close()
        self._incoming.close()
        for connection in self._connections.values():
            connection.close()
        if self._groups is not None:
            self._groups.close()
        self._outgoing.close()
