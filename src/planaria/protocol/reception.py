"""How a coordinator receives messages: which worker sent them, which count, and which nodes are lost with a connection.

It asks `planaria.protocol.membership.admission`, `challenge` and `failure_detector`, and tells the machine. Sockets, or
a simulation of them, are a subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.challenge import ReconnectChallenge, Unproven
from planaria.protocol.membership.failure_detector import Judge
from planaria.protocol.messages.events import (
    Command,
    DecisionTook,
    DeviceGone,
    Event,
    Evict,
    EvictDevice,
    Idle,
    NodeGone,
    PieceTook,
    RanOut,
    Received,
    Release,
    Restarted,
    Send,
    WorkerJoined,
)
from planaria.protocol.messages.from_worker import Alive, CutOff, FromWorker, Hello, Proof, StoreTried
from planaria.protocol.messages.to_worker import Challenge, PlanMessage, Stop
from planaria.protocol.run.replay import JournalState
from planaria.protocol.thresholds import DETECTOR_TICK_S, DEVICE_ALONE_S, PRECOMPUTE_REST


class Nonsense(ValueError):
    """Raised for a message that no worker of this job would send."""


class Unwanted(Exception):
    """Raised for a message of a worker of this job that takes no part any more."""


class AnyConnection(Protocol):
    """One control connection, as the coordinator represents it.

    Attributes:
        worker: who said hello on it, and was welcome.
        is_closed: nothing is heard on it any more.
    """

    worker: WorkerId | None
    is_closed: bool


Connection = TypeVar("Connection", bound=AnyConnection)


class Reception(ABC, Generic[Connection]):
    """The connections of one coordinator, and what is done with their messages.

    Args:
        machine: told of what counts.
        admission: who belongs to the job, and who is refused.
        judge: of who is lost though nobody saw it end.
        past: of the coordinators before, if there were any.
    """

    def __init__(
        self, machine: Coordinator, admission: Admission[Connection], judge: Judge, past: JournalState | None = None
    ) -> None:
        self._machine = machine
        self._admission = admission
        self._judge = judge
        self._past = past
        self._challenge: ReconnectChallenge[Connection] = ReconnectChallenge(follows=past is not None)
        self._rests_until = 0.0
        self._ended_alone: dict[WorkerId, tuple[float, str]] = {}
        """Workers that ended while others of their node live: when, and the cause."""

    @abstractmethod
    def _now(self) -> float:
        """Returns monotonic seconds."""

    @abstractmethod
    def _say(self, connection: Connection, message: Stop | Challenge) -> None: ...

    @abstractmethod
    def _new_nonce(self) -> str:
        """Returns a nonce that was never used before."""

    @abstractmethod
    def _is_runnable(self, node: NodeId) -> bool:
        """Returns whether a node's processes are known to be there, and not stopped."""

    @abstractmethod
    def _execute(self, command: Command) -> None:
        """Carries out a command of the machine that does not concern nodes."""

    @abstractmethod
    def _kill(self, node: NodeId) -> None:
        """Kills what can be killed of the node."""

    @abstractmethod
    def _kill_device(self, worker: WorkerId) -> None:
        """Kills what can be killed of one worker of a node."""

    @abstractmethod
    def hang_up(self, connection: Connection) -> None: ...

    def _why(self, cause: str) -> tuple[str, RanOut | None]:
        """Returns why a node is lost, with what is known of a shortage of memory, if anything."""
        return cause, None

    def begin(self, started: Iterable[NodeId], restarted: Restarted) -> None:
        """Awaits the nodes that were started, and those that had joined earlier coordinators, if there were any.

        Without the former a node that died before it had joined would be awaited for ever.
        """
        if self._past is not None:
            self.handle(restarted)
            for node in self._past.joined:
                self._judge.expect_back(node, self._now())
        for node in started:
            self._judge.expect(node, self._now())

    # What is said

    def _receive(self, connection: Connection, message: FromWorker) -> None:
        """Handles a message. Raises Nonsense or Unwanted, and then the connection is to be ended. Any error of the
        machine is a bug."""
        if self._challenge.is_asked(connection):
            self._hear_doubtful(connection, message)
        elif connection.worker is None:
            self._welcome(connection, message)
        else:
            self._hear(connection.worker, message)

    def _hear(self, worker: WorkerId, message: FromWorker) -> None:
        if isinstance(message, Hello):
            raise Nonsense("a second hello")
        if isinstance(message, Alive):
            felt, now = self._judge.liveness.felt, self._now()
            felt(worker, message.pulse, now, message.worked_s, message.doing, message.held_bytes)
        elif isinstance(message, CutOff):
            verdict = self._judge.cut_off(worker, message.peer, message.address)
            if verdict is not None:
                self.lose(*verdict)
        elif isinstance(message, StoreTried):
            self._tell_of_retry(message, worker)
        else:
            self.handle(Received(worker, message))

    def _tell_of_retry(self, said: StoreTried, worker: WorkerId | None = None) -> None:
        """Tells people of a call to a store that is tried again, where anybody reads it."""

    def _welcome(self, connection: Connection, hello: FromWorker) -> None:
        """Handles a connection's first message, which must be a hello of a worker that may take part."""
        if not isinstance(hello, Hello):
            raise Nonsense("no hello with the job's token")
        self._check(connection, hello)
        if self._challenge.about(self._admission.node_of(hello.worker)):
            nonce = self._new_nonce()
            self._challenge.ask(connection, hello, nonce)
            self._say(connection, Challenge(nonce=nonce))
        else:
            self._admit(connection, hello)

    def _check(self, connection: Connection, hello: Hello) -> None:
        """Checks a hello. Raises Nonsense or Unwanted if its sender may not take part."""
        refusal = self._refusal(connection, hello)
        if refusal is not None:
            is_fenced = self._admission.is_worker_fenced(hello.worker) or hello.worker in self._ended_alone
            is_ours = is_fenced or self._admission.is_of_another_run(hello)
            raise Unwanted(refusal) if is_ours else Nonsense(refusal)

    def _refusal(self, connection: Connection, hello: Hello) -> str | None:
        """Returns why the sender of a hello may not take part, and tells it to end; None if it may."""
        refusal = self._admission.refusal(hello)
        if refusal is None and hello.worker in self._ended_alone:
            refusal = "its connection ended, and it is lost"
        if refusal is not None:
            self._say(connection, Stop(reason=refusal))
        return refusal

    def _hear_doubtful(self, connection: Connection, message: FromWorker) -> None:
        try:
            if not isinstance(message, Proof):
                self._challenge.hold(connection, message)
                return
            hello, held = self._challenge.proven(connection, message.nonce)
        except Unproven as error:
            raise Nonsense(str(error)) from error
        refusal = self._refusal(connection, hello)  # it may have been given up meanwhile
        if refusal is not None:
            raise Unwanted(refusal)
        self._admit(connection, hello)
        for earlier in held:
            if not connection.is_closed:
                self._hear(hello.worker, earlier)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        connection.worker = hello.worker
        self._admission.admit(hello.worker, connection, hello.data_address)
        self._judge.liveness.joined(hello.worker, self._now())
        self.handle(WorkerJoined(hello.worker, hello.data_address, hello.zone, hello.label))

    # Who goes

    def _ended(self, connection: Connection, cause: str) -> None:
        """Handles the end of a connection."""
        self._challenge.forget(connection)
        worker = connection.worker
        if worker is not None and self._admission.left(worker, connection):
            self._judge.liveness.forget(worker, self._now())
            node = self._admission.node_of(worker)
            self.lose_worker(worker, cause)
            if self._admission.was_released(node) and self._admission.is_empty(node):
                self.handle(NodeGone(node, cause))  # what it said before it went has been heard

    def lose(self, node: NodeId, cause: str) -> None:
        """Handles the end of a node, of which more may be known than the cause."""
        if not self._admission.is_fenced(node):
            self.handle(NodeGone(node, *self._why(cause)))

    def lose_worker(self, worker: WorkerId, cause: str) -> None:
        """Handles the end of a worker: it is its node's, unless others of the node are there a moment later."""
        if self._admission.is_worker_fenced(worker):
            return
        node = self._admission.node_of(worker)
        ended = {worker, *self._ended_alone}
        others = [w for w in self._admission.workers_of(node) if w not in ended and self._admission.connection_of(w)]
        if not others or not self._machine.goes_on_without(worker):
            self.lose(node, cause)
        else:
            self._ended_alone.setdefault(worker, (self._now(), cause))

    def expect_device(self, worker: WorkerId) -> None:
        """Lets a device in that was lost and whose worker is started again, once it proves that it is that one."""
        self._admission.expect_device(worker)
        self._challenge.doubt(self._admission.node_of(worker))

    @property
    def _is_anybody_alone(self) -> bool:
        """Whether it will soon be known of a worker if it ended alone."""
        return bool(self._ended_alone)

    def _lose_devices(self, now: float) -> None:
        """Loses the devices whose workers ended a moment ago, as others of their nodes are still there."""
        for worker, (ended, cause) in sorted(self._ended_alone.items()):
            if now - ended >= DEVICE_ALONE_S and self._ended_alone.pop(worker, None) is not None:
                self.handle(DeviceGone(worker, *self._why(cause)))

    def _judge_all(self, now: float) -> None:
        """Loses the nodes, or devices alone, whose workers are silent or hang: nothing else has ended them."""
        for verdict in self._judge.verdicts(now, self._is_runnable, lambda: self._machine.step_times.expectation):
            worker, node = verdict.worker, self._admission.node_of(verdict.worker)
            if self._admission.was_released(node):
                # Its host went without a word, or a stopped process never ends: while it is late, nobody is blocked.
                self.evict(node)
                self.handle(NodeGone(node, verdict.cause))  # what it was to write of a checkpoint does not come
                continue
            if self._admission.is_worker_fenced(worker):
                self._judge.liveness.forget(worker, now)
                continue
            if verdict.is_alone and self._machine.goes_on_without(worker):
                self.handle(DeviceGone(worker, verdict.cause))
            else:
                self.handle(NodeGone(node, verdict.cause))

    def evict(self, node: NodeId) -> None:
        """Kills what can be killed of the node, and closes its connections."""
        connections = self._admission.fence(node)
        self._kill(node)
        for connection in connections:
            self.hang_up(connection)
        for worker in self._admission.workers_of(node):
            self._ended_alone.pop(worker, None)
            self._judge.liveness.forget(worker, self._now())

    def _evict_device(self, worker: WorkerId) -> None:
        """Kills what can be killed of one worker of a node, and closes its connection."""
        connection = self._admission.fence_device(worker)
        self._ended_alone.pop(worker, None)
        self._kill_device(worker)
        if connection is not None:
            self.hang_up(connection)
        self._judge.liveness.forget(worker, self._now())

    # The machine

    def handle(self, event: Event) -> None:
        commands, took_s = self._decided(event)
        for command in commands:
            self._carry_out(command)
        if any(isinstance(command, Send) and isinstance(command.message, PlanMessage) for command in commands):
            for command in self._machine.handle(DecisionTook(took_s), self._now()):
                self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Evict(node):
                self.evict(node)
            case EvictDevice(worker):
                self._evict_device(worker)
            case Release(node):
                self._admission.release(node)
            case _:
                self._execute(command)

    def _think(self) -> float:
        """Precomputes a decision if there is time; returns the seconds for which there is nothing to do."""
        now = self._now()
        if now < self._rests_until:
            return min(DETECTOR_TICK_S, self._rests_until - now)
        if not self._machine.thinks(now):
            return DETECTOR_TICK_S
        rest = 0.0 if self._machine.hurries else PRECOMPUTE_REST
        self._machine.handle(Idle(), now)
        took = self._now() - now
        self._machine.handle(PieceTook(took), now + took)
        self._rests_until = now + (1 + rest) * took
        return 0.0

    def _decided(self, event: Event) -> tuple[tuple[Command, ...], float]:
        """Returns the commands that follow from an event, and the seconds that it took to decide."""
        began = self._now()
        commands = self._machine.handle(event, began)
        return commands, self._now() - began
