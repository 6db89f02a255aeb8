"""The server around the coordinator's machine: sockets, clock, journal and files. It decides nothing.

One thread, one selector. Every event goes through `_handle`, which carries out the machine's commands in order.
"""

from __future__ import annotations

import hmac
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from planaria.coordinator.agents import Agents
from planaria.coordinator.connection import Connection
from planaria.coordinator.journal import Journal
from planaria.coordinator.manifests import ManifestWriter
from planaria.job.errors import UserError
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.accusations import Accusations
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.events import (
    Command,
    DecisionTook,
    Discard,
    Event,
    Evict,
    Finish,
    NodeGone,
    NodeNotice,
    Publish,
    RanOut,
    Received,
    Release,
    Restarted,
    Send,
    StopRequested,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.isolation import Isolation
from planaria.protocol.journal import JournalEntry
from planaria.protocol.liveness import Limits, Liveness
from planaria.protocol.messages import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Alive,
    CutOff,
    FromWorker,
    Hello,
    Message,
    PlanMessage,
    Stop,
    decode_from_worker,
    encode,
)
from planaria.protocol.past import Past
from planaria.protocol.plan_update import difference
from planaria.protocol.records import AnyRecord, Note
from planaria.protocol.requests import Answer, Request, Wish, decode_request
from planaria.worker.frames import FrameError
from planaria.worker.sockets import watch_over
from planaria.worker.strangers import Strangers

log = logging.getLogger(__name__)

MAX_NODES = 1 << 20
"""Node numbers go up to this; a node that joins later takes the next one."""

BACKLOG = 4096
"""Connections that wait to be accepted: while no coordinator is there, those of all workers."""

MAX_ADDED = 1024
"""Nodes that one request may start."""

TICK_S = 0.1
"""How often workers are judged."""

AWAY_S = 0.5
"""A judge who comes so late was away itself."""

HEARD = 1000
"""Rounds in which what was said is heard before a loss counts; each accepts one connection."""

HELLO_WITHIN_S = 10.0
"""How long a connection may stay that has not shown the job's token."""

GOODBYE_S = 5.0
"""How long workers may take to end after the run before they are killed."""

POINTS = {
    "WorkerJoined": "join",
    "NodeGone": "loss",
    "Vote": "vote",
    "Report": "report",
    "Saved": "save",
    "Returned": "return",
    "ManifestWritten": "manifest",
    "JournalPlan": "plan",
    "JournalCommit": "commit",
    "JournalEnd": "end",
    "PlanMessage": "send",
    "Commit": "tell",
}
"""Where the coordinator may be told to kill itself (`job.faults.COORDINATOR_POINTS`): before an event of this name is
handled, or after a command of this name, or one that sends a message of it, is carried out."""

Observer = Callable[[AnyRecord, float], None]


class Nodes(Protocol):
    """Whoever started the nodes: tells of dead ones, and kills."""

    def fileno(self) -> int:
        """Readable when `lost` has news."""
        ...

    def lost(self) -> list[tuple[NodeId, str]]:
        """Nodes of which a process ended since the last call, each with the cause. Never waits."""
        ...

    def kill(self, node: NodeId) -> None: ...

    def is_runnable(self, node: NodeId) -> bool:
        """Whether the node's processes are known to be there, and not stopped. False where nobody can know."""
        ...

    def all_ended(self) -> bool: ...


def listen(host: str, port: int) -> socket.socket:
    """The coordinator's port. Who owns the socket may be another than who serves it.

    Raises:
        UserError: the port is taken.
    """
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"cluster.port = {port}: cannot listen on {host}:{port} ({error.strerror}). "
            "Choose another port, or 0 for any free one."
        ) from None


