"""Runs a prepared job: starts the coordinator and the nodes, heeds signals, and cleans up when all is over."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import msgspec

from planaria.checkpoint.manifest import whole_steps
from planaria.job.faults import FaultKind
from planaria.job.registry import Launcher
from planaria.job.settings import Job
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.records import Note
from planaria.protocol.planning.failure_rate import Watched
from planaria.runtime.component_settings import node_settings
from planaria.runtime.coordinator.client import Contact
from planaria.runtime.coordinator.remote_nodes import call_agents, named, network_warnings, share
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.journal.etcd import NEVER
from planaria.runtime.journal.lead import Lead
from planaria.runtime.launch.supervisor import Supervisor
from planaria.runtime.launch.training.data import RunData
from planaria.runtime.launch.training.ending import RunOutcome
from planaria.runtime.launch.training.request import TrainRequest, metrics_token
from planaria.runtime.launch.training.told import Told
from planaria.runtime.machine.interrupts import interrupts
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.observers.dashboard_page import DashboardPage
from planaria.runtime.observers.secret_urls import without_secrets
from planaria.runtime.observers.views import views_of
from planaria.runtime.run_folder.claim import say
from planaria.runtime.run_folder.recorder import Recorder, take_over
from planaria.runtime.wire.socket_server import listen


@contextmanager
def run(request: TrainRequest, data: RunData, nodes: LocalNodes, lead: Lead | None = None) -> Iterator[RunOutcome]:
    """Trains until the run is over, and yields its outcome. Signals are heeded until the block ends.

    Args:
        request: what to train.
        data: that it begins with.
        nodes: started; their processes are used.
        lead: of the run, which this process has; None: the run's journal is in its folder.

    Raises:
        UserError: the job cannot be planned.
        CoordinatorFailed: coordinators died one after the other.
        LeadTaken: another process leads the run.
    """
    views = views_of(request.job, metrics_token(request.job, request.folder))
    request = replace(request, job=without_secrets(request.job))  # nobody but views needs to know them
    job, folder = request.job, request.folder
    is_local = job.cluster.launcher is Launcher.LOCAL
    say(folder.claim, "starting: the first plan is made")
    token, mark = request.token or secrets.token_hex(16), secrets.token_hex(8)
    if lead is not None:
        take_over(folder)
    recorder = Recorder(folder, job)
    watched = _watched(request, recorder)
    told = Told(request, recorder, views, data.checkpoint.step if data.checkpoint else 0)
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
        settings = _settings(request, data, token, mark, watched, recorder)
        supervisor = told.supervisor = Supervisor(
            nodes,
            settings,
            listener,
            lambda node, worker: _spawn(request, nodes, contact, mark, node, worker),
            told.record,
            tuple(fault for fault in request.faults if fault.kind is FaultKind.COORDINATOR),
            lead,
        )
        try:
            supervisor.prepare()
            if lead is not None:
                told_to_all = msgspec.json.encode(msgspec.structs.replace(settings, token=""))
                lead.begin(told_to_all, folder.profile.read_bytes())
                lead.tell(named(address))
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
            finished = supervisor.run(NodeId(node) for node in range(job.cluster.least_nodes if is_local else 0))
        finally:
            say(folder.claim, "ending")
            if lead is None or lead.revision != NEVER:  # otherwise another process is reached there
                folder.contact.unlink(missing_ok=True)
            supervisor.close()
            nodes.release()
        told.catch_up()
        yield told.outcome(recorder, finished)


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
        stream=b"" if data.data is None else data.data.stream_about,
        opening_s=data.opening_s,
        watched=watched,
        spent=recorder.cost if request.resume else 0.0,
        evaluated=recorder.evaluated_up_to(data.checkpoint.step) if data.checkpoint else (),
        saved=whole_steps(request.folder.checkpoints, data.checkpoint.step) if data.checkpoint else (),
        faults=() if is_local else tuple(f for f in request.faults if f.kind is not FaultKind.COORDINATOR),
        log=str(request.folder.logs / "coordinator.log"),
    )


def _spawn(
    request: TrainRequest, nodes: LocalNodes, contact: Contact, mark: str, node: NodeId, worker: WorkerId | None
) -> None:
    """Starts the workers of a node, or one of them again, which no fault befalls then."""
    for settings in node_settings(
        request.job,
        request.folder,
        node,
        coordinator=contact.address,
        token=contact.token,
        faults=tuple(fault for fault in request.faults if fault.node == node and worker is None),
        import_path=request.import_path,
        zone=request.job.cluster.zone_of(node),
        mark=mark,
        metadata_url=request.metadata_url,
        traces=request.traces or request.job.observe.instructions,
    ):
        if worker in (None, settings.worker):
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
