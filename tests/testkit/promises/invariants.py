"""The checker of invariants: sees everything that happens in a simulated cluster, and says which promise is broken.

It looks into the protocol's objects; what reads recorded histories alone is `tests.testkit.witness`. It knows the
numbers of one process training alone, and holds every replica, sum, commit and checkpoint against them. It changes
nothing and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planaria.estimate.conditions import Conditions
from planaria.estimate.evaluation_time import evaluation_time
from planaria.estimate.step_time import outline
from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import Finish, WriteManifest
from planaria.protocol.messages.journal import JournalCommit, JournalEvaluation, JournalPlan
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.messages.records import (
    AnyRecord,
    ComputedWrong,
    DeviceJoined,
    DeviceLost,
    Evaluated,
    NodeJoined,
    NodeLost,
    NodeReleased,
    NodeSpeed,
    Note,
    PlanTaken,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.protocol.messages.to_worker import Commit, PlanMessage, StateSource, ToWorker
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.run.told_records import ToldRecords
from planaria.protocol.step.evaluation import Evaluations, evaluated
from tests.testkit.cluster.disk import Disk
from tests.testkit.promises.strength import Strength
from tests.testkit.promises.symbols import Reference, Symbol
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather
from tests.testkit.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from planaria.protocol.messages.journal import JournalEntry
    from planaria.protocol.run.replay import JournalState


class BrokenPromise(AssertionError):
    """A broken promise: something that must never happen."""


class InvariantChecker:
    """The checker of one run's invariants.

    Args:
        setup: the job.
        weather: what takes how long.
        reference: its numbers.
        workers: every process there ever was.
        is_clear: nothing befalls a node after which it may live and be taken for lost.
        policies: that are in force at one time or another.

    Attributes:
        records: that were published.
        committed: the last committed step, as of the journal.
        num_refused: workers of other versions of the protocol that were refused.
        before: for each plan's generation, the plan in whose place it was taken; None: the journal lost it.
        reference: one process's numbers.
        touched: workers whose state may have changed since it was checked, by number.
        struck: nodes that faults made compute wrong.
        tainted: states that faults have changed, and what came of them.
    """

    def __init__(
        self,
        setup: Setup,
        weather: Weather,
        reference: Reference,
        workers: Mapping[WorkerId, Worker],
        *,
        is_clear: bool,
        policies: frozenset[PolicyName],
    ) -> None:
        self.records: list[AnyRecord] = []
        self.committed = setup.done
        self.num_refused = 0
        self.struck: set[NodeId] = set()
        self.tainted: set[Symbol] = set()
        self.before: dict[int, Plan | None] = {}
        self._setup = setup
        self._weather = weather
        self._profile = setup.profile
        self._strength = Strength(setup, policies)
        self._may_go_back = PolicyName.MORPH in policies or (
            PolicyName.ADAPTIVE in policies and setup.planner.may_restore
        )
        self.reference = reference
        self._workers = workers
        self._is_clear = is_clear
        self.touched: dict[WorkerId, Worker] = {}
        self._commits: dict[tuple[int, int], JournalCommit] = {}
        self._unwritten: set[tuple[int, int]] = set()
        self._evicted_alive: set[NodeId] = set()
        self._given_up: set[NodeId] = set()
        self._devices_given_up: set[WorkerId] = set()
        self._begun = setup.done
        self._generation = 0
        self._plan: Plan | None = None
        self._lineage = -1
        self._is_cut = False
        self._highest = setup.done
        self._told = ToldRecords(setup.done)

    @property
    def plan(self) -> Plan:
        """The plan in force, as of the journal."""
        assert self._plan is not None, "there is no plan yet"
        return self._plan

    @property
    def has_plan(self) -> bool:
        """Whether there was a plan, and the journal did not lose the last one."""
        return self._plan is not None

    def require(self, holds: bool, broken: str) -> None:
        if not holds:
            raise BrokenPromise(broken)

    def _all_is_well(self, broken: str | None) -> None:
        if broken is not None:
            raise BrokenPromise(broken)

    # Workers

    def evicted(self, node: NodeId) -> None:
        """Notes that the coordinator gives the node up, and is about to have it killed."""
        if not any(worker.is_over for worker in self._workers.values() if worker.node == node):
            self._evicted_alive.add(node)

    def evicted_by_deposed(self, node: NodeId) -> None:
        """Checks that a coordinator that leads no more gives up nobody but whom the journal has as given up."""
        self.require(node in self._given_up, f"a coordinator that leads no more gives up node {node}")

    def device_evicted_by_deposed(self, worker: WorkerId) -> None:
        """Checks the same of a device that was lost alone."""
        self.require(
            worker in self._devices_given_up, f"a coordinator that leads no more gives up the device of worker {worker}"
        )

    def refused(self, version: int, why: str) -> None:
        """Checks what the worker of another version of the protocol is told, and the coordinator notes."""
        says = f"speaks protocol version {version}, the coordinator {PROTOCOL_VERSION}; install the same Planaria"
        self.require(says in why and "\n" not in why, f"version {version} is refused with {why!r}")
        self.num_refused += 1

    def sent_by_deposed(self, message: ToWorker) -> None:
        """Checks that a coordinator that leads no more says nothing that the journal does not have. A commit that it
        tells begins the next step as anybody's does."""
        match message:
            case Commit():
                self.require((message.step, message.generation) in self._commits, f"{message} is not in the journal")
                self._begun += not message.hold and message.step == self._begun
            case PlanMessage():
                self.require(message.plan.generation in self.before, f"{message} is not in the journal")
            case _:
                pass

    def check(self) -> None:
        """Checks after every event that touched any that all replicas as of a step are the same, and what one process
        would have.

        Of a step that is done again, other samples may be left out; who has had no plan since then is not looked at.
        """
        for worker in self.touched.values():
            if worker.interpreter.has_plan and worker.interpreter.plan.generation < self._lineage:
                continue
            for group, replica in worker.holdings.replicas.items():
                right = self.reference.after(replica.step).replicas[group]
                if self.tainted and any(piece in self.tainted for piece, _ in replica.pieces):
                    self.tainted.add(replica.state)  # some of it came from a holder that is right, maybe
                if replica.state != right and replica.state not in self.tainted:
                    raise BrokenPromise(
                        f"worker {worker.number} has a replica of group {group} as of step {replica.step} that is wrong"
                    )
        self.touched.clear()

    def applied(self, worker: Worker, commit: Commit) -> None:
        """Checks a step that a worker applied: the journal must have it, as it was told."""
        entry = self._commits.get((commit.step, commit.generation))
        told = None if entry is None else (entry.commit.clip_factor, entry.commit.exponents, entry.commit.hold)
        if told != (commit.clip_factor, commit.exponents, commit.hold):
            raise BrokenPromise(
                f"worker {worker.number} applied step {commit.step} of generation {commit.generation}, which the "
                f"journal has as {entry}"
            )

    def ended_itself(self, worker: Worker, reason: str) -> None:
        """Checks that a worker that ended itself had to: it is alone, or the protocol was violated."""
        self.require(reason == "the coordinator is gone", f"worker {worker.number} ended itself: {reason}")

    # The journal

    def given_up(self, node: NodeId) -> None:
        """Notes that the journal has a node as given up."""
        self._given_up.add(node)

    def device_given_up(self, worker: WorkerId) -> None:
        """Notes that the journal has a device as lost alone."""
        self._devices_given_up.add(worker)

    def planned(self, machine: Coordinator, entry: JournalPlan) -> None:
        """Checks a plan that is taken. One that begins a step keeps f + 1 replicas."""
        plan, step = entry.message.plan, entry.message.step
        for record in entry.records:
            if isinstance(record, Restored):
                if self._is_cut and self.committed < record.from_step <= self._highest:
                    self.committed = record.from_step  # only workers knew of the steps since
                self.require(record.from_step == self.committed, f"{record} when {self.committed} steps are committed")
                self._must_be_lost(machine, record.reason)
                self.committed = self._begun = record.to_step
        if self._is_cut and entry.message.source is not StateSource.LIVE and step <= self.committed:
            self.committed = self._begun = step - 1  # that it went back, only workers knew
        self.require(plan.generation > self._generation, f"generation {plan.generation} after {self._generation}")
        self.require(
            step == self.committed + 1 or (self._is_cut and step <= self._highest + 1),
            f"a plan for step {step} when {self.committed} steps are committed",
        )
        self.before[plan.generation] = self._plan
        self._generation, self._plan, self._lineage = plan.generation, plan, entry.message.lineage
        self._all_is_well(self._strength.planned(entry))
        self._check_estimate(machine, entry)
        self.require(
            machine.shortages.allows(plan), f"plan {plan.generation} needs more memory than is known to be there"
        )
        if step > self._begun and plan.evaluation is None:
            self._begin(machine, step)

    def _check_estimate(self, machine: Coordinator, entry: JournalPlan) -> None:
        """Checks that a plan's estimate is for the nodes' known speeds, and for what steps were measured to take."""
        stretch = machine.learnt.stretch or 1.0
        speeds = {NodeId(node): speed for node, speed in machine.state.speeds.items()}
        for record in entry.records:
            if isinstance(record, PlanTaken) and speeds:
                conditions = Conditions(node_speeds=speeds, stretch=stretch, audit=self._setup.audit)
                plan = entry.message.plan
                if plan.evaluation is not None and record.purpose == Purpose.FINISH_STEP:
                    right_s = evaluation_time(plan, self._profile, conditions).total_s
                else:
                    right_s = outline(plan, self._profile, conditions).step_time_s
                told_s = record.estimated_step_s
                self.require(abs(told_s - right_s) < 1e-9, f"a step takes {right_s} s at speeds {speeds}, not {told_s}")

    def forget_after(self, past: JournalState, lost: Iterable[JournalEntry]) -> None:
        """Forgets the last entries that a journal lost: what they said, some worker may know, or none."""
        commits = (entry for entry in lost if isinstance(entry, JournalCommit))
        self._unwritten.update((entry.step, entry.commit.generation) for entry in commits)
        self.committed = min(self.committed, (past.step or self._setup.done + 1) - 1)
        self._generation, self._plan = -1, None
        self._strength.is_degraded = None
        self._is_cut = True

    def committed_step(self, machine: Coordinator, entry: JournalCommit) -> None:
        """Checks a step that is durable: every step once, in order, with every microbatch in every sum exactly once."""
        step, commit = entry.step, entry.commit
        key = step, commit.generation
        if key in self._unwritten and self._commits[key].commit == commit and step <= self.committed:
            self.committed = step - 1  # written again; that the job went back before it, the journal had lost too
        self._unwritten.discard(key)
        is_next = step == self.committed + 1 or (self._is_cut and self.committed < step <= self._highest + 1)
        self.require(is_next, f"step {step} is committed after step {self.committed}")
        is_known = self._plan is not None and self._plan.generation == commit.generation
        self.require(is_known or self._is_cut, f"generation {commit.generation} commits step {step}")
        self.reference.leave_out(step, commit.dropped)
        right = self.reference.after(step)
        is_right = (
            (commit.loss == right.loss or not right.is_finite)
            and commit.clip_factor == right.clip_factor
            and commit.scale == right.scale
            and commit.exponents == right.exponents
        )
        if not is_right:
            raise BrokenPromise(f"step {step} is committed with other numbers than one process has: {entry}")
        if is_known:
            self._check_sums(machine, step)
        self._commits[key] = entry
        self.committed = step
        self._highest = max(self._highest, step)

    def evaluated(self, entry: JournalEvaluation) -> None:
        """Checks an evaluation: of the last committed step, with the numbers of one process."""
        record, evaluation = entry.evaluated, self._setup.evaluation
        is_last = record.step == self.committed or self._is_cut
        self.require(is_last, f"step {record.step} is evaluated when {self.committed} steps are committed")
        right = evaluated(
            Evaluations(evaluation, self._setup.steps),
            self.reference.scores(record.step, evaluation.microbatches),
            step=record.step,
            generation=record.generation,
            duration_s=record.duration_s,
        )
        self.require(
            (record.loss, record.accuracy) == (right.loss, right.accuracy),
            f"step {record.step} is evaluated with other numbers than one process has: {entry}",
        )

    def _check_evaluations(self, steps: int, *, is_last_left: bool) -> None:
        """Checks that a completed run was evaluated when it had to be; after the last step, unless it says why not."""
        evaluation = self._setup.evaluation
        if not evaluation.every or self._is_cut:
            return
        told = {record.step for record in self.records if isinstance(record, Evaluated)}
        first = max(1, self._setup.done)
        due = {step for step in range(first, steps + 1) if step % evaluation.every == 0 or step == self._setup.steps}
        due -= {steps} if is_last_left else set()
        self.require(told == due, f"steps {sorted(told)} were evaluated, not {sorted(due)}")

    def _check_sums(self, machine: Coordinator, step: int) -> None:
        plan = self.plan  # the machine's may be the next one already
        nodes, lost_devices = machine.state.nodes, machine.state.lost_devices
        for number in plan.workers:
            worker = self._workers[number]
            if worker.is_over or worker.node not in nodes or number in lost_devices:
                continue
            for group in plan.kept_of[number]:
                replica = worker.holdings.replicas.get(group)
                is_right = replica is not None and (
                    replica.step >= step
                    or (replica.step == step - 1 and replica.gradient == self.reference.after(step).totals[group])
                )
                self.require(
                    is_right,
                    f"step {step} is committed, and worker {number}'s sum of group {group} does not have every "
                    "microbatch exactly once",
                )

    def sent(self, machine: Coordinator, message: ToWorker) -> None:
        """Checks that a commit after which all workers go on begins the next step."""
        if isinstance(message, Commit) and not message.hold and message.step == self._begun:
            if machine.phase is Phase.SALVAGING or machine.plan.generation > message.generation:
                self._begun += (
                    1  # an earlier coordinator committed it; a loss since then has struck the next one already
                )
            else:
                self._begin(machine, message.step + 1)

    def _begin(self, machine: Coordinator, step: int) -> None:
        self._begun = step
        if self._plan is None:
            return  # the journal lost it
        self._all_is_well(self._strength.begun(self.plan, machine.state.nodes, step))

    # Records and checkpoints

    def published(self, machine: Coordinator, record: AnyRecord, *, again: bool) -> bool:
        """Returns whether the record is new: a coordinator that is started again tells some once more."""
        if isinstance(record, RunEnded) and any(isinstance(other, RunEnded) for other in self.records):
            return False
        if not self._told.takes(record, again=again):
            return False
        self._take_record(machine, record)
        return True

    def _take_record(self, machine: Coordinator, record: AnyRecord) -> None:
        self.records.append(record)
        match record:
            case NodeLost(node=node, cause=cause) if self._is_clear:
                self.require(
                    node not in self._evicted_alive, f"node {node} is given up, and nothing is wrong with it: {cause}"
                )
            case DeviceLost() if self._is_clear:
                worker = self._workers[WorkerId(record.node * self._setup.devices_per_node + record.device)]
                self.require(worker.is_over, f"{record}, and nothing is wrong with it")
            case Note(text=text) if text.startswith(("sums of ", "computations of ", "messages of ")):
                self.require(bool(self.struck), f"{text}: but nothing changed what any node has")
            case ComputedWrong():
                self.require(record.node in self.struck, f"{record}: but nothing changed what it has")
            case NodeSpeed() if self._weather.is_as_profiled:
                self._check_speed(record)
            case Waiting(reason=reason) | RunEnded(status=RunStatus.EXHAUSTED, message=reason) if (
                machine.state.generation
            ):
                self._all_is_well(self._strength.exhausted(machine, reason))
            case StepCommitted() | StepSkipped():
                self.require(record.step == self.committed, f"step {record.step} is told of, not {self.committed}")
                is_skipped = isinstance(record, StepSkipped)
                self.require(is_skipped != self.reference.after(record.step).is_finite, f"step {record.step}")
            case RunEnded(status=RunStatus.FAILED, message=message) if "there is no checkpoint" in message:
                if machine.state.generation:  # else a new coordinator tells what the one before decided
                    self._must_be_lost(machine, message)
            case _:
                pass

    def _check_speed(self, record: NodeSpeed) -> None:
        """Checks that a node called slow is slow, or was a moment ago, and not much less so than is said."""
        slowest = max(worker.slowest for worker in self._workers.values() if worker.node == record.node)
        least = 0.8 / slowest
        self.require(
            record.speed >= least and (record.speed == 1.0 or slowest > 1.0),
            f"node {record.node} is called {record.speed} times as fast as others, and never was slower than {slowest}",
        )

    def _must_be_lost(self, machine: Coordinator, why: str) -> None:
        """Checks that some group has no replica left on the job's nodes; or the policy goes back after any loss."""
        if self.tainted and "differ" in why:
            return
        if self._may_go_back and "no replica" not in why:
            is_lost = any(isinstance(record, NodeLost | DeviceLost) for record in self.records)
            self.require(is_lost, f"{why}: but nobody was lost")
            return
        nodes = machine.state.nodes
        held = {
            group
            for worker in self._workers.values()
            if worker.node in nodes and worker.number not in machine.state.lost_devices
            if not worker.is_over and worker.machine.generation >= self._lineage
            for group in worker.holdings.held_at(self.committed)
        }
        self.require(
            len(held) < len(machine.plan.groups), f"{why}: but live workers hold every group as of {self.committed}"
        )

    def saved(self, disk: Disk, manifest: WriteManifest) -> None:
        """Checks a checkpoint that is whole: any plan may go on from it."""
        right = self.reference.after(manifest.step)
        for part in manifest.groups:
            state = disk.read(manifest.folder, part.group, verifies=False).state
            is_right = state == right.replicas[part.group] or state in self.tainted  # nobody goes back to that
            self.require(is_right, f"{manifest.folder} has a wrong group {part.group}")
        self.require(manifest.exponents == right.exponents, f"{manifest.folder} has wrong exponents")

    # The end

    def waits(self, machine: Coordinator) -> None:
        """Checks that there are too few nodes when nothing happens any more."""
        live, is_short = len(machine.state.nodes), machine.shortages.bound_bytes is not None
        self.require(
            live < self._setup.needed_nodes or is_short, f"the job waits in {machine.phase.value} with {live} nodes"
        )

    def ended(self, finish: Finish, *, allowed: Collection[str], is_stopped: bool, disk: Disk) -> None:
        """Checks how a run ended.

        Args:
            finish: how it did.
            allowed: pieces of messages with which it may fail.
            is_stopped: the user ended it.
            disk: with its checkpoints.
        """
        (ended,) = [record for record in self.records if isinstance(record, RunEnded)]
        status, message, setup = finish.status, finish.message, self._setup
        self.require((ended.skipped_microbatches, ended.duplicated_microbatches) == (0, 0), f"{ended}")
        skipped = sum(not self.reference.after(step).is_finite for step in range(setup.done + 1, ended.steps + 1))
        dropped = sum(len(self.reference.dropped(step)) for step in range(setup.done + 1, ended.steps + 1))
        self.require(
            ended.dropped_microbatches == dropped or self._is_cut,
            f"{ended.dropped_microbatches} microbatches dropped, not {dropped}",
        )
        # Workers know the last commit: of earlier ones that the journal lost, nobody knows whether they were applied.
        is_told = ended.skipped_steps == skipped or (self._is_cut and ended.skipped_steps < skipped)
        self.require(is_told, f"{ended.skipped_steps} steps skipped, not {skipped}")
        struck = [record.node for record in self.records if isinstance(record, NodeLost | DeviceLost)]
        num_lost = len(set(struck))  # whoever lost a device may have lost a stage with it
        if self._strength.ever_degraded:  # who went with notice took replicas along, which was said
            num_lost += sum(isinstance(record, NodeReleased) for record in self.records)
        if num_lost <= setup.fault_tolerance and not self._may_go_back and not self.tainted:
            went_back = any(isinstance(record, Restored) for record in self.records)
            self.require(not went_back, f"{num_lost} losses took the last replica, at f = {setup.fault_tolerance}")
            is_failed = status is RunStatus.FAILED and "there is no checkpoint" in message
            self.require(not is_failed, f"{num_lost} losses at f = {setup.fault_tolerance}: {message}")
        match status:
            case RunStatus.COMPLETED:
                is_reached = "reaches eval.stop_at" in message
                self.require(
                    self.committed == setup.steps or is_reached, f"completed after {self.committed} steps: {message}"
                )
                self.require(disk.has(self.committed), f"no checkpoint of step {self.committed}")
                if not is_stopped:
                    self._check_evaluations(self.committed, is_last_left="is not evaluated: " in message)
            case RunStatus.STOPPED:
                self.require(is_stopped, "stopped by nobody")
            case RunStatus.INTERRUPTED:
                self.require(False, "interrupted, which a machine knows nothing of")
            case RunStatus.EXHAUSTED:
                self.require(self._num_left() < setup.needed_nodes, f"{self._num_left()} nodes are left: {message}")
            case RunStatus.FAILED:
                self.require(any(piece in message for piece in allowed), f"failed: {message}")
                is_lost = "no replica" in message or "the user does without it" in message
                is_kept = "layer of worker" in message and not is_lost and self.committed > setup.done
                self.require(not is_kept or disk.has(self.committed), f"step {self.committed} is not saved: {message}")

    def _num_left(self) -> int:
        """Returns how many nodes live with all of their devices: one that lacks some may have to idle."""
        live, lacking = 0, dict[int, set[int]]()
        for record in self.records:
            if isinstance(record, NodeJoined | NodeLost | NodeReleased):
                live = record.live_nodes
                lacking.pop(record.node, None)
            elif isinstance(record, DeviceLost):
                lacking.setdefault(record.node, set()).add(record.device)
            elif isinstance(record, DeviceJoined):
                lacking.get(record.node, set()).discard(record.device)
        return live - sum(map(bool, lacking.values()))
