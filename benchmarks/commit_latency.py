"""How long a step's vote and commit take: the real server, machine, journal and recorder, and real sockets.

The workers are processes that vote, wait for the commit through the worker's own control connection and mailbox, and
compute nothing but a pause of a millisecond or two.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import shutil
import struct
import time
from collections.abc import Callable, Sequence

from agents import NoLauncher
from made_up import uniform_profile
from sides import make_job

from planaria.job.settings import Job
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, WorkerId
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator, RunSettings
from planaria.protocol.messages.from_worker import Hello, Returned, Vote, WorkerPhase
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.messages.to_worker import Commit, PlanMessage
from planaria.runtime.component_settings import planner_settings
from planaria.runtime.coordinator.server import Server
from planaria.runtime.journal.journal import Journal
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.wire.socket_server import listen
from planaria.runtime.worker.session import Control
from planaria.runtime.worker.transport.mailbox import Mailbox

JOB = """
[model]
type = "none"
[train]
steps = {steps}
global_batch = 48
microbatch = 2
sequence_length = 64
[cluster]
nodes = {nodes}
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = {nodes_per_pipeline}
"""
NUM_LAYERS = 8
_TIMES = struct.Struct("!Idd")


def in_the_folder(folder: RunFolder) -> Journal:
    return SqliteJournal(folder.journal)


def measure_commit(
    nodes: int,
    nodes_per_pipeline: int,
    *,
    steps: int,
    journal_of: Callable[[RunFolder], Journal] = in_the_folder,
) -> list[float]:
    """Seconds of each step from the last vote's making to the last worker's having taken the commit."""
    job = make_job(JOB.format(steps=steps, nodes=nodes, nodes_per_pipeline=nodes_per_pipeline))
    name = f"commit-{secrets.token_hex(4)}"
    folder = RunFolder.create(job.run.folder, name)
    journal = journal_of(folder)
    journal.start()
    pipes = []
    try:
        with Recorder(folder, job) as recorder:
            profile = uniform_profile(NUM_LAYERS, 1e-3, parameter_bytes=1 << 20, output_bytes=1)
            machine = Coordinator(
                _run_settings(job, folder), TemplatesPolicy.of(Planner(profile, planner_settings(job, profile)))
            )
            server = Server(machine, "token", journal, NoLauncher(), (recorder,), lambda command: None)
            listener = listen("127.0.0.1", 0)
            server.start(listener)
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            pipes = [_fork(address, worker) for worker in range(nodes)]
            while machine.step <= steps and not server._executor.finished:
                server._socket_server.serve(1.0)
            server.close()
    finally:
        journal.close()
        shutil.rmtree(folder.path)
    return _latencies(pipes, warm_up=50)


def _latencies(pipes: Sequence[int], warm_up: int) -> list[float]:
    voted: dict[int, float] = {}
    committed: dict[int, float] = {}
    for pipe in pipes:
        with os.fdopen(pipe, "rb") as file:
            data = file.read()
        for step, vote_s, commit_s in _TIMES.iter_unpack(data):
            voted[step] = max(voted.get(step, 0.0), vote_s)
            committed[step] = max(committed.get(step, 0.0), commit_s)
    return [committed[step] - voted[step] for step in sorted(voted)[warm_up:]]


def _run_settings(job: Job, folder: RunFolder) -> RunSettings:
    return RunSettings(
        train=job.train,
        policy_name="templates",
        fault_tolerance=job.resilience.fault_tolerance,
        num_nodes=job.cluster.nodes,
        devices_per_node=1,
        num_groups=NUM_LAYERS,
        checkpoint_root=str(folder.checkpoints),
        checkpoint_every=0,
        resume=None,
    )


def _fork(address: str, worker: int) -> int:
    """Start a worker; its times can be read from the pipe that is returned."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return reading
    try:
        os.close(reading)
        times = _work(address, WorkerId(worker))
        with os.fdopen(writing, "wb") as file:
            file.write(times)
    finally:
        os._exit(0)


def _work(address: str, worker: WorkerId) -> bytes:
    mailbox = Mailbox()
    control = Control(address, mailbox)
    control.start(
        Hello(version=PROTOCOL_VERSION, token="token", worker=worker, pid=os.getpid(), data_address="127.0.0.1:1")
    )
    control.send_returned(
        Returned(
            generation=-1,
            step=0,
            phase=WorkerPhase.IDLE,
            is_settled=True,
            ledger=Ledger.empty(NUM_LAYERS),
            held=(),
            given=(),
            serial=0,
            commit=None,
            vote=None,
            message=None,
        ),
        connection=1,
    )
    times = bytearray()
    plan: Plan | None = None
    step = 0
    voted = 0.0
    while True:
        order = mailbox.next_order(block=True)
        arrived = time.monotonic()
        match order:
            case PlanMessage():
                plan, step = order.plan, order.step
            case Commit():
                times += _TIMES.pack(order.step, voted, arrived)
                step = order.step + 1
                if order.hold:
                    return bytes(times)
            case _:
                return bytes(times)
        select.select([], [], [], random.uniform(0.5e-3, 2e-3))
        assert plan is not None
        voted = time.monotonic()
        control.send(_vote(plan, worker, step))


def _vote(plan: Plan, worker: WorkerId, step: int) -> Vote:
    """What a real worker would say."""
    ran = [m for route in plan.routes for m in route.microbatches if any(hop.worker == worker for hop in route.hops)]
    layers = plan.layers_of[worker]
    ledger = Ledger.of(ran if layer in layers else () for layer in range(plan.num_layers))
    told = [g for g in plan.groups_of[worker] if plan.owners_of[g][g % len(plan.owners_of[g])] == worker]
    losses = {m: 5.0 + m / 7 for m in ran} if plan.num_layers - 1 in layers else {}
    return Vote(
        generation=plan.generation, step=step, norms={g: 1.0 / (g + 3) for g in told}, losses=losses, ledger=ledger
    )
