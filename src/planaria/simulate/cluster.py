"""A simulated cluster that runs one schedule: nodes, network, disk, the coordinator's server, and what befalls them.

One seed gives one history. Every promise is checked after every event (`planaria.simulate.witness`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from planaria.plan.plan import NodeId, WorkerId
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.events import Finish, NodeNotice, WriteManifest
from planaria.protocol.journal import JournalCommit, JournalEntry, JournalPlan, decode_entry, encode_entry
from planaria.protocol.messages import PROTOCOL_VERSION, Alive, FromWorker, Hello, Notice
from planaria.protocol.past import Past
from planaria.protocol.phases import Phase
from planaria.protocol.records import AnyRecord
from planaria.protocol.settings import CheckpointRef, RunSettings
from planaria.simulate.clock import Clock
from planaria.simulate.disk import Disk, SavedState
from planaria.simulate.faults import CLEAR, Fault, FaultKind
from planaria.simulate.network import COORDINATOR, Network, Way
from planaria.simulate.schedule import Schedule
from planaria.simulate.server import Connection, Server
from planaria.simulate.symbols import Algebra, Reference
from planaria.simulate.witness import BrokenPromise, Witness
from planaria.simulate.worker import Worker

PATIENCE_S = 60.0
"""Of virtual time in which nothing happens: longer than anything takes to be found out."""

WAITING_PATIENCE_S = 8.0
"""The same while the job waits for nodes: then the user ends it."""

MAX_EVENTS = 200_000
ROOT = "checkpoints"
ASK_AGAIN_S = 0.01
OUTSIDER = -2
"""Place of somebody who is neither node nor coordinator."""


class Cluster:
    """One run of a schedule.

    Args:
        schedule: to be run.
        is_telling: keep a history for people.

    Attributes:
        journal: what the coordinator wrote; it outlives the coordinator.
        history: lines for people.
    """

    def __init__(self, schedule: Schedule, *, is_telling: bool = False) -> None:
        setup = schedule.setup
        self.schedule = schedule
        self.weather = schedule.weather
        self.is_telling = is_telling
        self.history: list[str] = []
        self.clock = Clock(Random(schedule.seed), schedule.weather.spread)
        self.network = Network(self.clock)
        self.disk = Disk()
        self.profile = setup.profile
        self.algebra = Algebra(self.profile.groups, setup.num_layers, schedule.seed % 97, setup.bad)
        self.workers: dict[WorkerId, Worker] = {}
        self.journal: list[bytes] = []
        is_clear = all(fault.kind in CLEAR and not fault.cut for fault in schedule.faults)
        self.witness = Witness(setup, Reference(self.algebra, setup.train), self.workers, is_clear=is_clear)
        self.settings = RunSettings(
            train=setup.train,
            policy_name="templates",
            fault_tolerance=setup.fault_tolerance,
            num_nodes=setup.num_nodes,
            devices_per_node=setup.devices_per_node,
            num_groups=len(self.profile.groups),
            checkpoint_root=ROOT,
            checkpoint_every=setup.checkpoint_every,
            resume=self._earlier_checkpoint(),
            waits=setup.waits,
        )
        self._policy = TemplatesPolicy(self.profile, setup.planner)
        self._next_node = setup.num_nodes
        self._dark: set[NodeId] = set()
        self._noted_s = 0.0
        self._is_stopped = False
        self._may_fail = {"there is no checkpoint", "could not be saved"}
        self._triggers: dict[str, dict[int, list[Fault]]] = {}
        self._counts: dict[str, int] = {}
        self._sent: dict[WorkerId, list[FromWorker]] = {}
        self._records_messages = any(fault.kind is FaultKind.REPLAY for fault in schedule.faults)
        self.server = Server(Coordinator(self.settings, self._policy), self)
        for number in range(setup.num_nodes):
            self.start_node(NodeId(number))
        if setup.bad and not setup.skips:
            self._may_fail.add("is not applied")
        for fault in schedule.faults:
            self._await(fault)

    def _earlier_checkpoint(self) -> CheckpointRef | None:
        """What an earlier run left."""
        step = self.schedule.setup.done
        if not step:
            return None
        trained, folder = self.witness.reference.after(step), f"{ROOT}/step-{step:08d}"
        saved = tuple(
            self.disk.write(folder, "0-0", SavedState(group, step, state))
            for group, state in enumerate(trained.replicas)
        )
        self.disk.write_manifest(WriteManifest(step, folder, saved, trained.exponents))
        return CheckpointRef(step=step, folder=folder, exponents=trained.exponents)

    # The run

    def run(self) -> Finish:
        """To the end. Raises BrokenPromise, or whatever the protocol raised."""
        while not self._is_at_its_end():
            if not self.clock.tick():
                raise BrokenPromise("nothing happens any more")
            if "event" in self._triggers:
                self.happened("event")
            self.witness.check()
            if self.clock.num_events > MAX_EVENTS:
                raise BrokenPromise(f"no end after {MAX_EVENTS} events")
        assert self.server.finished is not None
        self.witness.ended(self.server.finished, allowed=self._may_fail, is_stopped=self._is_stopped, disk=self.disk)
        return self.server.finished

    def _is_at_its_end(self) -> bool:
        """Whether all is over. Raises BrokenPromise when there will be no end."""
        finished = self.server.finished
        if finished is not None and all(worker.is_over or not worker.is_started for worker in self.workers.values()):
            return True
        idle_s = self.clock.now - self._noted_s
        if idle_s < WAITING_PATIENCE_S:
            return False
        machine = self.server.machine
        if (
            finished is None
            and not self.server.is_dead
            and machine.phase in (Phase.WAITING, Phase.GATHERING)
            and not self._is_stopped
        ):
            self.witness.waits(machine)
            self._strike(Fault(kind=FaultKind.STOP))
        if idle_s > PATIENCE_S:
            left = [w.number for w in self.workers.values() if w.is_started and not w.is_over and not w.is_frozen]
            self.witness.require(finished is not None, f"a hang\n{self.describe()}")
            self.witness.require(not left, f"workers {left} are left behind\n{self.describe()}")
            return True
        return False

    def note(self, text: str) -> None:
        """Something happened that shows that the job is not stuck."""
        self._noted_s = self.clock.now
        if self.is_telling:
            self.history.append(f"{self.clock.now * 1e3:11.3f} ms {self.clock.num_events:6d}  {text}")

    def describe(self) -> str:
        machine = self.server.machine
        lines = [f"coordinator: {machine.phase.value}, step {machine.step}, generation {machine.state.generation}"]
        lines += [worker.describe() for worker in self.workers.values()]
        return "\n".join(lines)

    # What the coordinator does

    def write_journal(self, entry: JournalEntry) -> None:
        machine = self.server.machine
        self.journal.append(encode_entry(entry))
        match entry:
            case JournalCommit():
                self.note(f"    commit {entry.step} of generation {entry.commit.generation}")
                self.witness.committed_step(machine, entry)
            case JournalPlan():
                self.note(f"    plan {entry.message.plan.generation} for step {entry.message.step}")
                self.witness.planned(machine, entry)
            case _:
                pass
        self.happened(type(entry).__name__)

    def publish(self, record: AnyRecord, *, again: bool) -> None:
        if self.witness.published(self.server.machine, record, again=again):
            self.note(f"    {record}")
            self.happened(type(record).__name__)

    def write_manifest(self, command: WriteManifest) -> None:
        """Raises DiskFull."""
        self.disk.write_manifest(command)
        self.witness.saved(self.disk, command)

    # Nodes

    def start_node(self, node: NodeId) -> None:
        for device in range(self.settings.devices_per_node):
            number = WorkerId(node * self.settings.devices_per_node + device)
            worker = self.workers[number] = Worker(self, number, node)
            self.clock.after(self.clock.vary(self.weather.start_s), worker.start)
        self.server.expect(node)

    def workers_of(self, node: int) -> list[Worker]:
        first = node * self.settings.devices_per_node
        numbers = range(first, first + self.settings.devices_per_node)
        return [self.workers[WorkerId(number)] for number in numbers if number in self.workers]

    def connect(self, worker: Worker) -> Connection | None:
        """A new control connection, with a hello on its way; None while there is no coordinator to be reached."""
        if self.server.is_dead or not self.network.reaches(worker.node, COORDINATOR):
            return None
        connection = Connection(self.network, worker, worker.node, self.weather.control_s)
        connection.lead_to(self.server)
        hello = Hello(
            version=PROTOCOL_VERSION,
            token="",
            worker=worker.number,
            pid=worker.number,
            data_address=f"virtual:{worker.number}",
        )
        connection.up.send(partial(self.received, connection, hello))
        return connection

    def received(self, connection: Connection, message: FromWorker) -> None:
        """A message reached the coordinator's end of a connection."""
        if self._records_messages and connection.process is not None and not isinstance(message, Alive):
            self._sent.setdefault(connection.process.number, []).append(message)
        if connection.server is not None:
            connection.server.take(connection, message)

    def way(self, node: NodeId, peer: WorkerId) -> Way:
        return Way(self.network, node, self.workers[peer].node, self.weather.network_s)

    def kill(self, node: NodeId, *, silently: bool = False) -> None:
        """SIGKILL to every process of a node; or its host loses power."""
        if silently:
            self._dark.add(node)
        for worker in self.workers_of(node):
            if not worker.is_over:
                self.note(f"worker {worker.number} dies")
                worker.die(silently=silently)
        if not silently:
            self._tell_launcher(node)

    def kill_where_possible(self, node: NodeId) -> None:
        """The coordinator fences a node."""
        if not self.weather.is_remote and self.network.reaches(node, COORDINATOR) and node not in self._dark:
            self.kill(node)

    def ended(self, worker: Worker) -> None:
        """A process ended by itself."""
        self.note(f"worker {worker.number} ends")
        self._tell_launcher(worker.node)

    def _tell_launcher(self, node: NodeId) -> None:
        if not self.weather.is_remote:
            self.clock.after(self.clock.vary(self.weather.detect_s), partial(self._process_killed, node))

    def _process_killed(self, node: NodeId) -> None:
        self.server.lose(node, "process killed")

    def is_runnable(self, node: NodeId) -> bool:
        """Whether the node's processes are known to be there, and not stopped."""
        return not self.weather.is_remote and not any(w.is_over or w.is_stopped for w in self.workers_of(node))

    def is_dark(self, node: NodeId) -> bool:
        return node in self._dark

    # Faults

    def _await(self, fault: Fault) -> None:
        if fault.at == "start":
            self.clock.after(fault.delay_s, partial(self._strike, fault))
        else:
            self._triggers.setdefault(fault.at, {}).setdefault(fault.nth, []).append(fault)

    def happened(self, name: str, node: int = -1) -> None:
        """Whatever waits for it strikes."""
        for full in (name, f"{name}@{node}") if node >= 0 else (name,):
            waiting = self._triggers.get(full)
            if waiting is None:
                continue
            count = self._counts[full] = self._counts.get(full, 0) + 1
            for fault in waiting.pop(count, ()):
                if fault.delay_s:
                    self.clock.after(fault.delay_s, partial(self._strike, fault))
                else:
                    self._strike(fault)

    def _victims(self, fault: Fault) -> Sequence[NodeId]:
        if fault.group < 0:
            return [NodeId(node) for node in fault.nodes]
        machine = self.server.machine
        if not machine.state.generation:
            return []
        plan = machine.plan
        owners = plan.owners_of[fault.group % len(plan.groups)]
        return sorted({plan.node_of(worker) for worker in owners[fault.spare :]})

    def _strike(self, fault: Fault) -> None:
        self.note(f"* {fault.kind.value} {list(self._victims(fault))}")
        match fault.kind:
            case FaultKind.JOIN:
                self.clock.after(0.0, self._join)
            case FaultKind.FULL:
                self.disk.is_full = True
                self.clock.after(fault.for_s, self._make_room)
            case FaultKind.STOP:
                self._is_stopped = True
                self.clock.after(0.0, self._request_stop)
            case FaultKind.CRASH:
                self._crash(fault)
            case FaultKind.PARTITION:
                island = self.network.part(self._victims(fault))
                self.clock.after(fault.for_s, partial(self._heal, island))
            case _:
                for node in self._victims(fault):
                    self._befall(fault, node)

    def _befall(self, fault: Fault, node: NodeId) -> None:
        workers = [worker for worker in self.workers_of(node) if not worker.is_over]
        match fault.kind:
            case FaultKind.KILL | FaultKind.DARK:
                self.kill(node, silently=fault.kind is FaultKind.DARK)
            case FaultKind.HANG:
                for worker in workers:
                    worker.stop()
                self.clock.after(fault.for_s, partial(self._resume, workers))
            case FaultKind.SLOW:
                for worker in workers:
                    worker.slowness = fault.factor
                self.clock.after(fault.for_s, partial(self._speed_up, workers))
            case FaultKind.NOTICE:
                for worker in workers[:1]:
                    worker.notice = Notice(grace_s=fault.for_s, cause="preemption")
                self.clock.after(fault.for_s, partial(self.kill, node))
            case FaultKind.DRAIN:
                self.clock.after(0.0, partial(self._drain, NodeNotice(node, fault.for_s, "drain")))
            case FaultKind.REPLAY:
                self._replay(workers)
            case _:
                for worker in workers[:1]:
                    self._misbehave(fault.kind, worker)

    def _misbehave(self, kind: FaultKind, worker: Worker) -> None:
        match kind:
            case FaultKind.FREEZE:
                worker.freezes = True
            case FaultKind.RAISE:
                worker.fails = True
                self._may_fail.add("layer of worker")
            case FaultKind.DAMAGE:
                worker.damages += 1
            case FaultKind.STUCK:
                for way in worker.ways.values():
                    way.is_stuck = True

    def _request_stop(self) -> None:
        if self.server.is_dead:
            self.clock.after(ASK_AGAIN_S, self._request_stop)
        else:
            self.server.request_stop()

    def _drain(self, notice: NodeNotice) -> None:
        if self.server.is_dead:
            self.clock.after(ASK_AGAIN_S, partial(self._drain, notice))
        else:
            self.server.handle(notice)

    def _crash(self, fault: Fault) -> None:
        """The coordinator is killed; its supervisor starts it again."""
        if self.server.is_dead or self.server.finished is not None:
            return
        self.server.die()
        if fault.cut:
            self.note(f"* the journal loses {[type(decode_entry(e)).__name__ for e in self.journal[-fault.cut :]]}")
            del self.journal[-fault.cut :]
        self.clock.after(fault.for_s, partial(self._begin_again, is_cut=fault.cut > 0))

    def _begin_again(self, *, is_cut: bool) -> None:
        past = Past.of([decode_entry(entry) for entry in self.journal])
        self.note(f"* the coordinator begins again at step {past.step}")
        if is_cut:
            self.witness.forget_after(past)
        self.server = Server(Coordinator(self.settings, self._policy, past), self)
        self.server.begin_again()
        for node in sorted({worker.node for worker in self.workers.values() if worker.is_over} - self._dark):
            if not self.server.admission.is_fenced(node):
                self._tell_launcher(node)

    def _join(self) -> None:
        if self.server.finished is None:
            node = NodeId(self._next_node)
            self._next_node += 1
            self.start_node(node)

    def _make_room(self) -> None:
        self.note("* room on the disk")
        self.disk.is_full = False

    def _heal(self, island: frozenset[int]) -> None:
        """The network is whole again; who was fenced meanwhile comes as a new node."""
        self.note(f"* {sorted(island)} are back")
        self.network.heal(island)
        for node in sorted(island):
            if self.server.admission.is_fenced(NodeId(node)) and node not in self._dark:
                self._join()

    def _resume(self, workers: Sequence[Worker]) -> None:
        self.note(f"* {[worker.number for worker in workers]} go on")
        for worker in workers:
            worker.resume()

    def _speed_up(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.slowness = 1.0

    def _replay(self, workers: Sequence[Worker]) -> None:
        """Whoever listened plays the messages again, on connections of his own."""
        for worker in workers:
            connection = Connection(self.network, None, OUTSIDER, self.weather.control_s)
            connection.lead_to(self.server)
            for message in list(self._sent.get(worker.number, ())):
                connection.up.send(partial(self.received, connection, message))
            connection.close_from_worker()
