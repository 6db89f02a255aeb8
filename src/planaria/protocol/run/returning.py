"""Workers that return to a coordinator that was started again: which are awaited, and what they and the journal say.

Pure bookkeeping: the machine asks it, and acts. Two facts make it safe. A worker hears of a commit or a plan only after
it was written down, so that whatever any worker reports was decided; and a position (generation, step) never goes
back, so that the highest of the journal and all reports is where the job is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

import msgspec

from planaria.job.sections.train import TrainSection
from planaria.plan.ledger import Ledger, mask_of
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.planner.placement.senders import unheld
from planaria.protocol.messages.events import Received
from planaria.protocol.messages.from_worker import Ready, Returned, Vote, WorkerPhase
from planaria.protocol.messages.journal import AnyEntry, JournalCommit, JournalPlan
from planaria.protocol.messages.to_worker import Commit, PlanMessage, StateSource
from planaria.protocol.planning.plan_validity import PlanValidity
from planaria.protocol.run.announcements import step_committed
from planaria.protocol.run.replay import JournalState
from planaria.protocol.step.retained_replicas import Holders


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the job is: the plan in force, the step in progress and the commit before it.

    Attributes:
        message: the plan in force.
        step: the step in progress.
        commit: of the step before it, if that was not read from a checkpoint.
        exponents: of the step in progress.
    """

    message: PlanMessage
    step: int
    commit: Commit | None
    exponents: tuple[int, ...]

    @property
    def is_boundary(self) -> bool:
        """Whether all workers wait after the last commit, and no plan was made for the next step."""
        commit, plan = self.commit, self.message.plan
        return commit is not None and commit.hold and commit.generation == plan.generation


