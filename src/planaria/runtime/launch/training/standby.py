"""Waits beside a run that another host coordinates, and coordinates it when that host's lead ends.

Nodes are agents, and the journal is in etcd. The run folder is one that all hosts see; or each host that leads has one
of its own, where checkpoints are in a store. Workers keep their state while nobody leads, and go on with whoever leads
next.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from signal import Signals

import msgspec

from planaria.checkpoint.manifest import link_all
from planaria.data.opening import begin_elsewhere
from planaria.data.reading.sources import DataError
from planaria.job.errors import UserError
from planaria.job.parse import job_json
from planaria.job.settings import Job
from planaria.protocol.messages.journal import AnyEntry, JournalEnd
from planaria.protocol.messages.records import AnyRecord, Note, RunEnded
from planaria.protocol.run.told_records import ToldRecords, untold
from planaria.runtime.coordinator.client import Contact
from planaria.runtime.coordinator.process import journal_of
from planaria.runtime.coordinator.remote_nodes import named, own_folders_refused, share
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.journal.etcd import OutOfReach
from planaria.runtime.journal.lead import Lead
from planaria.runtime.launch.supervisor import Supervisor
from planaria.runtime.launch.training.ending import RunOutcome
from planaria.runtime.launch.training.request import TrainRequest, metrics_token
from planaria.runtime.launch.training.told import Told
from planaria.runtime.machine.interrupts import interrupts
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.observers.dashboard_page import DashboardPage
from planaria.runtime.observers.views import views_of
from planaria.runtime.run_folder.claim import claimed
from planaria.runtime.run_folder.recorder import Recorder, take_over, write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import LEAD_POLL_S, READ_AHEAD, STANDBY_CLAIM_S
from planaria.runtime.wire.socket_server import listen


class BegunAnew(Exception):
    """The run was started anew, by --resume, while this process stood by: it is led by other settings now."""


def settings_of(lead: Lead, token: str) -> CoordinatorSettings | None:
    """Returns what a run's coordinators are told; None: it is over, or not begun. Raises OutOfReach."""
    found = lead.settings()
    if found is None:
        return None
    return msgspec.structs.replace(msgspec.json.decode(found, type=CoordinatorSettings), token=token)


def own_settings(lead: Lead, settings: CoordinatorSettings, folder: Path) -> CoordinatorSettings:
    """Returns what a run's coordinators are told on a host that does not see the run folder, and fills one of its own
    with what they need to begin.

    Raises:
        UserError: such a host cannot lead the run, or the folder cannot be written.
        OutOfReach: etcd does not answer.
    """
    job = settings.job
    if refused := own_folders_refused(job):
        raise UserError(f"run {lead.run} cannot be led from here: {refused}.")
    own = RunFolder(folder)
    try:
        own.path.mkdir(parents=True, exist_ok=True)
        write_atomically(own.job, job_json(job))
        write_atomically(own.profile, lead.profile())
        own.logs.mkdir(exist_ok=True)
        own.checkpoints.mkdir(exist_ok=True)
        own.data.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"--folder: {own.path} cannot be written ({error.strerror or error}).") from None
    if settings.stream:
        try:
            begin_elsewhere(job, own.data, settings.stream)
        except (DataError, UserError) as error:
            raise UserError(f"run {lead.run} cannot be led from here: it trains on a stream. {error}") from None
    log = str(own.logs / "coordinator.log")
    return msgspec.structs.replace(settings, folder=str(own.path), log=log)


