"""The run as its coordinator knows it: where it is, which nodes are in it, and what is under way.

State and questions about it. Whatever changes it is in the other modules of the package; nothing here gives commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

import msgspec

from planaria.estimate.step_remainder import PlanInterval
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.program.audits import Audit, audits_of
from planaria.plan.thresholds import USUAL_DECISION_S
from planaria.plan.validate import lacking
from planaria.planner.placement.senders import unheld
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Policy
from planaria.protocol.membership.members import Membership
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import PlanTaken, RunStatus
from planaria.protocol.messages.run_measurements import RunMeasurements
from planaria.protocol.phases import AT_WORK, Phase
from planaria.protocol.planning.failure_rate import Failures
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.planning.node_count import NodeCount
from planaria.protocol.planning.plan_selection import PlanSelector, Situation
from planaria.protocol.planning.plan_validity import PlanValidity, SecondLook
from planaria.protocol.planning.policy_switch import MakePolicy, PolicySwitch
from planaria.protocol.planning.precompute import Precomputed
from planaria.protocol.planning.step_times import StepTimes
from planaria.protocol.planning.transition_times import ReadRates, TransitionTimes
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.returning import ReturningWorkers
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.run.spending import Spending
from planaria.protocol.step.agreement import Disputes
from planaria.protocol.step.ballot import Ballot
from planaria.protocol.step.cadence import Cadence
from planaria.protocol.step.checkpoint import Checkpoints
from planaria.protocol.step.commit import first_exponents
from planaria.protocol.step.damage import Damages
from planaria.protocol.step.evaluation import Evaluations
from planaria.protocol.step.halt_reports import Salvage
from planaria.protocol.step.recovery import OpenRecovery
from planaria.protocol.step.retained_replicas import RetainedReplicas
from planaria.protocol.thresholds import LEARNT_AGAIN_S


@dataclass(slots=True)
class Counts:
    """Counts for the user. Contributions skipped or duplicated are 0, or the machine has stopped itself.

    Attributes:
        skipped: that a commit lacked.
        duplicated: that a commit had twice.
        dropped: microbatches that plans left out of the steps committed so far.
    """

    skipped: int = 0
    duplicated: int = 0
    dropped: int = 0


@dataclass(slots=True)
class Intent:
    """What is wanted of the run beside going on.

    Attributes:
        is_stopping: the user wants it to end at the next boundary.
        ending: it ends as soon as the state is saved: how, and why.
        waiting: it waits for nodes as soon as the state is saved: why.
        discards: it may end without its state on disk.
        failure: the user's own code raised: where, and what; so the run ends.
        unsaved: why the state with which it is to end could not be saved so far, for people.
    """

    is_stopping: bool = False
    discards: bool = False
    failure: str | None = None
    unsaved: str | None = None
    ending: tuple[RunStatus, str] | None = None
    waiting: str | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether the run ends or waits for lack of nodes, so that new ones may change it."""
        return self.waiting is not None or (self.ending is not None and self.ending[0] is RunStatus.EXHAUSTED)


class Attempt:
    """The attempt at the step in progress.

    Attributes:
        began: monotonic seconds at which it began.
        usual_s: estimated seconds of a step under the plan with which it began.
        ballot: of the votes under the plan in force; None before there is one.
        unready: workers whose state is on its way, or who stopped inside the step.
        salvage: what workers reported of the step after the losses.
        begun_in: generation of the plan under which it began.
        is_void: nobody can finish what others began of the step: it is begun anew.
        is_given_up: it is not begun anew either, as the run stops.
    """

    def __init__(self) -> None:
        self.began = 0.0
        self.usual_s = 0.0
        self.begun_in = -1
        self.ballot: Ballot | None = None
        self.unready: set[WorkerId] = set()
        self.salvage = Salvage()
        self.is_void = False
        self.is_given_up = False
        self._left: list[tuple[Plan, float]] = []
        self._since = 0.0

    def begin(self, now: float) -> None:
        """Begins another step, or the same one anew."""
        self.began = self._since = now
        self._left = []

    def leave(self, plan: Plan, now: float) -> None:
        """Records that the plan in force is left for one that finishes the step."""
        self._left.append((plan, now - self._since))
        self._since = now

    def so_far(self, plan: Plan, now: float, stretch: float) -> list[PlanInterval]:
        """Returns the plans of the step, the present one last, with the profile's seconds each was in force."""
        lived = [*self._left, (plan, now - self._since)]
        return [PlanInterval(plan=plan, seconds=seconds / stretch) for plan, seconds in lived]

    @property
    def votes(self) -> Ballot:
        assert self.ballot is not None, "no ballot before there is a plan"
        return self.ballot

    def forget(self, worker: WorkerId) -> None:
        """Forgets a lost worker."""
        self.unready.discard(worker)
        self.salvage.forget(worker)
        if self.ballot is not None:
            self.ballot.withdraw(worker)


