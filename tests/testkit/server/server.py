"""The simulated server around the real coordinator: connections, fencing and the journal, in virtual time.

What counts of what it hears is said by `planaria.protocol.reception`, as to the real one. A server may be killed
between any two commands; its journal is a list that outlives it, and so do the nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.failure_detector import Judge
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.events import (
    Command,
    Event,
    Finish,
    Idle,
    ManifestFailed,
    ManifestWritten,
    Publish,
    Received,
    Send,
    SetTimer,
    TimerDue,
    WriteManifest,
)
from planaria.protocol.messages.from_worker import FromWorker, Hello
from planaria.protocol.messages.journal import JournalEntry
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.messages.to_worker import Challenge, PlanMessage, Stop, ToWorker
from planaria.protocol.reception import Nonsense, Reception, Unwanted
from planaria.protocol.run.replay import JournalState
from planaria.protocol.step.telling_order import WaitingPlans
from planaria.protocol.thresholds import DETECTOR_TICK_S
from tests.testkit.cluster.disk import DiskFull
from tests.testkit.cluster.network import COORDINATOR, Network, Way
from tests.testkit.schedules.faults import APPLIED
from tests.testkit.schedules.manners import UNANSWERED
from tests.testkit.server.wire import Wire
from tests.testkit.worker.control import COORDINATOR_TIMEOUT_S
from tests.testkit.worker.worker import Worker

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster

MARK = "this run"
"""The mark of this run, with which its workers say hello."""

LIMITS = Limits(busy_s=10.0, join_s=5.0)


WAITS = 1.0
"""Instructions for which a plan waits that may, and twice and three times as many; every fourth does not."""

PIECES = 0
"""Precomputed decisions after each event. None: a precomputed answer changes nothing, as a test says."""


class Connection:
    """One control connection, both ends of it.

    Attributes:
        process: at the far end; None: somebody who plays old messages again.
        worker: who said hello on it, and was welcome.
        up: to the coordinator.
        down: from it.
        is_closed: by the coordinator.
        is_left: by the worker, which hears nothing on it any more.
    """

    def __init__(
        self, network: Network, process: Worker | None, place: int, mean_s: float, wire: Wire | None = None
    ) -> None:
        self.process = process
        self.worker: WorkerId | None = None
        self.up = Way(network, place, COORDINATOR, mean_s, self._given_up, COORDINATOR_TIMEOUT_S)
        self.down = Way(network, COORDINATOR, place, mean_s)
        self.is_closed = self.is_left = False
        self._server: Server | None = None
        self._wire = wire

    def lead_to(self, server: Server) -> None:
        self._server = server
        server.accepted.append(self)

    @property
    def server(self) -> Server | None:
        """The server at the coordinator's end; None once that end is closed."""
        return None if self.is_closed else self._server

    def close_from_worker(self) -> None:
        """Closes the connection from the worker's end, after all that was sent."""
        self.up.send(self._ended)

    def _ended(self) -> None:
        if self.server is not None:
            self.server.drop(self, "connection closed")

    def _given_up(self, way: Way) -> None:
        """Breaks the worker's end, as nothing that it sent was acknowledged for so long."""
        if self.process is not None and not self.is_left:
            self.is_left = True
            self.process.lose_connection(self)

    def send(self, message: ToWorker | Challenge) -> None:
        if self.process is not None and self._wire is None:
            self.down.send(partial(self._ordered, message))
        elif self.process is not None and self._wire is not None:
            read = self._wire.order(message)
            self.down.send(lambda: None if self.is_left else self._ordered(read()))

    def _ordered(self, message: ToWorker | Challenge) -> None:
        if not self.is_left and self.process is not None:
            self.process.order(message)

    def tell(self, cluster: Cluster, message: FromWorker) -> None:
        """Sends a message from the worker."""
        if self._wire is None:
            self.up.send(partial(cluster.received, self, message))
        else:
            read = self._wire.news(message)
            self.up.send(lambda: cluster.received(self, read()))

    def close(self) -> None:
        """Closes the connection from the coordinator's end: what is under way may be lost."""
        if not self.is_closed:
            self.is_closed = True
            self.down.cut()
            if self.process is not None:
                self.down.send(partial(self.process.lose_connection, self))