@contextmanager
def stand_by(
    request: TrainRequest,
    settings: CoordinatorSettings,
    nodes: LocalNodes,
    lead: Lead,
    say: Callable[[str], None],
    *,
    is_alone: bool = False,
) -> Iterator[RunOutcome | None]:
    """Waits until nobody leads, goes on with the run then, and yields its outcome; None: it has ended before.

    Args:
        request: of a run whose nodes are agents.
        settings: that the run's coordinators are told.
        nodes: started; the coordinators' processes are theirs.
        lead: of the run, which another process has.
        say: takes a line for people, once this process is ready to lead.
        is_alone: whether no other host sees the run folder.

    Raises:
        UserError: the job cannot be planned here.
        CoordinatorFailed: coordinators died one after the other.
        LeadTaken: another process took the lead from this one.
        HandedOver: this process was told to end (SIGTERM), and another one stands by.
        BegunAnew: the run has other settings now.
        AnotherFile: what was told of the run is not what this process has read of it.
    """
    job, folder = request.job, request.folder
    known = ToldRecords()
    told: Told | None = None

    def observe(record: AnyRecord, time_s: float) -> None:
        assert told is not None
        told.record(record, time_s)

    with _listening(job) as listener, ExitStack() as stack:
        address = named(f"{job.cluster.host}:{listener.getsockname()[1]}")
        supervisor = Supervisor(nodes, settings, listener, lambda node, worker: None, observe, (), lead, known)
        stack.callback(supervisor.close)
        supervisor.prepare()
        leader = lead.leader()
        lead.listens_at(address)
        own = f"; once it leads, records, metrics and logs are in {folder.path}" if is_alone else ""
        say(f"stands by for run {lead.run}, which {'nobody' if leader is None else leader.host} leads{own}")
        recorder = Recorder(folder, job, lambda record: known.takes(record, again=False), waits=True)
        if not _lead_comes(lead, settings, recorder):
            yield None
            return
        take_over(folder)
        entries = _entries(settings, lead)
        with contextlib.suppress(UserError):  # a folder of the network may still hold the claim of a host that is gone
            stack.enter_context(claimed(folder.claim, STANDBY_CLAIM_S))
        recorder.open()
        stack.enter_context(recorder)
        if any(isinstance(entry, JournalEnd) for entry in entries) and isinstance(known.last, RunEnded):
            lead.finish()  # the leader before had told of the end
            yield None
            return
        if is_alone:
            link_all(folder.checkpoints, job.run.checkpoints_url)
        views = views_of(job, metrics_token(job, folder))
        told = Told(request, recorder, views, settings.resume.step if settings.resume else 0)
        stack.enter_context(closing(told.views))
        stack.enter_context(closing(told.callbacks))
        told.supervisor = supervisor
        for record in untold(known, entries):
            told.record(record, time.time())
        text = f"{socket.gethostname()} leads the run now, at {address}: the coordinator before is gone"
        told.record(Note(level="warning", text=text), time.time())
        share(folder, settings.token, settings.run_id, address)
        page = stack.enter_context(closing(DashboardPage(folder, job.observe.dashboard_port, told.is_hurried)))
        if (of_page := page.start(settings.token)) is not None:
            told.record(of_page, time.time())
        contact = Contact(address=address, token=settings.token, tls=job.cluster.tls, page=page.address)
        contact.write(folder.contact)
        stack.enter_context(interrupts(partial(_heed, told, supervisor)))
        finished = supervisor.run(())
        folder.contact.unlink(missing_ok=True)
        told.catch_up()
        yield told.outcome(recorder, finished)


def _heed(told: Told, supervisor: Supervisor, number: Signals, insists: bool) -> None:
    """Leaves the lead to another host where this one is to go (SIGTERM), and heeds other signals as any run does."""
    if number is Signals.SIGTERM:
        told.signal = told.signal or number
        supervisor.request_hand_over()
    else:
        told.heed(number, insists)


@contextmanager
def _listening(job: Job) -> Iterator[socket.socket]:
    """Opens the job's port, or another one where that is taken, as by the leader on its own host."""
    try:
        listener = listen(job.cluster.host, job.cluster.port)
    except UserError:
        listener = listen(job.cluster.host, 0)
    with listener:
        yield listener


def _lead_comes(lead: Lead, settings: CoordinatorSettings, recorder: Recorder) -> bool:
    """Waits for the lead, and reads what is told of the run meanwhile; returns whether there is a run to go on with.

    Raises:
        BegunAnew, AnotherFile: see `stand_by`.
    """
    while True:
        recorder.read_on(READ_AHEAD)
        with contextlib.suppress(OutOfReach):
            lead.wait()
            has_lead = lead.take()
            now = settings_of(lead, settings.token)
            if now is None:
                lead.finish()  # removes what `take` has left
                lead.close()
                return False
            if now.run_id != settings.run_id:
                raise BegunAnew
            if has_lead:
                return True
        time.sleep(LEAD_POLL_S)


def _entries(settings: CoordinatorSettings, lead: Lead) -> list[AnyEntry]:
    """Returns what the coordinators before decided."""
    with closing(journal_of(settings, lead.revision)) as journal:
        journal.start()
        return journal.read()
