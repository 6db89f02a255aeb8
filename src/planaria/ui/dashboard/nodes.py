"""The nodes of a run as the page shows them: where each is, its state, its life, and what it newly holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from planaria.protocol.messages.records import (
    AnyRecord,
    DeviceJoined,
    DeviceLost,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    NodeSpeed,
    PlanTaken,
)

MOST_GONE: Final = 300
"""Nodes that are gone and still shown: the last ones."""


@dataclass(slots=True, kw_only=True)
class _Node:
    zone: str
    state: str
    since_s: float
    joined_s: float
    gone_s: float | None = None
    detail: str = ""
    speed: float = 1.0
    lost_devices: frozenset[int] = frozenset()


class Nodes:
    """The nodes, live and gone.

    Attributes:
        num_live: as the last record that tells it says.
        num_at_start: live when the first plan was taken.
    """

    def __init__(self, devices_per_node: int) -> None:
        """Makes a run without nodes."""
        self.num_live = 0
        self.num_at_start = 0
        self._per_node = devices_per_node
        self._nodes: dict[int, _Node] = {}
        """Those that are not gone."""
        self._gone_nodes: dict[int, _Node] = {}
        self._held: dict[int, range] = {}
        self._held_before: dict[int, range] | None = None
        """Under the plan before the one in force, until a step of that is committed."""
        self._generation = 0
        self._began_s: float | None = None

    @property
    def is_moving(self) -> bool:
        """Whether state may be on its way to a worker."""
        return self._held_before is not None

    @property
    def moved(self) -> dict[int, list[int]]:
        """The layers that each worker has to get for the plan in force, until a step of it is committed."""
        before = self._held_before
        if before is None:
            return {}
        new = ((worker, sorted(set(layers) - set(before.get(worker, ())))) for worker, layers in self._held.items())
        return {worker: layers for worker, layers in new if layers}

    def note(self, record: AnyRecord, time_s: float) -> None:
        """Notes what a record says of nodes."""
        self._began_s = time_s if self._began_s is None else self._began_s
        at_s = time_s - self._began_s
        match record:
            case NodeJoined():
                self._gone_nodes.pop(record.node, None)  # it came back
                self._nodes[record.node] = _Node(zone=record.zone, state="joining", since_s=at_s, joined_s=at_s)
                self.num_live = record.live_nodes
            case NodeLost():
                self._gone(record.node, manner_of(record.cause), at_s, record.cause)
                self.num_live = record.live_nodes
            case DeviceLost() if record.node in self._nodes:
                self._nodes[record.node].lost_devices |= {record.device}
            case DeviceJoined() if record.node in self._nodes:
                self._nodes[record.node].lost_devices -= {record.device}
            case NodeReleased():
                self._gone(record.node, "released", at_s, "handed over its work")
                self.num_live = record.live_nodes
            case NodeLeaving():
                self._turn(record.node, "leaving", at_s, record.cause)
            case NodeSpeed():
                is_slow = record.speed < 1
                text = f"{record.speed:.0%} of the others' speed" if is_slow else ""
                self._turn(record.node, "slow" if is_slow else "works", at_s, text)
                if record.node in self._nodes:
                    self._nodes[record.node].speed = record.speed
            case PlanTaken(purpose="start" | "reconfigure" | "restore"):
                self._place(record, at_s)
            case _:
                pass

    def committed(self, generation: int) -> None:
        """Notes that a step was committed: the state of its plan is where it belongs."""
        if generation >= self._generation:
            self._held_before = None

    def rows(self) -> list[dict[str, Any]]:
        """Returns the nodes by number."""
        return [
            {
                "node": number,
                "zone": node.zone,
                "state": node.state,
                "detail": "; ".join([*filter(None, [node.detail]), *_without(node.lost_devices)]),
                "since_s": round(node.since_s, 3),
                "joined_s": round(node.joined_s, 3),
                "gone_s": None if node.gone_s is None else round(node.gone_s, 3),
            }
            for number, node in sorted((self._gone_nodes | self._nodes).items())
        ]

    def _turn(self, number: int, state: str, at_s: float, detail: str) -> None:
        node = self._nodes.get(number)
        if node is not None:
            node.state, node.since_s, node.detail = state, at_s, detail

    def _gone(self, number: int, state: str, at_s: float, detail: str) -> None:
        self._turn(number, state, at_s, detail)
        if number in self._nodes:
            gone = self._gone_nodes[number] = self._nodes.pop(number)
            gone.gone_s = at_s
        while len(self._gone_nodes) > MOST_GONE:
            del self._gone_nodes[next(iter(self._gone_nodes))]

    def _place(self, plan: PlanTaken, at_s: float) -> None:
        held = {worker: range(first, end) for stages in plan.pipelines for worker, first, end in stages}
        if self._held:
            self._held_before = self._held
        else:
            self.num_at_start = self.num_live
        self._held, self._generation = held, plan.generation
        at_work = {worker // self._per_node for worker in held}
        for number, node in self._nodes.items():
            if number in at_work and node.state in ("joining", "spare"):
                self._turn(number, "slow" if node.speed < 1 else "works", at_s, node.detail)
            elif number not in at_work and node.state in ("joining", "works", "slow"):
                self._turn(number, "spare", at_s, "not in the plan")


def _without(devices: frozenset[int]) -> list[str]:
    """Returns what to say of devices that a node lost alone."""
    many = "s" if len(devices) > 1 else ""
    return [f"without device{many} {', '.join(map(str, sorted(devices)))}"] if devices else []


def manner_of(cause: str) -> str:
    """Returns how a node was lost, by its cause: it hung, or it is gone."""
    return "hung" if "hung" in cause or "hang" in cause or "no progress" in cause else "lost"
