"""The nodes as the coordinator's process sees them: through its supervisor, whose children they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from planaria.plan.plan import NodeId, WorkerId
from planaria.runtime.coordinator.supervisor_link import (
    Begin,
    KillNode,
    Link,
    NodesLost,
    NodeStarted,
    StartNode,
    StopRun,
)


class Nodes(Protocol):
    """What starts the nodes, tells of dead ones, and kills them."""

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `lost` has news."""
        ...

    def start(self, node: NodeId) -> None:
        """Starts one more node, which joins when it is ready. Not asked of hosts that agents offer."""
        ...

    def start_worker(self, node: NodeId, worker: WorkerId) -> None:
        """Starts one worker of a node again. Not asked of hosts that agents offer."""
        ...

    def lost(self) -> list[tuple[WorkerId, str]]:
        """Returns the workers whose process ended since the last call, each with the cause. Never waits."""
        ...

    def kill(self, node: NodeId, worker: WorkerId | None = None) -> None:
        """Kills what is left of a node, or of one of its workers."""
        ...

    def is_runnable(self, node: NodeId) -> bool:
        """Whether the node's processes are known to exist and not to be stopped. False where that cannot be known."""
        ...

    def all_ended(self) -> bool: ...


class SupervisedNodes:
    """The server's side of the launcher: nodes that its supervisor starts and kills.

    Args:
        link: the connection to the supervisor.
        begin: what was there before.
        stop: called when the supervisor wants the run to end.
    """

    def __init__(self, link: Link, begin: Begin, stop: Callable[[], None]) -> None:
        self._link = link
        self._stop = stop
        self._pids: dict[NodeId, tuple[int, ...]] = dict(begin.nodes)
        self._lost = list(begin.lost)
        self._starting: set[WorkerId] = set()
        """Workers that are being started again: what is told of their end meanwhile is of the process before."""
        self._are_all_lost = begin.are_all_lost

    @property
    def started(self) -> list[NodeId]:
        """Every node that was ever started."""
        return sorted(self._pids)

    def fileno(self) -> int:
        return self._link.fileno()

    def start(self, node: NodeId) -> None:
        self._pids.setdefault(node, ())
        self._are_all_lost = False
        self._link.send(StartNode(node))

    def start_worker(self, node: NodeId, worker: WorkerId) -> None:
        self._starting.add(worker)
        self._are_all_lost = False
        self._link.send(StartNode(node, worker))

    def lost(self) -> list[tuple[WorkerId, str]]:
        """Returns workers lost since the last call. Raises EOFError when the supervisor is gone."""
        for order in self._link.orders():
            match order:
                case NodeStarted(node, pids, worker):
                    self._pids[node] = pids
                    self._starting -= {worker}
                case NodesLost(lost, are_all_lost):
                    self._lost += [(worker, cause) for worker, cause in lost if worker not in self._starting]
                    self._are_all_lost = are_all_lost
                case StopRun():
                    self._stop()
                case Begin():
                    raise AssertionError("begun twice")
        found, self._lost = self._lost, []
        return found

    def kill(self, node: NodeId, worker: WorkerId | None = None) -> None:
        self._link.send(KillNode(node, worker))

    def is_runnable(self, node: NodeId) -> bool:
        there = [state for pid in self._pids.get(node, ()) if (state := process_state(pid)) != "Z"]
        return bool(there) and all(state in "RSD" for state in there)  # of those that ended, others tell

    def all_ended(self) -> bool:
        return self._are_all_lost


def process_state(pid: int) -> str:
    """Returns the kernel's letter for a process: R, S or D if it can run, T if it is stopped, Z if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "Z"
