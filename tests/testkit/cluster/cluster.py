"""A simulated cluster that runs one schedule: nodes, network, disk, the coordinator's server, and what befalls them.

One seed gives one history. Every promise is checked after every event (`tests.testkit.promises.invariants`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, WorkerId
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.events import Finish, Restarted, WriteManifest
from planaria.protocol.messages.from_worker import Alive, FromWorker, Hello
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
    JournalCommit,
    JournalEntry,
    JournalEvaluation,
    JournalNode,
    JournalPlan,
    decode_entry,
    encode_entry,
)
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.messages.records import AnyRecord
from planaria.protocol.phases import Phase
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.run.told_records import ToldRecords, untold
from tests.testkit.cluster.clock import Clock, HostClock
from tests.testkit.cluster.disk import Disk, SavedState
from tests.testkit.cluster.injector import Injector
from tests.testkit.cluster.network import COORDINATOR, Network, Way
from tests.testkit.cluster.recorder import HistoryRecorder
from tests.testkit.promises.invariants import BrokenPromise, InvariantChecker
from tests.testkit.promises.liveness import Liveness
from tests.testkit.promises.symbols import Algebra, Reference
from tests.testkit.schedules.faults import Fault, FaultKind, are_clear
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.swarm import Calm
from tests.testkit.server.server import MARK, Connection, Server
from tests.testkit.server.wire import Wire
from tests.testkit.witness.witness import judge
from tests.testkit.worker.worker import Worker

PATIENCE_S = 120.0
"""Virtual seconds in which nothing happens: longer than anything takes to be found out."""

JUMP_PATIENCE = 30
"""How many more of them for each second by which a clock jumps: the only step that was measured may have it."""

WAITING_PATIENCE_S = 8.0
"""Virtual seconds in which nothing happens while the job waits for nodes: then the user ends it."""

LEAVE_S = 0.5
"""Virtual seconds within which workers leave a coordinator that leads no more."""

NEWEST = 3
"""Entries of a journal that are whole when a coordinator begins on it; another one stands for those before."""

MAX_EVENTS = 200_000
ROOT = "checkpoints"


def thinned(entries: Sequence[AnyEntry]) -> list[AnyEntry]:
    """Returns a journal's entries, one of them in the place of all but the newest, as in a long run's."""
    past = JournalState.of(entries[:-NEWEST]).written()
    return [decode_entry(encode_entry(past)), *entries[-NEWEST:]]


class Cluster:
    """A cluster that runs one schedule.

    Args:
        schedule: to be run.
        is_telling: keep a history for people.

    Attributes:
        journal: what the coordinator wrote; it outlives the coordinator.
        lead: number of the lead; the journal refuses appends of any other.
        late: faults of the next appends, whose answers are late.
        may_be_deposed: the lead may pass to another coordinator.
        history: lines for people.
        dark: nodes whose hosts are gone without a word.
        recorder: of the run's history, for the witness.
        happened: injects the faults that wait for an event, given its name and where it was.
        sent: messages that were played to the coordinator, where a schedule wants them again.
        may_fail: pieces of messages with which the run may fail.
        is_stopped: the user wants the run to end.
    """

    def __init__(self, schedule: Schedule, *, is_telling: bool = False) -> None:
        setup = schedule.setup
        self.schedule = schedule
        self.weather = schedule.weather
        self.is_telling = is_telling
        self.history: list[str] = []
        self.clock = Clock(Random(schedule.seed), schedule.weather.spread, is_exact=schedule.weather.is_exact)
        self._clocks: dict[int, HostClock] = {}
        self.network = Network(self.clock)
        self.disk = Disk()
        self.recorder = HistoryRecorder(
            steps=setup.steps,
            done=setup.done,
            microbatches=setup.num_microbatches,
            devices_per_node=setup.devices_per_node,
            fault_tolerance=setup.fault_tolerance,
        )
        self.profile = setup.profile
        self.algebra = Algebra(self.profile.groups, setup.num_layers, schedule.seed % 97, setup.bad)
        self.workers: dict[WorkerId, Worker] = {}
        self.journal: list[bytes] = []
        self.lead = 0
        self.late: deque[Fault] = deque()
        self.may_be_deposed = any(fault.kind in (FaultKind.DEPOSE, FaultKind.LATE) for fault in schedule.faults)
        self.invariants = InvariantChecker(
            setup,
            schedule.weather,
            Reference(self.algebra, setup.train),
            self.workers,
            is_clear=are_clear([*schedule.faults, *(schedule.calm.broken if schedule.calm is not None else ())]),
            policies=frozenset(
                {setup.policy, *(PolicyName(f.what) for f in schedule.faults if f.kind is FaultKind.SWITCH)}
            ),
        )
        self._jumped_s = sum(abs(f.for_s) for f in schedule.faults if f.kind is FaultKind.JUMP)
        self.settings = RunSettings(
            train=setup.train,
            policy_name=setup.policy.value,
            fault_tolerance=setup.fault_tolerance,
            num_nodes=setup.num_nodes,
            devices_per_node=setup.devices_per_node,
            num_groups=len(self.profile.groups),
            checkpoint_root=ROOT,
            checkpoint_every=setup.checkpoint_every,
            resume=self._earlier_checkpoint(),
            waits=setup.waits,
            may_drop=True,
            evaluation=setup.evaluation,
            budget=setup.budget,
            audit=setup.audit,
        )
        self._policy = make_policy(setup.policy, Planner(self.profile, setup.planner))
        self._next_node = setup.num_nodes
        self._other_releases: set[NodeId] = set()
        self.dark: set[NodeId] = set()
        self._noted_s = 0.0
        self.is_stopped = False
        self.may_fail = {"there is no checkpoint", "could not be saved", "the user does without it"}
        self.injector = Injector(self)
        self.happened = self.injector.happened
        self.sent: dict[WorkerId, list[FromWorker]] = {}
        self._records_messages = any(fault.kind is FaultKind.REPLAY for fault in schedule.faults)
        self.server = self._serve(None)
        for number in range(setup.num_nodes):
            self.start_node(NodeId(number))
        if setup.bad and not setup.skips:
            self.may_fail.add("is not applied")
        for fault in schedule.faults:
            self.injector.expect(fault)
        self.liveness = Liveness(self)
        if schedule.calm is not None:
            self.clock.at(schedule.calm.at_s, partial(self._calm, schedule.calm))

    def _calm(self, calm: Calm) -> None:
        if self.server.finished is None:
            self.injector.calm(calm.broken)
            self.liveness.begin()

    def _serve(self, past: JournalState | None) -> Server:
        """Returns a server whose coordinator begins, or begins again."""
        setup, profile = self.schedule.setup, self.profile

        def make(name: PolicyName, most_bytes: int) -> Policy:
            return make_policy(name, Planner(profile, replace(setup.planner, memory_bytes=most_bytes)))

        shortages = Shortages(profile, partial(make, setup.policy))
        settings = replace(self.settings, clock=f"host of lead {self.lead}")
        return Server(Coordinator(settings, self._policy, past, shortages, make), self, past)

    def _earlier_checkpoint(self) -> CheckpointRef | None:
        """Returns the checkpoint that an earlier run left."""
        step = self.schedule.setup.done
        if not step:
            return None
        trained, folder = self.invariants.reference.after(step), f"{ROOT}/step-{step:08d}"
        saved = tuple(
            self.disk.write(folder, "0-0", SavedState(group, step, state))
            for group, state in enumerate(trained.replicas)
        )
        self.disk.write_manifest(WriteManifest(step, folder, saved, trained.exponents))
        return CheckpointRef(step=step, folder=folder, exponents=trained.exponents)

    # The run

    def run(self) -> Finish:
        """Runs to the end. Raises BrokenPromise, or whatever the protocol raised."""
        clock, injector, liveness, invariants = self.clock, self.injector, self.liveness, self.invariants
        while not self._is_at_its_end():
            if not clock.tick():
                raise BrokenPromise("nothing happens any more")
            if injector.counts_events:
                injector.happened("event")
            if invariants.touched:
                invariants.check()
            if clock.now >= liveness.deadline_s:
                liveness.check()
            if clock.num_events > MAX_EVENTS:
                raise BrokenPromise(f"no end after {MAX_EVENTS} events")
        assert self.server.finished is not None
        self.liveness.ended(self.server.finished)
        self.invariants.ended(self.server.finished, allowed=self.may_fail, is_stopped=self.is_stopped, disk=self.disk)
        for finding in judge(self.recorder.history()):
            raise BrokenPromise(f"the witness: {finding}")
        return self.server.finished

    def _is_at_its_end(self) -> bool:
        """Returns whether all is over. Raises BrokenPromise when there will be no end."""
        finished, idle_s = self.server.finished, self.clock.now - self._noted_s
        waiting_s = WAITING_PATIENCE_S + self.weather.patience_s  # a coordinator that hears of nobody judges late
        if finished is None and idle_s < waiting_s:
            return False
        if finished is not None and all(worker.is_over or not worker.is_started for worker in self.workers.values()):
            return True
        if idle_s < waiting_s:
            return False
        machine = self.server.machine
        if (
            finished is None
            and not self.server.is_dead
            and machine.phase in (Phase.WAITING, Phase.GATHERING)
            and not self.is_stopped
        ):
            self.invariants.waits(machine)
            self.liveness.waits()
            self.injector.stop()
        if idle_s > PATIENCE_S + JUMP_PATIENCE * self._jumped_s:
            away = [w for w in self.workers.values() if not w.is_started or w.is_over or w.is_frozen or w.is_stopped]
            left = [w.number for w in self.workers.values() if w not in away]
            self.invariants.require(finished is not None, f"a hang\n{self.describe()}")
            self.invariants.require(not left, f"workers {left} are left behind\n{self.describe()}")
            return True
        return False

    def note(self, text: str) -> None:
        """Notes an event that shows that the job is not stuck."""
        self._noted_s = self.clock.now
        if self.is_telling:
            self.history.append(f"{self.clock.now * 1e3:11.3f} ms {self.clock.num_events:6d}  {text}")

    def describe(self) -> str:
        machine = self.server.machine
        lines = [f"coordinator: {machine.phase.value}, step {machine.step}, generation {machine.state.generation}"]
        lines += [worker.describe() for worker in self.workers.values()]
        return "\n".join(lines)

    # What the coordinator does

    def append(self, entry: JournalEntry, number: int, lead: int) -> bool:
        """Appends an entry, unless a try before has done it; returns whether it is there.

        Only who leads may append, and only where nobody has appended what it does not know.
        """
        if lead != self.lead or number > len(self.journal):
            return False
        if number < len(self.journal):
            return self.journal[number] == encode_entry(entry)
        self.write_journal(entry)
        return True

    def write_journal(self, entry: JournalEntry) -> None:
        machine = self.server.machine
        self.journal.append(encode_entry(entry))
        self.recorder.wrote(self.journal[-1])
        match entry:
            case JournalCommit():
                self.note(f"    commit {entry.step} of generation {entry.commit.generation}")
                self.invariants.committed_step(machine, entry)
                self.liveness.committed()
            case JournalEvaluation():
                self.invariants.evaluated(entry)
            case JournalPlan():
                self.note(f"    plan {entry.message.plan.generation} for step {entry.message.step}")
                self.invariants.planned(machine, entry)
            case JournalNode(fate=Fate.LOST, device=None):
                self.invariants.given_up(entry.node)
            case JournalNode(fate=Fate.LOST, device=int(device)):
                self.invariants.device_given_up(WorkerId(entry.node * self.settings.devices_per_node + device))
            case _:
                pass
        self.happened(type(entry).__name__)

    def publish(self, record: AnyRecord, *, again: bool) -> None:
        if self.invariants.published(self.server.machine, record, again=again):
            self.note(f"    {record}")
            self.recorder.told(record)
            self.happened(type(record).__name__)

    def write_manifest(self, command: WriteManifest) -> None:
        """Writes a manifest. Raises DiskFull."""
        self.disk.write_manifest(command)
        self.recorder.manifest(command)
        self.invariants.saved(self.disk, command)

    # Nodes

    def start_node(self, node: NodeId) -> None:
        for device in range(self.settings.devices_per_node):
            number = WorkerId(node * self.settings.devices_per_node + device)
            worker = self.workers[number] = Worker(self, number, node)
            self.clock.after(self.clock.vary(self.weather.start_s), worker.start)
        self.server.expect(node)

    def start_device(self, node: NodeId, device: int) -> None:
        """Starts the worker of a device again, which was lost alone."""
        number = WorkerId(node * self.settings.devices_per_node + device)
        before = self.workers[number]
        if not before.is_over:
            before.die(silently=False)
        worker = self.workers[number] = Worker(self, number, node, before.incarnation + 1)
        self.note(f"worker {number} starts again")
        self.clock.after(self.clock.vary(self.weather.start_s), worker.start)
        self.server.expect_device(number)

    def workers_of(self, node: int) -> list[Worker]:
        first = node * self.settings.devices_per_node
        numbers = range(first, first + self.settings.devices_per_node)
        return [self.workers[WorkerId(number)] for number in numbers if number in self.workers]

    def connect(self, worker: Worker) -> Connection | None:
        """Returns a new control connection, with a hello on its way; None while no coordinator can be reached."""
        if self.server.is_dead or not self.network.reaches(worker.node, COORDINATOR):
            return None
        connection = self.new_connection(worker, worker.node)
        connection.tell(self, self.hello(worker.number, worker.node, address=worker.address))
        return connection

    def hello(
        self,
        number: WorkerId,
        node: NodeId,
        mark: str = MARK,
        address: str = "virtual:0",
        version: int = PROTOCOL_VERSION,
    ) -> Hello:
        """Returns the first message of a worker of this run, or of another."""
        return Hello(
            version=version,
            token="",
            worker=number,
            pid=number,
            data_address=address,
            zone=self.schedule.setup.zone_of(node),
            mark=mark,
        )

    def new_connection(self, process: Worker | None, place: int) -> Connection:
        """Returns a connection to the coordinator, which may not live long enough to hear of it."""
        is_other = process is not None and process.node in self._other_releases
        wire = Wire(is_of_another_release=is_other) if self.weather.is_wired or is_other else None
        connection = Connection(self.network, process, place, self.weather.control_s, wire)
        connection.lead_to(self.server)
        return connection

    def received(self, connection: Connection, message: FromWorker) -> None:
        """Receives a message at the coordinator's end of a connection."""
        if self._records_messages and connection.process is not None and not isinstance(message, Alive):
            self.sent.setdefault(connection.process.number, []).append(message)
        if (server := connection.server) is not None:
            server.take(connection, message)

    def way(self, node: NodeId, peer: WorkerId, broken: Callable[[Way], None]) -> Way:
        return Way(self.network, node, self.workers[peer].node, self.weather.network_s, broken)

    def clock_of(self, place: int) -> HostClock:
        """Returns the clock of a place's host: a node's, or below, that of each coordinator with a lead of its own."""
        found = self._clocks.get(place)
        if found is None:
            draw, most = Random(f"clock of {place} in {self.schedule.seed}"), self.weather.drift
            began_s = draw.uniform(0.0, 1e5) if most else 0.0
            found = self._clocks[place] = HostClock(self.clock, draw.uniform(-most, most), began_s)
        return found

    def kill(self, node: NodeId, *, silently: bool = False) -> None:
        """Kills every process of a node by SIGKILL, or by its host's loss of power. A node yet to come is not there."""
        if not self.workers_of(node):
            return
        self.recorder.over(node)
        if silently:
            self.dark.add(node)
        for worker in self.workers_of(node):
            if not worker.is_over:
                self.note(f"worker {worker.number} dies")
                worker.die(silently=silently)
        if not silently:
            self._tell_launcher(self.workers_of(node))

    def kill_device(self, node: NodeId, device: int) -> None:
        """Kills the process of one device of a node by SIGKILL, if it is there."""
        worker = self.workers.get(WorkerId(node * self.settings.devices_per_node + device))
        if worker is not None and not worker.is_over:
            self.note(f"worker {worker.number} dies alone")
            self.recorder.over(node)
            worker.die(silently=False)
            self._tell_launcher([worker])

    def kill_where_possible(self, node: NodeId, device: int | None = None) -> None:
        """Kills a node that the coordinator fences, or one device of it, where that is possible."""
        if self.weather.is_remote or node in self.dark or not self.network.reaches(node, COORDINATOR):
            return
        if device is None:
            self.kill(node)
        else:
            self.kill_device(node, device)

    def ended(self, worker: Worker) -> None:
        """Notes that a process ended by itself."""
        self.note(f"worker {worker.number} ends")
        self.recorder.over(worker.node)
        self._tell_launcher([worker])

    def _tell_launcher(self, ended: Sequence[Worker]) -> None:
        if not self.weather.is_remote:
            self.clock.after(self.clock.vary(self.weather.detect_s), partial(self._processes_killed, ended))

    def _processes_killed(self, ended: Sequence[Worker]) -> None:
        for worker in ended:
            if self.workers[worker.number] is worker:  # else it was started again
                self.server.lose_worker(worker.number, "process killed")

    def is_runnable(self, node: NodeId) -> bool:
        """Returns whether the node's processes are known to be there, and not stopped."""
        return not self.weather.is_remote and not any(w.is_over or w.is_stopped for w in self.workers_of(node))

    def is_dark(self, node: NodeId) -> bool:
        return node in self.dark

    def pass_the_lead(self) -> None:
        """Gives the lead to another coordinator, which begins a moment later, whatever becomes of the one before."""
        if self.server.finished is not None:
            return
        self.lead += 1
        self.note(f"* another coordinator leads, in lead {self.lead}")
        self.clock.after(self.clock.vary(self.weather.control_s), partial(self.begin_again, None, self.lead))

    def begin_again(self, lost: Sequence[JournalEntry] | None, lead: int) -> None:
        """Starts a coordinator on the journal as it is, if the lead has not passed on.

        Args:
            lost: what a power cut took of it; None: there was none.
            lead: of the coordinator.
        """
        if lead != self.lead or self.server.finished is not None:
            return
        entries, before = [decode_entry(entry) for entry in self.journal], self.server
        past = JournalState.of(thinned(entries))
        self.note(f"* the coordinator begins again at step {past.step}")
        if lost is not None:
            self.invariants.forget_after(past, lost)
        self.server = self._serve(past)
        if not before.is_dead:
            for worker in self.workers.values():
                self.clock.after(self.clock.random.uniform(0.0, LEAVE_S), partial(worker.control.leave, before))
        if before.lead != lead:
            known = ToldRecords(self.schedule.setup.done)
            for record in self.invariants.records:
                known.takes(record, again=False)
            for record in untold(known, entries):
                self.publish(record, again=True)
        self.server.begin(sorted({worker.node for worker in self.workers.values()}), Restarted())
        for node in sorted({worker.node for worker in self.workers.values() if worker.is_over} - self.dark):
            if not self.server.admission.is_fenced(node):
                self._tell_launcher([worker for worker in self.workers_of(node) if worker.is_over])

    def join(self, *, has_another_release: bool = False) -> None:
        if self.server.finished is None:
            node = NodeId(self._next_node)
            self._next_node += 1
            if has_another_release:
                self._other_releases.add(node)
            self.start_node(node)
