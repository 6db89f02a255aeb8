"""A simulated worker process: the real machine of the worker's half, a symbolic interpreter, and the time it all takes.

It does what `planaria.worker.agent` does, in the same order: orders first, then state that has to come, then the
program. It dies, stops and freezes between any two things it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Transfer, WorkerId
from planaria.plan.program import Instruction, Op
from planaria.protocol.liveness import Activity, Pulse
from planaria.protocol.mail import Key, Kind, Mail
from planaria.protocol.messages import (
    Alive,
    CutOff,
    Failed,
    FromWorker,
    Notice,
    NotSaved,
    PlanMessage,
    Ready,
    Report,
    Returned,
    Save,
    Saved,
    StateSource,
    Stop,
    ToWorker,
    Vote,
    WorkerPhase,
)
from planaria.protocol.worker import (
    Adopt,
    Apply,
    CoordinatorBack,
    CoordinatorGone,
    End,
    ProgramDone,
    SendReport,
    SendReturned,
    SendVote,
    WorkerCommand,
    WorkerMachine,
    Write,
)
from planaria.simulate.disk import DiskFull, SavedState
from planaria.simulate.holdings import Holdings, Replica
from planaria.simulate.interpreter import Interpreter, Read
from planaria.simulate.network import Way
from planaria.simulate.symbols import Symbol

if TYPE_CHECKING:
    from planaria.simulate.cluster import Cluster
    from planaria.simulate.server import Connection

BEAT_S = 0.2
CUT_OFF_S = 1.0
"""As in `planaria.worker.transport`."""

FIRST_BACKOFF_S = 0.02
LAST_BACKOFF_S = 0.5
COORDINATOR_TIMEOUT_S = 20.0
"""How a worker looks for a coordinator after the last one was gone, and for how long."""

COMPUTES = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)


class Worker:
    """One process.

    Attributes:
        is_over: it ended, or was killed.
        is_stopped: by SIGSTOP; what reaches it stays in its sockets.
        is_frozen: its main thread does nothing more, and its heartbeat goes on.
        freezes: its main thread will, in its next instruction.
        fails: its next instruction raises an error of the user's code.
        slowness: how many times longer it computes.
    """

    def __init__(self, cluster: Cluster, number: WorkerId, node: NodeId) -> None:
        self.number = number
        self.node = node
        self.is_started = self.is_over = self.is_stopped = self.is_frozen = False
        self.freezes = self.fails = False
        self.slowness = 1.0
        self.machine = WorkerMachine()
        self.holdings = Holdings(cluster.algebra, cluster.profile.groups)
        self.damages = 0
        self.ways: dict[WorkerId, Way] = {}
        self.notice: Notice | None = None
        self.end: End | None = None
        self._cluster = cluster
        self._clock = cluster.clock
        self._mail: Mail[Any] = Mail()
        self._orders: deque[ToWorker | CoordinatorGone | CoordinatorBack] = deque()
        self._unsent: list[FromWorker] = []
        self._backoff_s = 0.0
        self._alone_since_s: float | None = None
        self._agenda: deque[WorkerCommand] = deque()
        self._connection: Connection | None = None
        self._peers: set[WorkerId] = set()
        self.interpreter = Interpreter(
            number,
            cluster.algebra,
            self.holdings,
            self._mail,
            self._send,
            lambda peer: cluster.weather.is_one_host,
            lambda key: self._tell(CutOff(peer=WorkerId(key.sender))),
        )
        self._then: Callable[[], None] | None = None
        self._is_due = False
        self._activity = Activity.BUSY
        self._progress = 0
        self._waits_for = -1
        self._incoming: list[Transfer] = []
        self._arriving: list[Symbol] = []
        self._announces = False
        self._writes: deque[tuple[Save, dict[int, SavedState]]] = deque()

    # Life and death

    def start(self) -> None:
        if self.is_over:
            return
        self.is_started = True
        self._clock.after(BEAT_S * self._clock.random.random(), self._beat)
        self._sleep(self._cluster.weather.compute_s, lambda: None)
        self._connect()

    def die(self, *, silently: bool) -> None:
        """SIGKILL, or a power cut: nothing more is done here. `silently`: no closing packet is sent."""
        if self.is_over:
            return
        self.is_over = True
        for way in self.ways.values():
            way.cut()
        if self._connection is not None:
            self._connection.up.cut()
            if not silently:
                self._connection.close_from_worker()

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True

    def resume(self) -> None:
        """SIGCONT."""
        if not self.is_stopped:
            return
        self.is_stopped = False
        self.run()
        self._write_next()

    @property
    def _lives(self) -> bool:
        return not self.is_over

    @property
    def is_active(self) -> bool:
        return self.is_started and not (self.is_over or self.is_stopped or self.is_frozen)

    def _exit(self) -> None:
        """The process ends by itself."""
        self.is_over = True
        for way in self.ways.values():
            way.cut()
        if self._connection is not None:
            self._connection.close_from_worker()
        self._cluster.ended(self)

    def _beat(self) -> None:
        if self.is_over:
            return
        if not self.is_stopped:
            if self.notice is not None:
                self._tell(self.notice)
                self.notice = None
            pulse = Pulse(activity=self._activity, progress=self._progress, waits_for=self._waits_for)
            self._tell(Alive(pulse=pulse))
        self._clock.after(BEAT_S, self._beat)

    # What reaches it

    def order(self, order: ToWorker | CoordinatorGone | CoordinatorBack) -> None:
        if not self.is_over:
            self._orders.append(order)
            self.run()

    def lose_connection(self, connection: Connection) -> None:
        """The coordinator's end of it closed: look for another one, with growing pauses."""
        if self.is_over or connection is not self._connection:
            return
        self._connection = None
        if self.end is not None or any(isinstance(order, Stop) for order in self._orders):
            return  # it was told to end, or is refused
        self._alone_since_s, self._backoff_s = self._clock.now, FIRST_BACKOFF_S
        self._clock.after(self._clock.vary(self._backoff_s), self._connect)

    def _connect(self) -> None:
        if self.is_over:
            return
        connection = None if self.is_stopped else self._cluster.connect(self)
        if connection is not None:
            self._connection = connection
            self._alone_since_s = None
            for message in self._unsent:
                self._tell(message)
            self._unsent.clear()
            self.order(CoordinatorBack())
        elif self._alone_since_s is not None and self._clock.now - self._alone_since_s > COORDINATOR_TIMEOUT_S:
            self.order(CoordinatorGone())
        else:
            if self._alone_since_s is None:
                self._alone_since_s = self._clock.now
            self._backoff_s = min(LAST_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * self._backoff_s))
            self._clock.after(self._backoff_s * self._clock.random.uniform(0.5, 1.0), self._connect)

    def receive(self, key: Key, payload: Any, *, is_damaged: bool) -> None:
        if is_damaged:
            self._mail.put_damaged(key)
        else:
            self._mail.put(key, payload)
        self.run()

    # What it sends

    def _tell(self, message: FromWorker) -> None:
        connection = self._connection
        if connection is not None:
            connection.up.send(partial(self._cluster.received, connection, message))
        elif isinstance(message, Notice | Failed):
            self._unsent.append(message)

    def _send(self, peer: WorkerId, key: Key, read: Read) -> None:
        assert peer in self._peers, f"worker {self.number} sends to {peer}, which is not in its plan"
        way = self.ways.get(peer)
        if way is None:
            way = self.ways[peer] = self._cluster.way(self.node, peer)
        way.send(partial(self._deliver, way, peer, key, read))

    def _deliver(self, way: Way, peer: WorkerId, key: Key, read: Read) -> None:
        target = self._cluster.workers[peer]
        if not target.is_over:
            is_damaged, self.damages = self.damages > 0, max(0, self.damages - 1)
            target.receive(key, read(), is_damaged=is_damaged)
        elif not self._cluster.is_dark(target.node):
            way.is_stuck = True
            self._clock.after(CUT_OFF_S, partial(self._complain_of, way, peer))

    def _complain_of(self, way: Way, peer: WorkerId) -> None:
        """The way to a peer was lost, and the peer is in the plan for a while since."""
        if self.ways.get(peer) is way and not self.is_over and not self.is_stopped:
            self._tell(CutOff(peer=peer))

    def _set_peers(self, peers: set[WorkerId]) -> None:
        self._peers = peers
        for peer in [peer for peer in self.ways if peer not in peers]:
            self.ways.pop(peer).cut()

    # The main thread

    def run(self) -> None:
        """The main thread goes on until it waits, or until something takes time."""
        while self.is_active:
            if self._then is not None:
                if not self._is_due:
                    return
                then, self._then, self._is_due = self._then, None, False
                then()
                self._progress += 1
            elif self._agenda:
                self._activity = Activity.BUSY
                self._sleep(self._cluster.weather.compute_s / 5, partial(self._carry_out, self._agenda.popleft()))
            elif self.end is not None:
                if not self._writes:
                    self._exit()
                return
            elif self._orders:
                self._agenda.extend(self.machine.handle(self._orders.popleft()))
            elif self.machine.phase is not WorkerPhase.RUNNING:
                self._activity, self._waits_for = Activity.IDLE, -1
                return
            elif not self._work():
                return

    def _sleep(self, mean_s: float, then: Callable[[], None]) -> None:
        self._then, self._is_due = then, False
        self._clock.after(self._clock.vary(mean_s) * self.slowness, self._awake)

    def _awake(self) -> None:
        self._is_due = True
        self.run()

    def _wait(self, peer: WorkerId | None) -> bool:
        self._activity = Activity.WAITING
        self._waits_for = -1 if peer is None else peer
        return False

    def _work(self) -> bool:
        """Do something of the program; False when it has to wait."""
        if self._announces and not self._settle():
            return False
        instruction = self.interpreter.progress.next
        if instruction is None:
            self._agenda.extend(self.machine.handle(ProgramDone(self.machine.generation, self.machine.step)))
            return True
        self._cluster.happened(instruction.op.value, self.node)
        if not self.is_active:
            return False
        if self.freezes or self.fails:
            return self._misbehave()
        if instruction.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT, Op.VOTE):
            return self._take_or_add_up(instruction)
        self._activity, self._waits_for = Activity.COMPUTING, -1
        mean_s = self._cluster.weather.compute_s
        mean_s *= instruction.end_layer - instruction.first_layer if instruction.op in COMPUTES else 0.1
        self._sleep(mean_s, partial(self.interpreter.execute, instruction))
        return True

    def _misbehave(self) -> bool:
        if self.freezes:
            self._activity, self.is_frozen = Activity.COMPUTING, True
        else:
            self._tell(Failed(where=f"layer of worker {self.number}", text="an error of the user's"))
            self._exit()
        return False

    def _take_or_add_up(self, instruction: Instruction) -> bool:
        """Take what is here; while it is not, add up sums that can be added up."""
        if self.interpreter.is_ready(instruction):
            self.interpreter.execute(instruction)
            self._progress += 1
            return True
        found = self.interpreter.collect()
        if found is None:
            return self._wait(self.interpreter.awaited(instruction))
        self._activity, self._waits_for = Activity.WAITING, -1
        self._sleep(self._cluster.weather.compute_s / 10, partial(self.interpreter.add_up, *found))
        return True

    # Commands of its machine

    def _carry_out(self, command: WorkerCommand) -> None:
        self._cluster.happened(type(command).__name__, self.node)
        if self.is_over:
            return
        match command:
            case Adopt(message, continues):
                self._adopt(message, continues=continues)
            case SendReport(generation, step):
                self._tell(
                    Report(
                        generation=generation,
                        step=step,
                        ledger=self.holdings.ledger,
                        held=self.holdings.held_at(step - 1),
                    )
                )
            case SendReturned():
                self._tell(self._returned(command))
            case SendVote(generation, step):
                self._tell(self._vote(generation, step))
            case Apply(commit, proceed):
                self.interpreter.apply(commit)
                self._cluster.witness.applied(self, commit)
                if commit.save is not None:
                    self._write(commit.save)
                if proceed:
                    self.interpreter.begin_next_step(commit)
            case Write(save):
                self._write(save)
            case End(reason, clean):
                self.end = command
                if not clean:
                    self._cluster.witness.ended_itself(self, reason)
        self._cluster.witness.touched(self)

    def _vote(self, generation: int, step: int) -> Vote:
        return Vote(
            generation=generation,
            step=step,
            norms=self.interpreter.sums.norms,
            losses=dict(self.interpreter.losses),
            ledger=self.holdings.ledger,
        )

    def _returned(self, command: SendReturned) -> Returned:
        phase, ledger = command.phase, self.holdings.ledger
        return Returned(
            generation=command.generation,
            step=command.step,
            phase=phase,
            is_settled=not self._announces,
            ledger=Ledger.empty(len(ledger.masks)) if phase is WorkerPhase.IDLE else ledger,
            held=self.holdings.held_at(command.step - 1),
            serial=command.serial,
            commit=command.commit,
            vote=self._vote(command.generation, command.step) if phase is WorkerPhase.VOTED else None,
            message=command.message,
        )

    # State

    def _adopt(self, message: PlanMessage, *, continues: bool) -> None:
        plan, own = message.plan, self.number
        self._set_peers({worker for worker in message.addresses if worker != own})
        if message.source is not StateSource.LIVE:
            self._load_state(message)
        self._incoming = sorted((t for t in plan.transfers if t.target == own), key=lambda t: t.group)
        self._arriving = []
        for transfer in plan.transfers:
            if transfer.source == own:
                replica = self.holdings.replicas[transfer.group]
                self._send(transfer.target, self._state_key(transfer), partial(getattr, replica, "state"))
        self._announces = True
        self.interpreter.adopt(message, continues=continues)

    def _load_state(self, message: PlanMessage) -> None:
        self._mail.forget_older_plans(message.plan.generation)
        self.holdings.forget_all()
        disk = self._cluster.disk
        for group in message.plan.groups_of.get(self.number, ()):
            if message.source is StateSource.INITIAL:
                self.holdings.put(Replica(group, self._cluster.algebra.initial(group), 0))
            else:
                saved = disk.read(message.folder, group)
                self.holdings.put(Replica(group, saved.state, message.step - 1))

    def _state_key(self, transfer: Transfer) -> Key:
        return Key(Kind.STATE, transfer.source, self.machine.step, self.machine.generation, transfer.group, 0)

    def _settle(self) -> bool:
        """Bring in what is still missing, then bind the layers; False while something is."""
        while self._incoming:
            transfer = self._incoming[0]
            key = self._state_key(transfer)
            if not self.interpreter.has_come(key):
                return self._wait(transfer.source)
            state = self._mail.take(key)
            assert isinstance(state, Symbol)
            self._arriving.append(state)
            self._incoming.pop(0)
            if not self._incoming or self._incoming[0].group != transfer.group:
                parts = set(self._arriving)
                state = parts.pop() if len(parts) == 1 else hash(tuple(self._arriving))
                self.holdings.put(Replica(transfer.group, state, self.machine.step - 1))
                self._arriving = []
        self.holdings.own_layers(self.interpreter.plan.layers_of.get(self.number, ()))
        self._announces = False
        self._tell(Ready(generation=self.interpreter.plan.generation))
        self._progress += 1
        self._cluster.witness.touched(self)
        return True

    # Checkpoints

    def _write(self, save: Save) -> None:
        """Copy now; write beside training."""
        copies = {}
        for group in save.groups:
            replica = self.holdings.replicas[group]
            assert replica.step == save.step, f"group {group} is as of step {replica.step}, not {save.step}"
            copies[group] = SavedState(group, replica.step, replica.state)
        self._writes.append((save, copies))
        if len(self._writes) == 1:
            self._write_next()

    def _write_next(self) -> None:
        if self._writes:
            self._clock.after(
                self._clock.vary(3 * self._cluster.weather.compute_s), partial(self._written, self._writes[0])
            )

    def _written(self, order: tuple[Save, dict[int, SavedState]]) -> None:
        if self.is_over or self.is_stopped or not self._writes or self._writes[0] is not order:
            return
        save, copies = self._writes.popleft()
        self._cluster.happened("write", self.node)
        if not self._lives:
            return
        disk, writer = self._cluster.disk, f"{self.number}-{save.serial}"
        try:
            groups = tuple(disk.write(save.folder, writer, copies[group]) for group in save.groups)
        except DiskFull:
            self._tell(NotSaved(step=save.step, serial=save.serial, text=f"{save.folder}: no space left"))
        else:
            self._tell(Saved(step=save.step, serial=save.serial, groups=groups))
        self._write_next()
        if self.end is not None:
            self.run()

    def describe(self) -> str:
        """For people."""
        if self.is_over:
            return f"worker {self.number}: over"
        machine, doing = self.machine, self.interpreter.progress.next
        states = [name for name in ("is_stopped", "is_frozen") if getattr(self, name)]
        return (
            f"worker {self.number}: {machine.phase.value}, generation {machine.generation}, step {machine.step}, "
            f"{self._activity.value} {self._waits_for} {states}, next {doing}, mail {list(self._mail)[:6]}"
        )
