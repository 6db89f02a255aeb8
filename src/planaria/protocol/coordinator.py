"""The coordinator's state machine: `handle(event, now) -> commands` is the only thing that changes its state.

It owns the membership, the plan in force, the votes of the step in progress and what a loss leads to. It knows no
socket, no clock, no file and no policy of its own: plans come from the policy that it is given.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from planaria.job.settings import WhenNotFinite
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.replicas import lacking
from planaria.plan.salvage import to_halt
from planaria.plan.validate import validate
from planaria.policy.outlook import USUAL_DECISION_S, Outlook
from planaria.policy.proposal import Policy, Proposal
from planaria.protocol.ballot import Ballot
from planaria.protocol.commit import (
    FIRST_EXPONENT,
    NOT_APPLIED,
    clip_factor,
    gradient_norm,
    is_finite,
    mean_loss,
    next_exponents,
)
from planaria.protocol.damage import Damages, what
from planaria.protocol.events import (
    Command,
    DecisionTook,
    Discard,
    Event,
    Evict,
    Finish,
    ManifestFailed,
    ManifestWritten,
    NodeGone,
    NodeNotice,
    Publish,
    RanOut,
    Received,
    Release,
    Restarted,
    Send,
    StopRequested,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.failures import Failures
from planaria.protocol.journal import (
    Fate,
    JournalCheckpoint,
    JournalCommit,
    JournalEnd,
    JournalNode,
    JournalPlan,
    JournalRecovery,
    JournalRestart,
    JournalStop,
)
from planaria.protocol.kept import Kept
from planaria.protocol.membership import Membership
from planaria.protocol.messages import (
    Commit,
    Damaged,
    Failed,
    FaultInjected,
    Halt,
    Notice,
    NotSaved,
    OutOfMemory,
    PlanMessage,
    Ready,
    Recall,
    Report,
    Returned,
    Save,
    Saved,
    StateSource,
    Stop,
    Vote,
)
from planaria.protocol.pacing import Pacing, same_work
from planaria.protocol.past import Past
from planaria.protocol.records import (
    AnyRecord,
    CheckpointSaved,
    CoordinatorRestarted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    Note,
    Recovered,
    Restored,
    RunEnded,
    RunStatus,
    Waiting,
)
from planaria.protocol.recovery import OpenRecovery
from planaria.protocol.requests import RunState
from planaria.protocol.returning import Position, Returning
from planaria.protocol.salvage import Salvage
from planaria.protocol.saving import Checkpoints, NobodyHolds
from planaria.protocol.settings import CheckpointRef, RunSettings
from planaria.protocol.shortage import Shortages, WouldRunOut
from planaria.protocol.speeds import Speeds
from planaria.protocol.standing import Standing
from planaria.protocol.telling import not_finite, plan_taken, replicas_note, shapes, step_committed
from planaria.protocol.timing import Timing


class Phase(enum.StrEnum):
    RETURNING = "returning"
    """Begun on the journal of a coordinator that died; waiting for the workers to come back."""
    GATHERING = "gathering"
    """Waiting for the workers to join."""
    TRAINING = "training"
    """A step is in progress; votes are coming in."""
    SALVAGING = "salvaging"
    """A loss inside a step; waiting for the ledgers of what it halted."""
    SAVING = "saving"
    """At a step boundary; parts of a checkpoint are being written."""
    WAITING = "waiting"
    """Too few nodes; what is left keeps its state until others join."""
    ENDED = "ended"


class Purpose(enum.StrEnum):
    """Why a plan is taken."""

    START = "start"
    FINISH_STEP = "finish step"
    WARM_UP = "warm up"
    RECONFIGURE = "reconfigure"
    RESTORE = "restore"
    GO_ON = "go on"


class ProtocolError(AssertionError):
    """An event that the table does not allow, or counts that do not add up: our own mistake, never the user's."""


