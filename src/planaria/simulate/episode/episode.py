"""An episode: what the coordinator's real transitions make of a disturbance, until the job trains undisturbed again.

Workers are not simulated one by one. They vote when the step's estimate says that it is over, halted ones report what
they would have counted by then, and state has come when the estimate of its transfers says so. What is left out: the
network between workers and coordinator (its messages take no time), slow, hung and partitioned nodes, damaged messages,
shortages of memory, and a coordinator that dies; the simulator of `tests/testkit` has all of them, message by message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planaria.estimate.step_time import way_down_s
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.policy.interface import Candidate
from planaria.protocol.messages.events import (
    Command,
    DecisionTook,
    DeviceGone,
    Event,
    Finish,
    ManifestWritten,
    NodeGone,
    NodeNotice,
    Publish,
    Received,
    Release,
    Send,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.messages.from_worker import Ready, Report, Saved, SavedGroup, Vote
from planaria.protocol.messages.records import AnyRecord, PlanTaken, Restored, RunStatus
from planaria.protocol.messages.to_worker import Commit, Halt, PlanMessage, Save, StateSource, ToWorker
from planaria.protocol.phases import PLACING, Phase, ProtocolError, Purpose
from planaria.protocol.run.run import Run
from planaria.protocol.transitions import handle
from planaria.simulate.episode.counted import Counted, losses_of
from planaria.simulate.episode.devices_alone import DevicesAlone
from planaria.simulate.episode.initial_run import run_at_start, run_in
from planaria.simulate.episode.situation import State, canonical
from planaria.simulate.episode.subject import (
    Cause,
    Disturbance,
    EpisodeTally,
    RestAfterEpisode,
    RunOutlook,
    SimulatedJob,
    Spending,
)
from planaria.simulate.traces.tally import RecoveryKinds

_NEVER = float("inf")


@dataclass(slots=True)
class _Ordered:
    """What the coordinator orders at once."""

    plan: PlanMessage | None = None
    taken: PlanTaken | None = None
    manifest: WriteManifest | None = None
    halted: list[WorkerId] = field(default_factory=list)
    has_committed: bool = False


class Episode:
    """An episode, as far as it has come.

    Attributes:
        now: seconds since the beginning of the step in which it began. It stands still while the job waits for nodes.
        rest: the job trains undisturbed; None: it does not yet, or no more.
        is_waiting: whether the job waits for nodes.
        is_over: the run has ended.
    """

    def __init__(self, subject: SimulatedJob, run: Run) -> None:
        self._subject = subject
        self._run = run
        """Looked at here; events alone change it."""
        self._kinds = RecoveryKinds()
        self.now = 0.0
        self.rest: RestAfterEpisode | None = None
        self._tally = EpisodeTally()
        self._dead: dict[NodeId, float] = {}
        """Times at which the deaths of dead nodes become known."""
        self._devices = DevicesAlone()
        self._purpose = Purpose.START
        self._begins = self._ends = _NEVER
        self._began = 0.0
        self._step_s = 0.0
        self._spending = Spending()
        self._held: Mapping[WorkerId, tuple[int, ...]] = {}
        self._counted = Counted()
        self._halted: list[WorkerId] = []
        self._saves: list[tuple[WorkerId, Save]] = []
        self._saved_at = _NEVER
        self.is_over = False

    @classmethod
    def of(cls, subject: SimulatedJob, known: RunOutlook, state: State, estimated: Candidate) -> Episode:
        """Returns an episode at the beginning of a step, in a run that trains in this state."""
        episode = cls(subject, run_in(subject, known, state, estimated))
        episode._purpose = Purpose.RECONFIGURE
        episode._step_s = episode._ends = estimated.step_time_s
        episode._held = estimated.plan.kept_of
        return episode

    @classmethod
    def first(cls, subject: SimulatedJob, known: RunOutlook, zones: Sequence[str]) -> Episode:
        """Returns the episode at a run's beginning, with nodes in these zones. Raises PlanError: they make no plan."""
        episode = cls(subject, run_at_start(subject, known, len(zones)))
        for node, zone in enumerate(zones):
            for worker in episode._run.members.workers_of(NodeId(node)):
                episode._handle(WorkerJoined(worker, "-", zone))
        if episode.is_over:
            raise PlanError(f"{len(zones)} nodes make no plan: {episode._tally.ended}")
        return episode

    # Time

    @property
    def is_waiting(self) -> bool:
        return self._run.phase is Phase.WAITING

    @property
    def next_s(self) -> float:
        """Time of the next thing that happens by itself; infinite where nothing does."""
        step_end = _NEVER if self._is_stalled else self._ends
        return min(self._begins, step_end, self._saved_at, *self._dead.values(), *self._devices.dead.values())

    @property
    def _is_stalled(self) -> bool:
        """Whether the step is stalled: a worker of the plan is dead but not yet known to be, so no sum gets whole."""
        if self._run.current is None:
            return False
        if any(worker in self._run.plan.groups_of for worker in self._devices.dead):
            return True
        nodes = self._run.plan.nodes  # ascending
        places = ((node, bisect_left(nodes, node)) for node in self._dead)
        return any(place < len(nodes) and nodes[place] == node for node, place in places)

    def advance(self) -> EpisodeTally:
        """Advances to the next thing that happens by itself."""
        self.rest = None
        self.now = self.next_s
        if self.now == _NEVER:
            raise ProtocolError(f"nothing happens any more in phase {self._run.phase.value}")
        known = [node for node, at in self._dead.items() if at <= self.now]
        devices = self._devices.known(self.now)
        if known or devices:
            self._spending.add(Cause.DETECTION, self._subject.timings.detection_s)
            for node in sorted(known):
                del self._dead[node]
                self._handle(NodeGone(node, "process killed"))
            for worker in devices:
                self._handle(DeviceGone(worker, "process killed"))
            self._report_all()
        elif self._begins <= self.now:
            self._begin()
        elif self._saved_at <= self.now:
            self._saved()
        else:
            self._vote()
        return self._told_tally()

    def disturb(self, what: Disturbance, node: NodeId, at_s: float, zone: str = "") -> EpisodeTally:
        """Strikes a node at that time, which is not after `next_s`. A node that comes is in that zone."""
        self.now = max(self.now, at_s)
        self.rest = None
        run = self._run
        match what:
            case Disturbance.LOST if node in run.members.nodes and node not in self._dead:
                self._dead[node] = self.now + self._subject.timings.detection_s
            case Disturbance.CAME:
                for worker in run.members.workers_of(node):
                    self._handle(WorkerJoined(worker, "-", zone))
            case Disturbance.NOTICED if node in run.members.nodes and node not in self._dead:
                self._handle(NodeNotice(node, 0.0, "preemption"))
            case _:
                pass
        return self._told_tally()

    def disturb_device(self, what: Disturbance, worker: WorkerId, at_s: float) -> EpisodeTally:
        """Strikes a device alone at that time, which is not after `next_s`. One that comes joins as soon as no plan has
        it any more."""
        self.now = max(self.now, at_s)
        self.rest = None
        members = self._run.members
        if what is Disturbance.DEVICE_CAME:
            self._devices.coming.append(worker)
        elif worker in members.addresses and members.node_of(worker) not in self._dead:
            self._devices.dead.setdefault(worker, self.now + self._subject.timings.detection_s)
        return self._told_tally()

    def _told_tally(self) -> EpisodeTally:
        members = self._run.members
        for worker in self._devices.joining(self._run):
            self._handle(WorkerJoined(worker, "-", members.zones.get(members.node_of(worker), "")))
        self._look_whether_it_rests()
        tally, self._tally = self._tally, EpisodeTally()
        return tally

    def _look_whether_it_rests(self) -> None:
        run = self._run
        if (
            run.phase is not Phase.TRAINING
            or self._dead
            or not self._devices.are_quiet
            or self._began != self.now
            or self._begins != _NEVER
            or self._purpose in (Purpose.FINISH_STEP, Purpose.WARM_UP)
            or run.attempt.unready
            or run.recovery is not None
            or not run.goes_on(run.step)
        ):
            return
        self._spending.attribute(self.now, 0.0, self._tally)
        members = run.members
        state, order = canonical(
            run.plan,
            members.nodes,
            members.leaving,
            zones=members.zones,
            lost_devices=members.lost_devices,
            by_number=self._subject.by_number,
        )
        self.rest = RestAfterEpisode(state=state, order=order, step_s=self._step_s)

    # The step

    def _begin(self) -> None:
        """Begins the plan's first step, once state has come."""
        self._begins = _NEVER
        self._all_ready()
        self._held = self._run.plan.kept_of
        self._began, self._ends = self.now, self.now + self._step_s

    def _all_ready(self) -> None:
        """Reports all workers as ready."""
        ready = Ready(generation=self._run.plan.generation)
        for worker in sorted(self._run.attempt.unready):
            self._handle(Received(worker, ready))

    def _vote(self) -> None:
        """Lets all workers vote at the step's end; one vote, the last, tells what all of them would."""
        run = self._run
        plan = run.plan
        self._all_ready()
        first, *others = plan.workers
        counted = self._counted.by_all(plan)
        all_counted = counted[0]
        empty = Vote(generation=plan.generation, step=run.step, norms={}, losses={}, ledger=Ledger(()))
        for worker in others:
            self._handle(Received(worker, empty))
        vote = Vote(
            generation=plan.generation,
            step=run.step,
            norms=dict.fromkeys(range(len(plan.groups)), 1.0),
            losses=losses_of(all_counted, plan.num_microbatches),
            ledger=Ledger.from_bits(counted),
        )
        step = run.step
        self._spending.attribute(self.now, self._step_s, self._tally)
        self._handle(Received(first, vote))
        if run.step != step + 1 and run.phase is not Phase.WAITING and not self.is_over:
            raise ProtocolError(f"step {step} is over and was not committed; phase {run.phase.value}")
        self._tally.steps += 1
        self._tally.microbatches += all_counted.bit_count()

    def _report_all(self) -> None:
        """Lets all halted workers report what they counted. Others may be halted by what that leads to."""
        while self._halted:
            worker = self._halted.pop(0)
            if self._run.phase is Phase.SALVAGING and worker in self._run.members.addresses:
                self._handle(Received(worker, self._report(worker)))

    def _report(self, worker: WorkerId) -> Report:
        """Returns the report of what the worker has counted when it is halted."""
        run = self._run
        plan = run.plan
        share = 0.0
        if self._begins == _NEVER and self._step_s > 0:
            share = min(1.0, max(0.0, (self.now - self._subject.timings.detection_s - self._began) / self._step_s))
        own = self._counted.by(worker, plan, share, self._halted)
        held = plan.kept_of.get(worker, ())
        if worker in run.attempt.unready:
            held = tuple(sorted(set(held).intersection(self._held.get(worker, ()))))
        return Report(generation=plan.generation, step=run.step, ledger=Ledger.from_bits(own), held=held)

    # The machine

    def _handle(self, event: Event) -> None:
        commands = handle(self._run, event, self.now)
        if commands or self._run.phase is not Phase.TRAINING:  # of thousands of votes, one orders something
            self._carry_out(commands)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        ordered = self._read(commands)
        if self.is_over:
            self._begins = self._ends = self._saved_at = _NEVER
            self._dead.clear()
            self._devices.clear()
            self._spending.attribute(self.now, 0.0, self._tally)
            return
        if ordered.has_committed:
            self._began, self._ends = self.now, self.now + self._step_s
        taken = ordered.taken
        if taken is not None and taken.candidates:
            self._tally.was_weighed = True
        elif taken is not None and Purpose(taken.purpose) in PLACING:
            self._tally.was_weighed = False
        if ordered.plan is not None:
            self._adopt(ordered.plan, Purpose.GO_ON if taken is None else Purpose(taken.purpose))
        elif self._run.phase is not Phase.TRAINING:
            self._begins = self._ends = _NEVER
        if self._run.phase is Phase.WAITING:
            self._spending.attribute(self.now, 0.0, self._tally)
        if self._saves and self._saved_at == _NEVER:
            self._saved_at = self.now + self._write_s()
        self._halted += ordered.halted
        if ordered.manifest is not None:
            self._handle(ManifestWritten(ordered.manifest.step, ordered.manifest.folder, 0.0))

    def _read(self, commands: Sequence[Command]) -> _Ordered:
        """Returns what the commands order; what they tell, and have saved, is noted."""
        ordered = _Ordered()
        last: ToWorker | None = None
        for command in commands:
            if type(command) is Send:  # of thousands, nearly all say the same
                if command.message is last:
                    continue
                last = command.message if isinstance(command.message, PlanMessage | Commit) else None
            match command:
                case Send(_, PlanMessage() as message):
                    ordered.plan = message
                case Send(worker, Halt()):
                    ordered.halted.append(worker)
                case Send(worker, Save() as save):
                    self._saves.append((worker, save))
                case Send(worker, Commit(save=save)):
                    ordered.has_committed = True
                    self._counted.clear()
                    if save is not None:
                        last = None
                        self._saves.append((worker, save))
                case Publish(record):
                    ordered.taken = record if isinstance(record, PlanTaken) else ordered.taken
                    self._note(record)
                case WriteManifest():
                    ordered.manifest = command
                case Release(node):
                    self._tally.released.append(node)
                case Finish(status, message):
                    self.is_over = True
                    self._tally.ended = f"{status.value}: {message}"
                    self._tally.has_completed = status is RunStatus.COMPLETED
                case _:
                    pass
        return ordered

    def _note(self, record: AnyRecord) -> None:
        if isinstance(record, Restored):
            self._tally.restored = True
            self._tally.steps = self._tally.microbatches = 0
        kind = self._kinds.note(record)
        if kind is not None:
            self._tally.survived.append(kind)

    def _adopt(self, message: PlanMessage, purpose: Purpose) -> None:
        """Puts a plan in force, after the time that it takes to change plans."""
        run, timings, plan = self._run, self._subject.timings, message.plan
        before_s, self._purpose = self._step_s, purpose
        if message.afresh or purpose is not Purpose.FINISH_STEP:
            self._counted.clear()
        if purpose is Purpose.GO_ON:
            self._began, self._ends = self.now, self.now + self._step_s
            return
        self._tally.plans.append(purpose.value)
        self._step_s = run.step_times.step_s
        decision_s = timings.decision_s
        if timings.unprepared_s and (run.recovery is None or len(run.recovery.lost) > 1):
            decision_s = timings.unprepared_s
        decided = self.now + decision_s
        self._spending.add(Cause.DECISION, decision_s)
        self._handle(DecisionTook(decision_s))
        if purpose is Purpose.FINISH_STEP:
            surplus = max(0.0, self._step_s - before_s)
            is_kept = any(route.born < plan.generation for route in plan.routes)
            self._ends = max(self._began + self._step_s, decided + surplus) if is_kept else decided + self._step_s
            resumed = next((route for route in plan.routes if route.reached is not None), None)
            if resumed is not None:
                # A shadow goes on. What the lost worker had counted is to be done again, so the estimate is of what is
                # left of the step, though the pipeline is full already.
                full_s = min(way_down_s(plan, resumed, self._subject.profile), self.now - self._began)
                self._ends = max(self._began + before_s, decided + self._step_s - full_s)
            self._begins = _NEVER
            self._step_s = before_s
            return
        self._spending.add(Cause.DECISION, timings.change_s)
        self._begins = decided + timings.change_s
        self._ends = _NEVER
        if message.source is StateSource.CHECKPOINT:
            restart_s = timings.restart_s + self._most_held(plan) / timings.storage_bytes_per_s
            self._spending.add(Cause.RESTART, restart_s)
            self._begins += restart_s
        elif message.source is StateSource.LIVE and plan.transfers:
            moved = run.plan_selector.policy.planner.transfer_time(plan)
            self._tally.moved_bytes += moved.moved_bytes
            if purpose is Purpose.WARM_UP:  # beside the step, which ends when both have
                self._spending.add(Cause.TRANSFER, max(0.0, moved.time_s - self._step_s))
                self._ends = self._begins + max(self._step_s, moved.time_s)
                self._began, self._begins = self._begins, _NEVER
            else:
                self._spending.add(Cause.TRANSFER, moved.time_s)
                self._begins += moved.time_s

    def _most_held(self, plan: Plan) -> int:
        """Returns the bytes of state on the fullest node."""
        held: dict[NodeId, set[int]] = {}
        for worker, groups in plan.groups_of.items():
            held.setdefault(plan.node_of(worker), set()).update(groups)
        return max(sum(plan.groups[group].moved_bytes for group in groups) for groups in held.values())

    # Saving while everybody waits

    def _write_s(self) -> float:
        groups = self._run.plan.groups
        most = max(sum(groups[group].moved_bytes for group in save.groups) for _, save in self._saves)
        seconds = most / self._subject.timings.storage_bytes_per_s
        if self._run.phase is Phase.SAVING:
            self._spending.add(Cause.CHECKPOINT, seconds)
        return seconds

    def _saved(self) -> None:
        saves, self._saves, self._saved_at = self._saves, [], _NEVER
        members = self._run.members
        for worker, save in saves:
            if worker in members.addresses and members.node_of(worker) not in self._dead:
                parts = tuple(SavedGroup(group=group, file="-", size_bytes=0, sha256="") for group in save.groups)
                self._handle(Received(worker, Saved(step=save.step, serial=save.serial, groups=parts)))
