"""Carries out what a worker's machine commands, in a real worker and a simulated one. It decides nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from planaria.plan.ledger import Ledger
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import FromWorker, Report, Returned, WorkerPhase
from planaria.protocol.messages.to_worker import Commit, PlanMessage, Save
from planaria.protocol.worker.holdings import HeldState
from planaria.protocol.worker.machine import (
    Adopt,
    Apply,
    End,
    MoveAgain,
    SendReport,
    SendReturned,
    SendVote,
    WorkerCommand,
    Write,
)
from planaria.protocol.worker.mail import MailStore, Ways
from planaria.protocol.worker.state_transfers import StateTransfers
from planaria.protocol.worker.step_work import StepWork


class CoordinatorWay(Protocol):
    """A worker's connection to its coordinator, if there is one (`planaria.protocol.worker.session`)."""

    def send(self, message: FromWorker) -> None: ...

    def send_returned(self, returned: Returned, connection: int) -> None:
        """Sends to the coordinator at the end of that connection, and no other."""
        ...


class WorkerExecutor(ABC):
    """Carries out the commands of one worker's machine.

    Args:
        worker: the worker whose half this is.
        holdings: what the worker holds.
        transfers: the transfers of the worker's state.
        interpreter: what runs the worker's programs.
        mailbox: what has come from peers.
        transport: the data plane, to the other workers.
        control: the connection to the coordinator.
    """

    def __init__(
        self,
        worker: WorkerId,
        holdings: HeldState[Any, Any],
        transfers: StateTransfers[Any],
        interpreter: StepWork[Any, Any],
        mailbox: MailStore[Any],
        transport: Ways[Any],
        control: CoordinatorWay,
    ) -> None:
        self._worker = worker
        self._holdings = holdings
        self._transfers = transfers
        self._interpreter = interpreter
        self._mailbox = mailbox
        self._transport = transport
        self._control = control

    @abstractmethod
    def _write(self, save: Save, *, beside: bool) -> None:
        """Writes a part of a checkpoint; `beside` training, which goes on, or while all wait."""

    @abstractmethod
    def _end(self, command: End) -> None: ...

    def _carry_out(self, command: WorkerCommand) -> None:
        match command:
            case Adopt(message, continues, forgets):
                self._adopt(message, continues=continues, forgets=forgets)
            case SendReport(generation, step):
                held = self._holdings.held_at(step - 1)
                self._control.send(Report(generation=generation, step=step, ledger=self._holdings.ledger, held=held))
            case SendReturned():
                self._control.send_returned(self._returned(command), command.connection)
                self._mailbox.tell_damage_again()
            case SendVote(generation, step):
                self._control.send(self._interpreter.vote(generation, step))
            case Apply(commit, proceed):
                self._apply(commit, proceed=proceed)
            case MoveAgain(order):
                self._transfers.again(order)
            case Write(save):
                self._write(save, beside=False)
            case End():
                self._end(command)

    def _adopt(self, message: PlanMessage, *, continues: bool, forgets: bool) -> None:
        self._transport.set_peers({w: address for w, address in message.addresses.items() if w != self._worker})
        self._transfers.begin(message, forgets=forgets)
        self._interpreter.adopt(message, continues=continues)

    def _apply(self, commit: Commit, *, proceed: bool) -> None:
        self._interpreter.apply(commit)
        self._transfers.give_parameters(commit)
        if commit.save is not None:
            self._write(commit.save, beside=True)
        if proceed:
            self._interpreter.begin_next_step(commit)

    def _returned(self, command: SendReturned) -> Returned:
        """Returns where the worker is. Orders are handled between instructions, so what is counted is whole."""
        phase, generation, step = command.phase, command.generation, command.step
        ledger = self._interpreter.ledger
        return Returned(
            generation=generation,
            step=step,
            phase=phase,
            is_settled=self._transfers.is_settled,
            # At a boundary, what was counted for the step before it is no news.
            ledger=Ledger.empty(len(ledger.masks)) if phase is WorkerPhase.IDLE else ledger,
            held=self._holdings.held_at(step - 1),
            given=self._interpreter.kept,
            serial=command.serial,
            commit=command.commit,
            vote=self._interpreter.vote(generation, step) if phase is WorkerPhase.VOTED else None,
            message=command.message,
        )