class Coordinator:
    """The machine. Build it, then feed it events; carry out the commands in order.

    Args:
        settings: of the run.
        policy: makes the plans.
        past: what the journal of a coordinator that died says; then the first event must be `Restarted`.

    Attributes:
        step: the step in progress; every earlier one is committed.
        plan: in force; None until the workers have joined.
        checkpoints: the last whole one, and the one under way.
        timing: of steps, beside their estimates.
        skipped: contributions that a commit lacked (0, or the machine stopped itself).
        duplicated: contributions that a commit had twice (likewise).
        skipped_steps: that were committed without being applied.
        shortages: of memory, and what they say of the next plan.
    """

    def __init__(
        self, settings: RunSettings, policy: Policy, past: Past | None = None, shortages: Shortages | None = None
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.shortages = shortages or Shortages()
        self.phase = Phase.GATHERING
        self.step = settings.first_step
        self.checkpoints = Checkpoints(settings.checkpoint_root, settings.checkpoint_every, settings.resume)
        self.timing = Timing()
        self.skipped = 0
        self.duplicated = 0
        self.skipped_steps: set[int] = set()
        self._plan: Plan | None = None
        self._generation = 0
        self._exponents = self._exponents_of(settings.resume)
        self._members = Membership(settings.num_nodes, settings.devices_per_node)
        self._standing = Standing()
        self._kept = Kept()
        self._speeds = Speeds()
        self._pacing = Pacing()
        self._failures = Failures(settings.mean_time_between_failures_s)
        self._waiting: str | None = None
        self._unready: set[WorkerId] = set()
        self._ballot: Ballot | None = None
        self._salvage = Salvage()
        self._damages = Damages()
        self._gives_up_step = False
        """Nobody can finish what others began of the step in progress: it is begun anew."""
        self._recovery: OpenRecovery | None = None
        self._is_degraded = False
        self._stopping = False
        self._ending: tuple[RunStatus, str] | None = None
        self._now = 0.0
        self._step_began = 0.0
        self._past = past or Past()
        self._returning = Returning(self._past, settings.num_nodes, settings.devices_per_node)
        if past is not None:
            self._begin_with(past)
        self.history: deque[str] = deque(maxlen=64)

    def _begin_with(self, past: Past) -> None:
        self.phase = Phase.RETURNING if past.end is None else Phase.ENDED
        self.step = past.step or self.step
        self.checkpoints.last = past.checkpoint or self.checkpoints.last
        self.skipped_steps = set(past.skipped_steps)
        self._stopping = past.is_stopping
        self._members.gone = set(past.gone)
        self._members.leaving = dict.fromkeys(past.leaving, 0.0)
        if past.plan is not None:
            self.timing.expect(past.plan.step_time_s, past.plan.longest_s)
            self._is_degraded = bool(lacking(past.plan.message.plan, self.settings.fault_tolerance))
            if past.last_step_s is not None:
                self.timing.took_before(past.last_step_s)

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take one event at monotonic time `now` (seconds); returns commands to carry out in order.

        Raises:
            ProtocolError: the transition table has no entry for this phase and event.
        """
        name = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
        handler = TRANSITIONS.get((self.phase, name))
        if handler is None:
            raise ProtocolError(
                f"{name} is illegal in phase {self.phase.value}: {event!r:.300}. Recent: {'; '.join(self.history)}"
            )
        before, self._now = self.phase, now
        commands = handler(self, event)
        self.history.append(f"{before.value} --{name}--> {self.phase.value}")
        return tuple(commands)

    @property
    def state(self) -> RunState:
        """For people."""
        plan = self._plan
        return RunState(
            phase=self.phase.value,
            step=self.step,
            steps=self.settings.train.steps,
            nodes=self._members.nodes,
            leaving=tuple(sorted(self._members.leaving)),
            pipelines=shapes(plan) if plan is not None else (),
            generation=plan.generation if plan is not None else 0,
            speeds={int(node): speed for node, speed in sorted(self._speeds.known.items())},
            resting=tuple(sorted(self._pacing.resting)),
        )

    @property
    def awaited(self) -> frozenset[WorkerId]:
        """Workers of an earlier coordinator that have not come back; none unless the phase is `RETURNING`.

        Whoever drives the machine tells it `NodeGone` of those that do not come in time.
        """
        if self.phase is not Phase.RETURNING:
            return frozenset()
        return self._returning.awaited(self._members.addresses, self._members.gone)

    def _ignore(self, event: Event) -> list[Command]:
        return []

    # After a coordinator that died

    def _restarted(self, event: Restarted) -> list[Command]:
        """Its last decisions are carried out again as far as they may not have been."""
        past = self._past
        self._returning.began = self._now
        self._step_began = self._now if event.step_began is None else event.step_began
        self._members.leaving = dict.fromkeys(past.leaving, self._now)
        if past.losses:
            self._recovery = OpenRecovery(step=self.step, policy=self.settings.policy_name, began=self._now)
            for loss in past.losses:
                self._recovery.add_loss(loss.node, loss.cause, None)
            self._recovery.resumed = self._now if past.has_resumed else None
        commands: list[Command] = [JournalRestart()]
        commands += [Evict(node) for node in sorted(past.lost)]
        commands += [Release(node) for node in sorted(past.released)]
        commands += [Publish(record, again=True) for record in past.records]
        if past.end is not None:
            (ended,) = past.end.records
            assert isinstance(ended, RunEnded)
            self.step = ended.steps + 1
            return [*commands, Finish(ended.status, ended.message)]
        return commands + self._go_on_when_returned()

    def _came_back(self, event: WorkerJoined) -> list[Command]:
        return self._join(event) + self._go_on_when_returned()

    def _returned(self, event: Received) -> list[Command]:
        assert isinstance(event.message, Returned)
        if event.worker not in self._members.addresses:
            return []
        self._returning.report(event.worker, event.message)
        return self._go_on_when_returned()

    def _returned_late(self, event: Received) -> list[Command]:
        """A worker that begins; or one that a lost part of the journal knew, with a plan that nobody has any more."""
        assert isinstance(event.message, Returned)
        known = self._generation if self._plan is None else self.plan.generation
        node = self._members.node_of(event.worker)
        if event.message.generation <= known or node in self._members.gone:
            return []
        lose = TRANSITIONS[self.phase, "NodeGone"]
        return lose(self, NodeGone(node, "it came back too late"))

    def _lost_while_returning(self, event: NodeGone) -> list[Command]:
        if event.node in self._members.gone:
            return []
        return self._lose(event) + self._go_on_when_returned()

    def _voted_while_returning(self, event: Received) -> list[Command]:
        assert isinstance(event.message, Vote)
        self._returning.vote(event.worker, event.message)
        return []

    def _ready_while_returning(self, event: Received) -> list[Command]:
        assert isinstance(event.message, Ready)
        self._returning.ready(event.worker, event.message)
        return []

    def _go_on_when_returned(self) -> list[Command]:
        if self.awaited:
            return []
        ask = self._returning.to_ask()
        if ask is not None:
            self._returning.ask(ask)
            return [Send(ask, Recall())]
        self._generation = max(0, self._returning.generation)
        self.checkpoints.number_from(self._returning.serial)
        position = self._returning.position()
        if position is not None:
            return self._go_on_from(position)
        self.phase = Phase.GATHERING
        if self._stopping:
            return self._end(RunStatus.INTERRUPTED, "stopped by the user before the first step")
        return self._start_when_gathered()

    def _go_on_from(self, position: Position) -> list[Command]:
        """Everybody who lives is told what he was not told; whoever has nothing to hear goes on undisturbed."""
        returning = self._returning
        plan = self._plan = position.message.plan
        self.phase = Phase.TRAINING
        self.step = position.step
        self._exponents = position.exponents
        commands: list[Command] = []
        for entry in returning.unwritten(position, self.settings.train, len(self._members.nodes), self._now):
            commands += [entry, *(Publish(record, again=True) for record in entry.records)]
        if position.commit is not None and position.commit.clip_factor == NOT_APPLIED:
            self.skipped_steps.add(position.commit.step)
        stale = {self._members.node_of(worker) for worker in returning.stale(position)}
        for node in sorted(stale):
            commands += self._lose(NodeGone(node, "what it holds is older than the job"))
        self._ballot = Ballot(plan)
        for worker, vote in returning.votes(position).items():
            self._ballot.cast(worker, vote)
        self._salvage = Salvage(returning.earlier(position))
        self._unready = returning.unready(position)
        self._standing = returning.standing(position, frozenset(self._members.nodes), self._members.leaving.keys())
        self._speeds.expect(plan, self.policy.estimated(plan).compute_s)
        if not set(self._members.nodes) <= set(plan.nodes):
            self._pacing.look_again(self.step + 1)  # one may rest, which nobody knows any more
        for worker in returning.lacks_commit(position):
            assert position.commit is not None
            commands.append(Send(worker, position.commit))
        # Whoever is lost stays in the addresses: his peers learn of it with the next plan.
        addresses = {**position.message.addresses, **self._members.addresses}
        message = msgspec.structs.replace(
            position.message, addresses={worker: addresses[worker] for worker in plan.workers}
        )
        commands += [Send(worker, message) for worker in returning.lacks_plan(position)]
        record = CoordinatorRestarted(
            step=self.step,
            returned=len(self._members.addresses),
            lag=returning.lag(position),
            seconds=self._now - returning.began,
        )
        return [*commands, Publish(record), *self._go_on_within(position)]

    def _go_on_within(self, position: Position) -> list[Command]:
        """At the boundary after the last commit, or inside the step in progress."""
        assert self._ballot is not None
        if position.is_boundary:
            self._unready = set()
            return self._after_boundary(position.step - 1)
        if self._ballot.is_enough(self._members.addresses):
            return self._commit()
        is_whole = all(worker in self._members.addresses for worker in self.plan.workers)
        if is_whole and not self._returning.halted(position):
            return []
        return self._begin_salvage()

    # Membership

    @property
    def plan(self) -> Plan:
        assert self._plan is not None, "no plan before the workers have joined"
        return self._plan

    def _joined(self, event: WorkerJoined) -> list[Command]:
        return self._join(event) + self._start_when_gathered()

    def _join(self, event: WorkerJoined) -> list[Command]:
        """A node is there when all of its workers are."""
        node = self._members.node_of(event.worker)
        is_complete = self._members.join(event.worker, event.data_address)
        if not is_complete or node in self._past.joined:
            return []
        record = NodeJoined(node=node, live_nodes=len(self._members.nodes))
        return [JournalNode(node=node, fate=Fate.JOINED, records=(record,)), Publish(record)]

    def _joined_running(self, event: WorkerJoined) -> list[Command]:
        """A node that came later: it is considered at the next step boundary."""
        commands = self._join(event)
        node = self._members.node_of(event.worker)
        if node not in self._members.nodes:
            return commands
        self._standing.newcomers.add(node)
        return commands + (self._try_again() if self.phase is Phase.WAITING else [])

    def _joined_too_late(self, event: WorkerJoined) -> list[Command]:
        self._members.join(event.worker, event.data_address)
        return [Send(event.worker, Stop(reason="the run is over"))]

    def _start_when_gathered(self) -> list[Command]:
        if not self._members.is_gathered:
            return []
        resume = self.settings.resume
        try:
            proposal = self.policy.initial(self._members.nodes, self._next_generation())
        except PlanError as error:
            if self._members.gone and self.settings.waits:
                live = len(self._members.nodes)
                return [Publish(Waiting(step=self.step, live_nodes=live, reason=str(error)))]
            return self._end(RunStatus.EXHAUSTED if self._members.gone else RunStatus.FAILED, str(error))
        source = StateSource.CHECKPOINT if resume else StateSource.INITIAL
        return self._take(proposal, Purpose.START, source, resume.folder if resume else "")

    def _lost_while_gathering(self, event: NodeGone) -> list[Command]:
        if event.node in self._members.gone:
            return []
        lost = self._lose(event)
        if self.shortages.fatal is not None:
            return lost + self._end(RunStatus.FAILED, self.shortages.fatal)
        return lost + self._start_when_gathered()

    def _lost_in_step(self, event: NodeGone) -> list[Command]:
        if event.node in self._members.gone:
            return self._lose_writers(event.node)
        commands = self._lose(event)
        if event.node not in self.plan.nodes:
            return commands
        assert self._ballot is not None
        if self.phase is Phase.TRAINING and self._ballot.is_enough(self._members.addresses):
            return commands + self._commit()
        return commands + self._begin_salvage()

    def _lost_while_saving(self, event: NodeGone) -> list[Command]:
        lost = self._lose_writers(event.node) if event.node in self._members.gone else self._lose(event)
        return lost + self._ask_to_save()

    def _lost_while_waiting(self, event: NodeGone) -> list[Command]:
        return self._lose_writers(event.node) if event.node in self._members.gone else self._lose(event)

    def _lose(self, event: NodeGone) -> list[Command]:
        """Fence a node and forget its workers."""
        if event.ran_out is not None:
            event = self.shortages.note(event, self._plan, self.step)
        self._failures.lost(self.step)
        self._standing.lost(event.node)
        self._forget_speed(event.node)
        for worker in self._members.lose(event.node):
            self._unready.discard(worker)
            self._salvage.forget(worker)
            if self._ballot is not None:
                self._ballot.withdraw(worker)
        self._returning.forget(self._members.workers_of(event.node))
        given_up = self._lose_writers(event.node)
        fault_at = self._members.fault_of(event.node)
        detect_ms = None if fault_at is None else max(0.0, (self._now - fault_at) * 1e3)
        strikes = self._strikes(event.node)
        if self._recovery is None and strikes:
            began = self._now if fault_at is None else fault_at
            self._recovery = OpenRecovery(step=self.step, policy=self.settings.policy_name, began=began)
        if self._recovery is not None:
            self._recovery.add_loss(event.node, event.cause, detect_ms)
        lost = NodeLost(
            node=event.node,
            step=self.step,
            cause=event.cause,
            live_nodes=len(self._members.nodes),
            detect_ms=detect_ms,
        )
        entry = JournalNode(node=event.node, fate=Fate.LOST, cause=event.cause, strikes=strikes, records=(lost,))
        return [entry, Evict(event.node), Publish(lost), *given_up]

    def _strikes(self, node: NodeId) -> bool:
        """Whether the plan in force needs the node."""
        if self.phase is Phase.RETURNING:
            message = self._returning.message
            return message is not None and node in message.plan.nodes
        return self.phase in _AT_WORK and node in self.plan.nodes

    def _out_of_memory(self, event: Received) -> list[Command]:
        """A loss of the worker's node, in whatever phase; but a job that must end because of it may save from there."""
        told = event.message
        assert isinstance(told, OutOfMemory)
        ran_out = RanOut(
            worker=event.worker, where=told.where, held_bytes=told.held_bytes, wanted_bytes=told.wanted_bytes
        )
        gone = NodeGone(self._members.node_of(event.worker), "out of memory", ran_out)
        if told.holds and self.phase in (Phase.TRAINING, Phase.SALVAGING) and gone.node in self.plan.nodes:
            gone = self.shortages.note(gone, self._plan, self.step)
            if self.shortages.fatal is not None:
                text = f"node {gone.node} does no more: {gone.cause}"
                return [Publish(Note(level="warning", text=text)), *self._begin_salvage()]
        return TRANSITIONS[self.phase, "NodeGone"](self, gone)

    def _damaged(self, event: Received) -> list[Command]:
        """State is sent again; what nobody keeps is computed again, with the whole step."""
        told, target = event.message, event.worker
        assert isinstance(told, Damaged)
        if (told.generation, told.step) != (self.plan.generation, self.step) or target not in self._members.addresses:
            return []
        text = f"{what(self.plan, told)} arrived damaged at worker {target} from worker {told.source}"
        is_state = told.kind == "state" and self.phase is Phase.TRAINING
        again = self._damages.resend(self.plan, target, told, self._members.addresses) if is_state else None
        if (again is None) if is_state else self._damages.is_too_often(target, told):
            gone = NodeGone(self._members.node_of(target), f"{text}, again and again")
            return TRANSITIONS[self.phase, "NodeGone"](self, gone)
        if again is not None:
            source = again.transfer.source
            note = Note(level="warning", text=f"{text}; worker {source} sends it again")
            return [Publish(note), Send(target, again), Send(source, again)]
        self._gives_up_step = True
        note = Note(level="warning", text=f"{text}; step {self.step} is begun anew")
        return [Publish(note), *self._begin_salvage()]

    def _fault_injected(self, event: Received) -> list[Command]:
        assert isinstance(event.message, FaultInjected)
        self._members.note_fault(event.worker, event.message.at_s)
        return []

    def _holders(self) -> dict[WorkerId, tuple[int, ...]]:
        """The groups of which each live worker holds a replica as of the last commit."""
        holders = {}
        for worker in self._members.workers:
            reported = self._salvage.held(worker)
            holders[worker] = self.plan.groups_of.get(worker, ()) if reported is None else reported
        return self._kept.added_to(holders, self.step) if self._without_replica(holders) else holders

    def _without_replica(self, holders: Mapping[WorkerId, tuple[int, ...]]) -> list[int]:
        held = {group for groups in holders.values() for group in groups}
        return [group for group in range(len(self.plan.groups)) if group not in held]

    # A loss inside a step

    def _begin_salvage(self) -> list[Command]:
        """Halt what the loss broke; decide once all of it has reported."""
        self.phase = Phase.SALVAGING
        broken = to_halt(self.plan, self._members.addresses, self._unready)
        if self._gives_up_step or self.shortages.fatal is not None:
            broken = frozenset(self.plan.workers) & self._members.addresses.keys()
        halt = Halt(generation=self.plan.generation, step=self.step)
        commands: list[Command] = [Send(worker, halt) for worker in self._salvage.halt(broken)]
        return commands + self._decide_when_reported()

    def _reported(self, event: Received) -> list[Command]:
        report = event.message
        assert isinstance(report, Report)
        if (report.generation, report.step) != (self.plan.generation, self.step):
            return []
        self._salvage.report(event.worker, report)
        return self._decide_when_reported()

    def _decide_when_reported(self) -> list[Command]:
        if not self._salvage.is_complete:
            return []
        if self.shortages.fatal is not None:
            return self._end_short_of_memory()
        holders = self._holders()
        if without := self._without_replica(holders):
            return self._restore(without)
        if self._gives_up_step:
            return self._reconfigure(holders)
        computing = [w for w in self.plan.workers if w in self._members.addresses and w not in self._salvage.halted]
        if not computing and self._salvage.is_untouched:
            return self._reconfigure(holders)
        counted = self._salvage.counted(self.plan.num_layers)
        layers = {groups: self.plan.layers_held(groups) for groups in set(holders.values())}
        proposal = self.policy.finish_step(
            self.plan,
            live=self._members.workers,
            halted=tuple(sorted(self._salvage.halted)),
            counted=counted,
            holders={worker: layers[groups] for worker, groups in holders.items()},
            generation=self._next_generation(),
        )
        validate(proposal.plan, already=counted)
        if not self.shortages.allows(proposal.plan):
            self._gives_up_step = True
            return self._begin_salvage()
        if self._recovery is not None:
            self._recovery.add_rerun(proposal.plan)
        return self._take(proposal, Purpose.FINISH_STEP, StateSource.LIVE)

    # Plans

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def _take(
        self,
        proposal: Proposal,
        purpose: Purpose,
        source: StateSource,
        folder: str = "",
        told: tuple[AnyRecord, ...] = (),
    ) -> list[Command]:
        """Put a plan in force for the step in progress; `told` are records about what led to it."""
        if source is StateSource.LIVE:
            self._kept.note(self.step, self._holders())
        else:
            self._kept.forget()
        measured = self._close_timing() if purpose is not Purpose.GO_ON else []
        plan = self._plan = proposal.plan
        self._failures.begin(self._now)
        self.phase = Phase.TRAINING
        self._ballot = Ballot(plan)
        self._salvage = self._salvage.again() if purpose is Purpose.FINISH_STEP else Salvage()
        moves_state = source is not StateSource.LIVE or bool(plan.transfers)
        self._unready = set(plan.workers) if moves_state else set()
        if purpose is not Purpose.FINISH_STEP:
            self._step_began = self._now
            self._standing.warm(is_warming=purpose is Purpose.WARM_UP)
        if purpose in _PLACING:
            # Other placements are made of all nodes; whether those that leave can be done without is found out after
            # a step.
            is_tried = purpose is Purpose.RECONFIGURE
            self._standing.place(plan.nodes, self._members.leaving.keys() if is_tried else frozenset())
        message = PlanMessage(
            plan=plan,
            step=self.step,
            addresses={worker: self._members.addresses[worker] for worker in plan.workers},
            exponents=self._exponents,
            source=source,
            folder=folder,
            afresh=self._gives_up_step,
        )
        self._gives_up_step = False
        if purpose is not Purpose.GO_ON:
            self.timing.expect(proposal.step_time_s, proposal.longest_s, is_weighed=bool(proposal.candidates))
            self._speeds.expect(plan, proposal.compute_s)
            told += (plan_taken(proposal, self.step, purpose.value, self.settings.policy_name),)
        if purpose in _PLACING:
            told += self._replicas_told(proposal)
        entry = JournalPlan(
            message=message,
            stand=self._standing.stand,
            step_time_s=self.timing.step_s,
            longest_s=self.timing.instruction_s,
            records=told,
        )
        sends: list[Command] = [Send(worker, message) for worker in plan.workers]
        return [*measured, entry, *sends, *map(Publish, told)]

    def _replicas_told(self, proposal: Proposal) -> tuple[AnyRecord, ...]:
        """When a policy goes on with fewer than f + 1 replicas, and when there are enough again."""
        before, self._is_degraded = self._is_degraded, proposal.is_degraded
        note = replicas_note(proposal, self.settings.fault_tolerance, was_degraded=before)
        return () if note is None else (note,)

    def _close_timing(self) -> list[Command]:
        record = None if self._plan is None else self.timing.close(self.plan.generation)
        return [] if record is None else [Publish(record)]

    def _reconfigure(self, holders: Mapping[WorkerId, tuple[int, ...]]) -> list[Command]:
        """A new placement for a step that nobody has begun, or the end when too few nodes are left for one."""
        if self.shortages.fatal is not None:
            return self._end_short_of_memory()
        try:
            proposal = self._placement(holders, at_once=True)
        except WouldRunOut as error:
            return self._exhausted(str(error), RunStatus.FAILED)
        except PlanError as error:
            return self._exhausted(str(error))
        if self._recovery is not None:
            self._recovery.add_reconfiguration(proposal)
            if self._gives_up_step:
                self._recovery.add_rerun(proposal.plan)
        beside = proposal.beside
        if beside is not None and self.shortages.allows(beside.plan):
            self._check(beside)
            return [*self._take(beside, Purpose.WARM_UP, StateSource.LIVE), *self._release()]
        return [*self._take(proposal, Purpose.RECONFIGURE, StateSource.LIVE), *self._release()]

    def _placement(
        self,
        holders: Mapping[WorkerId, tuple[int, ...]],
        *,
        at_once: bool,
        at_rest: frozenset[NodeId] | None = None,
    ) -> Proposal:
        """Within the memory that devices are known to have, see `_any_placement`. Raises PlanError."""
        proposal = self._any_placement(holders, at_once=at_once, at_rest=at_rest)
        if self.shortages.allows(proposal.plan):
            return proposal
        refused = proposal.plan
        try:
            policy = self.shortages.policy()
            self.policy = policy.with_speeds(self._speeds.known) if self._speeds.known else policy
            proposal = self._any_placement(holders, at_once=at_once, at_rest=at_rest)
        except PlanError as error:
            raise self.shortages.refuse(refused) from error
        if not self.shortages.allows(proposal.plan):
            raise self.shortages.refuse(proposal.plan)
        return proposal

    def _any_placement(
        self, holders: Mapping[WorkerId, tuple[int, ...]], *, at_once: bool, at_rest: frozenset[NodeId] | None
    ) -> Proposal:
        """Without the nodes that gave notice or rest where that is possible, else with them for as long as they live.

        Args:
            holders: of each group.
            at_once: the plan is for the next step, so a node that it does without can send nothing any more.
            at_rest: the nodes that are to rest; None: those that do, unless they are needed.
        """
        gone, leaving = tuple(sorted(self._members.gone)), frozenset(self._members.leaving)
        resting = self._pacing.resting if at_rest is None else at_rest
        attempts = [leaving | resting, leaving, frozenset()] if at_rest is None else [leaving | resting, resting]
        policy = self.policy.with_outlook(self._outlook(at_once=at_once))
        for number, without in enumerate(dict.fromkeys(attempts), start=1):
            absent = tuple(sorted(without))
            try:
                proposal = policy.reconfigure(
                    self.plan,
                    lost=(*gone, *absent) if at_once else gone,
                    holders=holders,
                    generation=self._next_generation(),
                    leaving=() if at_once else absent,
                )
            except PlanError:
                if number == len(set(attempts)):
                    raise
            else:
                break
        if not resting <= without:
            self._wake_all()
        self._check(proposal)
        return proposal

    def _outlook(self, *, at_once: bool) -> Outlook:
        """What is known of the time to come."""
        last = self.checkpoints.last
        return Outlook(
            time_to_failure_s=self._failures.time_to_next_s(self._now),
            steps_left=self.settings.train.steps - self.step + 1,
            steps_at_stake=self.step - 1 - (last.step if last is not None else 0),
            checkpoint_every=self.settings.checkpoint_every,
            decision_s=USUAL_DECISION_S if self.timing.decision_s is None else self.timing.decision_s,
            at_once=at_once,
        )

    def _check(self, proposal: Proposal) -> None:
        """What is not f + 1 replicas of every layer is refused, unless the policy means it and says so."""
        validate(proposal.plan, fault_tolerance=None if proposal.is_degraded else self.settings.fault_tolerance)

    def _hand_over(self, holders: Mapping[WorkerId, tuple[int, ...]]) -> list[Command]:
        """Nobody is lost; nodes came, will go or have other speeds. The next placement gets its state beside a step."""
        is_due = self._pacing.is_due(self.step)
        try:
            target = self._paced(holders) if is_due else self._placement(holders, at_once=False)
        except PlanError:
            target = None  # more nodes than the job can use
        if target is None or same_work(target.plan, self.plan):
            self._standing.keep(self._members.leaving.keys())
            measured = self._close_timing() if is_due else []
            if is_due:
                estimated = self.policy.estimated(self.plan)
                self.timing.expect(estimated.step_time_s, estimated.longest_s)
            return [*measured, *self._same_again()]
        self._standing.newcomers.clear()
        warming = self.policy.warm_up(self.plan, target, self._next_generation()) if target.plan.transfers else None
        if warming is None or not self.shortages.allows(warming.plan):
            return self._reconfigure(holders)
        self._check(warming)
        return self._take(warming, Purpose.WARM_UP, StateSource.LIVE)

    def _paced(self, holders: Mapping[WorkerId, tuple[int, ...]]) -> Proposal | None:
        """The placement for the speeds that are known by now; None where the plan of now is as good."""
        stands = self._standing.stands(frozenset(self._members.nodes), self._members.staying)
        return self._pacing.choose(
            self.step,
            self._speeds.known,
            lambda resting: self._placement(holders, at_once=False, at_rest=resting),
            self.policy.estimated(self.plan) if stands else None,
            self.settings.train.steps - self.step + 1,
        )

    def _judge_speeds(self, compute_s: Mapping[WorkerId, float]) -> list[Command]:
        """What a step in which no node was lost tells of the nodes' speeds; other speeds may be worth another plan."""
        if self._recovery is not None:
            return []
        news = self._speeds.committed(self.step, compute_s)
        if news:
            self.policy = self.policy.with_speeds(self._speeds.known)
            self._pacing.look_again(self.step + 1)
        return [Publish(record) for record in news]

    def _forget_speed(self, node: NodeId) -> None:
        """It is gone. What is made of the others is not what was chosen: that is looked at again."""
        self._pacing.forget(node)
        if self._speeds.forget(node):
            self.policy = self.policy.with_speeds(self._speeds.known)
        if self._speeds.known:
            self._pacing.look_again(self.step + 1)

    def _wake_all(self) -> None:
        if self._pacing.resting:
            self._pacing.wake_all()
            self._pacing.look_again(self.step + 1)

    def _release(self) -> list[Command]:
        """Let go of the nodes that gave notice and that the plan does without."""
        commands: list[Command] = []
        for node in sorted(self._members.leaving.keys() - set(self.plan.nodes)):
            noticed_at = self._members.leaving[node]
            workers = self._members.lose(node)
            self._forget_speed(node)
            released = NodeReleased(
                node=node,
                step=self.step,
                live_nodes=len(self._members.nodes),
                seconds=self._now - noticed_at,
            )
            commands.append(JournalNode(node=node, fate=Fate.RELEASED, records=(released,)))
            commands += [Send(worker, Stop(reason="its work is handed over")) for worker in workers]
            commands += [Release(node), Publish(released)]
        return commands

    def _notice(self, event: Received) -> list[Command]:
        assert isinstance(event.message, Notice)
        node = self._members.node_of(event.worker)
        return self._node_notice(NodeNotice(node, event.message.grace_s, event.message.cause))

    def _node_notice(self, event: NodeNotice) -> list[Command]:
        is_here = event.node in self._members.nodes or (self.phase is Phase.RETURNING and self._is_known(event.node))
        if not is_here or event.node in self._members.leaving:
            return []
        self._members.leaving[event.node] = self._now
        self._standing.newcomers.discard(event.node)
        leaving = NodeLeaving(node=event.node, step=self.step, grace_s=event.grace_s, cause=event.cause)
        return [JournalNode(node=event.node, fate=Fate.LEAVING, records=(leaving,)), Publish(leaving)]

    def _is_known(self, node: NodeId) -> bool:
        """It may not have come back yet."""
        return node not in self._members.gone and (node in self._past.joined or node < self.settings.num_nodes)

    # Too few nodes

    def _exhausted(self, reason: str, status: RunStatus = RunStatus.EXHAUSTED) -> list[Command]:
        if not self.settings.waits:
            return self._save_then_end(status, reason)
        self._waiting = reason
        return self._save()

    def _end_short_of_memory(self) -> list[Command]:
        """Nobody computes: the state before the step in progress is saved."""
        assert self.shortages.fatal is not None
        if self.step == 1:
            return self._end(RunStatus.FAILED, self.shortages.fatal)  # there is nothing to save
        return self._save_then_end(RunStatus.FAILED, self.shortages.fatal)

    def _wait(self) -> list[Command]:
        assert self._waiting is not None
        self.phase = Phase.WAITING
        live = len(self._members.nodes)
        record = Waiting(step=self.step, live_nodes=live, reason=self._waiting)
        self._waiting = None
        if self._stopping:
            return self._end(RunStatus.INTERRUPTED, "stopped by the user")
        return [Publish(record)]

    def _try_again(self) -> list[Command]:
        """A node joined while the job waited for one."""
        holders = self._holders()
        if without := self._without_replica(holders):
            return self._restore(without)
        return self._reconfigure(holders)

    def _restore(self, without: list[int]) -> list[Command]:
        """Some group has no replica left: back to the last checkpoint, or to the start if nothing was committed."""
        layers = sorted({layer for group in without for layer in self.plan.groups[group].layers})
        lost = f"no replica of layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} is left"
        checkpoint = self.checkpoints.last
        if self.shortages.fatal is not None:
            return self._end(RunStatus.FAILED, f"{self.shortages.fatal}; {lost}")
        if checkpoint is None and self.step > self.settings.first_step:
            remedy = "Set run.checkpoint_every, or a higher resilience.fault_tolerance."
            return self._end(RunStatus.FAILED, f"{lost} and there is no checkpoint. {remedy}")
        try:
            proposal = self.policy.initial(self._members.nodes, self._next_generation())
            if not self.shortages.allows(proposal.plan):
                raise self.shortages.refuse(proposal.plan)
        except PlanError as error:
            saved = f"Checkpoint: step {checkpoint.step}." if checkpoint else "There is no checkpoint."
            reason = f"{lost}; {error} {saved}"
            if not self.settings.waits:
                status = RunStatus.FAILED if isinstance(error, WouldRunOut) else RunStatus.EXHAUSTED
                return self._end(status, reason)
            self._waiting = reason
            return self._wait()
        self._wake_all()
        self.checkpoints.under_way = None
        committed = self.step - 1
        self.step = 1 + (checkpoint.step if checkpoint else 0)
        self.skipped_steps = {step for step in self.skipped_steps if step < self.step}
        self._exponents = self._exponents_of(checkpoint)
        if self._recovery is not None:
            self._recovery.reason = f"{lost}: back to step {self.step - 1}."
        source = StateSource.CHECKPOINT if checkpoint else StateSource.INITIAL
        record = Restored(from_step=committed, to_step=self.step - 1, reason=lost)
        folder = checkpoint.folder if checkpoint else ""
        return self._take(proposal, Purpose.RESTORE, source, folder, (record,))

    def _exponents_of(self, checkpoint: CheckpointRef | None) -> tuple[int, ...]:
        return checkpoint.exponents if checkpoint else (FIRST_EXPONENT,) * self.settings.num_groups

    # Votes and commits

    def _ready(self, event: Received) -> list[Command]:
        assert isinstance(event.message, Ready)
        if event.message.generation == self.plan.generation:
            self._unready.discard(event.worker)
        return []

    def _voted(self, event: Received) -> list[Command]:
        vote = event.message
        assert isinstance(vote, Vote)
        assert self._ballot is not None
        if (vote.generation, vote.step) != (self.plan.generation, self.step):
            return []
        if event.worker in self._members.addresses:
            self._ballot.cast(event.worker, vote)
        return self._commit() if self._ballot.is_enough(self._members.addresses) else []

    def _commit(self) -> list[Command]:
        """The step is done: durable first, then told to everybody who voted."""
        assert self._ballot is not None
        tally = self._ballot.tally()
        self.skipped += tally.missing
        self.duplicated += tally.twice
        if tally.missing or tally.twice:
            raise ProtocolError(
                f"step {self.step}: {tally.missing} contributions missing and {tally.twice} counted twice; "
                f"recent: {'; '.join(self.history)}"
            )
        self.shortages.committed(self.plan)
        committed, generation = self.step, self.plan.generation
        norm = gradient_norm(tally.norms)
        factor = clip_factor(norm, self.settings.train.clip_norm)
        loss = mean_loss(tally.losses)
        if is_finite(loss, norm):
            self._exponents = next_exponents(self._exponents, tally.norms)
        elif self.settings.train.when_not_finite is WhenNotFinite.SKIP:
            factor = NOT_APPLIED
            self.skipped_steps.add(committed)
        else:
            return self._save_then_end(RunStatus.FAILED, not_finite(committed, loss, norm))
        told = self._judge_speeds(tally.compute_s)
        hold = self._holds_after(committed)
        message = Commit(
            generation=generation,
            step=committed,
            clip_factor=factor,
            exponents=self._exponents,
            hold=hold,
            loss=loss,
            norm=norm,
        )
        record = step_committed(
            self.settings.train,
            message,
            loss=loss,
            norm=norm,
            live_nodes=len(self._members.nodes),
            duration_s=max(self._now - self._step_began, 1e-9),
        )
        commands: list[Command] = [JournalCommit(commit=message, records=(record,))]
        parts = self._save_beside(committed) if committed < self.settings.train.steps else {}
        for worker in self._ballot.voters:
            save = parts.get(worker)
            commands.append(Send(worker, msgspec.structs.replace(message, save=save) if save else message))
        commands += [Publish(record), *told]
        if self._recovery is None:
            self.timing.committed(record.duration_s)
        self.step += 1
        self._step_began = self._now
        self._ballot = Ballot(self.plan)
        if self._recovery is not None:
            self._recovery.committed(self._now)
        return commands + (self._after_boundary(committed) if hold else [*self._close_recovery(), *self._release()])

    def _holds_after(self, committed: int) -> bool:
        done = committed == self.settings.train.steps
        return done or self._stopping or not self._plan_stands(committed + 1)

    def _plan_stands(self, step: int) -> bool:
        return self._standing.stands(frozenset(self._members.nodes), self._members.staying) and not self._pacing.is_due(
            step
        )

    def _after_boundary(self, committed: int) -> list[Command]:
        """Everybody holds after the commit: end or go on."""
        if committed == self.settings.train.steps:
            return self._save_then_end(RunStatus.COMPLETED, "")
        if self._stopping:
            return self._save_then_end(RunStatus.INTERRUPTED, "stopped by the user")
        return self._go_on()

    def _go_on(self) -> list[Command]:
        """Begin the step with the same plan if it still stands, else with a new one."""
        if self._plan_stands(self.step):
            return [*self._same_again(), *self._close_recovery()]
        holders = self._holders()
        if without := self._without_replica(holders):
            return self._restore(without)
        if self._standing.has_lost_nobody(frozenset(self._members.nodes)):
            return [*self._hand_over(holders), *self._close_recovery()]
        return [*self._reconfigure(holders), *self._close_recovery()]

    def _same_again(self) -> list[Command]:
        again = msgspec.structs.replace(self.plan, generation=self._next_generation(), transfers=())
        proposal = Proposal(
            plan=again, reason="The plan stays.", step_time_s=0.0, transfer_bytes=0, how="unchanged", longest_s=0.0
        )
        return [*self._take(proposal, Purpose.GO_ON, StateSource.LIVE), *self._release()]

    def _decision_took(self, event: DecisionTook) -> list[Command]:
        self.timing.decided(event.seconds)
        if self._recovery is not None:
            self._recovery.decide_s += event.seconds
        return []

    def _close_recovery(self) -> list[Command]:
        recovery = self._recovery
        if recovery is None or recovery.resumed is None:
            return []
        self._recovery = None
        record = Recovered(recovery=recovery.close(self.settings.train.num_microbatches))
        return [JournalRecovery(records=(record,)), Publish(record)]

    # Checkpoints and the end

    def _save_then_end(self, status: RunStatus, message: str) -> list[Command]:
        self._ending = (status, message)
        return [*self._close_recovery(), *self._save()]

    def _save(self) -> list[Command]:
        """Ask for the state after the last committed step, every group from one of its holders, and wait for it."""
        last, under_way = self.checkpoints.last, self.checkpoints.under_way
        if last is not None and last.step == self.step - 1:
            return self._after_saving()
        self.phase = Phase.SAVING
        if under_way is None or under_way.step != self.step - 1:
            self.checkpoints.begin(self.step - 1, len(self.plan.groups), self._exponents, self._now)
        return self._ask_to_save()

    def _save_beside(self, committed: int) -> dict[WorkerId, Save]:
        """What each voter writes of the committed step while training goes on; nothing while an earlier is written."""
        assert self._ballot is not None
        if not self.checkpoints.is_due(committed) or self.checkpoints.under_way is not None:
            return {}
        saving = self.checkpoints.begin(committed, len(self.plan.groups), self._exponents, self._now)
        try:
            return saving.assign({worker: self.plan.groups_of[worker] for worker in self._ballot.voters})
        except NobodyHolds:
            self.checkpoints.under_way = None
            return {}

    def _ask_to_save(self) -> list[Command]:
        assert self.checkpoints.under_way is not None
        try:
            parts = self.checkpoints.under_way.assign(self._holders())
        except NobodyHolds as lost:
            return self._could_not_save(f"no replica of parameter group {lost.group} is left")
        return [Send(worker, save) for worker, save in parts.items()]

    def _lose_writers(self, node: NodeId) -> list[Command]:
        """The node's processes are gone: what they were to write beside training, nobody else has any more."""
        saving = self.checkpoints.under_way
        if saving is None:
            return []
        saving.forget(self._members.workers_of(node))
        return self._give_up_saving("a node was lost that wrote it") if saving.has_orphans else []

    def _give_up_saving(self, why: str) -> list[Command]:
        """Training goes on, and the last whole checkpoint stays the last."""
        saving = self.checkpoints.under_way
        if saving is None or self.phase is Phase.SAVING:
            return []
        self.checkpoints.under_way = None
        note = Note(level="warning", text=f"the checkpoint of step {saving.step} is given up: {why}")
        return [Discard(saving.folder), Publish(note)]

    def _could_not_save(self, why: str) -> list[Command]:
        lost, self.checkpoints.under_way = f"step {self.step - 1} could not be saved: {why}", None
        without = self._without_replica(self._holders())
        if self._ending is None and without:
            return self._restore(without)
        if self._ending is None:
            return [Publish(Note(level="warning", text=lost)), *self._after_saving()]
        status, message = self._ending
        status = RunStatus.FAILED if status is RunStatus.COMPLETED else status
        return self._end(status, f"{message}; {lost}".removeprefix("; "))

    def _saved(self, event: Received) -> list[Command]:
        message = event.message
        assert isinstance(message, Saved)
        saving = self.checkpoints.answered_by(message)
        if saving is None:
            return []
        saving.written(message.groups)
        if not saving.is_whole:
            return []
        return [WriteManifest(saving.step, saving.folder, saving.groups, saving.exponents)]

    def _not_saved(self, event: Received) -> list[Command]:
        message = event.message
        assert isinstance(message, NotSaved)
        return [] if self.checkpoints.answered_by(message) is None else self._saving_failed(message.text)

    def _manifest_failed(self, event: ManifestFailed) -> list[Command]:
        return self._saving_failed(event.text) if self.checkpoints.is_under_way(event.step) else []

    def _saving_failed(self, why: str) -> list[Command]:
        return self._could_not_save(why) if self.phase is Phase.SAVING else self._give_up_saving(why)

    def _manifest_written(self, event: ManifestWritten) -> list[Command]:
        if not self.checkpoints.is_under_way(event.step):
            return []  # given up while it was made whole: a later one was wanted, or the job went back
        saving = self.checkpoints.complete()
        record = CheckpointSaved(step=event.step, folder=event.folder, seconds=self._now - saving.began)
        assert self.checkpoints.last is not None
        entry = JournalCheckpoint(checkpoint=self.checkpoints.last, records=(record,))
        return [entry, Publish(record), *(self._after_saving() if self.phase is Phase.SAVING else [])]

    def _after_saving(self) -> list[Command]:
        is_exhausted = self._waiting is not None or (
            self._ending is not None and self._ending[0] is RunStatus.EXHAUSTED
        )
        if is_exhausted and self._standing.newcomers:
            self._standing.newcomers.clear()  # who joined while the state was saved may be enough
            self._ending = self._waiting = None
            return self._try_again()
        if self._ending is not None:
            return self._end(*self._ending)
        if self._waiting is not None:
            return self._wait()
        return self._go_on()

    def _stop_requested(self, event: StopRequested) -> list[Command]:
        self._stopping = True
        if self.phase is Phase.GATHERING:
            return self._end(RunStatus.INTERRUPTED, "stopped by the user before the first step")
        if self.phase is Phase.WAITING:
            return self._end(RunStatus.INTERRUPTED, "stopped by the user")
        if self.phase is Phase.SAVING and self._ending is None:
            self._ending = (RunStatus.INTERRUPTED, "stopped by the user")
        text = f"stopping: step {self.step} is finished and saved; interrupt again to end at once"
        return [JournalStop(), Publish(Note(level="info", text=text))]

    def _failed(self, event: Received) -> list[Command]:
        failure = event.message
        assert isinstance(failure, Failed)
        return self._end(RunStatus.FAILED, f"{failure.where}: {failure.text}")

    def _end(self, status: RunStatus, message: str) -> list[Command]:
        self.phase = Phase.ENDED
        stop = Stop(reason=status.value)
        ended = RunEnded(
            status=status,
            steps=self.step - 1,
            message=message,
            skipped_microbatches=self.skipped,
            duplicated_microbatches=self.duplicated,
            skipped_steps=len(self.skipped_steps),
        )
        stops: list[Command] = [Send(worker, stop) for worker in self._members.workers]
        return [
            *self._close_recovery(),
            JournalEnd(records=(ended,)),
            *stops,
            *self._close_timing(),
            Publish(ended),
            Finish(status, message),
        ]


Handler = Callable[[Coordinator, Any], list[Command]]

_ALIVE = tuple(phase for phase in Phase if phase is not Phase.ENDED)
_AT_WORK = (Phase.TRAINING, Phase.SALVAGING, Phase.SAVING)
_PLACING = (Purpose.START, Purpose.RECONFIGURE, Purpose.RESTORE)

TRANSITIONS: Mapping[tuple[Phase, str], Handler] = {
    (Phase.RETURNING, "Restarted"): Coordinator._restarted,
    (Phase.RETURNING, "WorkerJoined"): Coordinator._came_back,
    (Phase.RETURNING, "Returned"): Coordinator._returned,
    (Phase.RETURNING, "NodeGone"): Coordinator._lost_while_returning,
    (Phase.RETURNING, "Vote"): Coordinator._voted_while_returning,
    (Phase.RETURNING, "Ready"): Coordinator._ready_while_returning,
    # Answers to the coordinator before.
    **{(Phase.RETURNING, name): Coordinator._ignore for name in ("Report", "Saved", "NotSaved", "Damaged")},
    **{
        (phase, "Returned"): Coordinator._returned_late
        for phase in (Phase.GATHERING, Phase.TRAINING, Phase.SALVAGING, Phase.SAVING, Phase.WAITING)
    },
    (Phase.GATHERING, "WorkerJoined"): Coordinator._joined,
    (Phase.GATHERING, "NodeGone"): Coordinator._lost_while_gathering,
    **{(phase, "WorkerJoined"): Coordinator._joined_running for phase in (*_AT_WORK, Phase.WAITING)},
    (Phase.WAITING, "NodeGone"): Coordinator._lost_while_waiting,
    (Phase.TRAINING, "NodeGone"): Coordinator._lost_in_step,
    (Phase.SALVAGING, "NodeGone"): Coordinator._lost_in_step,
    (Phase.SAVING, "NodeGone"): Coordinator._lost_while_saving,
    (Phase.TRAINING, "Ready"): Coordinator._ready,
    (Phase.SALVAGING, "Ready"): Coordinator._ready,
    (Phase.SAVING, "Ready"): Coordinator._ready,
    (Phase.TRAINING, "Vote"): Coordinator._voted,
    (Phase.TRAINING, "Damaged"): Coordinator._damaged,
    (Phase.SALVAGING, "Damaged"): Coordinator._damaged,
    (Phase.SAVING, "Damaged"): Coordinator._ignore,
    (Phase.WAITING, "Damaged"): Coordinator._ignore,
    (Phase.SALVAGING, "Report"): Coordinator._reported,
    **{(phase, "Saved"): Coordinator._saved for phase in (*_AT_WORK, Phase.WAITING)},
    **{(phase, "NotSaved"): Coordinator._not_saved for phase in (*_AT_WORK, Phase.WAITING)},
    **{(phase, "ManifestWritten"): Coordinator._manifest_written for phase in (*_AT_WORK, Phase.WAITING)},
    **{(phase, "ManifestFailed"): Coordinator._manifest_failed for phase in (*_AT_WORK, Phase.WAITING)},
    # A vote that crossed a halt or a new plan, a report that a later plan overtook: old news, not errors.
    (Phase.SALVAGING, "Vote"): Coordinator._ignore,
    (Phase.SAVING, "Vote"): Coordinator._ignore,
    (Phase.TRAINING, "Report"): Coordinator._ignore,
    (Phase.SAVING, "Report"): Coordinator._ignore,
    **{(Phase.WAITING, name): Coordinator._ignore for name in ("Ready", "Vote", "Report")},
    **{(phase, "Notice"): Coordinator._notice for phase in _ALIVE},
    **{(phase, "NodeNotice"): Coordinator._node_notice for phase in _ALIVE},
    **{(phase, "StopRequested"): Coordinator._stop_requested for phase in _ALIVE},
    **{(phase, "FaultInjected"): Coordinator._fault_injected for phase in _ALIVE},
    **{(phase, "OutOfMemory"): Coordinator._out_of_memory for phase in _ALIVE},
    **{(phase, "DecisionTook"): Coordinator._decision_took for phase in _ALIVE},
    **{(phase, "Failed"): Coordinator._failed for phase in _ALIVE},
    (Phase.ENDED, "Restarted"): Coordinator._restarted,
    (Phase.ENDED, "WorkerJoined"): Coordinator._joined_too_late,
    **{
        (Phase.ENDED, name): Coordinator._ignore
        for name in (
            "NodeGone",
            "Returned",
            "Ready",
            "Vote",
            "Damaged",
            "Report",
            "Saved",
            "NotSaved",
            "ManifestWritten",
            "ManifestFailed",
            "StopRequested",
            "FaultInjected",
            "OutOfMemory",
            "DecisionTook",
            "Failed",
            "Notice",
            "NodeNotice",
        )
    },
}
