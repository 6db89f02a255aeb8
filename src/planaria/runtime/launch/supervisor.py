"""Keeps a coordinator serving until the run is over: starts it, restarts it when it dies, and does what it asks for.

One that is stopped is killed, and followed when it is dead. It owns what outlives a coordinator: the link to the
launcher, the port, what was told so far, and the user's wishes. It never decides anything about the training.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from planaria.job.errors import PlanariaError, UserError
from planaria.job.faults import Fault
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.records import AnyRecord, NodeLost, Note, StepCommitted, StepSkipped
from planaria.protocol.run.told_records import ToldRecords
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.coordinator.supervisor_link import (
    Begin,
    Finished,
    FromCoordinator,
    KillNode,
    Link,
    NodesLost,
    NodeStarted,
    Prepared,
    StartNode,
    StartRefused,
    StopRun,
    Struck,
    Told,
)
from planaria.runtime.journal.etcd import NEVER, OutOfReach
from planaria.runtime.journal.lead import HandedOver, Lead, LeadTaken
from planaria.runtime.nodes.local_nodes import LocalNodes, cause_of
from planaria.runtime.nodes.stopped_processes import Stopped
from planaria.runtime.thresholds import GOODBYE_S, MAX_RESTARTS, STOPPED_LOOK_S, TAIL_BYTES


class CoordinatorFailed(PlanariaError):
    """Coordinators died one after the other. The message ends with the log's last lines."""


class _Process:
    """A coordinator's process and the link to it.

    Attributes:
        struck: why its supervisor has killed it; None: it has not.
    """

    def __init__(self, pid: int, link: Link) -> None:
        self.pid = pid
        self.link = link
        self.struck: str | None = None


