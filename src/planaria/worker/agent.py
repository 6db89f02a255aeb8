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
    Failed,
    FaultInjected,
    Hello,
    PlanMessage,
    Ready,
    Report,
    Returned,
    StateSource,
    Vote,
    WorkerPhase,
)
from planaria.protocol.worker import (
    Adopt,
    Apply,
    CoordinatorBack,
    End,
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
from planaria.worker.heartbeat import Heartbeat
from planaria.worker.holdings import Holdings
from planaria.worker.interpreter import Interpreter
from planaria.worker.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.worker.preemption import SourceError, Watch, make_source
from planaria.worker.replica import Replica
from planaria.worker.settings import WorkerSettings
from planaria.worker.transport import Transport
from planaria.worker.writer import Writer

SIGTERM_GRACE_S = 30.0
"""What a SIGTERM announces, as Kubernetes and most clouds have it by default."""

EXIT_STALE = 17
"""Exit status of a worker that ended itself because it must not go on."""


def run_worker(settings: WorkerSettings) -> int:
    """Join the coordinator and work until told to stop."""
    if settings.import_path is not None and settings.import_path not in sys.path:
        sys.path.insert(0, settings.import_path)
    parts = _emulated_parts if settings.job.cluster.device is Device.EMULATED else _real_parts
    mailbox, control, transport, make_engine = parts(settings)
    # The other half of a way that is lost: what is wanted came, and cannot be used.
    mailbox.when_damaged = lambda key: control.send(CutOff(peer=WorkerId(key.sender)))
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
    heartbeat = Heartbeat(control.send)
    heartbeat.start()
    signal.signal(signal.SIGTERM, lambda number, frame: heartbeat.give_notice(SIGTERM_GRACE_S, "SIGTERM"))
    try:
        _watch_for_preemption(settings, heartbeat)
        writer = Writer(settings.worker, control.send)
        return Agent(settings, mailbox, control, transport, heartbeat, writer, make_engine()).run()
    except (LayerFailed, ModelError, SourceError) as error:
        cause = error.__cause__ or error
        text = "".join(traceback.format_exception(cause))
        control.send_last(Failed(where=str(error), text=text))
    except Exception:
        control.send_last(Failed(where=f"worker {settings.worker}", text=traceback.format_exc()))
    return 1


def _watch_for_preemption(settings: WorkerSettings, heartbeat: Heartbeat) -> None:
    """One worker asks for all of its node."""
    if settings.worker % settings.job.cluster.devices_per_node != 0:
        return
    source = make_source(settings.job.resilience.preemption, settings.metadata_url)
    if source is not None:
        Watch(source, heartbeat.give_notice).start()


Parts = tuple[Mailbox, Control, Transport, Callable[[], Engine]]


def _real_parts(settings: WorkerSettings) -> Parts:
    job, worker = settings.job, settings.worker
    mailbox = Mailbox()
    control = Control(settings.coordinator, mailbox, settings.job.resilience.coordinator_timeout_s)
    transport = Transport(worker, settings.token, mailbox, cut_off=lambda peer: control.send(CutOff(peer=peer)))
    return mailbox, control, transport, lambda: real_engine(job, Path(settings.data_folder), worker)


def _emulated_parts(settings: WorkerSettings) -> Parts:
    job, worker = settings.job, settings.worker
    profile = read_costs(Path(settings.profile), job)
    mailbox = EmulatedMailbox()
    pace = mailbox.pace = EmulatedPace(worker, profile, mailbox.wait_until_moment)
    control = Control(settings.coordinator, mailbox, settings.job.resilience.coordinator_timeout_s)
    transport = EmulatedTransport(
        worker, settings.token, mailbox, pace, cut_off=lambda peer: control.send(CutOff(peer=peer))
    )
    return mailbox, control, transport, lambda: emulated_engine(profile, job, pace)


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
        self._interpreter = Interpreter(
            settings.worker, engine, self._holdings, self._transport, mailbox, self._faults, heartbeat
        )
        self._incoming: list[Transfer] = []
        self._arriving: Replica | None = None
        self._announce_ready = False
        self._status: int | None = None

    def run(self) -> int:
        """The main loop: orders first, then the program."""
        self._carry_out(self._machine.handle(CoordinatorBack()))
        while self._status is None:
            running = self._machine.phase is WorkerPhase.RUNNING
            with self._heartbeat.during(Activity.IDLE):
                order = self._mailbox.next_order(block=not running)
            if order is not None:
                self._carry_out(self._machine.handle(order))
            elif running:
                self._work()
        self._writer.close()
        self._heartbeat.close()
        self._transport.close()
        self._control.close()
        return self._status

    def _work(self) -> None:
        try:
            self._settle()
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
                case SendVote(generation, step):
                    self._control.send(self._vote(generation, step))
                case Apply(commit, proceed):
                    self._interpreter.apply(commit)
                    if commit.save is not None:
                        self._writer.write(commit.save, self._copies(commit.save.groups))
                    if proceed:
                        self._interpreter.begin_next_step(commit)
                case Write(save):
                    self._writer.write(save, self._copies(save.groups))
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
        self._transport.set_peers({w: a for w, a in message.addresses.items() if w != own})
        if message.source is not StateSource.LIVE:
            self._load_state(message)
        outgoing = [t for t in plan.transfers if t.source == own]
        self._incoming = sorted((t for t in plan.transfers if t.target == own), key=lambda t: t.group)
        self._arriving = None
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
        return Key(Kind.STATE, transfer.source, self._machine.step, plan.generation, transfer.group, 0)

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

    def _copies(self, groups: Iterable[int]) -> dict[int, GroupState]:
        """The groups' state, which the next step will not change."""
        return {group: self._holdings.replicas[group].copy_of_state() for group in groups}


def _moving(plan: Plan, transfer: Transfer, replica: Replica) -> tuple[torch.Tensor, ...]:
    """What the transfer moves of a replica of its group, as views."""
    if transfer.part is None:
        return replica.state
    return replica.part(*transfer.part, plan.groups[transfer.group].size_bytes)
