"""Members of the job: the workers that are connected, the nodes that are fenced, and the nodes' numbers. Pure.

A node is lost once. From then on nothing counts that bears its number: no hello, no message, no second loss. A machine
that comes back is a new node, under a number that nobody had before. A device that is lost alone is fenced likewise,
until its worker is started again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.from_worker import Hello
from planaria.protocol.messages.message import other_version
from planaria.protocol.thresholds import MAX_NODES

Connection = TypeVar("Connection")
"""A worker's connection, as the server represents it."""


class Admission(Generic[Connection]):
    """Which workers and nodes belong to one run, as one coordinator knows them.

    Args:
        devices_per_node: workers on each node.
        data: hash of the tokens that every worker must have; "": there are none.
        mark: of the run; the same for every coordinator that it has.
    """

    def __init__(self, devices_per_node: int, *, data: str = "", mark: str = "") -> None:
        self._data = data
        self._mark = mark
        self._devices_per_node = devices_per_node
        self._connections: dict[WorkerId, Connection] = {}
        self._addresses: dict[WorkerId, str] = {}
        self._fenced: set[NodeId] = set()
        self._fenced_devices: set[WorkerId] = set()
        self._released: set[NodeId] = set()
        self._next_node = 0

    def node_of(self, worker: WorkerId) -> NodeId:
        return NodeId(worker // self._devices_per_node)

    def workers_of(self, node: NodeId) -> list[WorkerId]:
        first = node * self._devices_per_node
        return [WorkerId(first + device) for device in range(self._devices_per_node)]

    # Numbers

    def new_number(self) -> NodeId:
        """Returns a node number that no node had before."""
        self._next_node += 1
        return NodeId(self._next_node - 1)

    def took_number(self, node: NodeId) -> None:
        """Records that a node has or had this number: no other gets it."""
        self._next_node = max(self._next_node, node + 1)

    # Who may come in

    def refusal(self, hello: Hello) -> str | None:
        """Returns why a worker with this hello may not take part, for its log; None if it may."""
        node = self.node_of(hello.worker)
        if (other := other_version("worker", hello.version)) is not None:
            return other
        if self.is_of_another_run(hello):
            return "it was started for another run"
        if not 0 <= node < MAX_NODES:
            return f"the job has no worker {hello.worker}"
        if node in self._fenced or hello.worker in self._connections:
            return f"node {node} was lost and is fenced"
        if hello.worker in self._fenced_devices:
            return f"device {hello.worker % self._devices_per_node} of node {node} was lost and is fenced"
        return None

    def other_data(self, hello: Hello) -> str | None:
        """Returns why this worker's node would train on other samples, for people; None if it has the run's data."""
        if hello.data == self._data or not self._data:
            return None
        node = self.node_of(hello.worker)
        if not hello.data:
            return f"node {node} is refused: it cannot read the run's data, see its log"
        return (
            f"node {node} is refused: its data or weights are not the run's, though the job names the same. "
            "Put the same files on every node"
        )

    def is_of_another_run(self, hello: Hello) -> bool:
        """Returns whether the hello has the job's token but another run's mark: most likely an earlier, resumed run."""
        return hello.mark != self._mark

    def admit(self, worker: WorkerId, connection: Connection, address: str) -> None:
        """Admits a worker, which peers reach at this address, after its hello was accepted."""
        self._connections[worker] = connection
        self._addresses[worker] = address
        self.took_number(self.node_of(worker))

    def connection_of(self, worker: WorkerId) -> Connection | None:
        """Returns the worker's connection; None if it is not connected."""
        return self._connections.get(worker)

    # Who goes

    def left(self, worker: WorkerId, connection: Connection) -> bool:
        """Handles the end of a connection; returns whether it was that worker's."""
        if self._connections.get(worker) is not connection:
            return False
        del self._connections[worker]
        return True

    def fence(self, node: NodeId) -> list[Connection]:
        """Fences the node; returns the connections of its workers, which are theirs no more."""
        self._fenced.add(node)
        return [self._connections.pop(worker) for worker in self.workers_of(node) if worker in self._connections]

    def fence_device(self, worker: WorkerId) -> Connection | None:
        """Fences one device of a node; returns its worker's connection, which is its no more."""
        self._fenced_devices.add(worker)
        return self._connections.pop(worker, None)

    def expect_device(self, worker: WorkerId) -> None:
        """Lets a device in whose worker is started again."""
        self._fenced_devices.discard(worker)

    def release(self, node: NodeId) -> None:
        """Releases a node that handed over its work: its workers are still heard, but nobody new comes in its name."""
        self._fenced.add(node)
        self._released.add(node)

    def is_fenced(self, node: NodeId) -> bool:
        return node in self._fenced

    def is_worker_fenced(self, worker: WorkerId) -> bool:
        """Returns whether a worker is, with its node or alone."""
        return worker in self._fenced_devices or self.node_of(worker) in self._fenced

    def was_released(self, node: NodeId) -> bool:
        return node in self._released

    def is_empty(self, node: NodeId) -> bool:
        """Returns whether no worker of the node is connected."""
        return self._connections.keys().isdisjoint(self.workers_of(node))

    def is_missed(self, peer: WorkerId, address: str) -> bool:
        """Returns whether it is news that a worker cannot reach this peer at this address.

        A lost one is no news, even if its device has come back since, at another address; and one that is not here
        yet, or not yet back, is waited for: if anybody is out of reach, it is.
        """
        is_here = peer in self._connections and self._addresses[peer] == address
        return is_here and not self.is_worker_fenced(peer)
