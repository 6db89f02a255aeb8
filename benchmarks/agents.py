"""What a coordinator bears: thousands of connected agents that vote once a second, and losses among them.

The coordinator is the real one: machine, policy, server, sockets, journal and recorder, in one thread of this process.
The agents are sockets of another process: each says hello, beats every 0.2 s, takes plans, votes about
a second after each commit, and answers a halt with its ledger. They compute nothing.

cpu: share of a core that the coordinator's thread takes in steps without a loss.
commit: from the last vote's leaving to the last agent's having the commit.
decide: from an agent's closing its socket to the moment at which the plan that finishes the step has been sent to
everybody; decide.cpu is what the coordinator's thread computed and sent for it, on a core of its own.
place: from the last vote for the step that was finished to the last agent's having the new placement.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import heapq
import json
import os
import random
import secrets
import select
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from figures import Figures, note
from made_up import uniform_profile
from sides import make_job

from planaria.job.settings import Job
from planaria.plan.ledger import Ledger, combine
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator, RunSettings
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.events import Event, NodeGone, Received
from planaria.protocol.messages.from_worker import BEAT_S, Activity, Alive, Hello, NotSaved, Pulse, Ready, Report, Vote
from planaria.protocol.messages.message import PROTOCOL_VERSION, encode
from planaria.protocol.messages.plan_delta import UpdateError, decode_order
from planaria.protocol.messages.records import AnyRecord, NodeLost, StepCommitted
from planaria.protocol.messages.to_worker import Commit, Halt, PlanMessage, Save, StateSource
from planaria.runtime.component_settings import planner_settings
from planaria.runtime.coordinator.server import Server
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.wire.control_frames import control_frame
from planaria.runtime.wire.socket_server import listen

JOB = """
[model]
type = "none"
[train]
steps = {steps}
global_batch = {batch}
microbatch = 1
sequence_length = 64
[cluster]
nodes = {nodes}
[resilience]
fault_tolerance = 1
policy = "templates"
min_nodes_per_pipeline = {nodes_per_pipeline}
"""
NUM_LAYERS = 24
NODES_PER_PIPELINE = 16
MICROBATCHES_A_PIPELINE = 16
STEP_S = 1.0
WARM_UP_STEPS = 3
LONG_TURN_S = 0.02
PATIENT = Limits(silence_s=60.0, oversubscribed_silence_s=60.0, least_s=600.0)
"""Thousands of agents share one process here: the first plans alone keep it from beating for seconds."""
STEPS_A_LOSS = 4
"""The step that is lost in, the one after it, and two between losses."""


# The coordinator's side


class _NoLauncher:
    """Nodes that nobody starts, watches or kills."""

    def __init__(self) -> None:
        self._never, self._other = socket.socketpair()

    def fileno(self) -> int:
        return self._never.fileno()

    def lost(self) -> list[tuple[NodeId, str]]:
        return []

    def start(self, node: NodeId) -> None:
        return

    def kill(self, node: NodeId) -> None:
        return

    def is_runnable(self, node: NodeId) -> bool:
        return False

    def all_ended(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Turn:
    """One event that the server took: its kind, when it was begun, and the thread's CPU seconds for it."""

    kind: str
    began: float
    cpu_s: float


class TimedServer(Server):
    """Notes the events that are long or matter."""

    turns: list[Turn]

    def _handle(self, event: Event) -> None:
        began, cpu = time.monotonic(), time.thread_time()
        super()._handle(event)
        cpu = time.thread_time() - cpu
        if cpu > 1e-3 or isinstance(event, NodeGone):
            kind = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
            self.turns.append(Turn(kind, began, cpu))


