"""Trains on this machine, from a request to its result, stage by stage (`planaria.runtime.launch.training`)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import msgspec

from planaria.checkpoint.retries import told_by
from planaria.data.opening import reader_standing_by
from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.job.settings import Job
from planaria.protocol.messages.records import Note
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.coordinator.remote_nodes import imported
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.journal.etcd import OutOfReach
from planaria.runtime.journal.lead import HandedOver, Lead
from planaria.runtime.launch.training.data import prepared
from planaria.runtime.launch.training.ending import RunOutcome, result_of
from planaria.runtime.launch.training.profiling import keep_named, measure
from planaria.runtime.launch.training.request import TrainRequest, checked
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.launch.training.resumption import check_store, resumed
from planaria.runtime.launch.training.run import run
from planaria.runtime.launch.training.standby import BegunAnew, own_settings, settings_of, stand_by
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.recorder import AnotherFile
from planaria.runtime.run_folder.run_folder import RunFolder


def train_job(request: TrainRequest, nodes: LocalNodes | None = None) -> TrainResult:
    """Trains a job, or goes on from its folder's last checkpoint.

    Args:
        request: what to train, and how.
        nodes: started; their processes are used and then left to the next job. None: own ones.

    Raises:
        UserError (or another ValueError of Planaria's): a mistake in the job, found before anything was recorded.
    """
    request = checked(request)
    check_store(request)
    resumption = resumed(request)
    keep_named(request)
    log = request.folder.logs / "launcher.log"
    with LocalNodes(log, imported(request.job)) if nodes is None else nullcontext(nodes) as processes:
        data = prepared(request, resumption)
        with closing(data):
            measure(request, processes)
            with leading(request) as lead, run(request, data, processes, lead) as outcome:
                return _told_of_the_end(outcome, lead)


def _told_of_the_end(outcome: RunOutcome, lead: Lead | None) -> TrainResult:
    """Tells everybody of the end; only then need nobody lead the run any more."""

    def tell(level: str, text: str) -> None:
        for observer in outcome.observers:
            observer(Note(level=level, text=text), time.time())

    with told_by(tell):
        result = result_of(outcome)
    if lead is not None:
        lead.finish()
    return result


@contextmanager
def leading(request: TrainRequest) -> Iterator[Lead | None]:
    """Takes the lead of a run whose journal is in etcd, until the block ends; None where it is in the run folder.

    Raises:
        UserError: etcd cannot be asked, or another process leads a run of the name.
    """
    url, name = request.job.run.journal, request.folder.path.name
    if not url:
        yield None
        return
    lead = Lead(url, name, request.job.cluster.tls)
    try:
        if not lead.take():
            leader = lead.leader()
            where = "another process" if leader is None else leader.host
            raise UserError(
                f"run.journal = {url!r}: {where} leads a run {name} now. Choose another name by --name NAME."
            )
    except OutOfReach as error:
        raise UserError(f"run.journal: {error}. {error.remedy}.") from None
    with closing(lead):
        yield lead


def _with_tls(job: Job, tls: str) -> Job:
    return msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, tls=tls)) if tls else job


def stand_by_run(
    folder: RunFolder, token: str, say: Callable[[str], None], observe: Observer, tls: str = "", url: str = ""
) -> TrainResult | None:
    """Waits beside a run whose journal is in etcd, and leads it when its leader is gone.

    Args:
        folder: of the run, which all hosts see; with `url`, one of this host's own, of the run's name.
        token: the job's token.
        say: takes a line for people, once this process is ready to lead.
        observe: is told of the run, once it is led from here.
        tls: folder with the run's certificates on this host; "": where the job has it.
        url: of the journal, where the run folder is not seen here; "": the job in it says that.

    Returns:
        How the run ended; None: it ended before it had to be led from here, or is led by another host again.

    Raises:
        UserError: its journal is not in etcd, or etcd cannot be asked; or it cannot be led without its run folder.
        LeadTaken: another process took the lead from this one.
    """
    folder, is_alone = RunFolder(folder.path.resolve()), bool(url)
    if not is_alone:
        job = _with_tls(job_from_json(folder.job.read_bytes()), tls)
        url, tls = job.run.journal, job.cluster.tls
    if not url:
        raise UserError(
            f"run {folder.path} has its journal in its folder: only its own host leads it. Set run.journal."
        )
    log = folder.logs / f"standby-{socket.gethostname()}-{os.getpid()}.log"
    try:
        while True:
            with closing(Lead(url, folder.path.name, tls)) as lead, contextlib.suppress(BegunAnew, AnotherFile):
                settings = _standbys_settings(lead, token, folder, is_alone=is_alone)
                settings = msgspec.structs.replace(settings, job=_with_tls(settings.job, tls))
                request = checked(TrainRequest(job=settings.job, folder=folder, observers=(observe,), token=token))
                with (
                    reader_standing_by(settings.job, folder.data),
                    LocalNodes(log, imported(settings.job)) as nodes,
                    stand_by(request, settings, nodes, lead, say, is_alone=is_alone) as outcome,
                ):
                    return None if outcome is None else _told_of_the_end(outcome, lead)
    except HandedOver as handed:
        say(str(handed))
        return None
    except OutOfReach as error:
        raise UserError(f"run.journal: {error}. {error.remedy}.") from None


def _standbys_settings(lead: Lead, token: str, folder: RunFolder, *, is_alone: bool) -> CoordinatorSettings:
    """Returns what a run's coordinators are told on this host. Raises UserError: there is no such run."""
    settings = settings_of(lead, token)
    if settings is None:
        raise UserError(f"run {folder.path} is over, or has not begun. Start it by planaria train.")
    if is_alone:
        return own_settings(lead, settings, folder.path)
    if Path(settings.folder) != folder.path:
        raise UserError(
            f"run.journal has a run {lead.run} in {settings.folder}, not in {folder.path}: there, or under another "
            "name (--name NAME), a standby can be started."
        )
    return settings