class Server(Reception[Connection]):
    """Runs one job's coordinator until it finishes, or until it is killed.

    Attributes:
        admission: who belongs to the job, and who is refused.
        accepted: every connection that there ever was.
        finished: how the run ended.
        lead: in which it serves.
    """

    def __init__(self, machine: Coordinator, cluster: Cluster, past: JournalState | None = None) -> None:
        self.machine = machine
        self._host_clock = host_clock = cluster.clock_of(COORDINATOR - cluster.lead)
        self.admission: Admission[Connection] = Admission(machine.settings.devices_per_node, mark=MARK)
        super().__init__(
            machine, self.admission, Judge(self.admission, LIMITS, cluster.weather.patience_s, host_clock.now), past
        )
        self.accepted: list[Connection] = []
        self.finished: Finish | None = None
        self.lead = cluster.lead
        self._next = len(cluster.journal)
        self._pauses = 0
        self._held: deque[Callable[[], None]] = deque()
        """What it does when it goes on: the rest of a batch of commands, and what it heard meanwhile."""
        self._waiting = WaitingPlans()
        self._cluster = cluster
        self._clock = cluster.clock
        self._incarnation = past.restarts + 1 if past else 0
        self._is_dead = False
        self._timer = 0
        """Number of the timer that was set last."""
        self._clock.after(DETECTOR_TICK_S, self._look_at_the_clock)

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def die(self) -> None:
        """Kills the coordinator (SIGKILL): no command is carried out any more, and every connection closes."""
        self._is_dead = True
        for connection in self.accepted:
            connection.close()

    @property
    def _lives(self) -> bool:
        return not self._is_dead

    @property
    def is_deposed(self) -> bool:
        """Whether the lead has passed to another, which it need not know."""
        return self.lead != self._cluster.lead

    @property
    def takes_orders(self) -> bool:
        """Whether a user who looks for the coordinator finds this one, and is heard."""
        return self._lives and not self.is_deposed and not self._pauses

    def pause(self) -> None:
        """Stops the process, between any two of its commands, until `resume` is called as often."""
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses:
            return
        held, self._held = self._held, deque()
        while held and self._lives and not self._pauses:
            held.popleft()()
        self._held.extend(held)

    def end_if_deposed(self) -> None:
        if self._lives and self.is_deposed:
            self._cluster.note("* a coordinator that leads no more is ended")
            self.die()

    # Connections

    def take(self, connection: Connection, message: FromWorker) -> None:
        if self._is_dead or connection.is_closed:
            return
        if self._pauses:
            self._held.append(partial(self.take, connection, message))
            return
        try:
            self._receive(connection, message)
        except (Nonsense, Unwanted) as error:
            if isinstance(message, Hello) and message.version != PROTOCOL_VERSION:
                self._cluster.invariants.refused(message.version, str(error))
            self.drop(connection, "it sent what is not a message")

    def _now(self) -> float:
        return self._host_clock.now

    def jump(self, seconds: float) -> None:
        """Lets its host's clock jump ahead."""
        self._host_clock.jump(seconds)

    def _new_nonce(self) -> str:
        return f"{self._incarnation}.{len(self.accepted)}"

    def _say(self, connection: Connection, message: Stop | Challenge) -> None:
        connection.send(message)

    def _is_runnable(self, node: NodeId) -> bool:
        return self._cluster.is_runnable(node)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        self._cluster.invariants.require(hello.mark == MARK, f"worker {hello.worker} of another run takes part")
        self._cluster.invariants.require(
            hello.version == PROTOCOL_VERSION, f"worker {hello.worker} takes part, with version {hello.version}"
        )
        super()._admit(connection, hello)

    def drop(self, connection: Connection, cause: str) -> None:
        """Drops a connection that ended."""
        if self._is_dead or connection.is_closed:
            return
        if self._pauses:
            self._held.append(partial(self.drop, connection, cause))
            return
        connection.close()
        self._ended(connection, cause)

    def expect(self, node: NodeId) -> None:
        """Expects a node that was started."""
        self._judge.expect(node, self._now())

    def _look_at_the_clock(self) -> None:
        """Removes the nodes whose workers are silent or hang."""
        if self._is_dead or self.finished is not None:
            return
        if not self._pauses:
            self._lose_devices(self._now())
            self._judge_all(self._now())
        self._clock.after(DETECTOR_TICK_S, self._look_at_the_clock)

    # The machine

    def handle(self, event: Event) -> None:
        if self._pauses:
            self._held.append(partial(self.handle, event))
        elif self._lives:
            super().handle(event)
            self._prepare(PIECES)

    def _decided(self, event: Event) -> tuple[tuple[Command, ...], float]:
        cluster = self._cluster
        name = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
        before = self.machine.phase
        cluster.recorder.heard(event)
        commands, _ = super()._decided(event)
        if cluster.is_telling:
            who = f" of {event.worker}" if isinstance(event, Received) else f" {event}"
            cluster.note(f"{before.value} -- {name}{who} --> {self.machine.phase.value}, step {self.machine.step}")
        cluster.happened(name)
        return commands, 0.0 if cluster.weather.is_exact else 1e-3

    def _prepare(self, pieces: int) -> None:
        """Precomputes decisions, as far as they take no time."""
        while pieces and self._lives and self.machine.thinks(self._now()):
            self.machine.handle(Idle(), self._now())
            pieces -= 1

    def _carry_out(self, command: Command) -> None:
        if self._pauses:
            self._held.append(partial(self._carry_out, command))
        elif self._lives:
            super()._carry_out(command)

    def _execute(self, command: Command) -> None:
        cluster = self._cluster
        match command:
            case Send(worker, PlanMessage() as message, may_wait=True):
                self._waiting.wait(worker, message)
                waits_s = WAITS * cluster.weather.compute_s * (message.plan.generation % 4)
                self._clock.after(0.0 if cluster.weather.is_exact else waits_s, self._tell_waiting)
            case Send(worker, message):
                if (plan := self._waiting.before(worker, message)) is not None:
                    self._send(worker, plan)
                self._send(worker, message)
            case JournalEntry():
                self._write(command)
            case Publish(record, again):
                if not self.is_deposed:
                    cluster.publish(record, again=again)
            case WriteManifest():
                if cluster.weather.writes_later:
                    self._clock.after(self._clock.vary(cluster.weather.compute_s), partial(self._manifest, command))
                else:
                    self._manifest(command)
            case SetTimer(seconds):
                self._timer += 1
                self._clock.after(seconds, partial(self._timer_due, self._timer))
            case Finish():
                cluster.note(f"finish: {command}")
                self.finished = command

    def _tell_waiting(self) -> None:
        """Tells a worker a plan for which others hurried more. It may have been told another one meanwhile."""
        if self._lives and not self._pauses:
            for worker, plan in self._waiting.next(1):
                self._send(worker, plan)
        elif self._pauses:
            self._held.append(self._tell_waiting)

    def _write(self, entry: JournalEntry) -> None:
        """Writes an entry. If the answer is late, nothing else is done until it is here."""
        number, self._next = self._next, self._next + 1
        append = partial(self._cluster.append, entry, number, self.lead)
        late = self._cluster.late.popleft() if self._cluster.late else None
        if late is None:
            self._answered(append())
            return
        self._cluster.note(f"* {type(entry).__name__} is not answered for {late.for_s} s {late.what}")
        self.pause()
        if late.what == APPLIED:
            append()
        self._clock.after(late.for_s, partial(self._try_again, append))
        self._cluster.happened(UNANSWERED)

    def _try_again(self, append: Callable[[], bool]) -> None:
        """Appends an entry for which there was no answer; what is on its way outlives its coordinator."""
        is_there = append()
        if self._lives:
            self._answered(is_there)
            self.resume()

    def _answered(self, is_there: bool) -> None:
        """Ends the process if its entry was refused; it is followed by another one, where the lead has not passed."""
        if not is_there:
            self._cluster.note(f"* the journal refuses an entry of lead {self.lead}")
            self.die()
            self._clock.after(
                self._clock.vary(self._cluster.weather.detect_s),
                partial(self._cluster.begin_again, None, self.lead),
            )

    def _timer_due(self, number: int) -> None:
        if self._pauses:
            self._held.append(partial(self._timer_due, number))
            return
        if number == self._timer:
            self.handle(TimerDue())

    def _manifest(self, command: WriteManifest) -> None:
        if self._is_dead:
            return
        if self._pauses:
            self._held.append(partial(self._manifest, command))
            return
        try:
            self._cluster.write_manifest(command)
        except DiskFull:
            self.handle(ManifestFailed(command.step, command.folder, f"{command.folder}: no space left"))
        else:
            self.handle(ManifestWritten(command.step, command.folder, 0.0))

    def _send(self, worker: WorkerId, message: ToWorker) -> None:
        if self.is_deposed:
            self._cluster.invariants.sent_by_deposed(message)
        else:
            self._cluster.invariants.sent(self.machine, message)
        connection = self.admission.connection_of(worker)
        if connection is None:
            return
        if self._cluster.is_telling:
            self._cluster.note(f"    {type(message).__name__} to {worker}")
        connection.send(message)
        self._cluster.happened(f"Send {type(message).__name__}")

    def _kill(self, node: NodeId) -> None:
        if self.is_deposed:
            self._cluster.invariants.evicted_by_deposed(node)
        self._cluster.invariants.evicted(node)
        self._cluster.kill_where_possible(node)

    def _kill_device(self, worker: WorkerId) -> None:
        if self.is_deposed:
            self._cluster.invariants.device_evicted_by_deposed(worker)
        node, per_node = self.admission.node_of(worker), self.machine.settings.devices_per_node
        self._cluster.kill_where_possible(node, worker % per_node)

    def hang_up(self, connection: Connection) -> None:
        connection.close()
