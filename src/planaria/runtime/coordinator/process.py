"""The coordinator as a process of its own: policy, machine, journal and server put together. It may die at any moment.

Its supervisor starts it, twice: one that serves, and one that has made its policy and waits in case the first dies.
Whatever a successor needs is in the journal, or with the workers.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import signal
import socket
import time
from functools import partial
from pathlib import Path

import msgspec

from planaria.checkpoint.manifest import (
    expect_checkpoint,
    forget_checkpoint,
    known_places,
    link_checkpoint,
    retain,
    step_folder,
    write_manifest,
)
from planaria.estimate.restore_time import Storage
from planaria.job.errors import UserError
from planaria.job.history import schedule_ends
from planaria.job.parse import job_fingerprint
from planaria.job.registry import Launcher, PolicyName
from planaria.job.sections.cluster import Device
from planaria.job.sections.resilience import WhenExhausted
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId, PlanError
from planaria.planner.instantiation.microbatch_shares import batches_told_by
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.events import Finish, WriteManifest
from planaria.protocol.messages.records import AnyRecord, Note
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.planning.straggler_detection import ON_REAL_HOSTS, SpeedEvidence
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from planaria.runtime.component_settings import is_emulated, job_profile, planner_settings
from planaria.runtime.coordinator.kernel_kills import KernelKills, counters
from planaria.runtime.coordinator.nodes import SupervisedNodes
from planaria.runtime.coordinator.remote_nodes import agents_of
from planaria.runtime.coordinator.server import Server
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.coordinator.supervisor_link import Begin, Finished, Link, Prepared, StartRefused, Struck, Told
from planaria.runtime.journal.etcd_journal import EtcdJournal, NotLeader
from planaria.runtime.journal.journal import Journal
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.machine.boot import boot_id
from planaria.runtime.machine.limits import most_nodes, num_cores, shared_cores
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.sentences import sentence
from planaria.runtime.thresholds import OPENING_FACTOR, OVERSUBSCRIBED
from planaria.runtime.wire.tls import security_of

log = logging.getLogger(__name__)


def run_coordinator(settings: CoordinatorSettings, listener: socket.socket, sock: socket.socket) -> int:
    """Runs the coordinator process: prepares, waits for `Begin`, serves. Returns the exit status.

    Args:
        settings: the run's settings.
        listener: the coordinator's port, which the supervisor keeps open.
        sock: the connection to the supervisor.
    """
    link = Link(sock, waits=True)
    _call_itself("standby")
    log.info("a coordinator gets ready, for run folder %s", settings.folder)
    job, folder = settings.job, RunFolder(Path(settings.folder))
    given = msgspec.json.decode(folder.profile.read_bytes(), type=ModelProfile)
    try:
        # a job that cannot be planned is refused here
        with batches_told_by("train.global_batch", job.train.microbatch):
            planner = _planner(job, given)
            first = [NodeId(node) for node in range(job.cluster.least_nodes)]
            make_policy(job.resilience.policy, planner).initial(first, 1)
    except PlanError as error:
        log.warning("ends: the job cannot be planned: %s", error)
        link.send(StartRefused(str(error)))
        return 1
    link.send(Prepared())
    begin = _wait_for_begin(link)
    if begin is None:
        log.info("ends: it was not needed")
        return 0
    _call_itself("coordinator")
    log.info("serves as number %d of this run", begin.incarnation)
    try:
        _Coordinating(settings, given, planner, link, begin).serve(listener)
    except NotLeader as error:
        log.warning("ends: %s", error)
        return 1
    except UserError as error:
        log.warning("ends: %s", error)
        link.send(StartRefused(str(error)))
        return 1
    log.info("ends")
    return 0


def _call_itself(name: str) -> None:
    """Names this process, for people who look at processes, and for tests that kill them."""
    Path("/proc/self/comm").write_text(name)


def _wait_for_begin(link: Link) -> Begin | None:
    """Waits for the order to begin; None when there is nothing to begin any more."""
    try:
        while True:
            select.select([link], [], [])
            for order in link.orders():
                assert isinstance(order, Begin), order
                return order
    except EOFError:
        return None


class _Coordinating:
    """One incarnation of the coordinator, from its beginning to the end of the run."""

    def __init__(
        self, settings: CoordinatorSettings, profile: ModelProfile, planner: Planner, link: Link, begin: Begin
    ) -> None:
        self._job = settings.job
        self._folder = RunFolder(Path(settings.folder))
        self._history = settings.history
        self._own_places = known_places(self._folder.checkpoints)
        self._link = link
        self._begin = begin
        self._layers = tuple(group.layers for group in profile.groups)
        self._journal = journal_of(settings, begin.lead)
        self._journal.start()
        past = JournalState.of(self._journal.read()) if begin.incarnation > 1 else None
        job = settings.job

        def make(name: PolicyName, most_bytes: int) -> Policy:
            return make_policy(name, _planner(job, profile, most_bytes) if most_bytes else planner)

        policy = make(job.resilience.policy, 0)
        shortages = Shortages(
            job_profile(job, profile), partial(make, job.resilience.policy), audit=job.resilience.audit
        )
        self._machine = Coordinator(run_settings(settings, profile), policy, past, shortages, make)
        nodes = SupervisedNodes(link, begin, lambda: self._server.request_stop())
        agents = agents_of(self._job, self._folder, settings.token, settings.run_id, settings.faults, self._history)
        self._server = Server(
            self._machine,
            settings.token,
            self._journal,
            nodes,
            (self._observe,),
            self._write_manifest,
            limits=limits_of(settings.job, settings.opening_s),
            agents=agents,
            patience_s=settings.job.resilience.coordinator_timeout_s,
            most_nodes=most_nodes(settings.job),
            data=settings.data_hash,
            mark=settings.run_id,
            security=security_of(job.cluster.tls),
            past=past,
            started=nodes.started,
            step_began=begin.step_began,
            gone_at=begin.gone_at,
            tell_again=lambda record, time_s: link.send(Told(record, time_s, again=True)),
            strike=self._strike,
            # Of other hosts' kernels nothing is known here.
            kernel_kills=KernelKills(counters() if agents is None else ()),
        )

    def serve(self, listener: socket.socket) -> None:
        for complaint in self._journal.complaints:
            self._observe(Note(level="warning", text=complaint), time.time())
        self._server.start(listener)
        if self._begin.is_stopping:
            self._server.request_stop()
        self._server.run(self._tell_the_end)
        self._server.close()
        self._journal.close()

    def _tell_the_end(self, finish: Finish) -> None:
        log.info("the run is over: %s%s", finish.status.value, f", {finish.message}" if finish.message else "")
        last = self._machine.checkpoints.last
        self._link.send(Finished(status=finish.status, message=finish.message, checkpoint=last))

    def _observe(self, record: AnyRecord, time_s: float) -> None:
        if (said := sentence(record)) is not None:
            log.info("%s", said)
        self._link.send(Told(record, time_s))

    def _strike(self, at: str, step: int) -> None:
        """Kills this process at the point that the user ordered."""
        for fault in self._begin.faults:
            if fault.at == at and step >= fault.step:
                self._link.send(Struck(fault))
                os.kill(os.getpid(), signal.SIGKILL)

    def _write_manifest(self, command: WriteManifest) -> None:
        place, root = command.folder, self._folder.checkpoints
        expect_checkpoint(root, place)
        try:
            write_manifest(
                place,
                step=command.step,
                job_fingerprint=job_fingerprint(self._job),
                exponents=command.exponents,
                saved=command.groups,
                layers=self._layers,
                history=self._history,
                start_steps=self._job.train.start_steps,
                replaces=place in self._own_places,
            )
        except FileExistsError:
            forget_checkpoint(root, place)
            raise
        except OSError:
            self._own_places.add(place)  # it may have come through without an answer
            raise
        self._own_places.add(place)
        own = step_folder(root, command.step)
        if place != str(own):  # it lies elsewhere
            try:
                link_checkpoint(root, place)
            except OSError as error:
                log.warning("%s cannot lead to %s: %s", own, place, error)
        best = None if command.best is None else step_folder(root, command.best)
        retain(root, self._job.run.keep_checkpoints, own, best, self._job.run.checkpoints_url)


def journal_of(settings: CoordinatorSettings, lead: int) -> Journal:
    """Returns a run's journal, which is not open yet.

    Args:
        settings: the run's settings.
        lead: revision at which the supervisor took the lead, where the journal is in etcd.
    """
    job, folder = settings.job, RunFolder(Path(settings.folder))
    if not job.run.journal:
        return SqliteJournal(folder.journal, settings.run_id, job_fingerprint(job))
    patience_s = job.resilience.coordinator_timeout_s
    return EtcdJournal(job.run.journal, folder.path.name, settings.run_id, lead, patience_s, job.cluster.tls)


def _planner(job: Job, profile: ModelProfile, most_bytes: int = 0) -> Planner:
    """Makes the planner of the job's policies; `most_bytes`: a device's memory, if that is less than the job says."""
    settings = dataclasses.replace(planner_settings(job, profile), num_cores=shared_cores(job))
    if most_bytes:
        limit = min(most_bytes, settings.memory_bytes) if settings.memory_bytes else most_bytes
        settings = dataclasses.replace(settings, memory_bytes=limit)
    return Planner(job_profile(job, profile), settings)


def run_settings(settings: CoordinatorSettings, profile: ModelProfile) -> RunSettings:
    """Returns what the machine needs to know of the job."""
    job = settings.job
    return RunSettings(
        train=job.train,
        policy_name=job.resilience.policy.value,
        fault_tolerance=job.resilience.fault_tolerance,
        mean_time_between_failures_s=job.resilience.mean_time_between_failures_s,
        watched=settings.watched,
        num_nodes=job.cluster.least_nodes,
        most_nodes=job.cluster.most_nodes,
        devices_per_node=job.cluster.devices_per_node,
        num_groups=len(profile.groups),
        checkpoint_root=job.run.checkpoints_url or str(RunFolder(Path(settings.folder)).checkpoints),
        checkpoint_every=job.run.checkpoint_every,
        checkpoint_every_s=job.run.checkpoint_every_s,
        keep_checkpoints=job.run.keep_checkpoints,
        resume=settings.resume,
        ends=schedule_ends(settings.history),
        rate_factors=settings.rate_factors,
        storage=Storage(node_bytes_per_s=job.cluster.storage_gb_per_s * 1e9),
        nodes_come=job.cluster.launcher is not Launcher.LOCAL,
        waits=job.resilience.when_exhausted is WhenExhausted.WAIT,
        may_drop=job.resilience.may_drop,
        audit=job.resilience.audit,
        shares_cores=shared_cores(job) is not None,
        evaluation=job.eval,
        evaluated=settings.evaluated,
        saved=settings.saved,
        budget=job.budget,
        spent=settings.spent,
        memory_bytes=planner_settings(job, profile).memory_bytes,
        evidence=SpeedEvidence() if is_emulated(job) else ON_REAL_HOSTS,
        clock=boot_id(),
    )


def _workers_a_core(job: Job) -> float:
    """Returns how many workers of this machine share a core; 1 where each has its own, or is on another host."""
    if job.cluster.device is Device.CUDA or job.cluster.launcher is not Launcher.LOCAL:
        return 1.0
    return max(1.0, job.cluster.least_nodes * job.cluster.devices_per_node / num_cores())


def limits_of(job: Job, opening_s: float) -> Limits:
    """Returns after what time a worker counts as hung: longer where workers here share cores, or open large data."""
    timeout_s, share = job.resilience.heartbeat_timeout_s, _workers_a_core(job)
    plain = Limits(silence_s=timeout_s, oversubscribed_silence_s=OVERSUBSCRIBED * timeout_s)
    return dataclasses.replace(
        plain,
        least_s=plain.least_s * share,
        factor=plain.factor * share,
        join_s=plain.join_s + OPENING_FACTOR * share * opening_s,
    )
