"""The worker's main thread: orders from the coordinator in, through the protocol's machine, to the interpreter.

It never outlives its coordinator: it ends when it is told to, or when nobody is there to tell it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from planaria.checkpoint.state import GroupState
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan
from planaria.plan.program.instructions import Instruction
from planaria.protocol.messages import (
    Commit,
    FaultInjected,
    NotSaved,
    Report,
    Returned,
    Save,
    Vote,
    WorkerPhase,
)
from planaria.protocol.pulse import Activity
from planaria.protocol.worker import (
    Adopt,
    Apply,
    CoordinatorBack,
    End,
    MoveAgain,
    ProgramDone,
    SendReport,
    SendReturned,
    SendVote,
    WorkerCommand,
    WorkerMachine,
    Write,
)
from planaria.worker.control import Control
from planaria.worker.engine import Engine
from planaria.worker.faults import FaultInjector
from planaria.worker.heartbeat import Heartbeat
from planaria.worker.holdings import Holdings
from planaria.worker.interpreter import Interpreter
from planaria.worker.last_words import last_words
from planaria.worker.mailbox import Interrupted, Mailbox
from planaria.worker.memory import lacks_memory
from planaria.worker.movement import Movement
from planaria.worker.settings import WorkerSettings
from planaria.worker.trace import Trace
from planaria.worker.transport import Transport
from planaria.worker.writer import Writer, write

log = logging.getLogger(__name__)

EXIT_STALE = 17
"""Exit status of a worker that ended itself because it must not go on."""


class Agent:
    """Carries out what the worker's machine commands."""

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
        self._mailbox = mailbox
        self._control = control
        self._machine = WorkerMachine()
        self._holdings = Holdings(engine.model, settings.job.train, engine.device, engine.make_compute)
        self._transport = transport
        self._faults = FaultInjector(
            settings.faults,
            lambda at: control.send(FaultInjected(at_s=at)),
            lambda grace_s: heartbeat.give_notice(grace_s, "preemption notice"),
        )
        trace = None if settings.trace is None else Trace(Path(settings.trace))
        self._interpreter = Interpreter(
            settings.worker, engine, self._holdings, self._transport, mailbox, self._faults, heartbeat, trace
        )
        self._movement = Movement(
            settings.worker,
            settings.job.train.seed,
            engine.model,
            self._machine,
            self._holdings,
            transport,
            mailbox,
            heartbeat,
            self._faults,
            engine.pace,
            control.send,
        )
        self._status: int | None = None
        self._act = ""
        self._gave_up = False

    @property
    def doing(self) -> str:
        """For people."""
        return self._act or self._interpreter.doing

    def run(self) -> int:
        """The main loop: orders first, then the program."""
        self._carry_out(self._machine.handle(CoordinatorBack()))
        while self._status is None:
            running = self._machine.phase is WorkerPhase.RUNNING and not self._gave_up
            with self._heartbeat.during(Activity.IDLE):
                order = self._mailbox.next_order(block=not running)
            if order is not None:
                self._carry_out(self._machine.handle(order))
            elif running:
                self._try_to_work()
        self._writer.close()
        self._heartbeat.close()
        self._transport.close()
        self._control.close()
        return self._status

    def _try_to_work(self) -> None:
        """Whatever prevents a step, the state before it is whole, and can be saved."""
        try:
            self._work()
        except Exception as error:
            told = last_words(self._settings.worker, error, self.doing)
            self._gave_up = True
            self._interpreter.give_up()
            self._control.send(msgspec.structs.replace(told, holds=True))

    def _work(self) -> None:
        self._act = ""
        try:
            self._interpreter.run(self._bring_in)
        except Interrupted:
            return
        self._carry_out(self._machine.handle(ProgramDone(self._machine.generation, self._machine.step)))

    def _bring_in(self, plan: Plan, instruction: Instruction | None, idle: Callable[[], bool]) -> None:
        if not self._movement.is_settled:
            self._act = "while its state arrives"
            self._movement.bring_in(plan, instruction, idle)
            self._act = ""

    def _carry_out(self, commands: tuple[WorkerCommand, ...]) -> None:
        for command in commands:
            match command:
                case Adopt():
                    self._adopt(command)
                case SendReport(generation, step):
                    self._control.send(self._report(generation, step))
                case SendReturned():
                    self._control.send_returned(self._returned(command), command.connection)
                    self._mailbox.tell_damage_again()
                case SendVote(generation, step):
                    self._control.send(self._vote(generation, step))
                case Apply(commit, proceed):
                    self._apply(commit, proceed=proceed)
                case MoveAgain(order):
                    self._movement.again(self._interpreter.plan, order)
                case Write(save):
                    self._write(save)
                case End(reason, clean):
                    if clean:
                        log.info("ends: %s", reason)
                    else:
                        log.warning("ends itself: %s", reason)
                    self._status = 0 if clean else EXIT_STALE

    # What is told

    def _report(self, generation: int, step: int) -> Report:
        held = self._holdings.held_at(step - 1)
        return Report(generation=generation, step=step, ledger=self._interpreter.ledger, held=held)

    def _vote(self, generation: int, step: int) -> Vote:
        return Vote(
            generation=generation,
            step=step,
            norms=self._interpreter.norms,
            losses=self._interpreter.losses,
            ledger=self._interpreter.ledger,
            compute_s=self._interpreter.compute_s,
        )

    def _returned(self, command: SendReturned) -> Returned:
        """Orders are carried out between instructions, or where one waits: what is counted is whole."""
        phase, generation, step = command.phase, command.generation, command.step
        ledger = self._interpreter.ledger
        return Returned(
            generation=generation,
            step=step,
            phase=phase,
            is_settled=self._movement.is_settled,
            # At a boundary, what was counted for the step before it is no news.
            ledger=Ledger.empty(len(ledger.masks)) if phase is WorkerPhase.IDLE else ledger,
            held=self._holdings.held_at(step - 1),
            serial=command.serial,
            commit=command.commit,
            vote=self._vote(generation, step) if phase is WorkerPhase.VOTED else None,
            message=command.message,
        )

    # Orders

    def _adopt(self, order: Adopt) -> None:
        message = order.message
        self._act = "while a plan is taken over"
        log.info("plan %d from step %d", message.plan.generation, message.step)
        own = self._settings.worker
        self._transport.set_peers({w: a for w, a in message.addresses.items() if w != own})
        self._movement.begin(message, forgets=order.forgets)
        self._interpreter.adopt(message, continues=order.continues)

    def _apply(self, commit: Commit, *, proceed: bool) -> None:
        self._act = "in the optimizer's step"
        self._interpreter.apply(commit)
        if commit.save is not None:
            self._write_beside(commit.save)
        if proceed:
            self._interpreter.begin_next_step(commit)

    def _write(self, save: Save) -> None:
        """Have a copy written; where there is no memory for one, write what is held, while everything waits."""
        try:
            self._writer.write(save, self._copies(save.groups))
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            states = {group: self._holdings.replicas[group].named_state() for group in save.groups}
            self._control.send(write(save, self._settings.worker, states))

    def _write_beside(self, save: Save) -> None:
        """Have a copy written while training goes on. A checkpoint that lacks memory for it is worth no node."""
        try:
            self._writer.write(save, self._copies(save.groups))
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            text = f"worker {self._settings.worker} has no memory for the copy that is written"
            self._control.send(NotSaved(step=save.step, serial=save.serial, text=text))

    def _copies(self, groups: Iterable[int]) -> dict[int, GroupState]:
        """The groups' state, which the next step will not change."""
        return {group: self._holdings.replicas[group].copy_of_state() for group in groups}
