"""A whole job in one process and in virtual time: the real coordinator, policy, agents, interpreters and sums, with a
network, a clock and a death that a seed decides.

Every worker is a thread, and exactly one thread runs at a time: whoever waits or computes hands over to the scheduler,
which goes on with the earliest event. So a seed gives one history, races included, and a hang is an empty heap.
Tensors are read when they are delivered, not when they are sent: whoever changes them too early is found out.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import os
import random
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch

from planaria.checkpoint.manifest import read_manifest, weights_sha256, write_manifest
from planaria.data.opening import open_data
from planaria.job.parse import job_fingerprint
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import TransportKind
from planaria.job.sections.model import ModelSection
from planaria.job.sections.resilience import WhenExhausted
from planaria.job.sections.train import TrainSection
from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.model.model import Batch, Model
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group, NodeId, WorkerId
from planaria.plan.program.instructions import Instruction
from planaria.plan.thresholds import USUAL_DECISION_S
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.events import (
    Command,
    DecisionTook,
    DeviceGone,
    Discard,
    Event,
    Evict,
    EvictDevice,
    Finish,
    ManifestWritten,
    NodeGone,
    NodeNotice,
    PolicyRequested,
    Publish,
    Received,
    Release,
    Restarted,
    Send,
    StopRequested,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.messages.from_worker import (
    Failed,
    FaultInjected,
    Flow,
    FromWorker,
    Notice,
    Returned,
    decode_from_worker,
)
from planaria.protocol.messages.journal import (
    AnyEntry,
    JournalCommit,
    JournalEntry,
    JournalPlan,
    decode_entry,
    encode_entry,
)
from planaria.protocol.messages.message import Message, encode
from planaria.protocol.messages.plan_delta import decode_order
from planaria.protocol.messages.records import AnyRecord, Restored, RunEnded, StepCommitted, StepSkipped
from planaria.protocol.messages.to_worker import Challenge, PlanMessage, Save, Stop, ToWorker
from planaria.protocol.phases import Phase
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.worker.machine import CoordinatorBack
from planaria.runtime.component_settings import planner_settings
from planaria.runtime.worker import fatal_errors
from planaria.runtime.worker import loop as agent_module
from planaria.runtime.worker.compute import engine as engine_module
from planaria.runtime.worker.compute.device.hazards import Clock
from planaria.runtime.worker.compute.device.stand_in import StandInQueues
from planaria.runtime.worker.compute.device_clock import OwnPace
from planaria.runtime.worker.compute.engine import real_engine
from planaria.runtime.worker.fatal_errors import last_words
from planaria.runtime.worker.heartbeat import Heartbeat
from planaria.runtime.worker.loop import WorkerLoop
from planaria.runtime.worker.settings import WorkerSettings
from planaria.runtime.worker.transport.frames import Loan
from planaria.runtime.worker.transport.lending import Lending
from planaria.runtime.worker.transport.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.runtime.worker.writer import write
from tests.testkit.cluster.recorder import HistoryRecorder
from tests.testkit.witness.witness import judge

MAX_EVENTS = 200_000

MOST_DESCRIPTORS = 300
"""Open in this process, above which clusters that are done are collected; a process often may have 1,024 alone."""


class Killed(BaseException):
    """SIGKILL: unwinds a worker's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A node dies `delay_s` after something: the start, or the first time one of its workers reaches an instruction
    kind in a step, or the n-th happening at the coordinator of a kind (an event's or a record's class name).

    Attributes:
        node: which.
        at: "start", an instruction kind, or "after NAME".
        step: for instruction kinds, the first step in which it counts.
        nth: for happenings.
        delay_s: virtual seconds.
        device: of the node, whose worker alone dies; -1: all die.
    """

    node: int
    at: str
    step: int = 1
    nth: int = 1
    delay_s: float = 0.0
    device: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A node comes, or gives notice, `delay_s` after the n-th happening of a kind at the coordinator.

    Attributes:
        node: which; a new one's number is the next one free.
        after: an event's or a record's class name.
        grace_s: of a notice: it dies so long after it; None: it comes.
    """

    node: int
    after: str
    nth: int = 1
    delay_s: float = 0.0
    grace_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The coordinator is killed, and started again on its journal.

    Attributes:
        after: an event's or a record's class name, or a command's as "to do NAME".
        nth: of those happenings.
        commands: that it still carries out after that: it may die in the middle of a batch.
        down_s: until it is started again.
        cut: so many entries at the end of the journal are lost with it (power).
    """

    after: str
    nth: int = 1
    commands: int = 0
    down_s: float = 1e-3
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """The user asks for another policy, `delay_s` after the n-th happening of a kind at the coordinator."""

    policy: str
    after: str
    nth: int = 1
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A node computes `factor` times longer, from a step on until another (0: for good)."""

    node: int
    factor: float
    step: int
    until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How long things take, in virtual seconds."""

    compute_s: float = 1e-3
    network_s: float = 1e-3
    control_s: float = 1e-3
    detect_s: float = 3e-3
    spread: float = 4.0
    """Times vary from nothing to so many times the mean; now and then much more."""
    slow: int | None = None
    """A worker that computes ten times as long."""
    slow_nodes: tuple[Slow, ...] = ()
    """Nodes that compute longer for some steps. Given, compute takes what the profile says and is measured, for the
    coordinator to judge; else nothing is measured."""
    measures_noise: bool = False
    """Whatever passes while a worker computes is measured, so the coordinator makes new plans for no reason."""
    one_host: bool = False
    """Owners of a group read each other's sums in place."""
    damage: float = 0.0
    """The part of messages between workers that arrive damaged."""
    damaged: str = "agmstp"
    """Of these kinds."""


