"""Runs a prepared job: starts the coordinator and the nodes, heeds signals, and cleans up when all is over."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from signal import Signals

import msgspec

from planaria.checkpoint.manifest import whole_steps
from planaria.job.faults import FaultKind
from planaria.job.registry import Launcher
from planaria.job.settings import Job
from planaria.plan.plan import NodeId
from planaria.protocol.messages.records import AnyRecord, Note, Restored, RunEnded, StepCommitted, StepSkipped
from planaria.protocol.planning.failure_rate import Watched
from planaria.runtime.component_settings import node_settings
from planaria.runtime.coordinator.client import Contact
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.coordinator.remote_nodes import call_agents, named, network_warnings, share
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.interrupts import interrupts
from planaria.runtime.launch.callbacks import Callbacks, LiveRun
from planaria.runtime.launch.supervisor import Supervisor
from planaria.runtime.launch.training.data import RunData
from planaria.runtime.launch.training.ending import RunOutcome
from planaria.runtime.launch.training.request import TrainRequest, metrics_token
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.observers.dashboard_page import DashboardPage
from planaria.runtime.observers.secret_urls import without_secrets
from planaria.runtime.observers.view import View, ViewedRun
from planaria.runtime.observers.view_thread import Views
from planaria.runtime.observers.views import views_of
from planaria.runtime.progress.output import OutputClosed
from planaria.runtime.run_folder.claim import say
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.wire.socket_server import listen


@contextmanager
def run(request: TrainRequest, data: RunData, nodes: LocalNodes) -> Iterator[RunOutcome]:
    """Trains until the run is over, and yields its outcome. Signals are heeded until the block ends.

    Raises:
        UserError: the job cannot be planned.
        CoordinatorFailed: coordinators died one after the other.
    """
    views = views_of(request.job, metrics_token(request.job, request.folder))
    request = replace(request, job=without_secrets(request.job))  # nobody but views needs to know them
    job, folder = request.job, request.folder
    is_local = job.cluster.launcher is Launcher.LOCAL
    say(folder.claim, "starting: the first plan is made")
    token, mark = request.token or secrets.token_hex(16), secrets.token_hex(8)
    recorder = Recorder(folder, job)
    watched = _watched(request, recorder)
    told = _Told(request, recorder, views, data.checkpoint.step if data.checkpoint else 0)
    with (
        recorder,
        closing(told.views),
        closing(told.callbacks),
        ExitStack() as heeding,
        closing(DashboardPage(folder, job.observe.dashboard_port, told.is_hurried)) as page,
        listen(job.cluster.host, job.cluster.port) as listener,
    ):
        address = f"{job.cluster.host}:{listener.getsockname()[1]}"
        contact = Contact(address=named(address), token=token, tls=job.cluster.tls)
        supervisor = told.supervisor = Supervisor(
            nodes,
            _settings(request, data, token, mark, watched, recorder),
            listener,
            lambda node: _spawn(request, nodes, contact, mark, node),
            told.record,
            tuple(fault for fault in request.faults if fault.kind is FaultKind.COORDINATOR),
        )
        try:
            supervisor.prepare()
            for note in (*data.notes, *network_warnings(job)):
                told.record(note, time.time())
            if not job.run.writes_checkpoints:
                text = "no checkpoints are written on the way (run.checkpoint_every = 0), only where the run ends"
                told.record(Note(level="info", text=text), time.time())
            if (of_page := page.start(token)) is not None:
                told.record(of_page, time.time())
            msgspec.structs.replace(contact, page=page.address).write(folder.contact)
            if not is_local:
                share(folder, token, mark, address)
                told.record(call_agents(job, folder, address), time.time())
            heeding.enter_context(interrupts(told.heed))
            finished = supervisor.run(NodeId(node) for node in range(job.cluster.nodes if is_local else 0))
        finally:
            say(folder.claim, "ending")
            folder.contact.unlink(missing_ok=True)
            supervisor.close()
            nodes.release()
        told.catch_up()
        yield RunOutcome(
            folder=folder,
            recorder=recorder,
            observers=told.observers,
            ended=told.ended,
            last=told.last,
            last_number=told.last_number,
            num_skipped=len(told.skipped_steps),
            checkpoint=finished.checkpoint if finished is not None else None,
            signal=told.signal,
            stopped_because=told.stopped_because,
        )


class _Told:
    """Collects what records and signals say while the run goes on.

    Attributes:
        callbacks: the user's.
        views: where else the run is shown.
        observers: each is told of every record; callbacks and views are among them.
        supervisor: of the run, once there is one.
        last: the last step that was applied.
        last_number: of the last step, or of the checkpoint that the run goes on from.
        skipped_steps: that were not applied.
        ended: the last record. The observers get it once the weights' hash is known.
        signal: the first one that asked for the end.
        stopped_because: why a callback stopped the run; "": none did.
    """

    def __init__(self, request: TrainRequest, recorder: Recorder, views: Sequence[View], last_number: int) -> None:
        live = LiveRun(job=request.job, folder=request.folder.path, stop=self.stop)
        self.callbacks = Callbacks(request.callbacks, live, self.is_hurried)
        name = request.job.run.name or request.folder.path.name
        viewed = ViewedRun(name=name, job=request.job, folder=request.folder, step=last_number)
        self.views = Views(views, viewed, self.is_hurried)
        self.observers: tuple[Observer, ...] = (recorder, *request.observers, self.callbacks, self.views)
        self.supervisor: Supervisor | None = None
        self.last: StepCommitted | None = None
        self.last_number = last_number
        self.skipped_steps: set[int] = set()
        self.ended: RunEnded | None = None
        self.signal: Signals | None = None
        self.stopped_because = ""
        self._is_hurried = False

    def record(self, record: AnyRecord, time_s: float) -> None:
        match record:
            case StepCommitted(step=step):
                self.last, self.last_number = record, step
            case StepSkipped(step=step):
                self.last_number = step
                self.skipped_steps.add(step)
            case Restored(to_step=step):
                self.last_number = step
            case RunEnded():
                self.ended = record
                return
            case _:
                pass
        for observer in self.observers:
            try:
                observer(record, time_s)
            except OutputClosed:
                self.heed(Signals.SIGPIPE, insists=False)
        self._tell_of_callbacks()

    def catch_up(self) -> None:
        """Waits until callbacks have seen every record up to the last but one."""
        self.callbacks.catch_up(lambda text: self.record(Note(level="info", text=text), time.time()))
        self._tell_of_callbacks()

    def _tell_of_callbacks(self) -> None:
        for note in (*self.callbacks.notes(), *self.views.notes()):
            self.record(note, time.time())

    def is_hurried(self) -> bool:
        """Returns whether the user wants the end at once."""
        return self._is_hurried

    def stop(self, reason: str) -> None:
        """Has the run finish its step, save and end. Safe from any thread."""
        self.stopped_because = self.stopped_because or reason
        if self.supervisor is not None:
            self.supervisor.request_stop()

    def heed(self, number: Signals, insists: bool) -> None:
        """Has the run finish its step, save and end; ends it at once if the signal insists."""
        self.signal = self.signal or number
        self._is_hurried = self._is_hurried or insists
        if self.supervisor is None:
            return
        if insists:
            self.supervisor.abort()
        else:
            self.supervisor.request_stop()


def _settings(
    request: TrainRequest, data: RunData, token: str, mark: str, watched: Watched, recorder: Recorder
) -> CoordinatorSettings:
    """Returns what every coordinator of the run is told. Faults of this machine's nodes are told to their workers."""
    is_local = request.job.cluster.launcher is Launcher.LOCAL
    return CoordinatorSettings(
        job=request.job,
        folder=str(request.folder.path),
        run_id=mark,
        token=token,
        resume=data.checkpoint,
        history=data.history,
        rate_factors=request.rate_factors,
        data_hash=data.data_hash,
        opening_s=data.opening_s,
        watched=watched,
        spent=recorder.cost if request.resume else 0.0,
        evaluated=recorder.evaluated_up_to(data.checkpoint.step) if data.checkpoint else (),
        saved=whole_steps(request.folder.checkpoints, data.checkpoint.step) if data.checkpoint else (),
        faults=() if is_local else tuple(f for f in request.faults if f.kind is not FaultKind.COORDINATOR),
        log=str(request.folder.logs / "coordinator.log"),
    )


def _spawn(request: TrainRequest, nodes: LocalNodes, contact: Contact, mark: str, node: NodeId) -> None:
    for settings in node_settings(
        request.job,
        request.folder,
        node,
        coordinator=contact.address,
        token=contact.token,
        faults=tuple(fault for fault in request.faults if fault.node == node),
        import_path=request.import_path,
        zone=request.job.cluster.zone_of(node),
        mark=mark,
        metadata_url=request.metadata_url,
        traces=request.traces or request.job.observe.instructions,
    ):
        nodes.spawn(settings)


def _watched(request: TrainRequest, recorder: Recorder) -> Watched:
    """Returns the known losses: from the job's trace, and from the run before if it had the same nodes."""
    earlier, job = request.earlier, request.job
    if request.resume and (earlier is None or _nodes_of(earlier) == _nodes_of(job)):
        return request.watched + recorder.watched
    return request.watched


def _nodes_of(job: Job) -> object:
    """Returns what must be the same in two runs for losses of the one to predict those of the other."""
    cluster = job.cluster
    return cluster.launcher, cluster.nodes, cluster.devices_per_node, cluster.device, cluster.zones
