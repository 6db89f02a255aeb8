"""Handles users' requests to a running job, on connections of their own: as events of the machine, or refused."""

from __future__ import annotations

import hmac
import time
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from planaria.job.registry import PolicyName
from planaria.job.values import is_url
from planaria.plan.plan import NodeId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.membership.liveness import Liveness
from planaria.protocol.messages.events import Event, NodeNotice, PolicyRequested, SaveRequested, StopRequested
from planaria.protocol.messages.message import decode_first, other_version
from planaria.protocol.messages.records import AnyRecord, NodeJoined, NodeLost, NodeReleased, StepCommitted, StepSkipped
from planaria.protocol.messages.user import (
    EVALUATING,
    Answer,
    GoneNode,
    Request,
    RequestRefused,
    RunDetails,
    RunState,
    Wish,
    decode_request,
)
from planaria.protocol.phases import Phase
from planaria.runtime.thresholds import GONE_SHOWN, MAX_ADDED
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import FrameError
from planaria.runtime.wire.socket_server import SocketServer


class Requests:
    """The requests to one coordinator.

    Args:
        machine: asked for the state; its events go through `handle`.
        token: the job's token.
        socket_server: the way to connections.
        handle: has the machine handle an event.
        start_node: starts one more; None: this is not done from here.
        start_device: starts one of a node again; returns why it does not, or None.
        is_gone: whether a node was lost or released, be it before it had joined.
        liveness: what workers told last.
        most_nodes: at a time; None: as many as are asked for.
        has_own_folders: whether there are nodes that do not see the run folder.
    """

    def __init__(
        self,
        machine: Coordinator,
        token: str,
        socket_server: SocketServer,
        handle: Callable[[Event], None],
        start_node: Callable[[], NodeId] | None,
        start_device: Callable[[NodeId, int], str | None],
        is_gone: Callable[[NodeId], bool],
        liveness: Liveness,
        most_nodes: int | None = None,
        has_own_folders: Callable[[], bool] = lambda: False,
    ) -> None:
        self._machine = machine
        self._token = token
        self._socket_server = socket_server
        self._handle = handle
        self._start_node = start_node
        self._start_device = start_device
        self._is_gone = is_gone
        self._liveness = liveness
        self._most_nodes = most_nodes
        self._has_own_folders = has_own_folders
        self._coming: set[NodeId] = set()
        """Nodes started on request that had neither joined nor been lost when the next request came."""
        self._held_up: deque[tuple[Connection, Request]] = deque()
        self._savers: list[Connection] = []
        """Connections that asked for a checkpoint and wait for it."""
        self._started: tuple[NodeId, ...] = ()
        """Nodes started by the request that is being answered."""
        self._last: StepCommitted | StepSkipped | None = None
        self._joined: dict[int, NodeJoined] = {}
        self._gone: deque[tuple[GoneNode, float]] = deque(maxlen=GONE_SHOWN)
        """The last nodes that went, and when (monotonic seconds)."""

    def note(self, record: AnyRecord) -> None:
        """Notes what users may want to know of a record that is published."""
        match record:
            case StepCommitted() | StepSkipped():
                self._last = record
            case NodeJoined():
                self._joined[record.node] = record
            case NodeLost() | NodeReleased():
                cause = record.cause if isinstance(record, NodeLost) else ""
                came = self._joined.pop(record.node, None)
                zone, label = ("", "") if came is None else (came.zone, came.label)
                gone = GoneNode(node=record.node, zone=zone, cause=cause, ago_s=0.0, label=label)
                self._gone.append((gone, time.monotonic()))
            case _:
                pass

    def _details(self) -> RunDetails:
        now = time.monotonic()
        return RunDetails(
            workers=self._liveness.words(now),
            awaited=self._liveness.awaited,
            gone=tuple(msgspec.structs.replace(gone, ago_s=now - at) for gone, at in self._gone),
            last=self._last,
            memory_bytes=self._machine.settings.memory_bytes,
        )

    def take(self, connection: Connection, frame: bytes) -> bool:
        """Takes a connection's first frame if it is a request.

        Raises:
            FrameError: a request without the job's token, or of another version.
        """
        first = decode_first(frame)
        if first is None or first.kind != "request":
            return False
        if not hmac.compare_digest(first.token.encode(), self._token.encode()):
            raise FrameError("a request without the job's token")
        if (other := other_version("command", first.version)) is not None:
            self._socket_server.say(connection, msgspec.msgpack.encode(RequestRefused(reason=other)))
            raise FrameError(other)
        try:
            request = decode_request(frame)
        except (ValueError, RecursionError):
            return False
        self._answer(connection, request)
        return True

    def answer_held_up(self) -> None:
        """Answers requests held up by a restart, as soon as it is known which workers came back."""
        while self._held_up and not self._machine.awaited:
            connection, request = self._held_up.popleft()
            if not connection.is_closed:
                self._answer(connection, request)

    def answer_saved(self, *, is_over: bool = False) -> None:
        """Answers those that asked for a checkpoint, once its outcome is known or nothing will come of it."""
        answered = self._machine.checkpoints.answered
        if answered is None and not is_over:
            return
        done, text = (answered.is_done, answered.text) if answered else (False, "the run ended before it was saved")
        for connection in self._savers:
            if not connection.is_closed:
                self._say(connection, done, text)
        self._savers.clear()

    def _answer(self, connection: Connection, request: Request) -> None:
        """Does what is asked for, answers, and closes the connection."""
        if self._machine.awaited and request.wish is not Wish.STATUS:
            self._held_up.append((connection, request))
            return
        self._started = ()
        if request.wish is Wish.SAVE and request.folder and not is_url(request.folder) and self._has_own_folders():
            self._say(connection, False, f"nodes do not all see {request.folder}: name a URL (--to)")
            return
        if request.wish is Wish.SAVE and not self._savers:
            self._savers.append(connection)
            self._handle(SaveRequested(request.folder))
            return
        self._say(connection, *self._grant(request), self._details() if request.details else None)

    def _say(self, connection: Connection, accepted: bool, text: str, details: RunDetails | None = None) -> None:
        answer = Answer(accepted=accepted, text=text, state=self._machine.state, nodes=self._started, details=details)
        self._socket_server.say(connection, msgspec.msgpack.encode(answer))
        self._socket_server.hang_up(connection)

    def _grant(self, request: Request) -> tuple[bool, str]:
        state = self._machine.state
        match request.wish:
            case Wish.STATUS:
                return True, ""
            case Wish.STOP:
                self._handle(StopRequested(discards=request.discards))
                if state.unsaved and not request.discards:
                    return True, f"{state.unsaved}. It is tried until it can be; to end without it, add --discard"
                return True, _end(state, discards=request.discards)
            case Wish.SAVE:
                return False, "another request to save is being answered. Ask again when it is"
            case Wish.DRAIN:
                if request.node not in state.nodes:
                    live = ", ".join(map(str, state.nodes))
                    return False, f"node {request.node} is not there. The nodes are {live}"
                self._handle(NodeNotice(NodeId(request.node), request.grace_s, "drained by the user"))
                return True, f"node {request.node} hands over its work and ends after the next steps"
            case Wish.ADD if request.device >= 0:
                return self._add_device(NodeId(request.node), request.device)
            case Wish.ADD:
                return self._add(request.count)
            case Wish.POLICY:
                return self._switch(request.policy, state.policy, state.step)

    def _switch(self, name: str, before: str, step: int) -> tuple[bool, str]:
        refusal = self._machine.refusal(name)
        if refusal is not None:
            return False, refusal
        if name == before:
            return True, f"policy {name} is in force already"
        self._handle(PolicyRequested(PolicyName(name)))
        return True, f"policy {name} makes the plans from now on; the plan in force is looked at after step {step}"

    def _add_device(self, node: NodeId, device: int) -> tuple[bool, str]:
        refusal = self._machine.device_refusal(node, device) or self._start_device(node, device)
        return (False, refusal) if refusal else (True, f"device {device} of node {node} started")

    def _add(self, count: int) -> tuple[bool, str]:
        if self._start_node is None:
            return False, "nodes are not started from here. Run planaria agent on one more"
        if not 1 <= count <= MAX_ADDED:
            return False, f"count = {count}: from 1 to {MAX_ADDED} nodes can be added at once"
        live = self._machine.state.nodes
        self._coming = {node for node in self._coming if node not in live and not self._is_gone(node)}
        there = len(live) + len(self._coming)
        if self._most_nodes is not None and there + count > self._most_nodes:
            return False, (
                f"there are {there} nodes, and this machine is for {self._most_nodes} at most "
                "(cluster.most_workers in the job file)"
            )
        if (no_room := self._machine.no_room(Counter({"": len(self._coming)}), Counter({"": count}))) is not None:
            return False, no_room
        added = self._started = tuple(self._start_node() for _ in range(count))
        self._coming.update(added)
        return True, f"node{'s' if len(added) > 1 else ''} {', '.join(map(str, added))} started"


def _end(state: RunState, *, discards: bool) -> str:
    """Describes how a run ends that is asked to, by its state before."""
    if state.phase == Phase.SAVING and discards:
        return f"the run ends; the state after step {state.step - 1} is not saved"
    if state.phase == Phase.SAVING:
        return f"the run ends once the state after step {state.step - 1} is saved"
    if state.phase in (Phase.GATHERING, Phase.WAITING):
        return "the run ends"
    saved = "" if discards else " and saved"
    if state.phase == EVALUATING:
        return f"the evaluation is finished{saved and f', step {state.step} saved'}, then the run ends"
    return f"step {state.step} is finished{saved}, then the run ends"