class ReturningWorkers:
    """What returning workers have reported so far.

    Args:
        past: what the journal tells of the run.
        num_nodes: that the job was started with.
        devices_per_node: workers on each node.

    Attributes:
        began: monotonic seconds at which it began.
        generation: the highest that anybody knows of.
        serial: the highest of any order to save.
        message: the plan in force, as far as it is known; None when nobody has told of one.
        reports: of the live workers that came back.
        complaints: of messages that came damaged, told meanwhile.
    """

    def __init__(self, past: JournalState, num_nodes: int, devices_per_node: int) -> None:
        self.began = 0.0
        self.message = None if past.plan is None else past.plan.message
        self.generation = -1 if self.message is None else self.message.plan.generation
        self.serial = 0
        self.reports: dict[WorkerId, Returned] = {}
        self.complaints: list[Received] = []
        self._asked: set[WorkerId] = set()
        self._watched: WorkerId | None = None
        self._watched_with: PlanMessage | None = None
        self._watched_reports = False
        self._past = past
        self._num_nodes = num_nodes
        self._devices_per_node = devices_per_node

    def report(self, worker: WorkerId, report: Returned) -> None:
        self.reports[worker] = report
        self.generation = max(self.generation, report.generation)
        self.serial = max(self.serial, report.serial)
        told = report.message
        if told is not None and told.plan.generation > self._known:
            self.message = told

    @property
    def _known(self) -> int:
        return -1 if self.message is None else self.message.plan.generation

    def vote(self, worker: WorkerId, vote: Vote) -> None:
        """Records a vote sent after the worker came back. A vote that overtook the report is in the report too."""
        report = self.reports.get(worker)
        if report is not None and (report.generation, report.step) == (vote.generation, vote.step):
            self.reports[worker] = msgspec.structs.replace(
                report, phase=WorkerPhase.VOTED, is_settled=True, ledger=vote.ledger, vote=vote
            )

    def ready(self, worker: WorkerId, ready: Ready) -> None:
        report = self.reports.get(worker)
        if report is not None and report.generation == ready.generation:
            self.reports[worker] = msgspec.structs.replace(report, is_settled=True)

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Forgets lost workers."""
        for worker in workers:
            self.reports.pop(worker, None)

    # Who is awaited

    def to_ask(self) -> WorkerId | None:
        """A worker to ask for its plan, which is later than any known plan; None: none is left to ask."""
        late = self._with_a_later_plan()
        return min(late - self._asked, default=None)

    def ask(self, worker: WorkerId) -> None:
        self._asked.add(worker)

    def _with_a_later_plan(self) -> set[WorkerId]:
        latest = max((report.generation for report in self.reports.values()), default=-1)
        return {w for w, report in self.reports.items() if report.generation == latest > self._known}

    def awaited(self, joined: Collection[WorkerId], gone: Collection[NodeId]) -> frozenset[WorkerId]:
        """Returns live workers that have not come back.

        Those of the plan must have reported; of others that are known it is enough that they are there, as they may
        be busy beginning. Without a plan the job waits for all that it was started with.
        """
        per_node, must = self._devices_per_node, {WorkerId(worker) for worker in self._must_report}
        known = {WorkerId(node * per_node + device) for node in self._past.joined for device in range(per_node)}
        away = {worker for worker in must if worker not in self.reports} | {w for w in known if w not in joined}
        away |= self._asked & self._with_a_later_plan()
        return frozenset(worker for worker in away if worker // per_node not in gone)

    def awaits_anybody(
        self, joined: Collection[WorkerId], gone: Collection[NodeId], lost_devices: Collection[WorkerId]
    ) -> bool:
        """Returns whether anybody is awaited who is no lost device. It is asked at each worker that comes back: the one
        that was awaited the last time is looked at first, and all others only once that is here."""
        one, here = self._watched, self.reports if self._watched_reports else joined
        is_live = one is not None and one not in lost_devices and one // self._devices_per_node not in gone
        if is_live and one not in here and self.message is self._watched_with:
            return True
        away = sorted(self.awaited(joined, gone).difference(lost_devices))
        self._watched = one = away[len(away) // 2] if away else None  # in whatever order they come
        self._watched_with, self._watched_reports = self.message, one in self._must_report
        return one is not None

    @property
    def _must_report(self) -> Sequence[int]:
        return range(self._num_nodes * self._devices_per_node) if self.message is None else self.message.plan.workers

    # What they say together

    def position(self) -> Position | None:
        """Returns where the job is; None before its first plan."""
        message = self.message
        if message is None:
            return None
        generation = message.plan.generation
        known = [report.commit for report in self.reports.values() if report.commit is not None]
        if self._past.commit is not None:
            known.append(self._past.commit.commit)
        steps = [message.step]
        steps += [commit.step + 1 for commit in known if commit.generation == generation]
        step = max(steps)
        commit = None
        if step > message.step or message.source is StateSource.LIVE:
            before = [commit for commit in known if commit.step == step - 1]
            commit = max(before, key=lambda commit: commit.generation, default=None)
        exponents = message.exponents if step == message.step or commit is None else commit.exponents
        return Position(message=message, step=step, commit=commit, exponents=exponents)

    def lacks_commit(self, position: Position) -> list[WorkerId]:
        """Returns the workers that voted for the last commit and were not told of it."""
        if position.commit is None:
            return []
        where = (position.commit.generation, position.commit.step)
        return [
            worker
            for worker, report in sorted(self.reports.items())
            if report.phase is WorkerPhase.VOTED and (report.generation, report.step) == where
        ]

    def lacks_plan(self, position: Position) -> list[WorkerId]:
        """Returns the workers of the plan in force that have an older one, or none."""
        plan = position.message.plan
        return [
            worker
            for worker in plan.workers
            if worker in self.reports and self.reports[worker].generation < plan.generation
        ]

    def stale(self, position: Position) -> list[WorkerId]:
        """Returns the plan's workers that neither the last commit nor the plan in force can bring to where the job is.

        They had been given up, and the journal lost even that.
        """
        message, told, holders = position.message, set(self.lacks_commit(position)), self.held(position)
        stale = []
        for worker in message.plan.workers:
            report = self.reports.get(worker)
            if report is None:
                continue
            step = report.step + (worker in told)
            if report.generation == message.plan.generation:
                is_stale = step != position.step
            elif message.source is not StateSource.LIVE:
                is_stale = message.step != position.step
            else:
                held = holders.get(worker, ())
                is_stale = message.step != position.step or not _needs(message.plan, worker) <= set(held)
            if is_stale:
                stale.append(worker)
        return stale

    def unready(self, position: Position) -> set[WorkerId]:
        """Returns the plan's workers whose state is on its way, or that stopped inside the step."""
        message, plan = position.message, position.message.plan
        moves_state = message.source is not StateSource.LIVE or bool(plan.transfers)
        is_first = position.step == message.step
        unready = set()
        for worker in plan.workers:
            report = self.reports.get(worker)
            if report is None:
                continue
            has_plan = report.generation == plan.generation
            has_stopped = has_plan and report.phase is WorkerPhase.HALTED
            if has_stopped or (moves_state and is_first and not (has_plan and report.is_settled)):
                unready.add(worker)
        return unready

    def halted(self, position: Position) -> bool:
        """Returns whether a worker stopped for a loss that no plan answered."""
        generation = position.message.plan.generation
        return any(r.generation == generation and r.phase is WorkerPhase.HALTED for r in self.reports.values())

    def votes(self, position: Position) -> dict[WorkerId, Vote]:
        """Returns the votes for the step in progress under the plan in force."""
        where = (position.message.plan.generation, position.step)
        return {
            worker: report.vote
            for worker, report in sorted(self.reports.items())
            if report.vote is not None and (report.vote.generation, report.vote.step) == where
        }

    def earlier(self, position: Position) -> dict[WorkerId, Ledger]:
        """Returns what accumulators hold beside the work of the plan's routes: the rest of routes that a loss broke.

        Nothing counts of those that the plan left behind, or that are yet to hear that it begins the step anew.
        """
        message, plan = position.message, position.message.plan
        is_anew = message.afresh or message.source is not StateSource.LIVE
        members = set(plan.workers)
        return {
            worker: without_routes(plan, worker, report.ledger)
            for worker, report in sorted(self.reports.items())
            if worker in members
            and report.step == position.step
            and report.phase is not WorkerPhase.IDLE
            and report.generation >= message.begun
            and not (is_anew and report.generation < plan.generation)
        }

    def held(self, position: Position) -> Holders:
        """Returns the groups of which workers hold a replica as of the last commit, whether the plan gives them or not:
        nodes without work have what an earlier plan gave them. Who is told of that commit now has its part by then."""
        told = set(self.lacks_commit(position))
        return {
            worker: report.given if worker in told else report.held
            for worker, report in sorted(self.reports.items())
            if (worker in told or report.step == position.step) and report.generation >= position.message.lineage
        }

    def awaits_replica(self, position: Position, joined: Collection[WorkerId]) -> bool:
        """Returns whether nobody who has reported holds some group, and one who is there has not: it may hold it."""
        message = position.message
        begins = message.source is not StateSource.LIVE and position.step == message.step
        if begins or self.reports.keys() >= set(joined):
            return False
        return bool(unheld(range(len(message.plan.groups)), self.held(position).values()))

    def lag(self, position: Position) -> int:
        """Returns how many committed steps the journal lacks."""
        is_known = position.message.source is StateSource.LIVE or self.written_plan(position) is not None
        known = self._past.step if is_known else None
        return max(0, position.step - (position.message.step if known is None else known))

    def unwritten(self, position: Position, train: TrainSection, num_nodes: int, now: float) -> list[AnyEntry]:
        """Returns journal entries for what only workers knew of.

        Args:
            position: where the job is.
            train: for the record of a step.
            num_nodes: how many nodes live.
            now: monotonic seconds.
        """
        entries: list[AnyEntry] = []
        commit = position.commit
        if commit is not None and not self._is_written(commit):
            record = step_committed(
                train,
                commit,
                loss=commit.loss,
                norm=commit.norm,
                live_nodes=num_nodes,
                duration_s=max(now - self.began, 1e-9),
            )
            probation, suspects = dict(self._past.probation), tuple(sorted(self._past.suspects))
            entries.append(JournalCommit(commit=commit, records=(record,), probation=probation, suspects=suspects))
        if self.written_plan(position) is None:
            stand = PlanValidity.unknown().stand
            plan = JournalPlan(message=position.message, stand=stand, step_time_s=0.0, longest_s=0.0)
            is_after = commit is None or commit.generation < position.message.plan.generation
            entries.insert(len(entries) if is_after else 0, plan)
        return entries

    def _is_written(self, commit: Commit) -> bool:
        """Returns whether the journal has this commit; a journal lacks nothing but its end."""
        plan, last = self._past.plan, self._past.commit
        if plan is not None and commit.generation < plan.message.plan.generation:
            return True
        return last is not None and (commit.generation, commit.step) == (last.commit.generation, last.commit.step)

    def written_plan(self, position: Position) -> JournalPlan | None:
        """Returns the plan in force as the journal has it; None if the journal lacks it."""
        plan = self._past.plan
        is_it = plan is not None and plan.message.plan.generation == position.message.plan.generation
        return plan if is_it else None

    def plan_validity(self, position: Position, live: frozenset[NodeId], leaving: Set[NodeId]) -> PlanValidity:
        """Returns the validity of the placement in force, as far as it was written down."""
        written = self.written_plan(position)
        if written is None:
            return PlanValidity.unknown()
        came = (self._past.newcomers | (live - self._past.joined)) & live
        return PlanValidity.of(written.stand, came - leaving)


def _needs(plan: Plan, worker: WorkerId) -> set[int]:
    """Returns the groups that the plan assumes the worker to hold already."""
    coming = {move.group for move in plan.transfers if move.target == worker}
    return set(plan.kept_of.get(worker, ())) - coming


def without_routes(plan: Plan, worker: WorkerId, ledger: Ledger) -> Ledger:
    """Returns the ledger without what the plan's routes have this worker count."""
    bits = list(ledger.without(mask_of(plan.of_pass.dropped)).bits())
    for route in plan.of_pass.routes:
        mask = sum(1 << microbatch for microbatch in route.microbatches)
        own = {layer for hop in route.hops if hop.worker == worker for layer in hop.layers}
        for layer in own.intersection(route.counted):
            bits[layer] &= ~mask
    return Ledger.from_bits(bits)
