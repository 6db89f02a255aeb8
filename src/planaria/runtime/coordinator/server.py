"""The server around the coordinator's machine: where its events come from, and the order in which they count.

One thread. Every event goes through `handle`, which has the machine's commands carried out in order. It decides
nothing: what counts of what comes on a connection is said by `protocol.reception`.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from planaria.checkpoint.retries import RetryNews, heard_by
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.failure_detector import Judge
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.agent import Farewell
from planaria.protocol.messages.events import (
    Command,
    Event,
    Finish,
    LinksMeasured,
    RanOut,
    Received,
    Restarted,
    Send,
    StopRequested,
    TimerDue,
    WriteManifest,
)
from planaria.protocol.messages.from_worker import Hello, StoreTried, decode_from_worker
from planaria.protocol.messages.message import MAX_FRAME_BYTES, encode
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.messages.to_worker import Challenge, Stop
from planaria.protocol.phases import Phase
from planaria.protocol.reception import Nonsense, Reception, Unwanted
from planaria.protocol.run.replay import JournalState
from planaria.protocol.thresholds import DETECTOR_TICK_S, DEVICE_ALONE_S
from planaria.runtime.coordinator.agents import Agents
from planaria.runtime.coordinator.executor import Executor, Observer
from planaria.runtime.coordinator.kernel_kills import KernelKills
from planaria.runtime.coordinator.manifests import ManifestWriter
from planaria.runtime.coordinator.nodes import Nodes
from planaria.runtime.coordinator.prices import Prices
from planaria.runtime.coordinator.requests import Requests
from planaria.runtime.journal.journal import Journal
from planaria.runtime.thresholds import GOODBYE_S
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.socket_server import SocketServer
from planaria.runtime.wire.tls import Security

POINTS = {
    "WorkerJoined": "join",
    "NodeGone": "loss",
    "Vote": "vote",
    "Report": "report",
    "Saved": "save",
    "Returned": "return",
    "ManifestWritten": "manifest",
    "JournalEvaluation": "evaluated",
    "JournalPlan": "plan",
    "JournalCommit": "commit",
    "JournalEnd": "end",
    "PlanMessage": "send",
    "Commit": "tell",
}
"""Points at which the coordinator may be told to kill itself (`job.faults.COORDINATOR_POINTS`): before an event of this
name is handled, or after a command of this name, or one that sends a message of it, is carried out."""


class Server(Reception[Connection]):
    """Runs one job's coordinator until it finishes.

    Args:
        machine: the protocol.
        token: what a worker's hello must bear.
        journal: the open journal.
        nodes: the launcher's side.
        observers: functions that get every record.
        write_manifest: makes a checkpoint whole; called in a thread of its own.
        limits: after which a worker counts as hung.
        past: of the machine, when another coordinator died.
        started: nodes that were started before this server.
        step_began: when the step in progress began, as far as anybody knows (monotonic seconds).
        gone_at: when nodes were gone, likewise.
        tell_again: gets records that an earlier coordinator may have published.
        strike: kills this process at the points that the user asked for, see `job.faults.COORDINATOR_POINTS`.
        kernel_kills: what this machine's kernel kills for lack of memory; None: nothing is known of that.
        agents: of nodes on other hosts; None: all nodes are started by this one.
        patience_s: where agents offer nodes, how long silence is borne when all are silent: the coordinator itself may
            be the one that is cut off.
        data: hash of the tokens that every worker must have; "": there are none.
        most_nodes: that are started from here at a time, on the user's order; None: as many as are asked for.
        mark: of the run, which a worker's hello must bear.
        security: what connections have to show, and are shown; None: they are plain.
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
        past: JournalState | None = None,
        started: Sequence[NodeId] = (),
        step_began: float | None = None,
        gone_at: Mapping[NodeId, float] | None = None,
        tell_again: Observer = lambda record, time_s: None,
        strike: Callable[[str, int], None] = lambda at, step: None,
        kernel_kills: KernelKills | None = None,
        agents: Agents | None = None,
        patience_s: float = 0.0,
        most_nodes: int | None = None,
        data: str = "",
        mark: str = "",
        security: Security | None = None,
    ) -> None:
        self._token = token
        self._nodes = nodes
        self._agents = agents
        self._step_began = step_began
        self._gone_at = gone_at or {}
        self._strike = strike
        self._kernel_kills = kernel_kills or KernelKills(())
        own = range(machine.settings.num_nodes) if agents is None else ()
        self._started = sorted({*map(NodeId, own), *started})
        self._wishes: list[str] = []
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)

        admission: Admission[Connection] = Admission(machine.settings.devices_per_node, data=data, mark=mark)
        judge = Judge(admission, limits, patience_s if agents is not None else 0.0, time.monotonic())
        super().__init__(machine, admission, judge, past)
        for node in (*self._started, *(past.gone if past else ()), *(past.joined if past else ())):
            self._admission.took_number(node)
        nodes_at_once = machine.settings.most_nodes or machine.settings.num_nodes
        self._socket_server = SocketServer(
            self._take,
            self._ended,
            lambda text: self._executor.warn(text),
            security,
            expected=nodes_at_once * (1 + machine.settings.devices_per_node),
        )
        self._manifests = ManifestWriter(write_manifest, self._wake)
        self._prices = Prices(machine.settings.budget, self._wake)
        self._retries = RetryNews()
        self._own_retries: deque[StoreTried] = deque()
        self._executor = Executor(
            self._socket_server,
            self._admission,
            agents,
            journal,
            self._manifests,
            (*observers, lambda record, time_s: self._requests.note(record), *([agents.hear] if agents else [])),
            tell_again,
        )
        self._requests = Requests(
            machine,
            token,
            self._socket_server,
            self.handle,
            self._start_node if agents is None else None,
            self._start_device,
            self._admission.is_fenced,
            judge.liveness,
            most_nodes,
            lambda: agents is not None and agents.has_own_folders,
        )
        if agents is not None:
            agents.open(self)

    def start(self, listener: socket.socket) -> None:
        """Accepts whoever connects."""
        self._socket_server.open(listener)
        self._socket_server.watch(self._wake_receiver.fileno(), self._woken)
        self._socket_server.watch(self._nodes.fileno(), self._nodes_told)
        self._prices.start()

    def request_stop(self) -> None:
        """Asks the run to finish its step, save and end. Safe from any thread and from a signal handler."""
        self._wish("stop")

    def abort(self) -> None:
        """Ends the run at once."""
        self._wish("abort")

    def _wish(self, wish: str) -> None:
        self._wishes.append(wish)
        self._wake()

    def _wake(self) -> None:
        self._wake_sender.send(b"x")

    def run(self, tell_the_end: Callable[[Finish], None] = lambda finish: None) -> Finish | None:
        """Serves until the run is over and the workers are gone; returns None when it was aborted.

        Args:
            tell_the_end: called when the run is over.
        """
        self._begin()
        with heard_by(self._hear_of_own_retry):
            while self._executor.finished is None:
                self._socket_server.serve(self._wait())
                if "abort" in self._wishes:
                    return None
                self._executor.tell_waiting()
                self._look_at_the_clock()
        self._requests.answer_saved(is_over=True)
        tell_the_end(self._executor.finished)
        deadline = time.monotonic() + GOODBYE_S
        while not self._all_ended() and time.monotonic() < deadline:
            self._socket_server.serve(DETECTOR_TICK_S)
            if "abort" in self._wishes:
                return None
        return self._executor.finished

    def _wait(self) -> float:
        """Returns the seconds for which what arrives may be waited for."""
        if self._executor.has_waiting:
            return 0.0
        idle_s = self._think()
        return min(idle_s, DEVICE_ALONE_S) if self._is_anybody_alone else idle_s

    def _begin(self) -> None:
        self.begin(self._started, Restarted(self._step_began, self._gone_at))
        self._nodes_told()  # of whoever died while the others were started, and was heard of then

    def _all_ended(self) -> bool:
        return self._nodes.all_ended() if self._agents is None else self._agents.all_ended()

    def close(self) -> None:
        if self._agents is not None and self._executor.finished is None:
            self._agents.dismiss(Farewell.SUSPENDED)
        self._prices.close()
        self._socket_server.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # Where events come from

    def _woken(self) -> None:
        self._wake_receiver.recv(64)
        if "stop" in self._wishes:
            self._wishes = [wish for wish in self._wishes if wish != "stop"]
            self.handle(StopRequested())
        while answer := self._manifests.take():
            self.handle(answer)
        while (price := self._prices.take()) is not None:
            if isinstance(price, str):
                self._executor.warn(price)
            else:
                self.handle(price)
        while self._own_retries:
            self._tell_of_retry(self._own_retries.popleft())
        self._nodes_told()

    def _hear_of_own_retry(self, said: StoreTried) -> None:
        """Hears of a call of this process to a store, in the thread that makes it."""
        self._own_retries.append(said)
        self._wake()

    def _tell_of_retry(self, said: StoreTried, worker: WorkerId | None = None) -> None:
        if (told := self._retries.take(said, time.monotonic(), worker)) is not None:
            self._executor.tell(*told)

    def _nodes_told(self) -> None:
        lost = self._nodes.lost()
        if lost:
            self._socket_server.hear_all()
        for worker, cause in lost:
            self.lose_worker(worker, cause)

    def _take(self, connection: Connection, frame: bytes) -> None:
        """Handles a frame from an agent, a user or a worker. Raises the errors that `SocketServer` knows."""
        if self._agents is not None and self._agents.take(connection, frame):
            self._socket_server.trust(connection)
            return
        if connection.worker is None and self._requests.take(connection, frame):
            return
        try:
            message = decode_from_worker(frame)
        except (ValueError, RecursionError) as error:
            raise Nonsense(str(error)) from error
        self._receive(connection, message)

    def _now(self) -> float:
        return time.monotonic()

    def _new_nonce(self) -> str:
        return secrets.token_hex(16)

    def _say(self, connection: Connection, message: Stop | Challenge) -> None:
        self._socket_server.say(connection, encode(message))

    def _check(self, connection: Connection, hello: Hello) -> None:
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise Nonsense("no hello with the job's token")
        super()._check(connection, hello)
        if (other := self._admission.other_data(hello)) is not None:
            self._turn_away(connection, self._admission.node_of(hello.worker), other)
            raise Unwanted(other)
        connection.limit_bytes = MAX_FRAME_BYTES

    def _turn_away(self, connection: Connection, node: NodeId, reason: str) -> None:
        """Turns away a node of this job that may not take part, and would not if it came again."""
        self._executor.warn(f"{reason}.")
        self._say(connection, Stop(reason=reason))
        if self._agents is not None:
            self._agents.refuse(node, reason)
        self.lose(node, reason)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        self._socket_server.trust(connection)
        super()._admit(connection, hello)

    def _ended(self, connection: Connection, cause: str) -> None:
        if self._agents is not None:
            self._agents.dropped(connection)
        super()._ended(connection, cause)

    def _why(self, cause: str) -> tuple[str, RanOut | None]:
        if self._kernel_kills.explain(cause):
            return "killed by the kernel for lack of memory", RanOut()
        return cause, None

    def _look_at_the_clock(self) -> None:
        """Gives up the nodes whose workers are silent or hang."""
        now = time.monotonic()
        self._lose_devices(now)
        timer_s = self._executor.timer_s
        if timer_s is not None and now >= timer_s:
            self._executor.timer_s = None
            self.handle(TimerDue())
        if not self._judge.is_due(now):
            return
        self._kernel_kills.look()  # now and then, so that it sees when a count rises
        self._socket_server.send_strangers_away(now)
        if self._agents is not None:
            self._agents.let_spares_in()
        self._judge_all(now)

    def _is_runnable(self, node: NodeId) -> bool:
        return self._agents is None and self._nodes.is_runnable(node)

    def handle(self, event: Event) -> None:
        self._pass(event)
        super().handle(event)
        self._requests.answer_held_up()
        self._requests.answer_saved()

    def _carry_out(self, command: Command) -> None:
        super()._carry_out(command)
        self._pass(command)

    def _execute(self, command: Command) -> None:
        self._executor.carry_out(command)

    def _kill(self, node: NodeId) -> None:
        self._nodes.kill(node)
        if self._agents is not None:
            self._agents.kill(node)

    def _kill_device(self, worker: WorkerId) -> None:
        node = self._admission.node_of(worker)
        self._nodes.kill(node, worker)
        if self._agents is not None:
            self._agents.kill(node, worker)

    def _pass(self, thing: Event | Command) -> None:
        """Passes a point at which the user may want this process to kill itself."""
        what = thing.message if isinstance(thing, Received | Send) else thing
        if at := POINTS.get(type(what).__name__):
            self._strike(at, getattr(what, "step", self._machine.step))

    def _start_node(self) -> NodeId:
        """Starts a node on the user's order."""
        node = self._admission.new_number()
        self._nodes.start(node)
        self._judge.expect(node, time.monotonic())
        self._wake()  # of whoever died meanwhile, somebody was told
        return node

    def _start_device(self, node: NodeId, device: int) -> str | None:
        """Starts a device's worker again on the user's order; returns why it is not."""
        worker = self._admission.workers_of(node)[device]
        if self._agents is None:
            self._nodes.start_worker(node, worker)
        elif not self._agents.start_worker(node, worker):
            return f"the agent of node {node} is out of reach"
        self.expect_device(worker)
        self._wake()  # of whoever died meanwhile, somebody was told
        return None

    # For agents, see `coordinator.agents.Desk`

    def new_node(self) -> NodeId:
        node = self._admission.new_number()
        self._judge.expect(node, time.monotonic())
        return node

    @property
    def is_gathering(self) -> bool:
        return self._machine.phase is Phase.GATHERING

    def links_measured(self, node: NodeId, host: str, links: tuple[HostLink, ...]) -> None:
        self.handle(LinksMeasured(node, host, links))

    def no_room(self, coming: Counter[str], zone: str) -> str | None:
        return self._machine.no_room(coming, Counter({zone: 1}))

    def is_coming(self, node: NodeId) -> bool:
        return self._machine.is_coming(node)

    def times_wrong(self, host: str) -> int:
        return self._machine.times_wrong(host)

    def tell(self, text: str) -> None:
        self._executor.tell("info", text)

    def may_run(self, node: NodeId) -> bool:
        self._admission.took_number(node)
        return not self._admission.is_fenced(node)

    def was_released(self, node: NodeId) -> bool:
        return self._admission.was_released(node)

    def lost(self, node: NodeId, cause: str) -> None:
        """Handles the end of all processes of a node. Those that joined said why, and their connections end afterwards.

        Of a node that never joined the machine does not know: it goes on waiting for so many nodes.
        """
        if self._executor.finished is not None or self._admission.is_fenced(node):
            return
        if self._admission.is_empty(node):
            self.evict(node)
            self._executor.warn(f"node {node} ended before it had joined ({cause}). Look into the logs of its workers.")

    def say(self, connection: Connection, body: bytes) -> None:
        self._socket_server.say(connection, body)

    def hang_up(self, connection: Connection) -> None:
        self._socket_server.hang_up(connection)
