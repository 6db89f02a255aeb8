"""Runs a worker process: puts its parts together, and leads it to its last words.

`run_worker` returns the exit status. The process never outlives its coordinator for longer than it may.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from planaria.checkpoint.retries import heard_by, sentence_of
from planaria.data.job_data import JobData
from planaria.data.opening import open_data
from planaria.data.reading.sources import DataError
from planaria.job.errors import UserError
from planaria.job.sections.cluster import Device
from planaria.job.users_code import look_in
from planaria.protocol.messages.from_worker import CutOff, Hello, StoreTried
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.runtime.thresholds import SIGTERM_GRACE_S
from planaria.runtime.wire.tls import security_of
from planaria.runtime.worker.compute.device.opening import memory_of
from planaria.runtime.worker.compute.engine import Engine, real_engine
from planaria.runtime.worker.emulated.numbers import emulated_engine, read_costs
from planaria.runtime.worker.emulated.time import EmulatedMailbox, EmulatedPace, EmulatedTransport
from planaria.runtime.worker.fatal_errors import held_bytes, last_words
from planaria.runtime.worker.heartbeat import Heartbeat, processor_time
from planaria.runtime.worker.loop import EXIT_STALE, WorkerLoop
from planaria.runtime.worker.preemption import Watch, make_source
from planaria.runtime.worker.session import Control
from planaria.runtime.worker.settings import WorkerSettings
from planaria.runtime.worker.transport.mailbox import Mailbox
from planaria.runtime.worker.transport.transport import Transport
from planaria.runtime.worker.writer import Writer

log = logging.getLogger(__name__)


def run_worker(settings: WorkerSettings) -> int:
    """Joins the coordinator and works until told to stop."""
    log.info("worker %d of node %d begins, for %s", settings.worker, settings.node, settings.coordinator)
    look_in(settings.import_path)
    is_emulated = settings.job.cluster.device is Device.EMULATED
    parts = _emulated_parts if is_emulated else _real_parts
    mailbox, control, transport, worked, data, make_engine = parts(settings)
    hello = Hello(
        version=PROTOCOL_VERSION,
        token=settings.token,
        worker=settings.worker,
        pid=os.getpid(),
        data_address=transport.start(),
        zone=settings.zone,
        label=settings.label,
        data=data,
        mark=settings.mark,
    )
    try:
        control.start(hello)
    except OSError as error:
        log.warning("ends: there is no coordinator (%s)", error)
        return EXIT_STALE
    log.info("joined, at %s for its peers; loads the model", hello.data_address)
    heartbeat = Heartbeat(control.send, worked, (lambda: 0) if is_emulated else held_bytes)
    heartbeat.start()
    signal.signal(signal.SIGTERM, lambda number, frame: heartbeat.give_notice(SIGTERM_GRACE_S, "SIGTERM"))
    # Whoever started this process had it blocked, so that one which came before is heard now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    agent: WorkerLoop | None = None

    def wait_for_samples() -> None:
        heartbeat.advance()
        if agent is not None:
            agent.wait_for_samples()

    def hear_of_retry(said: StoreTried) -> None:
        log.warning("%s", sentence_of(said))
        control.send(said)

    try:
        _watch_for_preemption(settings, heartbeat)
        writer = Writer(settings.worker, control.send)
        with heard_by(hear_of_retry):
            agent = WorkerLoop(settings, mailbox, control, transport, heartbeat, writer, make_engine(wait_for_samples))
            return agent.run()
    except Exception as error:
        doing = agent.doing if agent is not None else "while the model is loaded"
        told = last_words(settings.worker, error, doing)
        if told is not None:
            control.send_last(told)
    return 1


def _watch_for_preemption(settings: WorkerSettings, heartbeat: Heartbeat) -> None:
    """Watches for preemption; one worker asks for all of its node."""
    if settings.worker % settings.job.cluster.devices_per_node != 0:
        return
    source = make_source(settings.job.resilience.preemption, settings.metadata_url)
    if source is not None:
        Watch(source, heartbeat.give_notice).start()


MakeEngine = Callable[[Callable[[], None]], Engine]
"""Makes a worker's engine, given what to call while it waits for data: who does is not hung."""

Parts = tuple[Mailbox, Control, Transport, Callable[[], float], str, MakeEngine]


def _real_parts(settings: WorkerSettings) -> Parts:
    job, worker = settings.job, settings.worker
    mailbox = Mailbox()
    security = security_of(settings.tls)
    control = Control(settings.coordinator, mailbox, job.resilience.coordinator_timeout_s, security)
    transport = Transport(
        worker,
        settings.peer_token,
        mailbox,
        settings.host,
        cut_off=lambda peer, address: control.send(CutOff(peer=peer, address=address)),
        security=security if job.cluster.data_encryption else None,
        memory=memory_of(job),
        kind=job.cluster.transport,
    )
    worked = processor_time()
    data = functools.cache(lambda: open_data(job, Path(settings.data_folder)))

    def make_engine(while_waiting: Callable[[], None]) -> Engine:
        data().while_waiting(while_waiting)
        return real_engine(job, data(), worker)

    return mailbox, control, transport, worked, _hash_of(data), make_engine


def _hash_of(data: Callable[[], JobData]) -> str:
    """Returns what tells the data from others; "" where they cannot be had."""
    try:
        return data().quick_hash()
    except (DataError, UserError) as error:
        log.warning("the coordinator will refuse this node: %s", error)
        return ""


def _emulated_parts(settings: WorkerSettings) -> Parts:
    job, worker = settings.job, settings.worker
    profile = read_costs(Path(settings.profile), job)
    mailbox = EmulatedMailbox()
    pace = mailbox.pace = EmulatedPace(
        worker,
        profile,
        mailbox.wait_until_moment,
        storage_bytes_per_s=job.cluster.storage_gb_per_s * 1e9,
        zone_of=job.cluster.zone_of,
    )
    security = security_of(settings.tls)
    control = Control(settings.coordinator, mailbox, job.resilience.coordinator_timeout_s, security)
    transport = EmulatedTransport(
        worker,
        settings.peer_token,
        mailbox,
        pace,
        settings.host,
        cut_off=lambda peer, address: control.send(CutOff(peer=peer, address=address)),
        security=security if job.cluster.data_encryption else None,
    )
    return mailbox, control, transport, pace.worked, "", lambda while_waiting: emulated_engine(profile, job, pace)
