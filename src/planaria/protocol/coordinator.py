"""The coordinator's state machine: `handle(event, now) -> commands` is the only thing that changes its state.

It owns the membership, the plan in force, the votes of the step in progress and what a loss leads to. It knows no
socket, no clock, no file and no policy of its own: plans come from the policy that it is given.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from planaria.job.settings import TrainSection
from planaria.plan.errors import TooFewNodes
from planaria.plan.ledger import combine
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.validate import validate
from planaria.policy.proposal import Policy, Proposal
from planaria.protocol.commit import (
    FIRST_EXPONENT,
    clip_factor,
    gradient_norm,
    learning_rate,
    mean_loss,
    next_exponents,
)
from planaria.protocol.events import (
    Command,
    DecisionTook,
    Event,
    Evict,
    Finish,
    JournalCommit,
    JournalPlan,
    ManifestWritten,
    NodeGone,
    Publish,
    Received,
    Send,
    StopRequested,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.losses import OpenRecovery
from planaria.protocol.messages import (
    Commit,
    Failed,
    FaultInjected,
    Halt,
    PlanMessage,
    Ready,
    Report,
    Save,
    Saved,
    SavedGroup,
    StateSource,
    Stop,
    Vote,
)
from planaria.protocol.records import (
    CheckpointSaved,
    NodeJoined,
    NodeLost,
    PlanTaken,
    Recovered,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
)


class Phase(str, enum.Enum):
    GATHERING = "gathering"
    """Waiting for the workers to join."""
    TRAINING = "training"
    """A step is in progress; votes are coming in."""
    SALVAGING = "salvaging"
    """A loss inside a step; waiting for the ledgers of what it halted."""
    SAVING = "saving"
    """At a step boundary; parts of a checkpoint are being written."""
    ENDED = "ended"


class ProtocolError(AssertionError):
    """An event that the table does not allow: our own mistake, never the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """A whole checkpoint: the state after `step`."""

    step: int
    folder: str
    exponents: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the machine needs to know of the job.

    Attributes:
        train: steps, batch, clip, schedule.
        policy_name: for the records.
        fault_tolerance: f.
        num_nodes: nodes that are started.
        devices_per_node: workers on each.
        num_groups: parameter groups of the model.
        checkpoint_root: folder under which checkpoints are written.
        checkpoint_every: steps between checkpoints; 0 for none but the last.
        resume: checkpoint to start from.
    """

    train: TrainSection
    policy_name: str
    fault_tolerance: int
    num_nodes: int
    devices_per_node: int
    num_groups: int
    checkpoint_root: str
    checkpoint_every: int
    resume: CheckpointRef | None


@dataclass(slots=True)
class SavingPart:
    """A checkpoint under way: who writes which groups, and what is written."""

    began: float = 0.0
    assigned: dict[int, WorkerId] = field(default_factory=dict)
    written: dict[int, SavedGroup] = field(default_factory=dict)


class Coordinator:
    """The machine. Build it, then feed it events; carry out the commands in order."""

    def __init__(self, settings: RunSettings, policy: Policy) -> None:
        self.settings = settings
        self.policy = policy
        self.phase = Phase.GATHERING
        self.plan: Plan | None = None
        self.step = 1 + (settings.resume.step if settings.resume else 0)
        self.exponents: tuple[int, ...] = (
            settings.resume.exponents if settings.resume else (FIRST_EXPONENT,) * settings.num_groups
        )
        self.addresses: dict[WorkerId, str] = {}
        self.gone: set[NodeId] = set()
        self.votes: dict[WorkerId, Vote] = {}
        self.reports: dict[WorkerId, Report] = {}
        self.halted: set[WorkerId] = set()
        self.unready: set[WorkerId] = set()
        self.last_checkpoint = settings.resume
        self.stopping = False
        self.open_recovery: OpenRecovery | None = None
        self.faults: dict[NodeId, float] = {}
        self.saving = SavingPart()
        self.ending: tuple[RunStatus, str] | None = None
        self.step_began = 0.0
        self.skipped = 0
        self.duplicated = 0
        self.history: deque[str] = deque(maxlen=64)
        self.generation = 0
        self.now = 0.0

    # Events

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take one event at monotonic time `now` (seconds); returns commands to carry out in order."""
        name = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
        handler = TRANSITIONS.get((self.phase, name))
        if handler is None:
            recent = "; ".join(self.history)
            raise ProtocolError(f"{name} is illegal in phase {self.phase.value}: {event!r:.300}. Recent: {recent}")
        before = self.phase
        self.now = now
        commands = handler(self, event, now)
        self.history.append(f"{before.value} --{name}--> {self.phase.value}")
        return tuple(commands)

    def _ignore(self, event: Event, now: float) -> list[Command]:
        return []

    # Membership

    @property
    def live_workers(self) -> tuple[WorkerId, ...]:
        return tuple(sorted(self.addresses))

    @property
    def live_nodes(self) -> tuple[NodeId, ...]:
        return tuple(sorted({self._node(worker) for worker in self.addresses}))

    def _node(self, worker: WorkerId) -> NodeId:
        return NodeId(worker // self.settings.devices_per_node)

    def _joined(self, event: WorkerJoined, now: float) -> list[Command]:
        self.addresses[event.worker] = event.data_address
        node = self._node(event.worker)
        commands: list[Command] = []
        if sum(self._node(worker) == node for worker in self.addresses) == self.settings.devices_per_node:
            commands.append(Publish(NodeJoined(node=node, live_nodes=len(self.live_nodes))))
        return commands + self._start_when_gathered(now)

    def _start_when_gathered(self, now: float) -> list[Command]:
        expected = (self.settings.num_nodes - len(self.gone)) * self.settings.devices_per_node
        if len(self.addresses) < expected:
            return []
        try:
            proposal = self.policy.initial(self.live_nodes, self._next_generation())
        except PlanError as error:
            return self._end(RunStatus.EXHAUSTED if self.gone else RunStatus.FAILED, str(error))
        resume = self.settings.resume
        source = StateSource.CHECKPOINT if resume else StateSource.INITIAL
        return self._take(proposal, now, "start", source, resume.folder if resume else "")

    def _next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def _lost_while_gathering(self, event: NodeGone, now: float) -> list[Command]:
        return self._remove(event) + self._start_when_gathered(now)

    def _remove(self, event: NodeGone) -> list[Command]:
        """Forget a node's workers and fence it."""
        self.gone.add(event.node)
        for worker in [w for w in self.addresses if self._node(w) == event.node]:
            del self.addresses[worker]
            self.votes.pop(worker, None)
            self.reports.pop(worker, None)
            self.halted.discard(worker)
            self.unready.discard(worker)
        return [Evict(event.node)]

    def _lost_in_step(self, event: NodeGone, now: float) -> list[Command]:
        if event.node in self.gone:
            return []
        commands = self._remove(event)
        commands.append(self._note_loss(event, now))
        if self.phase is Phase.TRAINING and self._can_commit():
            return commands + self._commit(now)
        return commands + self._salvage(now)

    def _note_loss(self, event: NodeGone, now: float) -> Command:
        fault_at = self.faults.pop(event.node, None)
        detect_ms = None if fault_at is None else max(0.0, (now - fault_at) * 1e3)
        if self.open_recovery is None:
            self.open_recovery = OpenRecovery(
                step=self.step, policy=self.settings.policy_name, began=now if fault_at is None else fault_at
            )
        self.open_recovery.add_loss(event.node, event.cause, detect_ms)
        return Publish(
            NodeLost(
                node=event.node,
                step=self.step,
                cause=event.cause,
                live_nodes=len(self.live_nodes),
                detect_ms=detect_ms,
            )
        )

    def _fault_injected(self, event: Received, now: float) -> list[Command]:
        assert isinstance(event.message, FaultInjected)
        self.faults[self._node(event.worker)] = event.message.at_s
        return []

    # A loss inside a step

    def _salvage(self, now: float) -> list[Command]:
        """Halt what the loss broke; decide once all of it has reported."""
        assert self.plan is not None
        self.phase = Phase.SALVAGING
        commands: list[Command] = []
        for pipeline in self.plan.pipelines:
            live = [w for w in pipeline.workers if w in self.addresses]
            whole = pipeline.is_whole(self.plan.num_layers) and len(live) == len(pipeline.stages)
            if whole and self.unready.isdisjoint(live):
                continue
            for worker in live:
                if worker not in self.halted:
                    self.halted.add(worker)
                    commands.append(Send(worker, Halt(generation=self.plan.generation, step=self.step)))
        return commands + self._decide_when_reported(now)

    def _reported(self, event: Received, now: float) -> list[Command]:
        report = event.message
        assert isinstance(report, Report)
        assert self.plan is not None
        if (report.generation, report.step) != (self.plan.generation, self.step):
            return []
        if event.worker in self.halted:
            self.reports[event.worker] = report
        return self._decide_when_reported(now)

    def _decide_when_reported(self, now: float) -> list[Command]:
        if not self.halted <= self.reports.keys():
            return []
        assert self.plan is not None
        holders = self._holders()
        without = [g for g in range(len(self.plan.groups)) if not any(g in held for held in holders.values())]
        if without:
            return self._restore(now, without)
        computing = [w for w in self.plan.workers if w in self.addresses and w not in self.halted]
        untouched = not computing and all(report.ledger.is_empty for report in self.reports.values())
        try:
            if untouched:
                return self._reconfigure(now, holders)
            counted, _ = combine((r.ledger for r in self.reports.values()), self.plan.num_layers)
            layers = {worker: self.plan.layers_held(groups) for worker, groups in holders.items()}
            proposal = self.policy.finish_step(
                self.plan,
                live=self.live_workers,
                halted=tuple(sorted(self.halted)),
                counted=counted,
                holders=layers,
                generation=self._next_generation(),
            )
            validate(proposal.plan, already=counted)
        except TooFewNodes as error:
            return self._save_then_end(RunStatus.EXHAUSTED, str(error))
        if self.open_recovery is not None:
            self.open_recovery.add_rerun(proposal.plan)
        return self._take(proposal, now, "finish step", StateSource.LIVE)

    def _holders(self) -> dict[WorkerId, tuple[int, ...]]:
        """The groups of which each live worker holds a replica as of the last commit."""
        assert self.plan is not None
        return {
            worker: self.reports[worker].held if worker in self.reports else self.plan.groups_of.get(worker, ())
            for worker in self.live_workers
        }

    # Plans

    def _take(
        self, proposal: Proposal, now: float, purpose: str, source: StateSource, folder: str = ""
    ) -> list[Command]:
        """Put a plan in force for the step in progress."""
        plan = proposal.plan
        in_same_step = purpose == "finish step"
        self.plan = plan
        self.phase = Phase.TRAINING
        self.votes.clear()
        self.reports.clear()
        self.halted.clear()
        moves_state = source is not StateSource.LIVE or bool(plan.transfers)
        self.unready = set(plan.workers) if moves_state else set()
        if not in_same_step:
            self.step_began = now
        message = PlanMessage(
            plan=plan,
            step=self.step,
            addresses={worker: self.addresses[worker] for worker in plan.workers},
            exponents=self.exponents,
            source=source,
            folder=folder,
        )
        commands: list[Command] = [JournalPlan(plan.generation, self.step, plan.to_json())]
        commands += [Send(worker, message) for worker in plan.workers]
        if purpose != "go on":
            commands.append(Publish(self._plan_record(proposal, purpose)))
        return commands

    def _plan_record(self, proposal: Proposal, purpose: str) -> PlanTaken:
        plan = proposal.plan
        share = {route.key: 0 for route in plan.routes}
        for route in plan.routes:
            share[route.key] += len(route.microbatches)
        pipelines = tuple(
            tuple((stage.worker, stage.first_layer, stage.end_layer) for stage in p.stages) for p in plan.pipelines
        )
        return PlanTaken(
            generation=plan.generation,
            step=self.step,
            purpose=purpose,
            policy=self.settings.policy_name,
            reason=proposal.reason,
            pipelines=pipelines,
            microbatches=tuple(share.get(pipeline, 0) for pipeline in pipelines),
            estimated_step_s=proposal.step_time_s,
            transfer_bytes=proposal.transfer_bytes,
            plan_hash=plan.content_hash,
        )

    def _reconfigure(self, now: float, holders: dict[WorkerId, tuple[int, ...]]) -> list[Command]:
        """A new placement for the step that begins (or has not been begun anywhere). Raises TooFewNodes."""
        assert self.plan is not None
        proposal = self.policy.reconfigure(
            self.plan, lost=tuple(sorted(self.gone)), holders=holders, generation=self._next_generation()
        )
        validate(proposal.plan, fault_tolerance=self.settings.fault_tolerance)
        if self.open_recovery is not None:
            self.open_recovery.add_reconfiguration(proposal)
        return self._take(proposal, now, "reconfigure", StateSource.LIVE)

    def _restore(self, now: float, without: list[int]) -> list[Command]:
        """Some group has no replica left: back to the last checkpoint, or to the start if nothing was committed."""
        assert self.plan is not None
        layers = sorted({layer for group in without for layer in self.plan.groups[group].layers})
        lost = f"no replica of layers {layers} is left"
        checkpoint = self.last_checkpoint
        first_step = 1 + (self.settings.resume.step if self.settings.resume else 0)
        if checkpoint is None and self.step > first_step:
            return self._end(
                RunStatus.FAILED,
                f"{lost} and there is no checkpoint. Set run.checkpoint_every, or a higher resilience.fault_tolerance.",
            )
        try:
            proposal = self.policy.initial(self.live_nodes, self._next_generation())
        except PlanError as error:
            saved = f"checkpoint of step {checkpoint.step}" if checkpoint else "no checkpoint"
            return self._end(RunStatus.EXHAUSTED, f"{lost}; {error} ({saved}).")
        from_step, to_step = self.step - 1, checkpoint.step if checkpoint else 0
        self.step = to_step + 1
        self.exponents = checkpoint.exponents if checkpoint else (FIRST_EXPONENT,) * self.settings.num_groups
        if self.open_recovery is not None:
            self.open_recovery.reason = f"{lost}: back to step {to_step}."
        source = StateSource.CHECKPOINT if checkpoint else StateSource.INITIAL
        record = Restored(from_step=from_step, to_step=to_step, reason=lost)
        folder = checkpoint.folder if checkpoint else ""
        return [Publish(record), *self._take(proposal, now, "restore", source, folder)]

    # Votes and commits

    def _ready(self, event: Received, now: float) -> list[Command]:
        message = event.message
        assert isinstance(message, Ready)
        if self.plan is not None and message.generation == self.plan.generation:
            self.unready.discard(event.worker)
        return []

    def _voted(self, event: Received, now: float) -> list[Command]:
        vote = event.message
        assert isinstance(vote, Vote)
        assert self.plan is not None
        if (vote.generation, vote.step) != (self.plan.generation, self.step):
            return []
        if event.worker in self.addresses:
            self.votes[event.worker] = vote
        return self._commit(now) if self._can_commit() else []

    def _can_commit(self) -> bool:
        """Every live worker of the plan voted, and nothing that the step needs died with the others."""
        assert self.plan is not None
        awaited = [w for w in self.plan.workers if w in self.addresses]
        if not awaited or any(worker not in self.votes for worker in awaited):
            return False
        if len(awaited) == len(self.plan.workers):
            return True
        norms = set().union(*(vote.norms for vote in self.votes.values()))
        losses = set().union(*(vote.losses for vote in self.votes.values()))
        return len(norms) == len(self.plan.groups) and len(losses) == self.plan.num_microbatches

    def _commit(self, now: float) -> list[Command]:
        assert self.plan is not None
        plan = self.plan
        norms: dict[int, float] = {}
        losses: dict[int, float] = {}
        for worker in sorted(self.votes):
            norms.update(self.votes[worker].norms)
            losses.update(self.votes[worker].losses)
        self._check_counts()
        norm = gradient_norm(norms)
        factor = clip_factor(norm, self.settings.train.clip_norm)
        exponents = next_exponents(self.exponents, norms)
        loss = mean_loss(losses)
        committed = self.step
        commands: list[Command] = [JournalCommit(committed, plan.generation, loss, factor, exponents)]
        hold = self._holds_after(committed)
        message = Commit(generation=plan.generation, step=committed, clip_factor=factor, exponents=exponents, hold=hold)
        commands += [Send(worker, message) for worker in sorted(self.votes)]
        duration = max(now - self.step_began, 1e-9)
        train = self.settings.train
        record = StepCommitted(
            step=committed,
            loss=loss,
            grad_norm=norm,
            learning_rate=learning_rate(train, committed),
            clip_factor=factor,
            generation=plan.generation,
            live_nodes=len(self.live_nodes),
            duration_s=duration,
            tokens_per_s=train.global_batch * train.sequence_length / duration,
        )
        commands.append(Publish(record))
        self.exponents = exponents
        self.step += 1
        self.step_began = now
        self.votes.clear()
        if self.open_recovery is not None:
            self.open_recovery.committed(now)
        return commands + (self._after_boundary(now, committed) if hold else self._close_recovery())

    def _check_counts(self) -> None:
        """Every microbatch exactly once per layer, or the run must not go on."""
        assert self.plan is not None
        if len(self.votes) < len(self.plan.workers):
            return  # a worker died after everybody had its contributions; its ledger died with it
        union, twice = combine((vote.ledger for vote in self.votes.values()), self.plan.num_layers)
        full = (1 << self.plan.num_microbatches) - 1
        missing = sum((full & ~mask).bit_count() for mask in union.bits())
        self.skipped += missing
        self.duplicated += twice
        if missing or twice:
            raise ProtocolError(
                f"step {self.step}: {missing} contributions missing and {twice} counted twice; "
                f"recent: {'; '.join(self.history)}"
            )

    def _holds_after(self, committed: int) -> bool:
        assert self.plan is not None
        whole = all(p.is_whole(self.plan.num_layers) for p in self.plan.pipelines)
        nobody_lost = all(worker in self.addresses for worker in self.plan.workers)
        done = committed == self.settings.train.steps
        return done or self.stopping or self._checkpoint_due(committed) or not (whole and nobody_lost)

    def _checkpoint_due(self, committed: int) -> bool:
        every = self.settings.checkpoint_every
        return every > 0 and committed % every == 0

    def _after_boundary(self, now: float, committed: int) -> list[Command]:
        """Everybody holds after the commit: end, save or go on."""
        if committed == self.settings.train.steps:
            return self._save_then_end(RunStatus.COMPLETED, "")
        if self.stopping:
            return self._save_then_end(RunStatus.INTERRUPTED, "stopped by the user")
        if self._checkpoint_due(committed):
            return self._save()
        return self._go_on(now)

    def _go_on(self, now: float) -> list[Command]:
        """Begin the step with the same plan if it still stands, else with a new one."""
        assert self.plan is not None
        plan = self.plan
        whole = all(p.is_whole(plan.num_layers) for p in plan.pipelines)
        if whole and all(worker in self.addresses for worker in plan.workers):
            generation = self._next_generation()
            again = msgspec.structs.replace(plan, generation=generation, transfers=())
            proposal = Proposal(
                plan=again, reason="The plan stays.", step_time_s=0.0, transfer_bytes=0, how="unchanged"
            )
            return [*self._take(proposal, now, "go on", StateSource.LIVE), *self._close_recovery()]
        holders = self._holders()
        without = [g for g in range(len(plan.groups)) if not any(g in held for held in holders.values())]
        if without:
            return self._restore(now, without)
        try:
            commands = self._reconfigure(now, holders)
        except TooFewNodes as error:
            return self._save_then_end(RunStatus.EXHAUSTED, str(error))
        return commands + self._close_recovery()

    def _decision_took(self, event: DecisionTook, now: float) -> list[Command]:
        if self.open_recovery is not None:
            self.open_recovery.decide_s += event.seconds
        return []

    def _close_recovery(self) -> list[Command]:
        recovery = self.open_recovery
        if recovery is None or recovery.resumed is None:
            return []
        self.open_recovery = None
        return [Publish(Recovered(recovery=recovery.close(self.settings.train.num_microbatches)))]

    # Checkpoints and the end

    @property
    def _save_folder(self) -> str:
        return f"{self.settings.checkpoint_root}/step-{self.step - 1:08d}"

    def _save_then_end(self, status: RunStatus, message: str) -> list[Command]:
        self.ending = (status, message)
        return [*self._close_recovery(), *self._save()]

    def _save(self) -> list[Command]:
        """Ask for the state after the last committed step, every group from one of its holders."""
        if self.last_checkpoint is not None and self.last_checkpoint.step == self.step - 1:
            return self._after_saving(self.now)
        self.phase = Phase.SAVING
        self.saving = SavingPart(began=self.now)
        return self._assign_saves()

    def _assign_saves(self) -> list[Command]:
        """Give every group that nobody is writing to its least busy holder."""
        assert self.plan is not None
        holders = self._holders()
        load = dict.fromkeys(holders, 0)
        for worker in self.saving.assigned.values():
            load[worker] += 1
        parts: dict[WorkerId, list[int]] = {}
        for group in range(len(self.plan.groups)):
            if group in self.saving.written or group in self.saving.assigned:
                continue
            able = [worker for worker, held in holders.items() if group in held]
            if not able:
                return self._could_not_save(group)
            writer = min(able, key=lambda worker: (load[worker], worker))
            load[writer] += 1
            self.saving.assigned[group] = writer
            parts.setdefault(writer, []).append(group)
        return [
            Send(worker, Save(step=self.step - 1, folder=self._save_folder, groups=tuple(groups)))
            for worker, groups in sorted(parts.items())
        ]

    def _could_not_save(self, group: int) -> list[Command]:
        status, message = self.ending or (RunStatus.FAILED, "")
        status = RunStatus.FAILED if status is RunStatus.COMPLETED else status
        lost = f"step {self.step - 1} could not be saved: no replica of parameter group {group} is left"
        return self._end(status, f"{message}; {lost}".lstrip("; "))

    def _saved(self, event: Received, now: float) -> list[Command]:
        message = event.message
        assert isinstance(message, Saved)
        assert self.plan is not None
        if message.step != self.step - 1:
            return []
        for saved in message.groups:
            self.saving.written[saved.group] = saved
        if len(self.saving.written) < len(self.plan.groups):
            return []
        groups = tuple(self.saving.written[group] for group in sorted(self.saving.written))
        return [WriteManifest(self.step - 1, self._save_folder, groups, self.exponents)]

    def _lost_while_saving(self, event: NodeGone, now: float) -> list[Command]:
        if event.node in self.gone:
            return []
        commands = self._remove(event)
        commands.append(self._note_loss(event, now))
        live = self.live_workers
        for group, writer in list(self.saving.assigned.items()):
            if writer not in live and group not in self.saving.written:
                del self.saving.assigned[group]
        self.saving.assigned = {g: w for g, w in self.saving.assigned.items() if w in live}
        return commands + self._assign_saves()

    def _manifest_written(self, event: ManifestWritten, now: float) -> list[Command]:
        self.last_checkpoint = CheckpointRef(step=event.step, folder=event.folder, exponents=self.exponents)
        record = CheckpointSaved(step=event.step, folder=event.folder, seconds=now - self.saving.began)
        return [Publish(record), *self._after_saving(now)]

    def _after_saving(self, now: float) -> list[Command]:
        if self.ending is not None:
            return self._end(*self.ending)
        return self._go_on(now)

    def _stop_requested(self, event: StopRequested, now: float) -> list[Command]:
        self.stopping = True
        if self.phase is Phase.GATHERING:
            return self._end(RunStatus.INTERRUPTED, "stopped by the user before the first step")
        if self.phase is Phase.SAVING and self.ending is None:
            self.ending = (RunStatus.INTERRUPTED, "stopped by the user")
        return []

    def _failed(self, event: Received, now: float) -> list[Command]:
        failure = event.message
        assert isinstance(failure, Failed)
        return self._end(RunStatus.FAILED, f"{failure.where}: {failure.text}")

    def _end(self, status: RunStatus, message: str) -> list[Command]:
        self.phase = Phase.ENDED
        commands: list[Command] = [Send(worker, Stop(reason=status.value)) for worker in self.live_workers]
        ended = RunEnded(
            status=status,
            steps=self.step - 1,
            message=message,
            skipped_microbatches=self.skipped,
            duplicated_microbatches=self.duplicated,
        )
        return [*commands, *self._close_recovery(), Publish(ended), Finish(status, message)]


Handler = Callable[[Coordinator, Any, float], list[Command]]

TRANSITIONS: Mapping[tuple[Phase, str], Handler] = {
    (Phase.GATHERING, "WorkerJoined"): Coordinator._joined,
    (Phase.GATHERING, "NodeGone"): Coordinator._lost_while_gathering,
    (Phase.TRAINING, "NodeGone"): Coordinator._lost_in_step,
    (Phase.SALVAGING, "NodeGone"): Coordinator._lost_in_step,
    (Phase.SAVING, "NodeGone"): Coordinator._lost_while_saving,
    (Phase.TRAINING, "Ready"): Coordinator._ready,
    (Phase.SALVAGING, "Ready"): Coordinator._ready,
    (Phase.SAVING, "Ready"): Coordinator._ready,
    (Phase.TRAINING, "Vote"): Coordinator._voted,
    (Phase.SALVAGING, "Report"): Coordinator._reported,
    (Phase.SAVING, "Saved"): Coordinator._saved,
    (Phase.SAVING, "ManifestWritten"): Coordinator._manifest_written,
    # A vote that crossed a halt or a new plan, a report that a later plan overtook, a part of a checkpoint that
    # the end overtook: old news, not errors.
    (Phase.SALVAGING, "Vote"): Coordinator._ignore,
    (Phase.SAVING, "Vote"): Coordinator._ignore,
    (Phase.TRAINING, "Report"): Coordinator._ignore,
    (Phase.SAVING, "Report"): Coordinator._ignore,
    (Phase.TRAINING, "Saved"): Coordinator._ignore,
    (Phase.SALVAGING, "Saved"): Coordinator._ignore,
    **{(phase, "StopRequested"): Coordinator._stop_requested for phase in Phase if phase is not Phase.ENDED},
    **{(phase, "FaultInjected"): Coordinator._fault_injected for phase in Phase if phase is not Phase.ENDED},
    **{(phase, "DecisionTook"): Coordinator._decision_took for phase in Phase if phase is not Phase.ENDED},
    **{(phase, "Failed"): Coordinator._failed for phase in Phase if phase is not Phase.ENDED},
    **{
        (Phase.ENDED, name): Coordinator._ignore
        for name in (
            "NodeGone",
            "Ready",
            "Vote",
            "Report",
            "Saved",
            "ManifestWritten",
            "StopRequested",
            "FaultInjected",
            "DecisionTook",
            "Failed",
            "WorkerJoined",
        )
    },
}