class Supervisor:
    """The supervisor of one run's coordinators and nodes.

    Args:
        launcher: starts, watches and kills processes.
        settings: what each coordinator is told.
        listener: the port, which stays open while coordinators come and go.
        start_node: starts the processes of a node, or that of one worker of it.
        observe: gets every record once, with its time.
        faults: of the coordinator, on the user's order.
        lead: the right to coordinate the run, where its journal is in etcd; None: nobody else can.
        told: what readers know from coordinators of another host; None: there were none.
    """

    def __init__(
        self,
        launcher: LocalNodes,
        settings: CoordinatorSettings,
        listener: socket.socket,
        start_node: Callable[[NodeId, WorkerId | None], None],
        observe: Callable[[AnyRecord, float], None],
        faults: tuple[Fault, ...] = (),
        lead: Lead | None = None,
        told: ToldRecords | None = None,
    ) -> None:
        self._lead = lead
        self._launcher = launcher
        self._settings = settings
        self._listener = listener
        self._start_node = start_node
        self._observe = observe
        self._faults = faults
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._serving: _Process | None = None
        self._standby: _Process | None = None
        self._incarnation = 0 if told is None else 1
        self._deaths = 0
        self._nodes: dict[NodeId, tuple[int, ...]] = {}
        self._lost: list[tuple[WorkerId, str]] = []
        self._gone_at: dict[NodeId, float] = {}
        self._step_began: float | None = None
        self._told = told or ToldRecords()
        self._stopped = Stopped(settings.job.resilience.heartbeat_timeout_s, time.monotonic())
        self._is_stopping = False
        self._is_aborted = self._is_leaving = False
        self._finished: Finished | None = None
        self._unsure: list[FromCoordinator] = []

    def prepare(self) -> None:
        """Starts a coordinator and waits until it has made its policy.

        Raises:
            UserError: the job cannot be planned.
        """
        first = self._spawn()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(first.link, selectors.EVENT_READ)
                while True:
                    if not selector.select(STOPPED_LOOK_S):
                        self._strike_stopped(first)
                        continue
                    for news in first.link.news():
                        if isinstance(news, StartRefused):
                            raise UserError(news.text)
                        assert isinstance(news, Prepared), news
                        self._standby = first
                        return
        except EOFError:
            first.link.close()
            why = self._why(first)
            raise CoordinatorFailed(f"the coordinator could not be started: {why}. {self._tail()}") from None
        except BaseException:
            self._end(first)
            raise

    def run(self, nodes: Iterable[NodeId]) -> Finished | None:
        """Starts the nodes, and supervises until the run is over; returns None when it was aborted.

        Raises:
            CoordinatorFailed: coordinators died one after the other.
            LeadTaken: another process leads the run.
            HandedOver: another process is to lead it, as was asked for.
        """
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._woken)
        self._selector.register(self._launcher, selectors.EVENT_READ, self._launcher_told)
        if self._lead is not None:
            self._lead.when_lost = self._wake
        self._begin()
        for node in nodes:
            self._start(node)
        self._launcher_told()  # of whoever died while the others were started, and was heard of then
        deadline: float | None = None
        while (self._serving is not None or not self._leads) and not self._is_aborted:
            for key, _ in self._selector.select(STOPPED_LOOK_S):
                key.data()
            self._look_for_stopped()
            self._look_at_the_lead()
            self._hand_over()
            if self._finished is not None:
                deadline = deadline or time.monotonic() + GOODBYE_S + 1.0
                if time.monotonic() >= deadline:
                    break
        return self._finished

    def request_stop(self) -> None:
        """Asks the run to finish its step, save and end. Safe from any thread and from a signal handler."""
        self._is_stopping = True
        self._wake()

    def request_hand_over(self) -> None:
        """Asks for the lead to be left to a process that stands by; where none does, the run is to end. Safe from any
        thread and from a signal handler."""
        self._is_leaving = True
        self._wake()

    def abort(self) -> None:
        """Ends the run at once."""
        self._is_aborted = True
        self._wake()

    def close(self) -> None:
        """Kills the coordinators and waits until they are gone."""
        for process in (self._serving, self._standby):
            if process is not None:
                self._end(process)
        self._serving = self._standby = None
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is full, or the run is over and it is closed
            self._wake_sender.send(b"x")

    # Coordinators

    def _spawn(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._launcher.spawn_coordinator(self._settings, self._listener, theirs)
        return _Process(pid, Link(ours, waits=False))

    def _begin(self) -> None:
        """Lets a coordinator serve: the one on standby, or a new one."""
        process = self._standby or self._spawn()
        self._serving, self._standby = process, None
        self._incarnation += 1
        self._note_ended(self._launcher.lost())  # heard of while the end of the coordinator before was awaited
        begin = Begin(
            incarnation=self._incarnation,
            nodes=self._nodes,
            lost=tuple(self._lost),
            are_all_lost=bool(self._nodes) and self._launcher.all_ended(),
            step_began=self._step_began,
            gone_at=self._gone_at,
            is_stopping=self._is_stopping,
            faults=self._faults,
            lead=0 if self._lead is None else self._lead.revision,
        )
        process.link.send(begin)
        self._selector.register(process.link, selectors.EVENT_READ, self._readable)

    def _stand_by(self) -> None:
        """Starts the next coordinator in advance, while the job is under way and nothing waits for it."""
        if self._standby is None:
            self._standby = self._spawn()
            self._launcher_told()  # of whoever ended meanwhile, and was heard of then

    def _readable(self) -> None:
        assert self._serving is not None
        try:
            self._hear(self._serving)
        except EOFError:
            self._died()

    def _hear(self, process: _Process) -> None:
        """Takes what a coordinator tells; while another process may lead the run, that waits. Raises EOFError."""
        for news in process.link.news():
            if self._lead is None or self._lead.is_sure():
                self._take(news)
            else:
                self._unsure.append(news)

    def _died(self) -> None:
        """Handles the end of the serving coordinator: an accident, unless the run is over."""
        assert self._serving is not None
        process, self._serving = self._serving, None
        self._selector.unregister(process.link)
        process.link.close()
        why = self._why(process)
        if self._finished is not None:
            return
        self._deaths += 1
        if self._deaths > MAX_RESTARTS:
            raise CoordinatorFailed(
                f"the coordinator died {self._deaths} times without a step in between; "
                f"the last time: {why}. {self._tail()}"
            )
        self._observe(Note(level="warning", text=f"the coordinator is gone ({why}) and starts again"), time.time())
        if self._lead is not None:
            with contextlib.suppress(OutOfReach):
                self._lead.check()
        if self._leads:
            self._begin()

    @property
    def _leads(self) -> bool:
        return self._lead is None or self._lead.revision != NEVER

    def _look_at_the_lead(self) -> None:
        """Ends a coordinator that leads no more; another one serves as soon as the lead is this process's again.

        Raises:
            LeadTaken: another process has it.
        """
        if self._leads or self._lead is None or self._finished is not None:
            return
        was_serving = self._serving is not None
        self._end_serving()
        try:
            if self._lead.take():
                unsure, self._unsure = self._unsure, []
                for news in unsure:  # nobody else has led the run meanwhile, and told it
                    self._take(news)
                if self._finished is None:
                    self._begin()
            elif (leader := self._lead.leader()) is not None:
                raise LeadTaken(f"{leader.host} leads run {self._lead.run} now")
        except OutOfReach:
            pass
        if was_serving:
            text = "the lead is lost: etcd has not answered for as long as the lease lasts. It is taken again"
            self._observe(Note(level="warning", text=text), time.time())

    def _hand_over(self) -> None:
        """Raises HandedOver if that was asked for, and somebody stands by."""
        if not self._is_leaving or self._serving is None or self._lead is None or self._finished is not None:
            return
        self._is_leaving, others_wait = False, False
        with contextlib.suppress(OutOfReach):
            others_wait = self._lead.others_wait()
        if not others_wait:
            self.request_stop()
            return
        self._end_serving()
        raise HandedOver(f"the lead of run {self._lead.run} is left to another host that stands by")

    def _end_serving(self) -> None:
        """Ends the coordinator that serves, and hears what it had told."""
        if self._serving is None:
            return
        process, self._serving = self._serving, None
        self._selector.unregister(process.link)
        self._launcher.end(process.pid)
        with contextlib.suppress(EOFError):
            while True:
                self._hear(process)
        process.link.close()

    def _why(self, process: _Process) -> str:
        """Returns why a coordinator ended, once it is gone: before that no other may begin."""
        status = self._launcher.status_of(process.pid)
        return process.struck or cause_of(status)

    def _look_for_stopped(self) -> None:
        """Kills a coordinator that is stopped: it might go on at any time, so it is replaced only when it is dead."""
        self._strike_stopped(self._serving, self._standby)
        if self._standby is not None and self._standby.struck:
            self._end(self._standby)
            self._standby = None  # there is another one after the next step

    def _strike_stopped(self, *processes: _Process | None) -> None:
        found = {process.pid: process for process in processes if process is not None and process.struck is None}
        for pid, seconds in self._stopped.look(found, time.monotonic()):
            found[pid].struck = f"stopped for {seconds:.1f} s, and killed"
            self._launcher.strike(pid)

    def _end(self, process: _Process) -> None:
        process.link.close()
        self._launcher.end(process.pid)

    def _tail(self) -> str:
        log = Path(self._settings.log)
        with contextlib.suppress(OSError):
            return f"The end of {log}:\n{log.read_bytes()[-TAIL_BYTES:].decode(errors='replace')}"
        return f"See {log}."

    # What is heard

    def _take(self, news: FromCoordinator) -> None:
        match news:
            case Told(record, time_s, again):
                if self._told.takes(record, again=again):
                    self._record(record, time_s)
            case KillNode(node, worker) if worker is None:
                self._launcher.kill(node)
            case KillNode(node, worker):
                assert worker is not None
                self._launcher.kill_worker(worker)
            case StartNode(node, worker):
                self._start(node, worker)
                self._launcher_told()
            case Struck(fault):
                at = self._faults.index(fault)
                self._faults = self._faults[:at] + self._faults[at + 1 :]
            case Finished():
                self._finished = news
            case Prepared():
                pass
            case StartRefused(text):
                raise UserError(text)

    def _record(self, record: AnyRecord, time_s: float) -> None:
        """Passes on a new record."""
        match record:
            case StepCommitted() | StepSkipped():
                self._deaths = 0
                self._step_began = time.monotonic()
                self._stand_by()
            case NodeLost(node=node, detect_ms=detect_ms):
                self._gone_at.setdefault(NodeId(node), time.monotonic() - (detect_ms or 0.0) / 1e3)
            case _:
                pass
        self._observe(record, time_s)

    def _start(self, node: NodeId, worker: WorkerId | None = None) -> None:
        if worker is not None:
            self._launcher_told()  # of the process before
            self._lost = [(lost, cause) for lost, cause in self._lost if lost != worker]
        self._start_node(node, worker)
        self._nodes[node] = self._launcher.pids_of(node)
        if self._serving is not None:
            self._serving.link.send(NodeStarted(node, self._nodes[node], worker))

    def _note_ended(self, lost: Sequence[tuple[WorkerId, str]]) -> None:
        self._lost += lost
        per_node = self._settings.job.cluster.devices_per_node
        for node in {NodeId(worker // per_node) for worker, _ in lost}:
            if not self._launcher.pids_of(node):
                self._gone_at.setdefault(node, time.monotonic())

    def _launcher_told(self) -> None:
        lost = self._launcher.lost()
        self._note_ended(lost)
        if lost and self._serving is not None:
            self._serving.link.send(NodesLost(tuple(lost), self._launcher.all_ended()))

    def _woken(self) -> None:
        self._wake_receiver.recv(64)
        if self._is_stopping and self._serving is not None:
            self._serving.link.send(StopRun())
