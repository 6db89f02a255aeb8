"""The worker's half of the protocol: which generation and step it is in, and what it may still do with them.

A pure machine: `handle(event)` alone changes its state and returns what to do. It never computes, sends or waits;
the interpreter does that on its commands.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from planaria.protocol.messages import Commit, Halt, PlanMessage, Resend, Save, StateSource, Stop, ToWorker


class WorkerPhase(enum.StrEnum):
    IDLE = "idle"
    """Waiting for orders: before the first plan, or held at a step boundary."""
    RUNNING = "running"
    """Running the program of (generation, step)."""
    HALTED = "halted"
    """Stopped inside a step; accumulators are kept."""
    VOTED = "voted"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ProgramDone:
    """The interpreter reached the end of the program of this generation and step."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class CoordinatorGone:
    """The control connection closed."""


WorkerEvent = ToWorker | ProgramDone | CoordinatorGone


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take this plan: bring in state, then run its program for the step in progress.

    `continues`: the step was already in progress here, so what is done and counted stays so.
    """

    message: PlanMessage
    continues: bool


@dataclass(frozen=True, slots=True)
class SendReport:
    """Stop computing and send a Report for this generation and step."""

    generation: int
    step: int


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


WorkerCommand = Adopt | SendReport | SendVote | Apply | MoveAgain | Write | End


class WorkerMachine:
    """State of one worker towards the coordinator."""

    def __init__(self) -> None:
        self.phase = WorkerPhase.IDLE
        self.generation = -1
        self.step = 0
        self.history: deque[str] = deque(maxlen=32)

    def handle(self, event: WorkerEvent) -> tuple[WorkerCommand, ...]:
        """Take one event; returns what to do, in order."""
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

    def _plan(self, message: PlanMessage) -> tuple[WorkerCommand, ...]:
        if message.plan.generation <= self.generation:
            return ()
        in_step = self.step == message.step and self.phase is not WorkerPhase.IDLE
        continues = in_step and message.source is StateSource.LIVE and not message.afresh
        self.generation = message.plan.generation
        self.step = message.step
        self.phase = WorkerPhase.RUNNING
        return (Adopt(message, continues),)

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
        return (Write(message),)

    def _violated(self, message: ToWorker) -> tuple[WorkerCommand, ...]:
        recent = "; ".join(self.history)
        text = (
            f"{type(message).__name__} is illegal in phase {self.phase.value}, generation {self.generation}, "
            f"step {self.step}: {message!r:.300}. Recent: {recent}"
        )
        self.phase = WorkerPhase.ENDED
        return (End(text, clean=False),)
