"""The worker's half of the protocol: which generation and step it is in, and what it may still do with them.

A pure machine: `handle(event)` alone changes its state and returns what to do. It never computes, sends or waits;
the interpreter does that on its commands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from planaria.protocol.messages.from_worker import WorkerPhase
from planaria.protocol.messages.to_worker import (
    Commit,
    Halt,
    PlanMessage,
    Recall,
    Resend,
    Save,
    StateSource,
    Stop,
    ToWorker,
)


@dataclass(frozen=True, slots=True)
class ProgramDone:
    """The interpreter reached the end of the program of this generation and step."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class CoordinatorGone:
    """The control connection closed, and no coordinator was found for as long as it is waited for."""


@dataclass(frozen=True, slots=True)
class CoordinatorBack:
    """A coordinator is there: this worker has said hello to it, and it knows nothing else of the worker.

    `connection`: which of this worker's connections leads to it, counted from 1.
    """

    connection: int = 1


WorkerEvent = ToWorker | ProgramDone | CoordinatorGone | CoordinatorBack


@dataclass(frozen=True, slots=True)
class Adopt:
    """Bring in the state for this plan, then run its program for the step in progress.

    `continues`: the step was already in progress here, so what is done and counted stays so. `forgets`: the job went
    back since this worker had a plan, so what it holds, and what was sent to it, is of no use.
    """

    message: PlanMessage
    continues: bool
    forgets: bool


@dataclass(frozen=True, slots=True)
class SendReport:
    """Stop computing and send a Report for this generation and step."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class SendReturned:
    """Tell where this worker is, on that connection; what is being computed goes on.

    It is the truth for nobody else: orders of that coordinator may be waiting that the next one counts as heard.
    """

    connection: int
    generation: int
    step: int
    phase: WorkerPhase
    serial: int
    commit: Commit | None
    message: PlanMessage | None


@dataclass(frozen=True, slots=True)
class SendVote:
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the optimizer for the committed step, then begin the next one if `proceed`."""

    commit: Commit
    proceed: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Write a part of a checkpoint."""

    save: Save


@dataclass(frozen=True, slots=True)
class MoveAgain:
    """Send a piece of state, or await it from where the order says."""

    order: Resend


@dataclass(frozen=True, slots=True)
class End:
    """End this process. `clean` is False when the worker ends itself because it must not go on."""

    reason: str
    clean: bool


WorkerCommand = Adopt | SendReport | SendReturned | SendVote | Apply | MoveAgain | Write | End


class WorkerMachine:
    """State of one worker towards the coordinator."""

    def __init__(self) -> None:
        self.phase = WorkerPhase.IDLE
        self.generation = -1
        self.step = 0
        self._connection = 0
        self._serial = 0
        self._applied: Commit | None = None
        self._message: PlanMessage | None = None
        self.history: deque[str] = deque(maxlen=32)

    def handle(self, event: WorkerEvent) -> tuple[WorkerCommand, ...]:
        """Takes one event; returns what to do, in order."""
        before = self.phase
        commands = self._dispatch(event)
        self.history.append(f"{before.value} --{type(event).__name__}--> {self.phase.value}")
        return commands

    def _dispatch(self, event: WorkerEvent) -> tuple[WorkerCommand, ...]:
        if self.phase is WorkerPhase.ENDED:
            return ()
        match event:
            case PlanMessage():
                return self._plan(event)
            case Halt():
                return self._halt(event)
            case Commit():
                return self._commit(event)
            case ProgramDone():
                return self._done(event)
            case Resend():
                is_ours = (event.generation, event.step) == (self.generation, self.step)
                return (MoveAgain(event),) if is_ours else ()
            case Save():
                return self._save(event)
            case Stop():
                self.phase = WorkerPhase.ENDED
                return (End(event.reason, clean=True),)
            case CoordinatorGone():
                self.phase = WorkerPhase.ENDED
                return (End("the coordinator is gone", clean=False),)
            case CoordinatorBack(connection):
                self._connection = connection
                return (self._returned(None),)
            case Recall():
                return (self._returned(self._message),)

    def _returned(self, message: PlanMessage | None) -> SendReturned:
        return SendReturned(
            connection=self._connection,
            generation=self.generation,
            step=self.step,
            phase=self.phase,
            serial=self._serial,
            commit=self._applied,
            message=message,
        )

    def _plan(self, message: PlanMessage) -> tuple[WorkerCommand, ...]:
        if message.plan.generation <= self.generation:
            return ()
        in_step = self.step == message.step and self.phase is not WorkerPhase.IDLE and self.generation >= message.begun
        continues = in_step and message.source is StateSource.LIVE and not message.afresh
        forgets = message.source is not StateSource.LIVE or self.generation < message.lineage
        self.generation = message.plan.generation
        self.step = message.step
        self.phase = WorkerPhase.RUNNING
        self._message = message
        return (Adopt(message, continues, forgets),)

    def _halt(self, message: Halt) -> tuple[WorkerCommand, ...]:
        if message.generation != self.generation:
            return ()
        if message.step != self.step:
            return self._violated(message)
        self.phase = WorkerPhase.HALTED
        return (SendReport(self.generation, self.step),)

    def _commit(self, message: Commit) -> tuple[WorkerCommand, ...]:
        right_place = (message.generation, message.step) == (self.generation, self.step)
        if not right_place or self.phase is not WorkerPhase.VOTED:
            return self._violated(message)
        self.step += 1
        self.phase = WorkerPhase.IDLE if message.hold else WorkerPhase.RUNNING
        self._applied = msgspec.structs.replace(message, save=None)
        if message.save is not None:
            self._serial = max(self._serial, message.save.serial)
        return (Apply(message, proceed=not message.hold),)

    def _done(self, event: ProgramDone) -> tuple[WorkerCommand, ...]:
        if (event.generation, event.step) != (self.generation, self.step):
            return ()
        if self.phase is not WorkerPhase.RUNNING:
            return ()
        self.phase = WorkerPhase.VOTED
        return (SendVote(self.generation, self.step),)

    def _save(self, message: Save) -> tuple[WorkerCommand, ...]:
        is_still = self.phase in (WorkerPhase.IDLE, WorkerPhase.HALTED, WorkerPhase.VOTED)
        if not is_still or message.step != self.step - 1:
            return self._violated(message)
        self._serial = max(self._serial, message.serial)
        return (Write(message),)

    def _violated(self, message: ToWorker) -> tuple[WorkerCommand, ...]:
        recent = "; ".join(self.history)
        text = (
            f"{type(message).__name__} is illegal in phase {self.phase.value}, generation {self.generation}, "
            f"step {self.step}: {message!r:.300}. Recent: {recent}"
        )
        self.phase = WorkerPhase.ENDED
        return (End(text, clean=False),)