@dataclass(slots=True)
class Outcome:
    """What came of a job."""

    finish: Finish
    records: list[AnyRecord]
    commits: list[JournalCommit]
    checkpoint: CheckpointRef | None
    history: list[str]
    weights: str | None
    restarts: int = 0
    losses: dict[int, float] = field(default_factory=dict)

    def of(self, kind: type | tuple[type, ...]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def drops(self) -> dict[int, tuple[int, ...]]:
        """step -> the microbatches that were left out of it, the last time that it was done."""
        last = {record.step: record.dropped for record in self.of((StepCommitted, StepSkipped))}
        return {step: dropped for step, dropped in last.items() if dropped}


MOST_MODELS = 8
_models: dict[bytes, Model] = {}


def loaded_once(
    section: ModelSection, train: TrainSection, *, vocab_size: int | None, example: Batch | None = None
) -> Model:
    """The model that `load_model` gives: one for all workers, each of which makes copies of its layers."""
    if example is not None:
        return load_model(section, train, vocab_size=vocab_size, example=example)
    key = msgspec.json.encode((section, train, vocab_size))
    if key not in _models:
        if len(_models) >= MOST_MODELS:
            _models.clear()
        _models[key] = load_model(section, train, vocab_size=vocab_size)
    return _models[key]


def profile_of(job: Job, vocab_size: int) -> ModelProfile:
    """Uneven layers; the groups are the model's own."""
    model = loaded_once(job.model, job.train, vocab_size=vocab_size)
    draw = random.Random(31 * job.cluster.nodes + job.train.num_microbatches)
    layers = tuple(
        LayerCost(
            name=name,
            times=(
                LayerTimes(
                    forward_s=draw.randint(1, 9) * 1e-3,
                    backward_input_s=(half := draw.randint(1, 9) * 1e-3),
                    backward_weight_s=half,
                ),
            ),
            parameter_bytes=100,
            gradient_bytes=100,
            optimizer_bytes=200,
            activation_bytes=100,
            recompute_activation_bytes=50,
            output_bytes=draw.choice([0, 100_000]),
        )
        for name in model.layer_names
    )
    groups = tuple(
        Group(layers=spec.layers, size_bytes=4 * sum(torch.Size(p.shape).numel() for p in spec.parameters))
        for spec in model.groups
    )
    # Some links are so slow that beside a step the state of a layer or two has room.
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e6 if job.cluster.nodes % 3 == 1 else 1e8)
    return ModelProfile(
        layers=layers,
        groups=groups,
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="virtual"),
    )


