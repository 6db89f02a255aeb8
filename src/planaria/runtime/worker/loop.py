"""The worker's main thread: orders from the coordinator in, through the protocol's machine, to the interpreter.

It never outlives its coordinator: it ends when it is told to, or when nobody is there to tell it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from planaria.plan.program.instructions import Instruction
from planaria.protocol.messages.from_worker import Activity, AwaitsSamples, FaultInjected, NotSaved, WorkerPhase
from planaria.protocol.messages.to_worker import Commit, PlanMessage, Save
from planaria.protocol.worker.executor import WorkerExecutor
from planaria.protocol.worker.machine import CoordinatorBack, End, ProgramDone, WorkerCommand, WorkerMachine
from planaria.runtime.thresholds import AWAITS_SAMPLES_S
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.engine import Engine
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.fatal_errors import lacks_memory, last_words
from planaria.runtime.worker.faults import FaultInjector
from planaria.runtime.worker.heartbeat import Heartbeat
from planaria.runtime.worker.instruction_trace import Trace
from planaria.runtime.worker.interpreter import Interpreter
from planaria.runtime.worker.session import Control
from planaria.runtime.worker.settings import WorkerSettings
from planaria.runtime.worker.transport.mailbox import Interrupted, Mailbox
from planaria.runtime.worker.transport.outbox import Outbox
from planaria.runtime.worker.transport.state_transfer import StateTransfer
from planaria.runtime.worker.transport.transport import Transport
from planaria.runtime.worker.writer import Writer, write

log = logging.getLogger(__name__)

EXIT_STALE = 17
"""Exit status of a worker that ended itself because it must not go on."""


class WorkerLoop(WorkerExecutor):
    """Takes orders, and does what the program says where there are none."""

    _interpreter: Interpreter
    _transfers: StateTransfer
    _mailbox: Mailbox
    _transport: Outbox
    _control: Control

    def __init__(
        self,
        settings: WorkerSettings,
        mailbox: Mailbox,
        control: Control,
        transport: Transport,
        heartbeat: Heartbeat,
        writer: Writer,
        engine: Engine,
    ) -> None:
        self._heartbeat = heartbeat
        self._writer = writer
        self._settings = settings
        self._machine = WorkerMachine()
        faults = FaultInjector(
            settings.faults,
            lambda at: control.send(FaultInjected(at_s=at)),
            lambda grace_s: heartbeat.give_notice(grace_s, "preemption notice"),
        )
        job = settings.job
        holdings = Holdings(engine.model, job.train, engine.device, engine.make_compute, compares=job.compares_replicas)
        trace = None if settings.trace is None else Trace(Path(settings.trace))
        self._device = engine.device
        outbox = Outbox(settings.worker, transport, engine.device)
        transfers = StateTransfer(
            settings.worker,
            self._machine,
            holdings,
            outbox,
            mailbox,
            heartbeat,
            faults,
            engine.pace,
            control.send,
        )
        interpreter = Interpreter(settings.worker, engine, holdings, outbox, mailbox, faults, heartbeat, trace)
        super().__init__(settings.worker, holdings, transfers, interpreter, mailbox, outbox, control)
        self._status: int | None = None
        self._act = ""
        self._gave_up = False
        self._waits_for = 0, 0, ""
        self._waits_since_s = 0.0
        heartbeat.describe = lambda: self.doing

    @property
    def doing(self) -> str:
        """Describes for people what the worker does."""
        return self._act or self._interpreter.doing

    def run(self) -> int:
        """Runs the main loop: orders first, then the program."""
        with self._device.in_use():
            self._carry_out_all(self._machine.handle(CoordinatorBack()))
            while self._status is None:
                self._turn()
        assert self._status is not None
        self._interpreter.close()
        self._writer.close()
        self._heartbeat.close()
        self._transport.close()
        self._control.close()
        return self._status

    def _turn(self) -> None:
        """Carries out an order, or works until there is one."""
        running = self._machine.phase is WorkerPhase.RUNNING and not self._gave_up
        if not running:
            self._transport.finish()
        with self._heartbeat.during(Activity.IDLE):
            order = self._mailbox.next_order(block=not running)
        if order is not None:
            self._carry_out_all(self._machine.handle(order))
        elif running:
            self._try_to_work()

    def _try_to_work(self) -> None:
        """Works; whatever prevents a step, the state before it is whole, and can be saved."""
        try:
            self._work()
        except Exception as error:
            told = last_words(self._settings.worker, error, self.doing)
            if told is None:
                raise  # the device is no good any more, and what it holds neither
            self._gave_up = True
            self._interpreter.give_up()
            self._control.send(msgspec.structs.replace(told, holds=True))

    def wait_for_samples(self) -> None:
        """Tells the coordinator, now and then, that samples of a stream are waited for. Called again and again
        meanwhile; raises Interrupted where there is an order."""
        if self._mailbox.has_orders:
            raise Interrupted
        now, waits_for = time.monotonic(), (self._machine.generation, self._machine.step, self.doing)
        if waits_for != self._waits_for:  # however long ago it was called: others may have had the processor
            self._waits_for, self._waits_since_s = waits_for, now
        if now - self._waits_since_s > AWAITS_SAMPLES_S:
            self._waits_since_s = now
            self._control.send(AwaitsSamples(generation=self._machine.generation, step=self._machine.step))

    def _work(self) -> None:
        self._act = ""
        try:
            self._interpreter.run(self._bring_in)
        except Interrupted:
            return
        self._carry_out_all(self._machine.handle(ProgramDone(self._machine.generation, self._machine.step)))

    def _bring_in(self, instruction: Instruction | None, idle: Callable[[], bool]) -> None:
        if not self._transfers.is_complete:
            self._act = "while its state arrives"
            self._transfers.bring_in(instruction, idle)
            self._act = ""

    def _carry_out_all(self, commands: tuple[WorkerCommand, ...]) -> None:
        for command in commands:
            self._carry_out(command)

    # Orders

    def _adopt(self, message: PlanMessage, *, continues: bool, forgets: bool) -> None:
        self._act = "while a plan is taken over"
        log.info("plan %d from step %d", message.plan.generation, message.step)
        self._heartbeat.pace(len(message.plan.layers_of))
        # Of what the plan may drop, count anew, or have taken over.
        self._device.after(Stream.SUMS, Stream.COPIES_OUT, Stream.SHADOWS)
        super()._adopt(message, continues=continues, forgets=forgets)

    def _apply(self, commit: Commit, *, proceed: bool) -> None:
        self._act = "in the optimizer's step"
        super()._apply(commit, proceed=proceed)

    def _write(self, save: Save, *, beside: bool) -> None:
        """Has a copy written. Where there is no memory for one, what is held is written while everything waits; but a
        checkpoint beside training is worth no node, and is missing then."""
        try:
            copies = {group: self._holdings.replicas[group].copy_of_state() for group in save.groups}
            self._writer.write(save, copies)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            if beside:
                text = f"worker {self._worker} has no memory for the copy that is written"
                self._control.send(NotSaved.answering(save, text))
            else:
                states = {group: self._holdings.replicas[group].named_state() for group in save.groups}
                self._control.send(write(save, self._worker, states))

    def _end(self, command: End) -> None:
        if command.clean:
            log.info("ends: %s", command.reason)
        else:
            log.warning("ends itself: %s", command.reason)
        self._status = 0 if command.clean else EXIT_STALE
