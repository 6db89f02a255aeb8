"""A simulated worker process: the real machine of the worker's half, a symbolic interpreter, and their durations.

Orders come first, then state that has to come, then the program. It dies, stops and freezes between any two things
that it does; what these are, the real worker's pure halves say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.program.instructions import COMPUTING, Instruction, Op
from planaria.protocol.messages.from_worker import Activity, Failed, WorkerPhase
from planaria.protocol.messages.to_worker import Challenge, Commit, PlanMessage, Save, Stop, ToWorker
from planaria.protocol.worker.executor import WorkerExecutor
from planaria.protocol.worker.machine import (
    Adopt,
    Apply,
    CoordinatorBack,
    CoordinatorGone,
    End,
    ProgramDone,
    SendVote,
    WorkerCommand,
    WorkerMachine,
)
from planaria.protocol.worker.mail import Key
from tests.testkit.cluster.disk import DiskDamaged
from tests.testkit.worker.control import Control
from tests.testkit.worker.device import Device
from tests.testkit.worker.holdings import Holdings
from tests.testkit.worker.interpreter import Interpreter, WatchedMail
from tests.testkit.worker.moves import Moves
from tests.testkit.worker.transport import Transport
from tests.testkit.worker.writer import Writer

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.server.server import Connection


class Worker(WorkerExecutor):
    """A worker process.

    Attributes:
        is_over: it ended, or was killed.
        is_stopped: by SIGSTOP; what reaches it stays in its sockets.
        is_frozen: its main thread does nothing more, and its heartbeat goes on.
        freezes: its main thread will, in its next instruction.
        fails: its next instruction raises an error of the user's code, and it "ends", or "holds" its state; "": not.
        runs_out: of memory, in the next instruction, or in the next plan or commit if that comes first.
        slowness: how many times longer it computes.
        slowest: the most that its slowness ever was.
        incarnation: how often its device was started again.
        address: at which its peers reach it.
    """

    def __init__(self, cluster: Cluster, number: WorkerId, node: NodeId, incarnation: int = 0) -> None:
        self.number = number
        self.node = node
        self.incarnation = incarnation
        self.address = f"virtual:{number}" + (f".{incarnation}" if incarnation else "")
        self.is_started = self.is_over = self.is_stopped = self.is_frozen = False
        self.freezes = self.runs_out = False
        self.fails = ""
        self.slowness = self.slowest = 1.0
        self.machine = WorkerMachine()
        self.holdings = Holdings(cluster.algebra, cluster.profile.groups, self._counted)
        self.end: End | None = None
        self._cluster = cluster
        self._clock = cluster.clock
        self._orders: deque[ToWorker | CoordinatorGone | CoordinatorBack] = deque()
        self._agenda: deque[WorkerCommand] = deque()
        self.control = Control(self, cluster)
        self.transport = Transport(self, cluster)
        self.mail: WatchedMail = WatchedMail(lambda key: self.moves.tell_damage(key))
        self.moves: Moves = Moves(self, cluster)
        self._writer = Writer(self, cluster)
        self.interpreter = Interpreter(
            number,
            cluster.algebra,
            self.holdings,
            self.mail,
            self.transport,
            lambda peer: 0 if cluster.weather.is_one_host else cluster.workers[peer].node,
            cluster.invariants.tainted.add,
        )
        super().__init__(number, self.holdings, self.moves, self.interpreter, self.mail, self.transport, self.control)
        self._then: Callable[[], None] | None = None
        self._is_due = False
        self._activity = Activity.BUSY
        self._progress = 0
        self._waits_for = -1
        self.device = Device(cluster.clock, cluster.weather, cluster.profile)
        self._gave_up = self._is_done_for = False

    # Life and death

    def start(self) -> None:
        if self.is_over:
            return
        self.is_started = True
        self.control.start()
        self._sleep(self._cluster.weather.compute_s, lambda: None)
        self.control.connect()

    def die(self, *, silently: bool) -> None:
        """Kills the process, as SIGKILL or a power cut does. `silently`: no closing packet is sent."""
        self.is_over = True
        self.transport.cut()
        self.control.cut(silently=silently)

    def stop(self) -> None:
        """Stops the process, as SIGSTOP does."""
        self.is_stopped = True

    def resume(self) -> None:
        """Resumes the process, as SIGCONT does."""
        if self.is_stopped:
            self.is_stopped = False
            self.control.resume()
            self.run()
            self._writer.go_on()

    @property
    def is_active(self) -> bool:
        """Whether its main thread goes on."""
        return self.is_started and not (self.is_over or self.is_stopped or self.is_frozen or self._is_done_for)

    @property
    def doing(self) -> tuple[Activity, int, int]:
        """Returns what its heartbeat tells: activity, progress, and the worker for which it waits."""
        return self._activity, self._progress, self._waits_for

    @property
    def lives(self) -> bool:
        return not self.is_over

    @property
    def is_in_trouble(self) -> bool:
        """Whether its main thread will misbehave."""
        return self.freezes or bool(self.fails) or self.runs_out

    @property
    def gave_up(self) -> bool:
        """Whether it works no more, and keeps what it holds."""
        return self._gave_up

    def _exit(self) -> None:
        """Ends the process by itself."""
        self.is_over = True
        self.transport.cut()
        self.control.close()
        self._cluster.ended(self)

    # What reaches it

    def order(self, order: ToWorker | Challenge | CoordinatorGone | CoordinatorBack) -> None:
        if self.is_over:
            return
        if isinstance(order, Challenge):
            self.control.challenged(order)
            return
        if isinstance(order, (Stop, CoordinatorGone)):
            self.control.is_closed = True
            if self._is_done_for:
                self._exit()
                return
        self._orders.append(order)
        self.run()

    def lose_connection(self, connection: Connection) -> None:
        """Notes that the coordinator's end of the connection closed."""
        self.control.lose(connection)

    def receive(self, key: Key, payload: Any, *, is_damaged: bool) -> None:
        if is_damaged:
            self.mail.put_damaged(key)
        else:
            self.mail.put(key, payload, self._cluster.clock_of(self.node).now)
        self.run()

    # The main thread

    def run(self) -> None:
        """Runs the main thread until it waits, or until something takes time."""
        if self._then is not None and not self._is_due:
            return
        while self.is_active:
            if self._then is not None:
                if not self._is_due:
                    return
                then, self._then, self._is_due = self._then, None, False
                then()
                self._progress += 1
            elif self._agenda:
                self._activity = Activity.BUSY
                self._sleep_for(self._order_s(self._agenda[0]), partial(self._do_as_told, self._agenda.popleft()))
            elif self.end is not None:
                if self._writer.is_done:
                    self._exit()
                return
            elif self._orders:
                self._agenda.extend(self.machine.handle(self._orders.popleft()))
            elif self.machine.phase is not WorkerPhase.RUNNING or self._gave_up:
                self._activity, self._waits_for = Activity.IDLE, -1
                return
            elif not self._work():
                return

    def _sleep(self, mean_s: float, then: Callable[[], None]) -> None:
        self._sleep_for(self._clock.vary(mean_s) * self.slowness, then)

    def _sleep_for(self, seconds: float, then: Callable[[], None]) -> None:
        self._then, self._is_due = then, False
        self._clock.after(seconds, self._awake)

    def _awake(self) -> None:
        self._is_due = True
        self.run()

    def _wait(self, peer: WorkerId | None) -> bool:
        self._activity = Activity.WAITING
        self._waits_for = -1 if peer is None else peer
        return False

    def _work(self) -> bool:
        """Does a piece of the program; returns False when it has to wait."""
        if self.runs_out:
            return self._misbehave()
        instruction = self.interpreter.progress.next
        source = None if self.moves.is_complete else self._bring_in()
        if source is not None and self.moves.is_needed_by(instruction):
            return self._add_up_or_wait(source)
        if instruction is None:
            self._agenda.extend(self.machine.handle(ProgramDone(self.machine.generation, self.machine.step)))
            return True
        if self._cluster.injector.is_waiting:
            self._cluster.happened(instruction.op, self.node)
            if not self.is_active:
                return False
        if self.is_in_trouble:
            return self._misbehave()
        if instruction.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT, Op.VOTE):
            return self._take_or_add_up(instruction)
        if not self.interpreter.progress.has_sends and self._adds_up():
            return True
        self._activity, self._waits_for = Activity.COMPUTING, -1
        if instruction.op in COMPUTING:
            seconds = self.device.begin(instruction, self.slowness)
            self._sleep_for(seconds, partial(self._computed, instruction, seconds))
        else:
            self._sleep(self._cluster.weather.compute_s / 10, partial(self.interpreter.execute, instruction))
        return True

    def _computed(self, instruction: Instruction, seconds: float) -> None:
        self.device.finish(seconds)
        if instruction.op is not Op.AUDIT:
            self.interpreter.compute_s += seconds
        self.interpreter.execute(instruction)

    def _misbehave(self) -> bool:
        """Misbehaves as a fault wants; returns whether there is something else to do."""
        if self.freezes:
            self._activity, self.is_frozen = Activity.COMPUTING, True
        elif self.fails:
            holds, self.fails = self.fails == "holds", ""
            where = f"layer of worker {self.number}"
            self.control.send(Failed(where=where, text="an error of the user's", holds=holds))
            if holds:
                self._gave_up = True
                self.interpreter.give_up()
                return True
            self._exit()
        else:
            self.runs_out, self._gave_up = False, True
            self.interpreter.give_up()
            self.control.send(self.device.out_of_memory(self.interpreter, self.number, holds=True))
            return True
        return False

    def _take_or_add_up(self, instruction: Instruction) -> bool:
        """Takes what is here; while it is not, adds up sums that can be added up."""
        if self.interpreter.is_ready(instruction):
            self.interpreter.execute(instruction)
            self._progress += 1
            return True
        return self._add_up_or_wait(self.interpreter.awaited(instruction))

    def _add_up_or_wait(self, awaited: WorkerId | None) -> bool:
        return self._adds_up() or self._wait(awaited)

    def _adds_up(self) -> bool:
        """Does a piece of a sum; returns False when there is none that needs not wait."""
        piece = self.interpreter.sums.next_piece()
        if piece is None:
            return False
        self._activity, self._waits_for = Activity.WAITING, -1
        seconds = self.device.sum_s(piece) * self.slowness
        self._sleep_for(seconds, partial(self.interpreter.sums.do, piece))
        return True

    # Commands of its machine

    def _order_s(self, command: WorkerCommand) -> float:
        if isinstance(command, Apply):
            return self.device.apply_s(self.interpreter.plan.groups_of[self.number]) * self.slowness
        return self._clock.vary(self._cluster.weather.compute_s / 5) * self.slowness

    def _do_as_told(self, command: WorkerCommand) -> None:
        self._cluster.happened(type(command).__name__, self.node)
        if self.is_over:
            return
        if self.runs_out and isinstance(command, Adopt | Apply):
            self.runs_out, self._is_done_for = False, True  # its last words, and then it waits to be told to end
            self.control.send(self.device.out_of_memory(self.interpreter, self.number, holds=False))
            if self.control.is_closed or any(isinstance(order, Stop | CoordinatorGone) for order in self._orders):
                self._exit()  # it was told so already
            return
        if isinstance(command, SendVote) and self.interpreter.plan.evaluation is None:
            given, replicas = self.interpreter.kept, self.holdings.replicas
            self._cluster.recorder.summed(self.number, command.generation, command.step, given, replicas)
        try:
            self._carry_out(command)
        except DiskDamaged as error:
            self.control.send(Failed(where=str(error), text="a checkpoint is damaged"))
            self._exit()
        self._cluster.invariants.touched[self.number] = self

    def _counted(self, group: int, layer: int, microbatch: int, value: int) -> None:
        at = self.interpreter
        self._cluster.recorder.counted(self.number, at.plan.generation, at.step, group, layer, microbatch, value)

    def _adopt(self, message: PlanMessage, *, continues: bool, forgets: bool) -> None:
        super()._adopt(message, continues=continues, forgets=forgets)
        self._cluster.recorder.adopted(self.number, message)

    def _apply(self, commit: Commit, *, proceed: bool) -> None:
        super()._apply(commit, proceed=proceed)
        self._cluster.recorder.applied(self.number, commit, self.holdings.replicas)
        self._cluster.invariants.applied(self, commit)

    def _write(self, save: Save, *, beside: bool) -> None:
        self._writer.write(save)

    def _end(self, command: End) -> None:
        self.end = command
        if not command.clean:
            self._cluster.invariants.ended_itself(self, command.reason)

    # State

    def _bring_in(self) -> WorkerId | None:
        """Brings in the state that has come; returns the worker whose piece is still missing."""
        missing = self.moves.collect()
        if missing is not None:
            return missing.source
        self.moves.settle()
        self._progress += 1
        self._cluster.invariants.touched[self.number] = self
        return None

    def describe(self) -> str:
        """Returns the worker's state for people."""
        if self.is_over:
            return f"worker {self.number}: over"
        machine, doing = self.machine, self.interpreter.progress.next
        states = [name for name in ("is_stopped", "is_frozen") if getattr(self, name)]
        states += ["gave up"] * self._gave_up
        return (
            f"worker {self.number}: {machine.phase.value}, generation {machine.generation}, step {machine.step}, "
            f"{self._activity.value} {self._waits_for} {states}, next {doing}, mail {list(self.mail)[:6]}"
        )