class Cluster:
    """One run of a job.

    Args:
        job: its data must have been prepared into `data`.
        folder: for checkpoints.
        seed: of every delay.
        kills: who dies when.
        shortages: who gets no memory when, at instruction kinds.
        visits: who comes or gives notice when.
        crashes: of the coordinator.
        switches: of the policy; those that the coordinator refuses are not made.
        stop_at_s: when the user presses Ctrl-C.
    """

    def __init__(
        self,
        job: Job,
        *,
        data: Path,
        vocab_size: int,
        folder: Path,
        seed: int = 0,
        kills: tuple[Kill, ...] = (),
        shortages: tuple[Kill, ...] = (),
        visits: tuple[Visit, ...] = (),
        crashes: tuple[Crash, ...] = (),
        switches: tuple[Switch, ...] = (),
        weather: Weather | None = None,
        stop_at_s: float | None = None,
        resume: CheckpointRef | None = None,
    ) -> None:
        self.job = job
        self.data = data
        self.folder = folder
        self.random = random.Random(seed)
        self.weather = weather or Weather()
        self.now = 0.0
        self.history: list[str] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._kills = list(kills)
        self._shortages = list(shortages)
        self._visits = visits
        self._switches = switches
        self._crashes = list(crashes)
        self._fuses: list[tuple[int, Crash]] = []
        """Crashes that are due, and when: by the number of commands carried out."""
        self._carried_out = 0
        self.incarnation = 0
        """Of the coordinator; 0 while there is none."""
        self._incarnations = itertools.count(1)
        self._unheard: list[Event] = []
        """What its supervisor tells the next coordinator."""
        self._journal: list[bytes] = []
        self._happened: dict[str, int] = {}
        self.recorder = Recorder()
        self.witnessed = HistoryRecorder(
            steps=job.train.steps,
            microbatches=job.train.num_microbatches,
            tokens=job.train.microbatch * max(1, job.train.sequence_length),
            done=resume.step if resume is not None else 0,
            devices_per_node=job.cluster.devices_per_node,
            fault_tolerance=job.resilience.fault_tolerance,
        )
        self.commits: list[JournalCommit] = []
        self.finish: Finish | None = None
        self.error: BaseException | None = None
        self.profile = profile = profile_of(job, vocab_size)
        self._layers = tuple(group.layers for group in profile.groups)
        settings = RunSettings(
            train=job.train,
            policy_name=job.resilience.policy.value,
            fault_tolerance=job.resilience.fault_tolerance,
            mean_time_between_failures_s=job.resilience.mean_time_between_failures_s,
            num_nodes=job.cluster.nodes,
            devices_per_node=job.cluster.devices_per_node,
            num_groups=len(profile.groups),
            checkpoint_root=str(folder),
            checkpoint_every=job.run.checkpoint_every,
            resume=resume,
            waits=job.resilience.when_exhausted is WhenExhausted.WAIT,
            may_drop=job.resilience.may_drop,
            audit=job.resilience.audit,
        )
        planner = planner_settings(job, profile)

        def make(name: PolicyName, most_bytes: int) -> Policy:
            return make_policy(
                name, Planner(profile, replace(planner, memory_bytes=most_bytes or planner.memory_bytes))
            )

        usual = make(job.resilience.policy, 0)
        self._make = lambda past: Coordinator(
            settings, usual, past, Shortages(profile, partial(make, job.resilience.policy)), make
        )
        self.machine = self._make(None)
        self.known: Clock = {}
        """What the coordinator has heard to be done, on stand-ins for GPUs."""
        self.incarnation = next(self._incarnations)
        nodes = max([job.cluster.nodes, *(visit.node + 1 for visit in visits)])
        per_node = job.cluster.devices_per_node
        self.workers = [Worker(self, WorkerId(number)) for number in range(nodes * per_node)]
        self.connected = {worker.number for worker in self.workers}
        self._evicted: set[int] = set()
        self._evicted_devices: set[int] = set()
        self._released: set[int] = set()
        for worker in self.workers[: job.cluster.nodes * per_node]:
            self.at(self.vary(self.weather.control_s), worker.start)
        for kill in kills:
            if kill.at == "start":
                self.at(kill.delay_s, partial(self.kill, kill.node, kill.device))
        if stop_at_s is not None:
            self.at(stop_at_s, lambda: self.handle(StopRequested()))

    # Time

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at_time(self.now + delay_s, action)

    def at_time(self, when_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, next(self._serial), action))

    def vary(self, mean_s: float) -> float:
        if self.random.random() < 0.02:
            return mean_s * self.random.uniform(5, 30)
        return mean_s * self.random.uniform(0, 1) ** 2 * self.weather.spread

    def run(self) -> Outcome:
        """To the end. Raises AssertionError for a hang, and whatever a worker or the coordinator raised."""
        if len(os.listdir("/proc/self/fd")) > MOST_DESCRIPTORS:
            gc.collect()  # each vector of a cluster that is done has one, and lies in a cycle
        with (
            mock.patch.object(agent_module, "FaultInjector", _faults_of_the_worker_being_built),
            mock.patch.object(fatal_errors, "held_bytes", return_value=0),  # one seed, one history
            mock.patch.object(engine_module, "load_model", loaded_once),
        ):
            try:
                for _ in range(MAX_EVENTS):
                    if not self._heap:
                        if self.finish is not None or self.machine.phase not in (Phase.WAITING, Phase.GATHERING):
                            break
                        self.handle(StopRequested())
                        continue
                    self.now, _, action = heapq.heappop(self._heap)
                    action()
                    if self.error is not None:
                        raise self.error
                else:
                    raise AssertionError(f"no end after {MAX_EVENTS} events\n{self.describe()}")
                assert self.finish is not None, f"hang\n{self.describe()}"
                left = [worker.number for worker in self.workers if worker.is_started and not worker.is_over]
                assert not left, f"workers {left} are left behind\n{self.describe()}"
            except BaseException as error:
                error.add_note("\n".join(self.history[-60:]))
                raise
            finally:
                for worker in self.workers:
                    worker.abandon()
        return self._outcome()

    def _outcome(self) -> Outcome:
        assert self.finish is not None
        found = judge(self.witnessed.history(), knows_faults=False)
        assert not found, found[0]
        saved = self.machine.checkpoints.last
        weights = None
        if saved is not None and saved.step == self.machine.step - 1:
            weights = weights_sha256(Path(saved.folder), read_manifest(Path(saved.folder)))
        return Outcome(
            finish=self.finish,
            records=self.records,
            commits=self.commits,
            restarts=self.incarnation - 1,
            checkpoint=saved,
            history=self.history,
            weights=weights,
            losses={r.step: r.loss for r in self.records if isinstance(r, StepCommitted)},
        )

    def note(self, text: str) -> None:
        self.history.append(f"{self.now * 1e3:9.3f} ms  {text}".replace(str(self.folder), "..."))

    def describe(self) -> str:
        lines = self.history[-80:]
        lines.append(f"coordinator {self.incarnation}: {self.machine.phase.value}, step {self.machine.step}")
        lines.append(f"awaited: {sorted(self.machine.awaited)}")
        lines += [worker.describe() for worker in self.workers]
        return "\n".join(lines)

    # Deaths

    def happened(self, name: str) -> None:
        count = self._happened[name] = self._happened.get(name, 0) + 1
        for crash in list(self._crashes):
            if crash.after == name and crash.nth == count:
                self._crashes.remove(crash)
                self._fuses.append((self._carried_out + crash.commands, crash))
        for kill in list(self._kills):
            if kill.at == f"after {name}" and kill.nth == count:
                self.at(kill.delay_s, partial(self.kill, kill.node, kill.device))
        for visit in self._visits:
            if visit.after == name and visit.nth == count:
                self.at(visit.delay_s, lambda visit=visit: self._visit(visit))  # type: ignore[misc]
        for switch in self._switches:
            if switch.after == name and switch.nth == count:
                self.at(switch.delay_s, partial(self._switch, PolicyName(switch.policy)))

    def _switch(self, name: PolicyName) -> None:
        if self.finish is not None:
            return
        if not self.incarnation or self.machine.awaited:
            self.at(1e-3, partial(self._switch, name))
            return
        refusal = self.machine.refusal(name)
        self.note(f"a switch to {name}: {refusal or 'granted'}")
        if refusal is None:
            self.handle(PolicyRequested(name))

    def _visit(self, visit: Visit) -> None:
        if visit.grace_s is None:
            for worker in self.workers_of(visit.node):
                if not worker.is_started:
                    self.at(self.vary(self.weather.control_s), worker.start)
            return
        self.handle(NodeNotice(NodeId(visit.node), visit.grace_s, "preemption"))
        self.at(visit.grace_s, lambda: self.kill(visit.node))

    def is_due(self, node: int, at: str, step: int) -> bool:
        for kill in self._kills:
            if kill.node == node and kill.at == at and step >= kill.step:
                if kill.delay_s:
                    self._kills.remove(kill)
                    self.at(kill.delay_s, partial(self.kill, kill.node, kill.device))
                    return False
                return True
        return False

    def gets_no_memory(self, node: int, at: str, step: int) -> bool:
        for which in self._shortages:
            if which.node == node and which.at == at and step >= which.step:
                self._shortages.remove(which)
                return True
        return False

    def workers_of(self, node: int) -> list[Worker]:
        per_node = self.job.cluster.devices_per_node
        return self.workers[node * per_node : (node + 1) * per_node]

    def kill(self, node: int, device: int = -1) -> None:
        """SIGKILL to every process of a node, or to that of one device: what it sent is under way still, its sockets
        close."""
        for at, worker in enumerate(self.workers_of(node)):
            if worker.is_over or device not in (-1, at):
                continue
            self.note(f"worker {worker.number} dies")
            worker.die()
            self._closed(worker)

    def _closed(self, worker: Worker) -> None:
        incarnation = self.incarnation

        def closed(cause: str) -> None:
            if self.incarnation == incarnation:
                self._gone(worker, cause)

        worker.up.send(lambda: closed("connection closed"), self.vary(self.weather.control_s))
        self.at(self.vary(self.weather.detect_s), lambda: closed("process killed"))

    def ended(self, worker: Worker) -> None:
        self._closed(worker)

    # Deaths of the coordinator

    @property
    def records(self) -> list[AnyRecord]:
        return self.recorder.records

    def _dies_now(self) -> bool:
        """Whether the coordinator is killed before it does anything else."""
        for when, crash in self._fuses if self.finish is None else ():
            if when <= self._carried_out:
                self._fuses.remove((when, crash))
                self._crash(crash)
                return True
        return False

    def _crash(self, crash: Crash) -> None:
        """What was sent to it is lost; of what it sent, the first part arrives. Then its connections close."""
        if self.finish is not None or not self.incarnation:
            return
        self.note(f"the coordinator dies, {self.machine.phase.value}, step {self.machine.step}")
        self.incarnation = 0
        for worker in self.workers:
            worker.is_linked = False
            worker.down.cut()
        if crash.cut:
            lost = [type(decode_entry(entry)).__name__ for entry in self._journal[-crash.cut :]]
            self.note(f"the journal loses {', '.join(lost)}")
            del self._journal[-crash.cut :]
            self.witnessed.lost_entries(len(self._journal))
        self.at(crash.down_s, self._start_again)

    def _start_again(self) -> None:
        entries: list[AnyEntry] = [decode_entry(entry) for entry in self._journal]
        past = JournalState.of(entries)
        self.machine = self._make(past)
        self.incarnation = next(self._incarnations)
        self.note(f"coordinator {self.incarnation} begins, past {past.step}")
        self._evicted, self._released = set(), set()
        self._evicted_devices = set()
        self.connected = {worker.number for worker in self.workers}
        incarnation = self.incarnation
        self.handle(Restarted())
        if self.incarnation != incarnation:
            return
        for worker in self.workers:
            if worker.is_over and worker.node not in self._evicted:
                self.at(self.vary(self.weather.detect_s), lambda worker=worker: self._gone(worker, "process killed"))
            elif worker.is_started:
                self._link(worker)
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self.handle(event)

    def _link(self, worker: Worker) -> None:
        """The worker reconnects, some time after it has read the last of what came on its old connection."""
        incarnation = self.incarnation

        def connect() -> None:
            if self.incarnation != incarnation or worker.is_over:
                return
            worker.is_linked = True
            worker.up = Channel(self)
            worker.up.send(lambda: self.joined(worker, incarnation), self.vary(self.weather.control_s))
            unsent, worker.unsent = worker.unsent, []
            for data in unsent:
                worker.say(data)
            worker.num_links += 1
            worker.mailbox.put_order(CoordinatorBack(worker.num_links))

        worker.down.send(connect, self.vary(self.weather.control_s * 3))

    # The server around the coordinator

    def _gone(self, worker: Worker, cause: str) -> None:
        node = worker.node
        if not self.incarnation:
            return  # whoever comes next is told of every dead process
        if node in self._released and cause == "process killed":
            return  # what it said before is still to be heard
        self.connected.discard(worker.number)
        is_last = not any(other.number in self.connected for other in self.workers_of(node))
        if node not in self._evicted and not all(other.is_over for other in self.workers_of(node)):
            self.handle(DeviceGone(worker.number, cause))
        elif node not in self._evicted or (node in self._released and is_last):
            self.handle(NodeGone(NodeId(node), cause))

    def received(self, worker: Worker, data: bytes, incarnation: int, known: Clock) -> None:
        if worker.number in self.connected and incarnation == self.incarnation:
            self.known = merged(self.known, known)
            message: FromWorker = decode_from_worker(data)
            self.handle(Received(worker.number, message))

    def joined(self, worker: Worker, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if worker.node in self._evicted or worker.number in self._evicted_devices:
            worker.tell(Stop(reason="fenced"))
        elif worker.number in self.connected:
            self.handle(WorkerJoined(worker.number, worker.address))

    def handle(self, event: Event) -> None:
        if not self.incarnation:
            self._unheard.append(event)
            return
        incarnation = self.incarnation
        name = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
        who = f" of {event.worker}" if isinstance(event, Received) else f" {event}"
        before = self.machine.phase.value
        self.witnessed.heard(event)
        commands = self.machine.handle(event, self.now)
        self.note(f"{before} -- {name}{who} --> {self.machine.phase.value}, step {self.machine.step}")
        self.happened(name)
        for command in commands:
            if self.incarnation != incarnation or self._dies_now():
                return
            self._carry_out(command)
            self._carried_out += 1
        if self.incarnation == incarnation and not self._dies_now():
            if any(isinstance(command, Send) and isinstance(command.message, PlanMessage) for command in commands):
                self.handle(DecisionTook(USUAL_DECISION_S))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send(worker, message):
                if worker in self.connected and self.workers[worker].is_linked:
                    self.note(f"    {type(message).__name__} to {worker}")
                    self.workers[worker].tell(message)
            case JournalEntry():
                self._journal.append(encode_entry(command))
                self.witnessed.wrote(self._journal[-1])
                if isinstance(command, JournalCommit):
                    self.commits.append(command)
                if isinstance(command, JournalPlan):
                    self.note(f"plan {command.message.plan.generation} for step {command.message.step}")
            case Publish(record, again):
                if self.recorder.take(record, again=again):
                    self.witnessed.told(record)
                    self.happened(type(record).__name__)
            case Evict(node):
                self._evicted.add(node)
                for worker in self.workers_of(node):
                    self.connected.discard(worker.number)
                self.kill(node)
            case EvictDevice(number):
                self._evicted_devices.add(number)
                self.connected.discard(number)
                self.kill(self.workers[number].node, number % self.job.cluster.devices_per_node)
            case WriteManifest(step, folder, groups, exponents):
                write_manifest(
                    Path(folder),
                    step=step,
                    job_fingerprint=job_fingerprint(self.job),
                    exponents=exponents,
                    saved=groups,
                    layers=self._layers,
                )
                self.handle(ManifestWritten(step, folder, 0.0))
            case Discard(discarded):
                shutil.rmtree(discarded, ignore_errors=True)
            case Release(node):
                self._evicted.add(node)
                self._released.add(node)
            case Finish():
                self.note(f"finish: {command}")
                self.finish = command


def merged(one: Clock, other: Clock) -> Clock:
    """Returns what two know together."""
    return {actor: max(one.get(actor, 0), other.get(actor, 0)) for actor in {*one, *other}}


class Recorder:
    """Keeps what a coordinator publishes, once."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self._step = 0

    def take(self, record: AnyRecord, *, again: bool) -> bool:
        """Returns whether it is new."""
        if again and record in self.records:
            return False
        if isinstance(record, RunEnded) and any(isinstance(other, RunEnded) for other in self.records):
            return False
        if isinstance(record, StepCommitted | StepSkipped):
            if record.step <= self._step:
                return False
            self._step = record.step
        elif isinstance(record, Restored):
            self._step = record.to_step
        self.records.append(record)
        return True


class Channel:
    """Things arrive in the order in which they were sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last = 0.0
        self._under_way: deque[list[bool]] = deque()

    def send(self, action: Callable[[], None], delay_s: float) -> None:
        when = max(self._last, self._cluster.now + delay_s)
        self._last = when
        valid = [True]
        self._under_way.append(valid)

        def arrive() -> None:
            self._under_way.remove(valid)
            if valid[0]:
                action()

        self._cluster.at_time(when, arrive)

    def cut(self) -> None:
        """The sender is gone: the last few things that are under way never arrive."""
        lost = self._cluster.random.randint(0, len(self._under_way))
        for valid in list(self._under_way)[len(self._under_way) - lost :]:
            valid[0] = False


_building: list[Worker] = []


def _faults_of_the_worker_being_built(*arguments: object) -> Faults:
    return Faults(_building[-1])


class Worker:
    """One worker process: the real agent in a thread that runs only when the scheduler lets it."""

    def __init__(self, cluster: Cluster, number: WorkerId) -> None:
        self.cluster = cluster
        self.number = number
        self.node = number // cluster.job.cluster.devices_per_node
        self.address = f"virtual:{number}"
        self.up = Channel(cluster)
        self.down = Channel(cluster)
        self.ways: dict[WorkerId, Channel] = {}
        self.peers: set[WorkerId] = set()
        self.is_over = False
        self.doing = "nothing yet"
        self.is_linked = False
        self.num_links = 1
        self.unsent: list[bytes] = []
        self.agent: WorkerLoop | None = None
        self.lending: Lending | None = None
        self._early: Clock = {}
        """What it was told before it had a device."""
        self.mailbox = SimulatedMailbox(self)
        self._is_waiting = False
        self._dying = False
        self._turn, self._back = threading.Lock(), threading.Lock()
        """Released to let the thread, or the scheduler, go on: whoever waits for its turn acquires one."""
        self._turn.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._live, name=f"worker-{number}", daemon=True)
        self.is_started = False

    # The scheduler's side

    def start(self) -> None:
        if not self.is_over:
            self.is_started = True
            self._thread.start()
            self._hand_over()

    def _hand_over(self) -> None:
        self._back.acquire()

    def _resume(self) -> None:
        if not self.is_over:
            self._turn.release()
            self._hand_over()

    def wake(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self.cluster.at(0.0, self._resume)

    def tell(self, message: ToWorker) -> None:
        data, known = encode(message), dict(self.cluster.known)
        self.down.send(lambda: self._order(data, known), self.cluster.vary(self.cluster.weather.control_s))

    def clock(self) -> Clock:
        """Returns what the worker knows to be done, on a stand-in for a GPU."""
        queues = self._queues
        return {} if queues is None else queues._clocks.now(queues.host)

    def learn(self, clock: Clock) -> None:
        """Takes note of what somebody knew who told it something."""
        queues = self._queues
        if queues is not None:
            queues._clocks.after(queues.host, clock)
        elif self.agent is None:
            self._early = merged(self._early, clock)

    @property
    def _queues(self) -> StandInQueues | None:
        device = None if self.agent is None else self.agent._device
        return getattr(device, "queues", None)

    def _order(self, data: bytes, known: Clock) -> None:
        if not self.is_over:
            self.learn(known)
            order = decode_order(data, None)
            assert not isinstance(order, Challenge)
            self.cluster.note(f"        {type(order).__name__} reaches {self.number}")
            self.mailbox.put_order(order)

    def die(self) -> None:
        """Nothing more is done here; the thread unwinds when it is abandoned."""
        self.is_over = True
        for way in self.ways.values():
            way.cut()

    def abandon(self) -> None:
        self.is_over = True
        self._dying = True
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._turn.release()
            self._thread.join()

    def describe(self) -> str:
        if self.is_over:
            return f"worker {self.number}: over"
        machine = self.agent._machine if self.agent else None
        state = f"{machine.phase.value} generation {machine.generation} step {machine.step}" if machine else "?"
        head = self.agent._interpreter.progress.next if self.agent else None
        return f"worker {self.number}: {state}, {self.doing}, next {head}, mail {list(self.mailbox._mail)[:6]}"

    def say(self, data: bytes) -> None:
        """To the coordinator that this worker is connected to."""
        cluster, incarnation = self.cluster, self.cluster.incarnation
        if self.is_linked:
            known = self.clock()
            heard = partial(cluster.received, self, data, incarnation, known)
            self.up.send(heard, cluster.vary(cluster.weather.control_s))
        elif isinstance(decode_from_worker(data), Notice | Failed):
            self.unsent.append(data)

    # The thread's side

    def pause(self) -> None:
        self._back.release()
        self._turn.acquire()
        if self._dying:
            raise Killed

    def wait(self) -> None:
        """Until something arrives."""
        self._is_waiting = True
        self.doing = "waiting"
        self.pause()

    def sleep(self, mean_s: float) -> None:
        slowness = 10 if self.cluster.weather.slow == self.number else 1
        self.sleep_just(self.cluster.vary(mean_s) * slowness)

    def sleep_just(self, seconds: float) -> None:
        self.cluster.at(seconds, self._resume)
        self.pause()

    def _live(self) -> None:
        cluster = self.cluster
        try:
            incarnation = cluster.incarnation
            if incarnation:
                self.is_linked = True
                self.up.send(lambda: cluster.joined(self, incarnation), cluster.vary(cluster.weather.control_s))
            self.sleep(cluster.weather.compute_s)
            settings = WorkerSettings(
                worker=self.number,
                node=self.node,
                coordinator="",
                token="",
                job=cluster.job,
                data_folder=str(cluster.data),
            )
            _building.append(self)
            control: Any = SimulatedControl(self)
            transport: Any = SimulatedTransport(self)
            data = open_data(cluster.job, cluster.data)
            engine = replace(real_engine(cluster.job, data, self.number), pace=SimulatedPace(self))
            heartbeat, writer = Heartbeat(lambda message: None), SimulatedWriter(self)
            self.agent = WorkerLoop(settings, self.mailbox, control, transport, heartbeat, writer, engine)  # type: ignore[arg-type]
            _building.pop()
            self.learn(self._early)
            status = self.agent.run()
            assert status == 0, f"worker {self.number} ended itself: {list(self.agent._machine.history)[-5:]}"
            self.is_over = True
            cluster.ended(self)
        except Killed:
            pass
        except MemoryError as error:
            told = last_words(self.number, error, self.doing)
            assert told is not None
            SimulatedControl(self).send(told)
            self.is_over = True
            cluster.ended(self)
        except BaseException as error:
            error.add_note(f"in worker {self.number}")
            cluster.error = error
        finally:
            self.is_over = True
            self._back.release()


class SimulatedPace(OwnPace):
    """Measures virtual time; and lets it pass as the profile says, where nodes are slow."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def stopwatch(self) -> float:
        weather = self._worker.cluster.weather
        return self._worker.cluster.now if weather.slow_nodes or weather.measures_noise else 0.0

    def slow_down(self, took_s: float) -> None:
        """It took so long already."""

    def compute(
        self,
        instruction: Instruction,
        *,
        forwards: Collection[int] = (),
        inputs: Collection[int] = (),
        weights: Collection[int] = (),
    ) -> None:
        cluster = self._worker.cluster
        if cluster.weather.slow_nodes:
            times = [layer.on(1) for layer in cluster.profile.layers]
            seconds = sum(times[layer].forward_s for layer in forwards)
            seconds += sum(times[layer].backward_input_s for layer in inputs)
            seconds += sum(times[layer].backward_weight_s for layer in weights)
            self._worker.sleep_just(seconds * self.slowness)
        elif cluster.weather.measures_noise:
            self._worker.sleep(cluster.weather.compute_s)


class SimulatedMailbox(Mailbox):
    """Waits by handing over."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def put(self, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        super().put(key, tensors)
        self._worker.wake()

    def put_order(self, order: Any) -> None:
        super().put_order(order)
        self._worker.wake()

    def next_order(self, *, block: bool) -> Any:
        while block and not self.has_orders:
            self._worker.wait()
        return super().next_order(block=False)

    def wait_until(self, condition: Callable[[], bool], idle: Callable[[], bool]) -> None:
        while True:
            arrivals = self._arrivals
            if self.has_orders:
                raise Interrupted
            if condition():
                return
            if idle():
                self._worker.sleep(self._worker.cluster.weather.compute_s / 10)
                continue
            while self._arrivals == arrivals and not self.has_orders:
                self._worker.wait()


class SimulatedControl:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def send(self, message: Message) -> None:
        self._worker.say(encode(message))

    def send_returned(self, returned: Returned, connection: int) -> None:
        if connection == self._worker.num_links:
            self.send(returned)

    def close(self) -> None:
        pass


class SimulatedWriter:
    """Writes some time later, unless its worker is dead by then."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._orders: deque[tuple[Save, Any]] = deque()

    def write(self, save: Save, states: Any) -> None:
        cluster = self._worker.cluster
        self._orders.append((save, states))
        cluster.at(cluster.vary(cluster.weather.compute_s * 3), self._write)

    def _write(self) -> None:
        if self._orders and not self._worker.is_over:
            save, states = self._orders.popleft()
            SimulatedControl(self._worker).send(write(save, self._worker.number, states))

    def close(self) -> None:
        while self._orders and not self._worker.is_over:
            self._write()


class SimulatedTransport:
    """Delivers what the tensors hold when they arrive: the real one does not copy either."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        self._worker.peers = set(addresses)
        for peer in [peer for peer in self._worker.ways if peer not in addresses]:
            self._worker.ways.pop(peer).cut()

    def flows(self) -> dict[WorkerId, Flow]:
        return {}

    def pace(self, peers: Collection[WorkerId], bytes_per_s: float | None) -> None:
        """Takes no notice: messages take as long as they do."""

    def host_of(self, worker: WorkerId) -> int:
        return 0 if self._worker.cluster.weather.one_host else worker

    def memory_of(self, worker: WorkerId) -> int:
        is_apart = self._worker.cluster.job.cluster.transport is TransportKind.TCP
        return worker if is_apart else self.host_of(worker)

    carries_devices_memory = False

    def serve(self, lending: Lending) -> None:
        self._worker.lending = lending

    def send(self, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...], loan: Loan | None = None) -> None:
        worker = self._worker
        cluster = worker.cluster
        assert peer in worker.peers, f"worker {worker.number} sends to {peer}, which is not in its plan"
        target = cluster.workers[peer]
        known = worker.clock()

        def arrive() -> None:
            if target.is_over:
                return
            target.learn(known)
            weather = cluster.weather
            if weather.damage and key.kind in weather.damaged and cluster.random.random() < weather.damage:
                cluster.note(f"damaged: {key} to {peer}")
                target.mailbox.put_damaged(key)
                target.wake()
            elif loan is not None or key.kind == Kind.READ:
                if target.lending is None:
                    cluster.at(weather.network_s, arrive)  # it has no device yet
                else:
                    target.lending.arrived(target.mailbox, key, loan, tensors)
            else:
                target.mailbox.put(key, tuple(tensor.detach().clone() for tensor in tensors))

        way = worker.ways.setdefault(peer, Channel(cluster))
        way.send(arrive, cluster.vary(cluster.weather.network_s))

    def close(self) -> None:
        pass


class Faults:
    """Called before every instruction: that is where time passes, and where death on order strikes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def slowness(self, step: int) -> float:
        slow = self._worker.cluster.weather.slow_nodes
        mine = (one for one in slow if one.node == self._worker.node and one.step <= step)
        return max((one.factor for one in mine if not one.until or step < one.until), default=1.0)

    def corrupt(self, at: str, step: int, tensors: object) -> None:
        """Changes nothing: what a node computes wrong is tried in symbols, and on real processes."""

    def check(self, at: str, step: int) -> None:
        worker = self._worker
        worker.doing = f"{at} of step {step}"
        if worker.cluster.is_due(worker.node, at, step):
            SimulatedControl(worker).send(FaultInjected(at_s=worker.cluster.now))
            worker.cluster.kill(worker.node)
            raise Killed
        if worker.cluster.gets_no_memory(worker.node, at, step):
            raise MemoryError("virtual")
        worker.sleep(worker.cluster.weather.compute_s)