class Run:
    """All state of one run.

    Args:
        settings: the run's settings.
        policy: the policy that makes the plans.
        past: what the journal of a coordinator that died says.
        shortages: the shortages of memory that were seen.
        make: makes other policies; None: the run keeps to the one that it begins with.

    Attributes:
        phase: the machine's phase.
        now: monotonic seconds of the event that is handled.
        step: in progress; every earlier one is committed.
        exponents: grid exponents of the step in progress.
        lineage: generation of the plan whose state was loaded or initial; see `PlanMessage`.
        current: the plan in force; None until the workers have joined.
        is_degraded: the plan in force has too few replicas of some layer.
        decision: the last one on a placement, as it was told.
        suspects: nodes of which one or another had a wrong sum, in a step in which several had.
        recovery: from the losses that are not recovered from.
        history: the machine's latest transitions: phase before, event, phase after.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: Policy,
        past: JournalState | None,
        shortages: Shortages | None,
        make: MakePolicy | None = None,
    ) -> None:
        self.settings = settings
        self.phase = Phase.GATHERING
        self.now = 0.0
        self.step = settings.first_step
        self.exponents = self.exponents_of(settings.resume)
        self.lineage = -1
        self.current: Plan | None = None
        self.is_degraded = False
        self.decision: PlanTaken | None = None
        switching = PolicySwitch(settings.policy_name, make, may_drop=settings.may_drop)
        self.plan_selector = PlanSelector(
            policy, shortages or Shortages(), settings.fault_tolerance, switching, settings.evidence
        )
        self.members = Membership(settings.num_nodes, settings.devices_per_node)
        self.plan_validity = PlanValidity()
        self.kept = RetainedReplicas()
        cadence = Cadence(settings.checkpoint_every, settings.checkpoint_every_s)
        self.checkpoints = Checkpoints(settings.checkpoint_root, settings.resume, cadence)
        self.step_times = StepTimes()
        self.loading = ReadRates(settings.storage)
        self.transition_times = TransitionTimes()
        self.precomputed = Precomputed()
        self.replan_trigger = SecondLook()
        self.failures = Failures(settings.mean_time_between_failures_s, settings.watched)
        self.damages = Damages()
        self.disputes = Disputes()
        self.suspects: set[NodeId] = set()
        self.attempt = Attempt()
        self.recovery: OpenRecovery | None = None
        self.intent = Intent()
        self.spending = Spending(settings.budget, settings.spent)
        self.node_count = NodeCount(settings.num_nodes, settings.most_nodes)
        self.counts = Counts()
        self.evaluations = Evaluations(settings.evaluation, settings.train.steps, settings.evaluated)
        for step in settings.saved:
            self.evaluations.saved(step)
        self.skipped_steps: set[int] = set()
        self.past = past or JournalState()
        self.returning = ReturningWorkers(self.past, settings.num_nodes, settings.devices_per_node)
        self.history: deque[tuple[Phase, str, Phase]] = deque(maxlen=64)
        self._written = RunMeasurements()
        self._num_written = 0
        """Nodes that had joined when it was written."""
        if past is not None:
            self._begin_with(past)

    def _begin_with(self, past: JournalState) -> None:
        self.phase = Phase.RETURNING if past.end is None else Phase.ENDED
        self.step = past.step or self.step
        self.checkpoints.last = past.checkpoint or self.checkpoints.last
        self.checkpoints.earlier, self.checkpoints.unproven = past.earlier, past.unproven
        self.skipped_steps = set(past.skipped_steps)
        for record in past.evaluated:
            self.evaluations.note(record)
        for step in past.saved:
            self.evaluations.saved(step)
        self.counts.dropped = past.num_dropped
        self.decision = past.decision
        if past.policy is not None and past.policy is not self.plan_selector.policy_switch.name:
            # Before shortages are known: it may have no plan within what is left.
            self.plan_selector.switch(past.policy)
        self.shortages.recall(past.learnt.shortages, past.carried)
        self.intent.is_stopping = past.is_stopping
        self.members.gone = set(past.gone)
        per_node = self.settings.devices_per_node
        self.members.lost_devices = {WorkerId(node * per_node + device) for node, device in past.lost_devices}
        self.plan_selector.lack(self.members.lost_devices)
        self.members.wrong_hosts.update(past.wrong_hosts)
        self.members.probation, self.suspects = dict(past.probation), set(past.suspects)
        self.disputes.recall(past.disputes)
        self.members.leaving = dict.fromkeys(past.leaving, 0.0)
        self.members.zones, self.members.labels = dict(past.zones), dict(past.labels)
        self.plan_selector.locate(self.members.zones)
        self._written = past.learnt
        self._recall(past.learnt)
        if past.plan is not None:
            self.step_times.expect(past.plan.step_time_s, past.plan.longest_s)
            message = past.plan.message  # nobody was told of one that goes on with another's step
            self.is_degraded = not message.goes_on and bool(lacking(message.plan, self.settings.fault_tolerance))
            if past.last_step_s is not None:
                self.step_times.took_before(past.last_step_s)
            self.step_times.patience_s = float("inf")

    def read_clock(self) -> None:
        """Has moments of another host's clock count as they do on this one's, which is known from now on."""
        learnt = self.past.learnt.on(self.settings.clock, self.now)
        if learnt is not self.past.learnt:
            self._recall_moments(learnt)

    def _recall(self, learnt: RunMeasurements) -> None:
        self.transition_times.recall(learnt.moves)
        self.loading.recall(learnt.read_bytes_per_s)
        self.step_times.decision_s = learnt.decision_s
        self.replan_trigger.chosen_for_s = learnt.chosen_for_s
        self.plan_selector.recall(learnt, self.past.joined)
        self.node_count.recall(learnt.given_back)
        self._recall_moments(learnt)

    def _recall_moments(self, learnt: RunMeasurements) -> None:
        self.failures.recall(learnt.losses)
        self.plan_selector.straggler_policy.recall(learnt.rests, self.past.joined)
        self.checkpoints.cadence.recall(learnt.saves)
        self.spending.recall(learnt.spent)

    @property
    def recent(self) -> str:
        """The latest transitions, as text for people."""
        return "; ".join(f"{before.value} --{event}--> {after.value}" for before, event, after in self.history)

    @property
    def plan(self) -> Plan:
        assert self.current is not None, "no plan before the workers have joined"
        return self.current

    @property
    def shortages(self) -> Shortages:
        return self.plan_selector.shortages

    @property
    def fatal(self) -> str | None:
        """Why the run must end, though it may have nodes enough; None if it need not."""
        return self.intent.failure or self.shortages.fatal

    def exponents_of(self, checkpoint: CheckpointRef | None) -> tuple[int, ...]:
        """Returns the exponents with which a run begins at a checkpoint, or at its start."""
        dtype = self.settings.train.dtype
        return checkpoint.exponents if checkpoint else first_exponents(self.settings.num_groups, dtype)

    def audits(self, step: int) -> tuple[Audit, ...]:
        """Returns what is audited in a step that begins under the plan in force: by two, where the first time did not
        tell who was wrong. Of nodes on probation, it is all that they compute."""
        auditors = 2 if self.disputes.is_open(step) else 1
        seed, share, watched = self.settings.train.seed, self.settings.audit, self.members.on_probation
        return audits_of(self.plan, seed, step, share, auditors=auditors, wholly=watched)

    # Who holds what

    def holders(self) -> dict[WorkerId, tuple[int, ...]]:
        """Returns the groups that each live worker holds whole as of the last commit."""
        workers, nothing = self.members.workers, repeat(tuple[int, ...]())
        holders = dict(zip(workers, map(self.plan.kept_of.get, workers, nothing), strict=True))
        holders.update((w, held) for w, held in self.attempt.salvage.held.items() if w in holders)
        return self.kept.added_to(holders, self.step) if self.without_replica(holders) else holders

    def without_replica(self, holders: Mapping[WorkerId, tuple[int, ...]]) -> list[int]:
        """Returns the groups that no worker holds."""
        return unheld(range(len(self.plan.groups)), holders.values())

    def situation(self, holders: Mapping[WorkerId, tuple[int, ...]]) -> Situation:
        """Returns the state of the job for which a placement may be made."""
        return Situation(
            plan=self.plan.of_step,
            step=self.step,
            holders=holders,
            gone=frozenset(self.members.gone),
            leaving=frozenset(self.members.leaving),
            forecast=self.forecast,
            now=self.now,
        )

    @property
    def forecast(self) -> FailureForecast:
        """What is known of the time to come: losses and the cost of transitions."""
        last, decision_s = self.checkpoints.last, self.step_times.decision_s
        time_to_failure_s = self.failures.time_to_next_s(self.now)
        return FailureForecast(
            time_to_failure_s=time_to_failure_s,
            nodes_together=self.failures.nodes_together,
            steps_left=max(1, self.settings.train.steps - self.step + 1),
            steps_at_stake=self.step - 1 - (last.step if last is not None else 0),
            checkpoint_every=self.settings.checkpoint_every or 0,
            checkpoint_every_s=self.checkpoints.cadence.interval_s(time_to_failure_s),
            storage=self.loading.storage,
            decision_s=USUAL_DECISION_S if decision_s is None else decision_s,
            is_prepared=self.plan_validity.is_warming,
            change_s=self.transition_times.change_s,
            transfer_stretch=self.transition_times.transfer_stretch,
            restore_s=self.transition_times.restore_s,
            after_loss=self.recovery is not None,
        )

    # What is known of the running job

    @property
    def learnt(self) -> RunMeasurements:
        """What was measured so far, for the next coordinator, should this one die."""
        return RunMeasurements(
            losses=self.failures.seen,
            moves=self.transition_times.measured,
            read_bytes_per_s=self.loading.rates,
            decision_s=self.step_times.decision_s,
            chosen_for_s=self.replan_trigger.chosen_for_s,
            speeds=self.plan_selector.measured.speeds.learnt,
            rests=self.plan_selector.straggler_policy.learnt,
            shortages=self.shortages.learnt,
            saves=self.checkpoints.cadence.learnt,
            links=self.plan_selector.measured.links.learnt,
            stretch=self.plan_selector.measured.stretch,
            spent=self.spending.seen,
            given_back=self.node_count.learnt,
        )

    def to_write(self) -> RunMeasurements | None:
        """Returns what was learnt, if it is more than was written down, or that was long ago; the caller writes it
        down."""
        learnt = msgspec.structs.replace(self.learnt, clock=self.settings.clock, at=self._written.at)
        if learnt == self._written and self.now - (learnt.at or 0.0) < LEARNT_AGAIN_S:
            return None
        self._written = msgspec.structs.replace(learnt, at=self.now)
        return self._written

    def to_write_of_join(self) -> RunMeasurements | None:
        """Returns what `to_write` does, but only once an eighth more have joined than last time: the links of all of
        them are in it, and thousands may join in a second. The next plan or commit has it too."""
        num_nodes = self.members.num_nodes
        if 8 * num_nodes < 9 * self._num_written:
            return None
        self._num_written = num_nodes
        return self.to_write()

    # Whether the plan in force goes on

    @property
    def is_evaluating(self) -> bool:
        """Whether the state before the step in progress is evaluated at this moment."""
        return self.phase is Phase.TRAINING and self.current is not None and self.current.evaluation is not None

    @property
    def stands(self) -> bool:
        """Whether the nodes of the placement are there and stay, and no others came."""
        return self.plan_validity.stands(frozenset(self.members.nodes), self.members.staying)

    def goes_on(self, step: int) -> bool:
        """Returns whether the plan in force is the one for this step too."""
        return self.stands and not self.plan_selector.is_due(step, self.now)

    @property
    def over_budget(self) -> str | None:
        """Why the next step is more than the budget allows for; None: it is not."""
        return self.spending.over(self.step_times.expected_step_s)

    # Nodes

    def is_known(self, node: NodeId) -> bool:
        """Returns whether the node is in the job, though it may not have come back yet."""
        return node not in self.members.gone and (node in self.past.joined or node < self.settings.num_nodes)

    @property
    def num_live(self) -> int:
        """Number of live nodes, for people, with those that have not come back yet to a new coordinator."""
        return self.members.num_nodes + len(self.away)

    @property
    def away(self) -> frozenset[NodeId]:
        """Nodes of an earlier coordinator that are not back yet; none unless the phase is `RETURNING`."""
        return self.members.absent(self.past.joined) if self.phase is Phase.RETURNING else frozenset()

    def needs(self, node: NodeId) -> bool:
        """Returns whether the plan in force needs the node, so that its loss strikes the job."""
        if self.phase is Phase.RETURNING:
            message = self.returning.message
            return message is not None and node in message.plan.nodes
        return self.phase in AT_WORK and node in self.plan.nodes

    @property
    def awaited(self) -> frozenset[WorkerId]:
        """Workers of an earlier coordinator that have not come back; none unless the phase is `RETURNING`."""
        if self.phase is not Phase.RETURNING:
            return frozenset()
        return self.returning.awaited(self.members.addresses, self.members.gone) - self.members.lost_devices