class Server:
    """Runs one job's coordinator until it finishes.

    Args:
        machine: the protocol.
        token: what a worker's hello must bear.
        journal: open.
        nodes: the launcher's side.
        observers: get every record.
        write_manifest: makes a checkpoint whole; called in a thread of its own.
        limits: after which a worker counts as hung.
        add_node: starts the node of this number, which joins when it is ready; None: no node can be started.
        past: of the machine, when another coordinator died.
        started: nodes that were started before this server.
        step_began: when the step in progress began, as far as anybody knows (monotonic seconds).
        tell_again: gets records that an earlier coordinator may have published.
        strike: kills this process at the points that the user asked for, see `job.faults.COORDINATOR_POINTS`.
        kernel_kills: whether this machine's kernel killed something for lack of memory in the last seconds.
        agents: of nodes on other hosts; None: all nodes are started by this one.
        patience_s: where agents offer nodes, how long silence is borne when all are silent: the coordinator itself may
            be the one that is cut off.
    """

    def __init__(
        self,
        machine: Coordinator,
        token: str,
        journal: Journal,
        nodes: Nodes,
        observers: Sequence[Observer],
        write_manifest: Callable[[WriteManifest], None],
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        add_node: Callable[[NodeId], None] | None = None,
        past: Past | None = None,
        started: Sequence[NodeId] = (),
        step_began: float | None = None,
        tell_again: Observer = lambda record, time_s: None,
        strike: Callable[[str, int], None] = lambda at, step: None,
        kernel_kills: Callable[[], bool] = lambda: False,
        agents: Agents | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self._machine = machine
        self._token = token
        self._journal = journal
        self._nodes = nodes
        self._observers = tuple(observers)
        self._tell_again = tell_again
        self._strike = strike
        self._manifests = ManifestWriter(write_manifest, self._wake)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[WorkerId, Connection] = {}
        self._evicted: set[NodeId] = set()
        self._released: set[NodeId] = set()
        self._finished: Finish | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wishes: list[str] = []
        self._held_up: deque[tuple[Connection, Request]] = deque()
        self._add_node = add_node
        self._past = past
        self._step_began = step_began
        own = range(machine.settings.num_nodes) if agents is None else ()
        self._started = sorted({*map(NodeId, own), *started})
        numbered = (*self._started, *(past.gone if past else ()), *(past.joined if past else ()))
        self._next_node = max((node + 1 for node in numbered), default=0)
        self._agents = agents
        if agents is not None:
            agents.open(self)
        self._isolation = Isolation(patience_s if agents is not None else 0.0, limits.silence_s)
        self._strangers: Strangers[Connection] = Strangers(self._warn, HELLO_WITHIN_S)
        self._kernel_kills = kernel_kills
        self._liveness = Liveness(limits)
        self._accusations = Accusations()
        self._judged = time.monotonic()
        self._encoded: tuple[Message, PlanMessage | None, bytes] | None = None
        self._listener: socket.socket | None = None

    def start(self, listener: socket.socket) -> None:
        """Serve whoever connects."""
        self._listener = listener
        self._listener.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._woken)
        self._selector.register(self._nodes.fileno(), selectors.EVENT_READ, self._nodes_told)

    def request_stop(self) -> None:
        """Finish the step, save, end. Safe from any thread and from a signal handler."""
        self._wish("stop")

    def abort(self) -> None:
        """End at once."""
        self._wish("abort")

    def _wish(self, wish: str) -> None:
        self._wishes.append(wish)
        self._wake()

    def _wake(self) -> None:
        self._wake_sender.send(b"x")

    def run(self, tell_the_end: Callable[[Finish], None] = lambda finish: None) -> Finish | None:
        """Serve until the run is over and the workers are gone; None when it was aborted.

        Args:
            tell_the_end: called when the run is over.
        """
        if self._past is not None:
            self._handle(Restarted(self._step_began))
            for node in self._past.joined:
                self._await_back(node)
        for node in self._started:
            self._await(node)
        self._nodes_told(None)  # of whoever died while the others were started, and was heard of then
        while self._finished is None:
            for key, _ in self._selector.select(timeout=TICK_S):
                key.data(key.fileobj)
                if "abort" in self._wishes:
                    return None
            self._judge()
        tell_the_end(self._finished)
        deadline = time.monotonic() + GOODBYE_S
        while not self._all_ended() and time.monotonic() < deadline:
            for key, _ in self._selector.select(timeout=0.1):
                key.data(key.fileobj)
                if "abort" in self._wishes:
                    return None
        return self._finished

    def _all_ended(self) -> bool:
        return self._nodes.all_ended() if self._agents is None else self._agents.all_ended()

    def close(self) -> None:
        if self._agents is not None:
            self._agents.dismiss("the run was ended")
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        if self._listener is not None:
            self._listener.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # Where events come from

    def _woken(self, _: object) -> None:
        self._wake_receiver.recv(64)
        if "stop" in self._wishes:
            self._wishes = [wish for wish in self._wishes if wish != "stop"]
            self._handle(StopRequested())
        while answer := self._manifests.take():
            self._handle(answer)
        self._nodes_told(None)

    def _nodes_told(self, _: object) -> None:
        lost = self._nodes.lost()
        if lost:
            self._hear_first()
        for node, cause in lost:
            self._lose(node, cause)

    def _hear_first(self) -> None:
        """What the dead said with their last breath waits in sockets, some of which nobody has accepted yet."""
        others = (self._nodes.fileno(), self._wake_receiver.fileno())
        for _ in range(HEARD):
            ready = [key for key, _ in self._selector.select(timeout=0) if key.fd not in others]
            if not ready:
                return
            for key in ready:
                key.data(key.fileobj)

    def _accept(self, _: object) -> None:
        assert self._listener is not None
        try:
            sock, _address = self._listener.accept()
        except OSError:
            oldest = self._strangers.oldest()
            if oldest is not None:  # too many files are open, most likely: make room
                self._send_away(oldest, "too many files are open")
            return
        sock.setblocking(False)
        watch_over(sock)
        connection = Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, lambda _: self._readable(connection))
        too_many = self._strangers.came(connection, time.monotonic())
        if too_many is not None:
            self._send_away(too_many, "too many connections do not show the job's token")

    def _readable(self, connection: Connection) -> None:
        if connection.is_closed:
            return  # by another event of the same batch
        if connection.wants_to_send:
            self._flush(connection)
        try:
            for frame in connection.receive():
                self._take(connection, frame)
        except EOFError:
            self._drop(connection, "connection closed")
        except FrameError as error:
            if connection.worker is not None:
                log.warning("worker %d sent what is not a message: %s", connection.worker, error)
            else:
                self._strangers.refused(str(error))
            self._drop(connection, "it sent what is not a message")

    def _take(self, connection: Connection, frame: bytes) -> None:
        """Raises FrameError for what is not a message; what the machine raises is our own mistake, and goes through."""
        if self._agents is not None and self._agents.take(connection, frame):
            self._strangers.gone(connection)
            return
        request = self._request(frame) if connection.worker is None else None
        if request is not None:
            self._answer(connection, request)
            return
        try:
            message = decode_from_worker(frame)
        except (ValueError, RecursionError) as error:
            raise FrameError(str(error)) from error
        if connection.worker is None:
            self._welcome(connection, message)
        elif isinstance(message, Hello):
            raise FrameError("a second hello")
        elif isinstance(message, Alive):
            self._liveness.felt(connection.worker, message.pulse, time.monotonic(), message.worked_s)
        elif isinstance(message, CutOff):
            self._cut_off(connection.worker, message.peer)
        elif not connection.is_closed:
            self._handle(Received(connection.worker, message))

    def _welcome(self, connection: Connection, hello: FromWorker) -> None:
        """The first message must be a hello with our token and version."""
        if not isinstance(hello, Hello) or not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise FrameError("no hello with the job's token")
        settings = self._machine.settings
        node = NodeId(hello.worker // settings.devices_per_node)
        refusal = None
        if hello.version != PROTOCOL_VERSION:
            refusal = f"protocol version {hello.version}; this coordinator speaks {PROTOCOL_VERSION}"
        elif not 0 <= node < MAX_NODES:
            refusal = f"the job has no worker {hello.worker}"
        elif node in self._evicted or hello.worker in self._connections:
            refusal = f"node {node} was lost and is fenced"
        if refusal is not None:
            connection.send(encode(Stop(reason=refusal)))
            connection.flush()
            raise FrameError(refusal)
        connection.worker = hello.worker
        connection.limit_bytes = MAX_FRAME_BYTES
        self._strangers.gone(connection)
        self._connections[hello.worker] = connection
        self._next_node = max(self._next_node, node + 1)
        self._liveness.joined(hello.worker, time.monotonic())
        self._handle(WorkerJoined(hello.worker, hello.data_address))

    # A user's requests

    def _request(self, frame: bytes) -> Request | None:
        """The request that a first frame is, if it is one with our token and version."""
        try:
            request = decode_request(frame)
        except (ValueError, RecursionError):
            return None
        if not hmac.compare_digest(request.token.encode(), self._token.encode()):
            raise FrameError("a request without the job's token")
        if request.version != PROTOCOL_VERSION:
            raise FrameError(f"a request of protocol version {request.version}")
        return request

    def _answer(self, connection: Connection, request: Request) -> None:
        """Do what is asked for, answer, and close; as soon as it is known which workers came back."""
        if self._machine.awaited and request.wish is not Wish.STATUS:
            self._held_up.append((connection, request))
            return
        accepted, text = self._grant(request)
        answer = Answer(accepted=accepted, text=text, state=self._machine.state)
        connection.send(msgspec.msgpack.encode(answer))
        connection.flush()
        self._close(connection)

    def _answer_held_up(self) -> None:
        while self._held_up and not self._machine.awaited:
            connection, request = self._held_up.popleft()
            if not connection.is_closed:
                self._answer(connection, request)

    def _grant(self, request: Request) -> tuple[bool, str]:
        state = self._machine.state
        match request.wish:
            case Wish.STATUS:
                return True, ""
            case Wish.STOP:
                self._handle(StopRequested())
                return True, f"step {state.step} is finished and saved, then the run ends"
            case Wish.DRAIN:
                if request.node not in state.nodes:
                    live = ", ".join(map(str, state.nodes))
                    return False, f"node {request.node} is not there. The nodes are {live}"
                self._handle(NodeNotice(NodeId(request.node), request.grace_s, "drained by the user"))
                return True, f"node {request.node} hands over its work and ends after the next steps"
            case Wish.ADD:
                if self._agents is not None:
                    return False, "nodes are not started from here. Run planaria agent on one more"
                if self._add_node is None:
                    return False, "this launcher starts no nodes while a job runs"
                if not 1 <= request.count <= MAX_ADDED:
                    return False, f"count = {request.count}: from 1 to {MAX_ADDED} nodes can be added at once"
                added = [NodeId(self._next_node + at) for at in range(request.count)]
                for node in added:
                    self._next_node = node + 1
                    self._add_node(node)
                    self._await(node)
                self._wake_sender.send(b"x")  # of whoever died meanwhile, somebody was told
                return True, f"node{'s' if len(added) > 1 else ''} {', '.join(map(str, added))} started"

    def _cut_off(self, worker: WorkerId, peer: WorkerId) -> None:
        """A peer that is lost is no news. Of two that live, one has to go."""
        devices = self._machine.settings.devices_per_node
        node, other = NodeId(worker // devices), NodeId(peer // devices)
        # A peer that is not here yet, or not yet back, is waited for: if anybody is out of reach, it is.
        if peer in self._connections and other not in self._evicted:
            is_other = self._accusations.judge(node, other) == other
            self._lose(other if is_other else node, f"cut off from worker {worker if is_other else peer}")

    def _drop(self, connection: Connection, cause: str) -> None:
        if connection.is_closed:
            return
        self._close(connection)
        if self._agents is not None:
            self._agents.dropped(connection)
        worker = connection.worker
        if worker is not None and self._connections.get(worker) is connection:
            del self._connections[worker]
            self._liveness.forget(worker, time.monotonic())
            node = NodeId(worker // self._machine.settings.devices_per_node)
            self._lose(node, cause)
            if node in self._released and self._connections.keys().isdisjoint(self._workers_of(node)):
                self._handle(NodeGone(node, cause))  # what it said before it went has been heard

    def _lose(self, node: NodeId, cause: str) -> None:
        if node not in self._evicted:
            ran_out = RanOut() if self._kernel_kills() else None
            cause = cause if ran_out is None else "killed by the kernel for lack of memory"
            self._handle(NodeGone(node, cause, ran_out))

    def _await(self, node: NodeId) -> None:
        """The node was started; workers that have joined already are not waited for."""
        for worker in self._workers_of(node):
            if not self._liveness.knows(worker) and node not in self._evicted:
                self._liveness.started(worker, time.monotonic())

    def _await_back(self, node: NodeId) -> None:
        """It was there before: if it is there now, it comes within the time for which anybody may be silent."""
        for worker in self._workers_of(node):
            self._liveness.joined(worker, time.monotonic())

    def _judge(self) -> None:
        """Lose the nodes whose workers are silent or hang."""
        now = time.monotonic()
        if now - self._judged < TICK_S:
            return
        if now - self._judged > AWAY_S:
            self._liveness.excuse(now)
        self._judged = now
        self._kernel_kills()
        for stranger in self._strangers.overdue(now):
            self._send_away(stranger, "it did not show the job's token in time")
        self._strangers.tell(now)
        if self._isolation.holds(self._liveness.quiet_s(now)):
            return
        if lasted_s := self._isolation.ended():
            self._liveness.excuse(now + lasted_s)
        devices = self._machine.settings.devices_per_node
        for worker, silence_s in list(self._liveness.silent(now)):
            node = NodeId(worker // devices)
            runnable = self._agents is None and self._nodes.is_runnable(node)
            if self._liveness.is_gone(silence_s, runnable=runnable):
                self._lose(node, f"silent for {silence_s:.1f} s")
        for worker, waited_s in list(self._liveness.late(now)):
            self._lose(NodeId(worker // devices), f"did not join within {waited_s:.0f} s")
        expected = self._machine.timing.expectation
        for worker, cause in list(self._liveness.hung(now, expected.instruction_s, expected.step_s)):
            self._lose(NodeId(worker // devices), cause)

    # Commands

    def _handle(self, event: Event) -> None:
        self._pass(event)
        began = time.monotonic()
        commands = self._machine.handle(event, began)
        took = time.monotonic() - began
        for command in commands:
            self._carry_out(command)
            self._pass(command)
        decided = any(isinstance(c, Send) and isinstance(c.message, PlanMessage) for c in commands)
        if decided and self._finished is None:
            self._machine.handle(DecisionTook(took), time.monotonic())
        self._answer_held_up()

    def _pass(self, thing: Event | Command) -> None:
        """A point at which the user may want this process to die."""
        what = thing.message if isinstance(thing, Received | Send) else thing
        if at := POINTS.get(type(what).__name__):
            self._strike(at, getattr(what, "step", self._machine.step))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send(worker, message):
                self._send(worker, message)
            case JournalEntry():
                self._journal.write(command)
            case Publish(record, again=True):
                self._tell_again(record, time.time())
            case Publish(record):
                now = time.time()
                for observer in self._observers:
                    observer(record, now)
            case Evict(node):
                self._evict(node)
            case Release(node):
                self._evicted.add(node)
                self._released.add(node)
            case WriteManifest() | Discard():
                self._manifests.order(command)
            case Finish():
                self._finished = command
                if self._agents is not None:
                    self._agents.dismiss("the run is over")

    def _send(self, worker: WorkerId, message: Message) -> None:
        connection = self._connections.get(worker)
        if connection is None:
            return
        before = connection.plan
        if isinstance(message, PlanMessage):
            connection.plan = message
        else:
            before = None
        if self._encoded is None or self._encoded[0] is not message or self._encoded[1] is not before:
            update = difference(before, message) if before and isinstance(message, PlanMessage) else None
            self._encoded = (message, before, encode(update or message))
        connection.send(self._encoded[2])
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        """Send what can be sent, and watch for room only while something is left."""
        left = connection.flush()
        if left != connection.is_watched_for_room:
            connection.is_watched_for_room = left
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
            self._selector.modify(connection.socket, events, lambda _: self._readable(connection))

    def _evict(self, node: NodeId) -> None:
        self._evicted.add(node)
        self._nodes.kill(node)
        if self._agents is not None:
            self._agents.kill(node)
        for worker in self._workers_of(node):
            if worker in self._connections:
                self._close(self._connections.pop(worker))
            self._liveness.forget(worker, time.monotonic())

    def _workers_of(self, node: NodeId) -> list[WorkerId]:
        devices = self._machine.settings.devices_per_node
        return [WorkerId(node * devices + device) for device in range(devices)]

    def _send_away(self, stranger: Connection, reason: str) -> None:
        self._strangers.refused(reason)
        self._drop(stranger, reason)

    def _warn(self, text: str) -> None:
        for observer in self._observers:
            observer(Note(level="warning", text=text), time.time())

    # For agents, see `coordinator.agents.Desk`

    def new_node(self) -> NodeId:
        node = NodeId(self._next_node)
        self._next_node += 1
        self._await(node)
        return node

    def may_run(self, node: NodeId) -> bool:
        self._next_node = max(self._next_node, node + 1)
        return node not in self._evicted

    def was_released(self, node: NodeId) -> bool:
        return node in self._released

    def lost(self, node: NodeId, cause: str) -> None:
        """All processes of the node ended. Those that joined said why, and their connections end after that.

        Of a node that never joined the machine does not know: it goes on waiting for so many nodes.
        """
        if self._finished is not None or node in self._evicted:
            return
        if self._connections.keys().isdisjoint(self._workers_of(node)):
            self._evict(node)
            self._warn(f"node {node} ended before it had joined ({cause}). Look into the logs of its workers.")

    def say(self, connection: Connection, body: bytes) -> None:
        if not connection.is_closed:
            connection.send(body)
            self._flush(connection)

    def hang_up(self, connection: Connection) -> None:
        if not connection.is_closed:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._strangers.gone(connection)
        self._selector.unregister(connection.socket)
        connection.close()
