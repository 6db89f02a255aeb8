"""Plays a script on a run's real processes: nodes are killed, given notice and started when the script says so, and
devices of nodes alone.

It judges nothing and measures nothing: what becomes of it is told by the run's records.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.job.errors import UserError
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.records import AnyRecord, NodeLost, NodeReleased, RunEnded
from planaria.protocol.messages.user import Answer, Wish
from planaria.runtime.coordinator.client import Contact, ask
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.thresholds import END_S, REPLAY_TICK_S
from planaria.simulate.traces.scripts import Script, ScriptClock, numbered
from planaria.simulate.traces.trace import Change, DeviceChange, DeviceEvent, TraceEvent

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something to be done at a time of the script's clock."""

    at: float
    is_notice: bool
    event: TraceEvent | DeviceEvent


def moments(script: Script) -> list[Moment]:
    """Returns a script's moments in order, without the nodes that begin; a notice comes before the node goes."""
    found = []
    for event in script.trace.events:
        if event.change is Change.ADD and event.at_s == 0:
            continue
        if event.change is Change.REMOVE and event.notice_s > 0:
            found.append(Moment(at=max(0.0, event.at_s - event.notice_s), is_notice=True, event=event))
        found.append(Moment(at=event.at_s, is_notice=False, event=event))
    found += [Moment(at=event.at_s, is_notice=False, event=event) for event in script.trace.device_events]
    return sorted(found, key=lambda moment: moment.at)


class Replay:
    """Plays one script on one run: an observer with a thread of its own. Use it as a context manager.

    Args:
        script: to be played; its nodes at the beginning are the run's, in their order.
        nodes: the processes of the run.
        devices_per_node: workers on each.
        contact: the run's contact file.
        say: takes lines for people, from the replay's thread.
    """

    def __init__(self, script: Script, nodes: LocalNodes, devices_per_node: int, contact: Path, say: Say) -> None:
        self._moments = moments(script)
        self._length = script.trace.horizon_s
        self._clock = ScriptClock(script.clock)
        self._nodes = nodes
        self._devices_per_node = devices_per_node
        self._dead_devices: set[WorkerId] = set()
        self._returning: list[DeviceEvent] = []
        """Devices that are to be started again, as soon as no plan has them any more."""
        self._contact = contact
        self._say = say
        self._node_of = numbered(script.trace, [NodeId(node) for node in range(len(script.trace.initial))])
        self._doomed: set[NodeId] = set()
        self._gone: set[NodeId] = set()
        self._news: queue.SimpleQueue[AnyRecord | None] = queue.SimpleQueue()
        self._is_over = self._is_stopping = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    @property
    def is_played(self) -> bool:
        """Whether the script came to its end."""
        return self._is_stopping

    @property
    def killed(self) -> frozenset[NodeId]:
        """Nodes that the script took away, whether they were alive or released by then."""
        return frozenset(self._doomed)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        self._news.put(record)

    def __enter__(self) -> Replay:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._news.put(None)
        self._thread.join()
        if self._error is not None and exception == (None, None, None):
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_over:
                with contextlib.suppress(queue.Empty):
                    self._note(self._news.get(timeout=self._wait_s()))
                self._go_on()
        except UserError as error:
            if not self._ends():  # else nobody was there any more to be asked
                self._give_up(error)
        except Exception as error:
            self._give_up(error)

    def _ends(self) -> bool:
        """Whether the run is over, or ends within a moment."""
        deadline = time.monotonic() + END_S
        while not self._is_over:
            try:
                self._note(self._news.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                return False
        return True

    def _give_up(self, error: Exception) -> None:
        self._error = error
        with contextlib.suppress(UserError):
            self._stop()

    def _wait_s(self) -> float:
        """Returns the seconds until something may be due; what is due within a moment is done when it is due."""
        left_s = self._clock.left_s(self._moments[0].at if self._moments else self._length, time.monotonic())
        return REPLAY_TICK_S if left_s is None else min(REPLAY_TICK_S, max(0.0, left_s))

    def _note(self, record: AnyRecord | None) -> None:
        match record:
            case None | RunEnded():
                self._is_over = True
            case NodeLost(node=node) | NodeReleased(node=node):
                self._gone.add(NodeId(node))
            case _:
                self._clock.note(record, time.monotonic())

    def _go_on(self) -> None:
        at = self._clock.at(time.monotonic())
        if self._is_over or at is None:
            return
        while self._moments and self._moments[0].at <= at:
            self._do(self._moments.pop(0))
        self._returning = [event for event in self._returning if not self._starts_again(event)]
        for node in self._doomed - self._gone:
            self._nodes.kill(node)  # again, where its processes were about to be started
        if at >= self._length and not self._is_stopping:
            self._is_stopping = True
            self._stop()

    def _do(self, moment: Moment) -> None:
        event = moment.event
        if isinstance(event, DeviceEvent):
            self._do_to_device(event)
            return
        if event.change is Change.ADD:
            self._node_of[event.node] = node = self._add()
            self._say(f"node {node} ({event.node}) is started")
            return
        node = self._node_of[event.node]
        if not moment.is_notice:
            self._doomed.add(node)
            self._nodes.kill(node)
            gone = "had been released before" if node in self._gone else "is killed"
            self._say(f"node {node} ({event.node}) {gone}")
        elif self._ask(Wish.DRAIN, node=node, grace_s=event.notice_s).accepted:
            self._say(f"node {node} ({event.node}) is given notice")

    def _do_to_device(self, event: DeviceEvent) -> None:
        if event.change is DeviceChange.JOINED:
            self._returning.append(event)
            return
        one = event.node, event.device
        self._returning = [other for other in self._returning if (other.node, other.device) != one]
        node, per_node = self._node_of[event.node], self._devices_per_node
        worker = WorkerId(node * per_node + event.device)
        self._dead_devices.add(worker)
        if self._dead_devices.issuperset(range(node * per_node, (node + 1) * per_node)):
            self._doomed.add(node)
        self._nodes.kill_worker(worker)
        self._say(f"device {event.device} of node {node} ({event.node}) is killed")

    def _starts_again(self, event: DeviceEvent) -> bool:
        """Has a device started again if it may be; returns whether nothing is left to do."""
        node = self._node_of[event.node]
        if node in self._doomed | self._gone:
            return True
        if not self._ask(Wish.ADD, node=node, device=event.device).accepted:
            return False
        self._dead_devices.discard(WorkerId(node * self._devices_per_node + event.device))
        self._say(f"device {event.device} of node {node} ({event.node}) is brought back")
        return True

    def _add(self) -> NodeId:
        answer = self._ask(Wish.ADD, count=1)
        if not answer.accepted:
            raise UserError(f"{answer.text}.")
        return NodeId(answer.nodes[0])

    def _stop(self) -> None:
        self._ask(Wish.STOP)

    def _ask(self, wish: Wish, **wanted: Any) -> Answer:
        return ask(Contact.read(self._contact), wish, run=str(self._contact.parent), **wanted)
