"""The server around the coordinator's machine: where its events come from, and the order in which they count.

One thread. Every event goes through `_handle`, which has the machine's commands carried out in order. It decides
nothing: who may come in, and who is lost, is said by `protocol.admission` and `protocol.judge`.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from planaria.coordinator.agents import Agents
from planaria.coordinator.connection import Connection
from planaria.coordinator.executor import Executor, Observer
from planaria.coordinator.journal import Journal
from planaria.coordinator.manifests import ManifestWriter
from planaria.coordinator.nodes import Nodes
from planaria.coordinator.requests import Requests
from planaria.coordinator.switchboard import Switchboard
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.admission import Admission
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.doubts import Doubts, Unproven
from planaria.protocol.enrolment import Farewell
from planaria.protocol.events import (
    Command,
    DecisionTook,
    Event,
    Finish,
    Idle,
    NodeGone,
    PieceTook,
    RanOut,
    Received,
    Restarted,
    Send,
    StopRequested,
    TimerDue,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.judge import TICK_S, Judge
from planaria.protocol.liveness import Limits
from planaria.protocol.messages import (
    MAX_FRAME_BYTES,
    Alive,
    Challenge,
    CutOff,
    FromWorker,
    Hello,
    PlanMessage,
    Proof,
    Stop,
    decode_from_worker,
    encode,
)
from planaria.protocol.past import Past
from planaria.worker.control_frames import FrameError, Unwanted

GOODBYE_S = 5.0
"""How long workers may take to end after the run before they are killed."""

REST = 1.0
"""After a piece of a decision in advance, it rests for so many times as long: workers may need the processor. Not after
one of a decision that is certain to be needed."""

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
        past: of the machine, when another coordinator died.
        started: nodes that were started before this server.
        step_began: when the step in progress began, as far as anybody knows (monotonic seconds).
        gone_at: when nodes were gone, likewise.
        tell_again: gets records that an earlier coordinator may have published.
        strike: kills this process at the points that the user asked for, see `job.faults.COORDINATOR_POINTS`.
        kernel_kills: whether this machine's kernel killed something for lack of memory in the last seconds.
        agents: of nodes on other hosts; None: all nodes are started by this one.
        patience_s: where agents offer nodes, how long silence is borne when all are silent: the coordinator itself may
            be the one that is cut off.
        data: hash of the tokens that every worker must have; "": there are none.
        most_nodes: that are started from here at a time, on the user's order; None: as many as are asked for.
        mark: of the run, which a worker's hello must bear.
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
        past: Past | None = None,
        started: Sequence[NodeId] = (),
        step_began: float | None = None,
        gone_at: Mapping[NodeId, float] | None = None,
        tell_again: Observer = lambda record, time_s: None,
        strike: Callable[[str, int], None] = lambda at, step: None,
        kernel_kills: Callable[[], bool] = lambda: False,
        agents: Agents | None = None,
        patience_s: float = 0.0,
        most_nodes: int | None = None,
        data: str = "",
        mark: str = "",
    ) -> None:
        self._machine = machine
        self._token = token
        self._nodes = nodes
        self._agents = agents
        self._past = past
        self._step_began = step_began
        self._gone_at = gone_at or {}
        self._strike = strike
        self._kernel_kills = kernel_kills
        own = range(machine.settings.num_nodes) if agents is None else ()
        self._started = sorted({*map(NodeId, own), *started})
        self._wishes: list[str] = []
        self._rests_until = 0.0
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)

        self._admission: Admission[Connection] = Admission(machine.settings.devices_per_node, data=data, mark=mark)
        for node in (*self._started, *(past.gone if past else ()), *(past.joined if past else ())):
            self._admission.took_number(node)
        self._doubts: Doubts[Connection] = Doubts(past.joined if past else ())
        self._judge = Judge(self._admission, limits, patience_s if agents is not None else 0.0, time.monotonic())
        self._switchboard = Switchboard(self._take, self._ended, lambda text: self._executor.warn(text))
        self._manifests = ManifestWriter(write_manifest, self._wake)
        self._executor = Executor(
            self._switchboard,
            self._admission,
            self._judge,
            nodes,
            agents,
            journal,
            self._manifests,
            observers,
            tell_again,
        )
        start_node = self._start_node if agents is None else None
        is_gone = self._admission.is_fenced
        self._requests = Requests(machine, token, self._switchboard, self._handle, start_node, is_gone, most_nodes)
        if agents is not None:
            agents.open(self)

    def start(self, listener: socket.socket) -> None:
        """Serve whoever connects."""
        self._switchboard.open(listener)
        self._switchboard.watch(self._wake_receiver.fileno(), self._woken)
        self._switchboard.watch(self._nodes.fileno(), self._nodes_told)

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
        self._begin()
        while self._executor.finished is None:
            self._switchboard.serve(self._idle())
            if "abort" in self._wishes:
                return None
            self._look_at_the_clock()
        self._requests.answer_saved(is_over=True)
        tell_the_end(self._executor.finished)
        deadline = time.monotonic() + GOODBYE_S
        while not self._all_ended() and time.monotonic() < deadline:
            self._switchboard.serve(TICK_S)
            if "abort" in self._wishes:
                return None
        return self._executor.finished

    def _idle(self) -> float:
        """Prepare a decision if there is time; returns the seconds for which there is nothing to do."""
        now = time.monotonic()
        if now < self._rests_until:
            return min(TICK_S, self._rests_until - now)
        if not self._machine.thinks(now):
            return TICK_S
        rest = 0.0 if self._machine.hurries else REST
        self._machine.handle(Idle(), now)
        took = time.monotonic() - now
        self._machine.handle(PieceTook(took), now + took)
        self._rests_until = now + (1 + rest) * took
        return 0.0

    def _begin(self) -> None:
        if self._past is not None:
            self._handle(Restarted(self._step_began, self._gone_at))
            for node in self._past.joined:
                self._judge.expect_back(node, time.monotonic())
        for node in self._started:
            self._judge.expect(node, time.monotonic())
        self._nodes_told()  # of whoever died while the others were started, and was heard of then

    def _all_ended(self) -> bool:
        return self._nodes.all_ended() if self._agents is None else self._agents.all_ended()

    def close(self) -> None:
        if self._agents is not None and self._executor.finished is None:
            self._agents.dismiss(Farewell.SUSPENDED)
        self._switchboard.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # Where events come from

    def _woken(self) -> None:
        self._wake_receiver.recv(64)
        if "stop" in self._wishes:
            self._wishes = [wish for wish in self._wishes if wish != "stop"]
            self._handle(StopRequested())
        while answer := self._manifests.take():
            self._handle(answer)
        self._nodes_told()

    def _nodes_told(self) -> None:
        lost = self._nodes.lost()
        if lost:
            self._switchboard.hear_all()
        for node, cause in lost:
            self._lose(node, cause)

    def _take(self, connection: Connection, frame: bytes) -> None:
        """Raises FrameError for what is not a message; what the machine raises is our own mistake, and goes through."""
        if self._agents is not None and self._agents.take(connection, frame):
            self._switchboard.trust(connection)
            return
        if connection.worker is None and self._requests.take(connection, frame):
            return
        try:
            message = decode_from_worker(frame)
        except (ValueError, RecursionError) as error:
            raise FrameError(str(error)) from error
        if self._doubts.is_asked(connection):
            self._hear_doubtful(connection, message)
        elif connection.worker is None:
            self._welcome(connection, message)
        else:
            self._hear(connection.worker, message)

    def _hear(self, worker: WorkerId, message: FromWorker) -> None:
        """Raises FrameError for what nobody may say twice."""
        if isinstance(message, Hello):
            raise FrameError("a second hello")
        if isinstance(message, Alive):
            self._judge.liveness.felt(worker, message.pulse, time.monotonic(), message.worked_s)
        elif isinstance(message, CutOff):
            verdict = self._judge.cut_off(worker, message.peer)
            if verdict is not None:
                self._lose(*verdict)
        else:
            self._handle(Received(worker, message))

    def _welcome(self, connection: Connection, hello: FromWorker) -> None:
        """The first message must be a hello with our token, of somebody who may take part."""
        if not isinstance(hello, Hello) or not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise FrameError("no hello with the job's token")
        refusal = self._admission.refusal(hello)
        if refusal is not None:
            self._switchboard.say(connection, encode(Stop(reason=refusal)))
            is_fenced = self._admission.is_fenced(self._admission.node_of(hello.worker))
            is_ours = is_fenced or self._admission.is_of_another_run(hello)
            raise Unwanted(refusal) if is_ours else FrameError(refusal)
        if (other := self._admission.other_data(hello)) is not None:
            self._turn_away(connection, self._admission.node_of(hello.worker), other)
            raise Unwanted(other)
        connection.limit_bytes = MAX_FRAME_BYTES
        if self._doubts.about(self._admission.node_of(hello.worker)):
            nonce = secrets.token_hex(16)
            self._doubts.ask(connection, hello, nonce)
            self._switchboard.say(connection, encode(Challenge(nonce=nonce)))
        else:
            self._admit(connection, hello)

    def _turn_away(self, connection: Connection, node: NodeId, reason: str) -> None:
        """A node of ours that may not take part, and would not if it came again."""
        self._executor.warn(f"{reason}.")
        self._switchboard.say(connection, encode(Stop(reason=reason)))
        if self._agents is not None:
            self._agents.refuse(node, reason)
        self._lose(node, reason)

    def _hear_doubtful(self, connection: Connection, message: FromWorker) -> None:
        """Raises FrameError for what is no proof in place of one."""
        try:
            if not isinstance(message, Proof):
                self._doubts.hold(connection, message)
                return
            hello, held = self._doubts.proven(connection, message.nonce)
        except Unproven as error:
            raise FrameError(str(error)) from error
        refusal = self._admission.refusal(hello)  # it may have been given up meanwhile
        if refusal is not None:
            self._switchboard.say(connection, encode(Stop(reason=refusal)))
            raise Unwanted(refusal)
        self._admit(connection, hello)
        for earlier in held:
            if not connection.is_closed:
                self._hear(hello.worker, earlier)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        connection.worker = hello.worker
        self._switchboard.trust(connection)
        self._admission.admit(hello.worker, connection)
        self._judge.liveness.joined(hello.worker, time.monotonic())
        self._handle(WorkerJoined(hello.worker, hello.data_address, hello.zone))

    def _ended(self, connection: Connection, cause: str) -> None:
        """A connection is gone."""
        self._doubts.forget(connection)
        if self._agents is not None:
            self._agents.dropped(connection)
        worker = connection.worker
        if worker is not None and self._admission.left(worker, connection):
            self._judge.liveness.forget(worker, time.monotonic())
            node = self._admission.node_of(worker)
            self._lose(node, cause)
            if self._admission.was_released(node) and self._admission.is_empty(node):
                self._handle(NodeGone(node, cause))  # what it said before it went has been heard

    def _lose(self, node: NodeId, cause: str) -> None:
        if not self._admission.is_fenced(node):
            ran_out = RanOut() if self._kernel_kills() else None
            cause = cause if ran_out is None else "killed by the kernel for lack of memory"
            self._handle(NodeGone(node, cause, ran_out))

    def _look_at_the_clock(self) -> None:
        """Lose the nodes whose workers are silent or hang."""
        now = time.monotonic()
        timer_s = self._executor.timer_s
        if timer_s is not None and now >= timer_s:
            self._executor.timer_s = None
            self._handle(TimerDue())
        if not self._judge.is_due(now):
            return
        self._kernel_kills()  # asked now and then, so that it sees when a count rises
        self._switchboard.send_strangers_away(now)
        for node, cause in self._judge.verdicts(now, self._is_runnable, lambda: self._machine.timing.expectation):
            self._lose(node, cause)

    def _is_runnable(self, node: NodeId) -> bool:
        return self._agents is None and self._nodes.is_runnable(node)

    def _handle(self, event: Event) -> None:
        self._pass(event)
        began = time.monotonic()
        commands = self._machine.handle(event, began)
        took = time.monotonic() - began
        for command in commands:
            self._executor.carry_out(command)
            self._pass(command)
        decided = any(isinstance(c, Send) and isinstance(c.message, PlanMessage) for c in commands)
        if decided and self._executor.finished is None:
            for command in self._machine.handle(DecisionTook(took), time.monotonic()):
                self._executor.carry_out(command)
        self._requests.answer_held_up()
        self._requests.answer_saved()

    def _pass(self, thing: Event | Command) -> None:
        """A point at which the user may want this process to die."""
        what = thing.message if isinstance(thing, Received | Send) else thing
        if at := POINTS.get(type(what).__name__):
            self._strike(at, getattr(what, "step", self._machine.step))

    def _start_node(self) -> NodeId:
        """On the user's order."""
        node = self._admission.new_number()
        self._nodes.start(node)
        self._judge.expect(node, time.monotonic())
        self._wake()  # of whoever died meanwhile, somebody was told
        return node

    # For agents, see `coordinator.agents.Desk`

    def new_node(self) -> NodeId:
        node = self._admission.new_number()
        self._judge.expect(node, time.monotonic())
        return node

    def may_run(self, node: NodeId) -> bool:
        self._admission.took_number(node)
        return not self._admission.is_fenced(node)

    def was_released(self, node: NodeId) -> bool:
        return self._admission.was_released(node)

    def lost(self, node: NodeId, cause: str) -> None:
        """All processes of the node ended. Those that joined said why, and their connections end after that.

        Of a node that never joined the machine does not know: it goes on waiting for so many nodes.
        """
        if self._executor.finished is not None or self._admission.is_fenced(node):
            return
        if self._admission.is_empty(node):
            self._executor.evict(node)
            self._executor.warn(f"node {node} ended before it had joined ({cause}). Look into the logs of its workers.")

    def say(self, connection: Connection, body: bytes) -> None:
        self._switchboard.say(connection, body)

    def hang_up(self, connection: Connection) -> None:
        self._switchboard.hang_up(connection)
