"""The members of the job: the workers that live, the nodes that are gone, and what is known of how they went."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TypeVar, cast

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.thresholds import PROBATION_STEPS

_Number = TypeVar("_Number", NodeId, WorkerId)


class Membership:
    """Workers by number, with the address at which their peers reach them.

    Attributes:
        addresses: of the live workers.
        gone: nodes that were lost or released; they never come back under the same number.
        lost_devices: of live nodes, which go on with their other devices.
        leaving: live nodes that gave notice, and when (monotonic seconds).
        zones: of live nodes that said where they are; `locate` adds one.
        in_zones: how many of `nodes` are in each zone; "" where that is not known.
        wrong_hosts: how many nodes of a host computed wrong.
        probation: live nodes on such hosts that joined since, and how many more steps of theirs are audited wholly.
        labels: of live nodes that have one.
    """

    def __init__(self, num_nodes: int, devices_per_node: int) -> None:
        self._num_nodes = num_nodes
        self._devices_per_node = devices_per_node
        self.addresses: dict[WorkerId, str] = {}
        self.gone: set[NodeId] = set()
        self.lost_devices: set[WorkerId] = set()
        self.leaving: dict[NodeId, float] = {}
        self.zones: dict[NodeId, str] = {}
        self.in_zones: Counter[str] = Counter()
        self.wrong_hosts: Counter[str] = Counter()
        self.probation: dict[NodeId, int] = {}
        self.labels: dict[NodeId, str] = {}
        self._faults: dict[NodeId, float] = {}
        self._joined: Counter[NodeId] = Counter()
        self._whole: set[NodeId] = set()
        self._nodes: tuple[NodeId, ...] = ()
        self._came: list[NodeId] = []
        """Nodes of `_whole` that `_nodes` lacks: thousands may join before anybody asks for it."""
        self._workers: tuple[WorkerId, ...] | None = ()

    def node_of(self, worker: WorkerId) -> NodeId:
        return NodeId(worker // self._devices_per_node)

    def workers_of(self, node: NodeId) -> tuple[WorkerId, ...]:
        """Returns the numbers of a node's workers, whether it lives or not."""
        first = node * self._devices_per_node
        return tuple(WorkerId(first + device) for device in range(self._devices_per_node))

    def live_devices(self, node: NodeId) -> int:
        """Returns how many of a node's workers live."""
        return self._joined[node]

    def host_of(self, node: NodeId) -> str:
        """Returns the host of a live node, as its peers reach it."""
        addresses = (self.addresses[worker] for worker in self.workers_of(node) if worker in self.addresses)
        return next(addresses, "").rpartition(":")[0].strip("[]")

    @property
    def on_probation(self) -> frozenset[WorkerId]:
        """Workers all of whose computation is audited."""
        return frozenset(worker for node in self.probation for worker in self.workers_of(node))

    def try_out(self, node: NodeId) -> None:
        """Begins a node's probation, if a node of its host computed wrong before."""
        if self.wrong_hosts[self.host_of(node)]:
            self.probation[node] = PROBATION_STEPS

    def worked(self, nodes: Collection[NodeId]) -> None:
        """Records a step that these nodes have done."""
        left = {node: steps - (node in nodes) for node, steps in self.probation.items()}
        self.probation = {node: steps for node, steps in left.items() if steps}

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        if self._workers is None:
            self._workers = tuple(sorted(self.addresses))
        return self._workers

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Live nodes, all of whose workers but the lost ones have joined."""
        if self._came:
            self._nodes = tuple(sorted((*self._nodes, *self._came)))
            self._came = []
        return self._nodes

    @property
    def num_nodes(self) -> int:
        """Number of `nodes`."""
        return len(self._whole)

    def is_live(self, node: NodeId) -> bool:
        """Returns whether a node is among `nodes`."""
        return node in self._whole

    def absent(self, nodes: Iterable[NodeId]) -> frozenset[NodeId]:
        """Returns those of these nodes that have neither joined nor gone."""
        return frozenset(nodes) - self._whole - self.gone

    def _is_complete(self, node: NodeId) -> bool:
        lacking = self._devices_per_node - self._joined[node]
        return not lacking or lacking == len(self.lost_devices.intersection(self.workers_of(node)))

    def goes_on_without(self, worker: WorkerId) -> bool:
        """Returns whether a worker's node goes on when it alone is lost: where another of its devices lives."""
        node = self.node_of(worker)
        others = (other for other in self.workers_of(node) if other != worker)
        return self.is_live(node) and any(other in self.addresses for other in others)

    @property
    def staying(self) -> frozenset[NodeId]:
        """Live nodes that gave no notice."""
        return frozenset(self.nodes) - self.leaving.keys()

    @property
    def is_gathered(self) -> bool:
        """Whether as many nodes have joined as the job starts on, less those that are gone."""
        return self.num_nodes >= self._num_nodes - len(self.gone)

    def join(self, worker: WorkerId, address: str) -> bool:
        """Adds a worker; returns whether its node is complete now."""
        node = self.node_of(worker)
        if worker not in self.addresses:
            self._joined[node] += 1
            self._workers = None
            self.lost_devices.discard(worker)
            if self._is_complete(node):
                self._add_whole((node,))
        self.addresses[worker] = address
        return self._is_complete(node)

    def _add_whole(self, nodes: Collection[NodeId]) -> None:
        """Adds nodes all of whose workers are there; those that it has already change nothing."""
        came = [node for node in nodes if node not in self._whole]
        self._whole.update(came)
        self._came += came
        self.in_zones.update(self.zones.get(node, "") for node in came)

    def locate(self, node: NodeId, zone: str) -> None:
        """Records where a node is."""
        if self.is_live(node):
            self.in_zones[self.zones.get(node, "")] -= 1
            self.in_zones[zone] += 1
        self.zones[node] = zone

    def enrol(self, nodes: Iterable[NodeId], address: str) -> None:
        """Adds all workers of these nodes at one address: for simulations, which need no real one."""
        per_node = self._devices_per_node
        joined = dict.fromkeys(nodes, per_node)
        dict.update(self._joined, joined)
        workers = cast("Collection[WorkerId]", joined)
        if per_node > 1:
            workers = [WorkerId(node * per_node + device) for node in joined for device in range(per_node)]
        self.addresses.update(dict.fromkeys(workers, address))
        self._workers = None
        self._add_whole(joined)

    def lose(self, node: NodeId) -> tuple[WorkerId, ...]:
        """Forgets a node; returns the workers that lived on it."""
        self.gone.add(node)
        self.leaving.pop(node, None)
        if self.is_live(node):
            self._nodes = _without(self.nodes, (node,))
            self._whole.discard(node)
            self.in_zones[self.zones.get(node, "")] -= 1
        self.zones.pop(node, None)
        self.labels.pop(node, None)
        self.probation.pop(node, None)
        lost = tuple(worker for worker in self.workers_of(node) if worker in self.addresses)
        for worker in lost:
            del self.addresses[worker]
        self.lost_devices.difference_update(self.workers_of(node))
        self._joined.pop(node, None)
        self._workers = None if self._workers is None else _without(self._workers, lost)
        return lost

    def lose_device(self, worker: WorkerId) -> None:
        """Forgets a device of a node that goes on without it."""
        del self.addresses[worker]
        self.lost_devices.add(worker)
        self._joined[self.node_of(worker)] -= 1
        self._workers = None if self._workers is None else _without(self._workers, (worker,))

    def note_fault(self, worker: WorkerId, at_s: float) -> None:
        """Records when the worker's node is about to kill itself on the user's order. Only measurements use it."""
        self._faults[self.node_of(worker)] = at_s

    def note_end(self, node: NodeId, at_s: float) -> None:
        """Records when a node was seen to end while there was no coordinator. Only measurements use it."""
        self._faults.setdefault(node, at_s)

    def fault_of(self, node: NodeId) -> float | None:
        """Returns, once, when the node killed itself or was seen to end; None if unknown."""
        return self._faults.pop(node, None)


def _without(all_of: tuple[_Number, ...], some: Iterable[_Number]) -> tuple[_Number, ...]:
    """Returns ascending numbers without those in `some`, which need not be among them."""
    for one in some:
        at = bisect_left(all_of, one)
        if all_of[at : at + 1] == (one,):
            all_of = all_of[:at] + all_of[at + 1 :]
    return all_of