@dataclass(slots=True)
class Meter:
    """An observer: wall and CPU time of the coordinator's thread at every commit."""

    at: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted):
            self.at[record.step] = time.monotonic(), time.thread_time()
        if isinstance(record, NodeLost) and record.cause != "connection closed":
            note(f"node {record.node} is lost: {record.cause}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run.

    Attributes:
        shares: of a core, in each step without a loss.
        steps_s: of those steps.
        agents: what the agents saw.
        turns: what the server took long for.
    """

    shares: list[float]
    steps_s: list[float]
    agents: Seen
    turns: list[Turn]


def measure(agents: int, losses: int, seed: int, profile_to: Path | None) -> Measured:
    """Run one coordinator with so many agents and losses."""
    steps = WARM_UP_STEPS + STEPS_A_LOSS * (losses + 1)
    pipelines = max(2, agents // NODES_PER_PIPELINE)
    batch = pipelines * MICROBATCHES_A_PIPELINE
    per_pipeline = NODES_PER_PIPELINE if agents >= 3 * NODES_PER_PIPELINE else 2
    text = JOB.format(steps=steps, nodes=agents, nodes_per_pipeline=per_pipeline, batch=batch)
    job = make_job(text)
    began = time.monotonic()
    profile = uniform_profile(NUM_LAYERS, 1e-3, parameter_bytes=1 << 20, output_bytes=1)
    policy = TemplatesPolicy.of(Planner(profile, planner_settings(job, profile)))
    note(f"{agents} agents: templates after {time.monotonic() - began:.1f} s")
    folder = RunFolder.create(job.run.folder, f"agents-{secrets.token_hex(4)}")
    journal = SqliteJournal(folder.journal)
    journal.start()
    meter = Meter()
    try:
        with Recorder(folder, job) as recorder:
            machine = Coordinator(_run_settings(job, folder), policy)
            server = TimedServer(
                machine, "token", journal, _NoLauncher(), (recorder, meter), lambda command: None, PATIENT
            )
            server.turns = []
            listener = listen("127.0.0.1", 0)
            server.start(listener)
            pid, pipe = _fork(f"127.0.0.1:{listener.getsockname()[1]}", agents, losses, seed)
            _serve(server, profile_to)
            server.close()
            with os.fdopen(pipe, "rb") as file:
                seen = Seen(**json.loads(file.read()))
            os.waitpid(pid, 0)
    finally:
        journal.close()
        shutil.rmtree(folder.path)
    disturbed = {step + after for step in seen.loss_steps for after in (0, 1, 2)}
    calm = [s for s in sorted(meter.at) if s > WARM_UP_STEPS and s not in disturbed and s - 1 in meter.at]
    pairs = [(meter.at[step - 1], meter.at[step]) for step in calm]
    return Measured(
        shares=[(cpu - cpu_before) / (at - before) for (before, cpu_before), (at, cpu) in pairs],
        steps_s=[at - before for (before, _), (at, _) in pairs],
        agents=seen,
        turns=server.turns,
    )


def _serve(server: Server, profile_to: Path | None) -> None:
    if profile_to is None:
        server.run()
        return
    profiler = cProfile.Profile()
    profiler.runcall(server.run)
    profiler.dump_stats(profile_to)


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


# The agents' side


@dataclass(slots=True)
class Seen:
    """What the agents saw, for each loss or step. Seconds.

    Attributes:
        loss_steps: in which an agent closed its socket.
        halted: from that to the last halt's arrival.
        decided: from that to the last agent's having the plan.
        placed: from the last vote for the step that was finished to the last agent's having the new placement.
        commits: of each step without a loss, from the last vote to the last agent's having the commit.
        closed_at: when each socket was closed (monotonic).
        plan_bytes: on the wire, of each plan to one agent.
    """

    loss_steps: list[int] = field(default_factory=list)
    halted: list[float] = field(default_factory=list)
    decided: list[float] = field(default_factory=list)
    placed: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    closed_at: list[float] = field(default_factory=list)
    plan_bytes: list[int] = field(default_factory=list)


def _fork(address: str, agents: int, losses: int, seed: int) -> tuple[int, int]:
    """Start the agents; returns the process, and a pipe that brings what they saw."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        seen = Agents(address, agents, losses, seed).run()
        with os.fdopen(writing, "wb") as file:
            file.write(json.dumps({name: getattr(seen, name) for name in Seen.__slots__}).encode())
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


class _Agent:
    """One socket."""

    __slots__ = ("buffer", "carried", "sock", "worker")

    def __init__(self, sock: socket.socket, worker: WorkerId) -> None:
        self.sock = sock
        self.worker = worker
        self.buffer = bytearray()
        self.carried: Ledger | None = None
        """What its accumulators hold beside the routes of the plan, after a halt."""


@dataclass(frozen=True, slots=True)
class _Shares:
    """What each worker of a plan does in a step."""

    counted: Mapping[WorkerId, dict[int, int]]
    """For each of its layers, the mask of its microbatches."""
    losses: Mapping[WorkerId, list[int]]
    norms: Mapping[WorkerId, list[int]]

    @classmethod
    def of(cls, plan: Plan) -> _Shares:
        counted: dict[WorkerId, dict[int, int]] = {}
        losses: dict[WorkerId, list[int]] = {}
        for route in plan.routes:
            mask = sum(1 << microbatch for microbatch in route.microbatches)
            for hop in route.hops:
                own = counted.setdefault(hop.worker, {})
                for layer in set(hop.layers).intersection(route.counted):
                    own[layer] = own.get(layer, 0) | mask
            losses.setdefault(route.hops[-1].worker, []).extend(route.microbatches)
        norms: dict[WorkerId, list[int]] = {}
        for group, owners in enumerate(plan.owners_of):
            norms.setdefault(owners[group % len(owners)], []).append(group)
        return cls(counted, losses, norms)


class Agents:
    """All of them, on one selector."""

    def __init__(self, address: str, count: int, losses: int, seed: int) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self._count = count
        self._losses = losses
        self._draw = random.Random(seed)
        self._seen = Seen()
        self._epoll = select.epoll()
        self._agents: dict[int, _Agent] = {}
        self._due: list[tuple[float, int, _Agent | None]] = []
        self._number = 0
        self._plans_heard: list[PlanMessage | None] = [None]
        self._heard: list[tuple[bytes, Any]] = []
        self._message: PlanMessage | None = None
        self._shares: _Shares | None = None
        self._step = 1
        self._beat = 0
        self._next_beat = 0.0
        self._slots: list[list[_Agent]] = []
        self._last_vote = self._first_commit = self._last_commit = 0.0
        self._commits = self._plans = 0
        self._closed = self._last_halt = 0.0
        self._is_lost_in = self._is_placing = False
        self._is_over = False

    def run(self) -> Seen:
        self._connect()
        self._slots = [list(self._agents.values())[at::20] for at in range(20)]
        self._next_beat = time.monotonic()
        while not self._is_over:
            wake = self._do_what_is_due()
            for descriptor, _ in self._epoll.poll(max(0.0, wake - time.monotonic())):
                self._readable(self._agents[descriptor])
                self._do_what_is_due()
        return self._seen

    def _do_what_is_due(self) -> float:
        """Votes and beats; returns when the next is due."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, agent = heapq.heappop(self._due)
            self._close_one() if agent is None else self._vote(agent)
        if now >= self._next_beat:
            self._heartbeat(self._slots[self._beat % 20])
            self._next_beat += BEAT_S / 20
        return min(self._next_beat, self._due[0][0]) if self._due else self._next_beat

    def _connect(self) -> None:
        """All of them; who is connected beats while the others come, for a connect may wait a second."""
        connected = threading.Event()
        beats = threading.Thread(target=self._beat_until, args=(connected,))
        beats.start()
        for number in range(self._count):
            sock = socket.create_connection(self._target, timeout=60.0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            worker = WorkerId(number)
            hello = Hello(
                version=PROTOCOL_VERSION,
                token="token",
                worker=worker,
                pid=1,
                data_address=f"10.{number >> 8}.{number & 255}.1:29500",
            )
            sock.sendall(control_frame(encode(hello)))
            self._agents[sock.fileno()] = _Agent(sock, worker)
            self._epoll.register(sock, select.EPOLLIN)
        connected.set()
        beats.join()

    def _beat_until(self, connected: threading.Event) -> None:
        while not connected.wait(BEAT_S):
            self._heartbeat(list(self._agents.values()))

    def _heartbeat(self, agents: list[_Agent]) -> None:
        self._beat += 1
        frame = control_frame(encode(Alive(pulse=Pulse(activity=Activity.COMPUTING, progress=self._beat))))
        for agent in agents:
            if agent.sock.fileno() >= 0:
                agent.sock.send(frame)

    def _readable(self, agent: _Agent) -> None:
        if agent.sock.fileno() < 0:
            return
        data = agent.sock.recv(1 << 20)
        if not data:
            self._is_over = True
            return
        agent.buffer += data
        while len(agent.buffer) >= 4:
            end = 4 + int.from_bytes(agent.buffer[:4], "big")
            if len(agent.buffer) < end:
                return
            body = bytes(agent.buffer[4:end])
            del agent.buffer[:end]
            self._take(agent, self._decoded(body), len(body))

    def _decoded(self, body: bytes) -> Any:
        """What a message says to every agent that gets it. An update has been made for those with one plan."""
        for known, message in reversed(self._heard):
            if known == body:
                return message
        for last in reversed(self._plans_heard):
            with contextlib.suppress(UpdateError):
                message = decode_order(body, last)
                self._heard = [*self._heard[-5:], (body, message)]
                if isinstance(message, PlanMessage):
                    self._plans_heard = [*self._plans_heard[-3:], message]
                return message
        raise AssertionError("an update of a plan that was never sent")

    def _take(self, agent: _Agent, message: Any, size: int) -> None:
        now = time.monotonic()
        match message:
            case PlanMessage():
                self._adopt(agent, message, size, now)
            case Commit():
                self._committed(agent, message, now)
            case Halt():
                self._last_halt = now
                self._halted(agent)
            case Save():  # nothing can be saved, which ends the run
                refusal = NotSaved(step=message.step, serial=message.serial, text="agents have no state")
                agent.sock.send(control_frame(encode(refusal)))
            case _:
                self._is_over = True

    def _adopt(self, agent: _Agent, message: PlanMessage, size: int, now: float) -> None:
        if message is not self._message:
            self._message, self._shares = message, _Shares.of(message.plan)
            self._seen.plan_bytes.append(size)
            self._plans = 0
            if self._is_placing:
                for other in self._agents.values():
                    other.carried = None
        self._plans += 1
        if self._plans == len(message.plan.workers):
            if self._is_lost_in:
                self._is_lost_in = False
                self._seen.halted.append(self._last_halt - self._closed)
                self._seen.decided.append(now - self._closed)
            elif self._is_placing:
                self._is_placing = False
                self._seen.placed.append(now - self._last_vote)
        if message.plan.transfers or message.source is not StateSource.LIVE:
            agent.sock.send(control_frame(encode(Ready(generation=message.plan.generation))))
        self._vote_later(agent, now)

    def _vote_later(self, agent: _Agent, now: float) -> None:
        self._at(now + self._draw.uniform(0.9, 0.95) * STEP_S, agent)

    def _at(self, moment: float, agent: _Agent | None) -> None:
        self._number += 1
        heapq.heappush(self._due, (moment, self._number, agent))

    def _vote(self, agent: _Agent) -> None:
        message, shares = self._message, self._shares
        if message is None or shares is None or agent.sock.fileno() < 0 or message.step != self._step:
            return
        ledger = self._ledger(agent, shares)
        vote = Vote(
            generation=message.plan.generation,
            step=self._step,
            norms={group: 1.0 / (group + 3) for group in shares.norms.get(agent.worker, ())},
            losses=dict.fromkeys(shares.losses.get(agent.worker, ()), 5.0),
            ledger=ledger,
        )
        agent.sock.send(control_frame(encode(vote)))
        self._last_vote = time.monotonic()

    def _ledger(self, agent: _Agent, shares: _Shares) -> Ledger:
        own = shares.counted.get(agent.worker, {})
        ledger = Ledger.from_bits(own.get(layer, 0) for layer in range(NUM_LAYERS))
        return ledger if agent.carried is None else combine((ledger, agent.carried), NUM_LAYERS)[0]

    def _committed(self, agent: _Agent, commit: Commit, now: float) -> None:
        if commit.step == self._step:
            self._step += 1
            self._commits = 0
            self._first_commit = now
            if self._message is not None:
                self._message = msgspec.structs.replace(self._message, step=self._step)
            self._is_placing = commit.hold
            self._plan_a_loss()
        self._commits += 1
        is_last = self._message is not None and self._commits == len(self._message.plan.workers)
        if is_last and self._seen.loss_steps[-1:] != [commit.step] and not commit.hold:
            self._seen.commits.append(now - self._last_vote)
        if not commit.hold:
            self._vote_later(agent, now)

    def _plan_a_loss(self) -> None:
        since = self._step - WARM_UP_STEPS - 1
        if len(self._seen.loss_steps) < self._losses and since >= 0 and since % STEPS_A_LOSS == STEPS_A_LOSS - 1:
            self._at(time.monotonic() + self._draw.uniform(0.2, 0.8) * STEP_S, None)

    def _close_one(self) -> None:
        assert self._message is not None
        placed = {stage.worker for stage in self._message.plan.stages()}
        live = [agent for agent in self._agents.values() if agent.sock.fileno() >= 0 and agent.worker in placed]
        victim = self._draw.choice(live)
        self._seen.loss_steps.append(self._step)
        self._is_lost_in = True
        self._epoll.unregister(victim.sock)
        self._closed = time.monotonic()
        victim.sock.close()
        self._seen.closed_at.append(self._closed)

    def _halted(self, agent: _Agent) -> None:
        """Half of its microbatches are done."""
        message, shares = self._message, self._shares
        assert message is not None
        assert shares is not None
        halves = {layer: _lower_half(mask) for layer, mask in shares.counted.get(agent.worker, {}).items()}
        agent.carried = Ledger.from_bits(halves.get(layer, 0) for layer in range(NUM_LAYERS))
        report = Report(
            generation=message.plan.generation,
            step=self._step,
            ledger=agent.carried,
            held=message.plan.groups_of[agent.worker],
        )
        agent.sock.send(control_frame(encode(report)))


def _lower_half(mask: int) -> int:
    bits = [at for at in range(mask.bit_length()) if mask >> at & 1]
    return sum(1 << at for at in bits[: len(bits) // 2])


# Figures


def tell(figures: Figures, agents: int, measured: Measured) -> None:
    is_full = agents >= 4096
    name, seen = f"agents.{agents}", measured.agents
    figures.add_samples(f"{name}.cpu", measured.shares, "cores", goal="<= 1.0" if is_full else None)
    figures.add_samples(f"{name}.step", [seconds * 1e3 for seconds in measured.steps_s], "ms")
    figures.add_samples(f"{name}.commit", [seconds * 1e3 for seconds in seen.commits], "ms")
    figures.add_samples(f"{name}.halt", [seconds * 1e3 for seconds in seen.halted], "ms")
    figures.add_samples(
        f"{name}.decide", [seconds * 1e3 for seconds in seen.decided], "ms", goal="<= 100" if is_full else None
    )
    busy = [
        _busy_after(measured.turns, closed, decided)
        for closed, decided in zip(seen.closed_at, seen.decided, strict=False)
    ]
    figures.add_samples(f"{name}.decide.cpu", [seconds * 1e3 for seconds in busy], "ms")
    figures.add_samples(f"{name}.place", [seconds * 1e3 for seconds in seen.placed], "ms")
    if seen.plan_bytes:
        figures.add(f"{name}.plan-bytes.first", seen.plan_bytes[0], "bytes")
        figures.add(f"{name}.plan-bytes.later", statistics.median(seen.plan_bytes[1:] or [0]), "bytes")


def _busy_after(turns: list[Turn], closed: float, decided_s: float) -> float:
    """Seconds of the server's long turns from a loss to its plan."""
    return sum(turn.cpu_s for turn in turns if closed <= turn.began <= closed + decided_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=[256, 1024, 4096], help="(default: %(default)s)")
    parser.add_argument("--losses", type=int, default=5, help="of each run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--profile", type=Path, help="write a cProfile of the coordinator's thread here")
    given = parser.parse_args()
    figures = Figures("a coordinator and its agents")
    for agents in given.agents:
        measured = measure(agents, given.losses, given.seed, given.profile)
        for turn in measured.turns:
            if turn.cpu_s > LONG_TURN_S:
                note(f"{turn.kind}: {1e3 * turn.cpu_s:.1f} ms of CPU")
        tell(figures, agents, measured)
    figures.finish(given.json)


if __name__ == "__main__":
    main()
