"""A worker process: orders from the coordinator in, through the protocol's machine, to the interpreter.

`run_worker` is the whole life of the process. It returns the exit status; it never outlives its coordinator.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import torch

from planaria.checkpoint.manifest import read_manifest
from planaria.checkpoint.state import GroupState, read_group
from planaria.job.settings import Device
from planaria.model.model import ModelError
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.protocol.liveness import Activity
from planaria.protocol.messages import (
    PROTOCOL_VERSION,
    CutOff,
    Damaged,
    Failed,
    FaultInjected,
    Hello,
    NotSaved,
    OutOfMemory,
    PlanMessage,
    Ready,
    Report,
    Resend,
    Returned,
    Save,
    StateSource,
    Vote,
    WorkerPhase,
)
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
from planaria.worker.compute import LayerFailed
from planaria.worker.control import Control
from planaria.worker.emulated import emulated_engine, read_costs
from planaria.worker.emulated_time import EmulatedMailbox, EmulatedPace, EmulatedTransport
from planaria.worker.engine import Engine, real_engine
from planaria.worker.faults import FaultInjector
from planaria.worker.heartbeat import Heartbeat, processor_time
from planaria.worker.holdings import Holdings
from planaria.worker.interpreter import Interpreter
from planaria.worker.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.worker.memory import lacks_memory, shortage
from planaria.worker.preemption import SourceError, Watch, make_source
from planaria.worker.replica import Replica
from planaria.worker.settings import WorkerSettings
from planaria.worker.trace import Trace
from planaria.worker.transport import Transport
from planaria.worker.writer import Writer, write

SIGTERM_GRACE_S = 30.0
"""What a SIGTERM announces, as Kubernetes and most clouds have it by default."""

EXIT_STALE = 17
"""Exit status of a worker that ended itself because it must not go on."""


def run_worker(settings: WorkerSettings) -> int:
    """Join the coordinator and work until told to stop."""
    if settings.import_path is not None and settings.import_path not in sys.path:
        sys.path.insert(0, settings.import_path)
    parts = _emulated_parts if settings.job.cluster.device is Device.EMULATED else _real_parts
    mailbox, control, transport, worked, make_engine = parts(settings)
    hello = Hello(
        version=PROTOCOL_VERSION,
        token=settings.token,
        worker=settings.worker,
        pid=os.getpid(),
        data_address=transport.start(),
    )
    try:
        control.start(hello)
    except OSError:
        return EXIT_STALE
    heartbeat = Heartbeat(control.send, worked)
    heartbeat.start()
    signal.signal(signal.SIGTERM, lambda number, frame: heartbeat.give_notice(SIGTERM_GRACE_S, "SIGTERM"))
    agent: Agent | None = None
    try:
        _watch_for_preemption(settings, heartbeat)
        writer = Writer(settings.worker, control.send)
        agent = Agent(settings, mailbox, control, transport, heartbeat, writer, make_engine())
        return agent.run()
    except Exception as error:
        doing = agent.doing if agent is not None else "while the model is loaded"
        control.send_last(last_words(settings.worker, error, doing))
    return 1


def last_words(worker: WorkerId, error: Exception, doing: str) -> Failed | OutOfMemory:
    """What a worker that fails tells of it. Memory may lack on this node alone; other errors would come again."""
    lacking = shortage(error, doing)
    if lacking is not None:
        traceback.print_exception(error)  # into this worker's log: the job goes on without it
        return lacking
    if isinstance(error, LayerFailed | ModelError | SourceError):
        return Failed(where=str(error), text="".join(traceback.format_exception(error.__cause__ or error)))
    return Failed(where=f"worker {worker}", text="".join(traceback.format_exception(error)))


def _watch_for_preemption(settings: WorkerSettings, heartbeat: Heartbeat) -> None:
    """One worker asks for all of its node."""
    if settings.worker % settings.job.cluster.devices_per_node != 0:
        return
    source = make_source(settings.job.resilience.preemption, settings.metadata_url)
    if source is not None:
        Watch(source, heartbeat.give_notice).start()


Parts = tuple[Mailbox, Control, Transport, Callable[[], float], Callable[[], Engine]]


def _real_parts(settings: WorkerSettings) -> Parts:
    job, worker = settings.job, settings.worker
    mailbox = Mailbox()
    control = Control(settings.coordinator, mailbox, settings.job.resilience.coordinator_timeout_s)
    transport = Transport(
        worker, settings.token, mailbox, settings.host, cut_off=lambda peer: control.send(CutOff(peer=peer))
    )
    worked = processor_time()
    return mailbox, control, transport, worked, lambda: real_engine(job, Path(settings.data_folder), worker)


def _emulated_parts(settings: WorkerSettings) -> Parts:
    job, worker = settings.job, settings.worker
    profile = read_costs(Path(settings.profile), job)
    mailbox = EmulatedMailbox()
    pace = mailbox.pace = EmulatedPace(worker, profile, mailbox.wait_until_moment)
    control = Control(settings.coordinator, mailbox, settings.job.resilience.coordinator_timeout_s)
    transport = EmulatedTransport(
        worker, settings.token, mailbox, pace, settings.host, lambda peer: control.send(CutOff(peer=peer))
    )
    return mailbox, control, transport, pace.worked, lambda: emulated_engine(profile, job, pace)


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
        self._model = engine.model
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
        mailbox.when_damaged = self._damaged
        self._incoming: list[Transfer] = []
        self._attempts: dict[Transfer, int] = {}
        self._arriving: Replica | None = None
        self._announce_ready = False
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
        """Without memory for a step there may be enough to save what was before it, should everybody be in need."""
        try:
            self._work()
        except Exception as error:
            lacking = shortage(error, self.doing)
            if lacking is None:
                raise
            traceback.print_exception(error)  # into this worker's log: the job may go on without it
            self._gave_up = True
            self._interpreter.give_up()
            self._control.send(msgspec.structs.replace(lacking, holds=True))

    def _work(self) -> None:
        self._act = "while its state arrives"
        try:
            self._settle()
            self._act = ""
            self._interpreter.run()
        except Interrupted:
            return
        self._carry_out(self._machine.handle(ProgramDone(self._machine.generation, self._machine.step)))

    def _carry_out(self, commands: tuple[WorkerCommand, ...]) -> None:
        for command in commands:
            match command:
                case Adopt(message, continues):
                    self._adopt(message, continues=continues)
                case SendReport(generation, step):
                    self._control.send(
                        Report(
                            generation=generation,
                            step=step,
                            ledger=self._interpreter.ledger,
                            held=self._holdings.held_at(step - 1),
                        )
                    )
                case SendReturned():
                    # Where orders of an earlier coordinator are waiting, the truth is told after them.
                    if not self._mailbox.is_coordinator_news:
                        self._control.send(self._returned(command))
                        self._mailbox.tell_damage_again()
                case SendVote(generation, step):
                    self._control.send(self._vote(generation, step))
                case Apply(commit, proceed):
                    self._act = "in the optimizer's step"
                    self._interpreter.apply(commit)
                    if commit.save is not None:
                        self._write_beside(commit.save)
                    if proceed:
                        self._interpreter.begin_next_step(commit)
                case MoveAgain(order):
                    self._move_again(order)
                case Write(save):
                    self._write(save)
                case End(reason, clean):
                    if not clean:
                        print(f"worker {self._settings.worker} ends itself: {reason}", file=sys.stderr)
                    self._status = 0 if clean else EXIT_STALE

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
            is_settled=not self._announce_ready,
            # At a boundary, what was counted for the step before it is no news.
            ledger=Ledger.empty(len(ledger.masks)) if phase is WorkerPhase.IDLE else ledger,
            held=self._holdings.held_at(step - 1),
            serial=command.serial,
            commit=command.commit,
            vote=self._vote(generation, step) if phase is WorkerPhase.VOTED else None,
            message=command.message,
        )

    # State

    def _adopt(self, message: PlanMessage, *, continues: bool) -> None:
        """Take the plan; state that has to come from peers is awaited in `_settle`, where orders interrupt."""
        plan, own = message.plan, self._settings.worker
        self._act = "while a plan is taken over"
        self._transport.set_peers({w: a for w, a in message.addresses.items() if w != own})
        if message.source is not StateSource.LIVE:
            self._load_state(message)
        elif message.afresh:
            self._mailbox.forget_older_plans(plan.generation)
        outgoing = [t for t in plan.transfers if t.source == own]
        self._incoming = sorted((t for t in plan.transfers if t.target == own), key=lambda t: t.group)
        self._arriving = None
        self._attempts.clear()
        self._mailbox.tell_damage_again()
        if outgoing or self._incoming:
            self._faults.check("transfer", message.step)
        for transfer in outgoing:
            replica = self._holdings.replicas[transfer.group]
            key = self._state_key(plan, transfer)
            self._transport.send(transfer.target, key, _moving(plan, transfer, replica))
        self._announce_ready = True
        self._interpreter.adopt(message, continues=continues)

    def _load_state(self, message: PlanMessage) -> None:
        self._mailbox.forget_older_plans(message.plan.generation)
        self._holdings.forget_all()
        groups = message.plan.groups_of.get(self._settings.worker, ())
        manifest = None
        if message.source is StateSource.CHECKPOINT:
            manifest = read_manifest(Path(message.folder), verify=False)
        for group in groups:
            replica = self._holdings.new_replica(group)
            if manifest is None:
                replica.initialise(self._model.initial_state(group, self._settings.job.train.seed))
            else:
                replica.load_named(read_group(Path(message.folder), manifest, group), message.step - 1)
            self._holdings.put(group, replica)

    def _state_key(self, plan: Plan, transfer: Transfer) -> Key:
        attempt = self._attempts.get(transfer, 0)
        return Key(Kind.STATE, transfer.source, self._machine.step, plan.generation, transfer.group, attempt)

    def _damaged(self, key: Key) -> None:
        """What is wanted came, and cannot be used. It is waited for until there is an order."""
        part = self._incoming[0].part if key.kind == Kind.STATE else None
        self._control.send(
            Damaged(
                generation=self._machine.generation,
                step=self._machine.step,
                source=WorkerId(key.sender),
                kind=Kind.NAMES[key.kind],
                item=key.item,
                part=part,
            )
        )

    def _move_again(self, order: Resend) -> None:
        transfer, own = order.transfer, self._settings.worker
        self._attempts[transfer] = order.attempt
        if transfer.source == own:
            replica = self._holdings.replicas[transfer.group]
            key = self._state_key(self._interpreter.plan, transfer)
            self._transport.send(transfer.target, key, _moving(self._interpreter.plan, transfer, replica))
        if transfer.target == own:
            awaited = [(move.group, move.part) for move in self._incoming]
            if (transfer.group, transfer.part) in awaited:
                self._incoming[awaited.index((transfer.group, transfer.part))] = transfer

    def _settle(self) -> None:
        """Bring in what is still missing, then bind the layers. Raises Interrupted."""
        if not self._announce_ready:
            return
        plan = self._interpreter.plan
        while self._incoming:
            transfer = self._incoming[0]
            with self._heartbeat.during(Activity.WAITING, transfer.source):
                state = self._mailbox.take(self._state_key(plan, transfer), lambda: False)
            if self._arriving is None:
                self._arriving = self._holdings.new_replica(transfer.group)
            for own, given in zip(_moving(plan, transfer, self._arriving), state, strict=True):
                own.copy_(given)
            self._incoming.pop(0)
            # In the order of groups, so the parts of one come together.
            if not self._incoming or self._incoming[0].group != transfer.group:
                self._arriving.step = self._machine.step - 1
                self._holdings.put(transfer.group, self._arriving)
                self._arriving = None
        self._holdings.own_layers(plan.layers_of.get(self._settings.worker, ()))
        self._announce_ready = False
        self._control.send(Ready(generation=plan.generation))

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


def _moving(plan: Plan, transfer: Transfer, replica: Replica) -> tuple[torch.Tensor, ...]:
    """What the transfer moves of a replica of its group, as views."""
    if transfer.part is None:
        return replica.state
    return replica.part(*transfer.part, plan.groups[transfer.group].size_bytes)
