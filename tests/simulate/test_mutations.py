"""The simulation itself on trial: the protocol is broken on purpose, each time in one way, and it must notice.

A schedule that finds a mutation keeps every promise without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.planner.finish_step import shadow_takeover
from planaria.policy import drop
from planaria.policy.planner import Planner
from planaria.policy.reroute import ReroutePolicy
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.liveness import Liveness
from planaria.protocol.membership.members import Membership
from planaria.protocol.messages import plan_delta
from planaria.protocol.messages.events import Command, Evict
from planaria.protocol.messages.from_worker import Returned
from planaria.protocol.messages.journal import JournalCommit, JournalEntry
from planaria.protocol.messages.records import AnyRecord
from planaria.protocol.messages.to_worker import Commit, PlanMessage
from planaria.protocol.planning import plan_selection
from planaria.protocol.planning.straggler_detection import NodeSpeeds
from planaria.protocol.run.returning import ReturningWorkers
from planaria.protocol.run.run import Run
from planaria.protocol.run.told_records import ToldRecords
from planaria.protocol.step.checkpoint import Checkpoints, Saving
from planaria.protocol.step.retained_replicas import RetainedReplicas
from planaria.protocol.worker.machine import Apply, WorkerMachine
from planaria.protocol.worker.mail import Key, Mail
from planaria.protocol.worker.shadow_counts import Fate, Shadows
from tests.protocol.mutations import (
    a_commit_without_all_votes,
    a_vote_of_an_older_generation_counts,
    an_interrupted_step_begins_anew,
    exponents_of_a_checkpoint_are_forgotten,
    fault_tolerance_is_quietly_lowered,
    leave_shadows_out_of_the_step,
    nodes_that_gave_notice_are_released_at_once,
    only_the_pipeline_that_lost_a_worker_is_halted,
    state_that_must_move_does_not,
    sums_of_an_older_epoch_go_on,
    the_ledger_of_an_earlier_loss_is_forgotten,
    the_ledgers_are_ignored,
    votes_of_before_the_restart_are_forgotten,
)
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.promises.invariants import InvariantChecker
from tests.testkit.schedules.faults import FaultKind
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.search import error_of, first_line
from tests.testkit.server.server import Server
from tests.testkit.worker.holdings import Holdings as SimulatedHoldings
from tests.testkit.worker.interpreter import Interpreter

pytestmark = pytest.mark.proof

FIRST = 500_000
MOST = 600
"""Schedules within which every mutation must be found; most are by one of the first ten."""

CORPUS = Path(__file__).with_name("corpus")
Patch = pytest.MonkeyPatch


def messages_of_dropped_routes_are_taken(patch: Patch) -> None:
    """A key without its epoch: what an older plan left under way is taken for the new one's."""
    put, take, contains = Mail.put, Mail.take, Mail.__contains__

    def blind(key: Key) -> Key:
        return Key(key.kind, key.sender, key.step, 0, key.item, key.layer)

    patch.setattr(Mail, "put", lambda self, key, *rest: put(self, blind(key), *rest))
    patch.setattr(Mail, "take", lambda self, key: take(self, blind(key)))
    patch.setattr(Mail, "__contains__", lambda self, key: contains(self, blind(key)))


def shadows_are_left_out_of_the_step(patch: Patch) -> None:
    leave_shadows_out_of_the_step(patch, Interpreter)


def workers_go_on_where_they_should_hold(patch: Patch) -> None:
    commit = WorkerMachine._commit

    def eager(self: WorkerMachine, message: Commit) -> tuple[Any, ...]:
        commands = commit(self, msgspec.structs.replace(message, hold=False))
        return tuple(Apply(command.commit, True) if isinstance(command, Apply) else command for command in commands)

    patch.setattr(WorkerMachine, "_commit", eager)


def nobody_is_fenced(patch: Patch) -> None:
    """A node that is lost is not killed, its connections stay, and it is heard."""
    carry_out = Server._carry_out

    def lenient(self: Server, command: Command) -> None:
        if not isinstance(command, Evict):
            carry_out(self, command)

    patch.setattr(Server, "_carry_out", lenient)


def who_cannot_reach_where_a_lost_device_was_accuses_the_one_that_came_back(patch: Patch) -> None:
    patch.setattr(Admission, "is_missed", lambda self, peer, address: peer in self._connections)


def the_hung_are_not_found(patch: Patch) -> None:
    patch.setattr(Liveness, "hung", lambda self, now, instruction_s: iter(()))
    patch.setattr(Liveness, "blocked", lambda self, now, step_s: None)


def the_silent_are_not_found(patch: Patch) -> None:
    patch.setattr(Liveness, "silent", lambda self, now: iter(()))


def checkpoints_are_written_by_whoever_was_asked_first(patch: Patch) -> None:
    """Answers to an earlier order are taken for the one under way."""
    patch.setattr(Saving, "is_answered_by", lambda self, message: True)


def a_commit_that_only_a_worker_knows_is_ignored(patch: Patch) -> None:
    """The journal is believed, although it lags behind: whoever is ahead of it is taken for lost."""
    report = ReturningWorkers.report

    def without(self: ReturningWorkers, worker: WorkerId, told: Returned) -> None:
        report(self, worker, msgspec.structs.replace(told, commit=None))

    patch.setattr(ReturningWorkers, "report", without)


def a_commit_is_not_told_again_after_a_restart(patch: Patch) -> None:
    patch.setattr(ReturningWorkers, "lacks_commit", lambda self, position: ())


def the_journal_takes_what_anybody_appends(patch: Patch) -> None:
    """A coordinator that leads no more writes beside the one that leads."""

    def append(self: Cluster, entry: JournalEntry, number: int, lead: int) -> bool:
        self.write_journal(entry)
        return True

    patch.setattr(Cluster, "append", append)


def what_was_appended_without_an_answer_is_appended_again(patch: Patch) -> None:
    def append(self: Cluster, entry: JournalEntry, number: int, lead: int) -> bool:
        if lead != self.lead:
            return False
        self.write_journal(entry)
        return True

    patch.setattr(Cluster, "append", append)


def a_commit_is_written_twice_after_a_power_cut(patch: Patch) -> None:
    """By a coordinator that begins on a journal that lost other entries."""
    carry_out, forget_after = Server._carry_out, InvariantChecker.forget_after
    cut: list[InvariantChecker] = []

    def forgetting(self: InvariantChecker, *given: Any) -> None:
        forget_after(self, *given)
        cut.append(self)

    def twice(self: Server, command: Command) -> None:
        carry_out(self, command)
        if isinstance(command, JournalCommit) and self._cluster.invariants in cut:
            carry_out(self, command)

    patch.setattr(InvariantChecker, "forget_after", forgetting)
    patch.setattr(Server, "_carry_out", twice)


def a_speed_of_one_node_is_applied_to_another(patch: Patch) -> None:
    with_speeds = Planner.with_speeds

    def shifted(self: Planner, speeds: Mapping[NodeId, float]) -> Planner:
        return with_speeds(self, {NodeId(node ^ 1): speed for node, speed in speeds.items()})

    patch.setattr(Planner, "with_speeds", shifted)


def a_node_is_judged_by_what_another_measured(patch: Patch) -> None:
    measured = NodeSpeeds._measured

    def shifted(self: NodeSpeeds, compute_s: Mapping[WorkerId, float]) -> Any:
        found = measured(self, compute_s)
        return dict(zip(sorted(found), [found[node] for node in sorted(found, reverse=True)], strict=True))

    patch.setattr(NodeSpeeds, "_measured", shifted)


def a_step_that_is_to_begin_afresh_goes_on(patch: Patch) -> None:
    plan = WorkerMachine._plan
    patch.setattr(
        WorkerMachine,
        "_plan",
        lambda self, message: plan(self, msgspec.structs.replace(message, afresh=False, begun=-1)),
    )


def what_was_held_before_the_job_went_back_counts(patch: Patch) -> None:
    plan = WorkerMachine._plan
    patch.setattr(
        WorkerMachine, "_plan", lambda self, message: plan(self, msgspec.structs.replace(message, lineage=-1))
    )


def degraded_plans_do_not_say_so(patch: Patch) -> None:
    candidate = ReroutePolicy._candidate
    patch.setattr(ReroutePolicy, "_candidate", lambda *args: replace(candidate(*args), is_degraded=False))
    patch.setattr(plan_selection, "validate", lambda *arguments, **others: None)


def degraded_plans_are_refused(patch: Patch) -> None:
    """The policy forgets that it means them: the job ends where it could go on."""
    candidate = ReroutePolicy._candidate
    patch.setattr(ReroutePolicy, "_candidate", lambda *args: replace(candidate(*args), is_degraded=False))


def damage_is_not_told(patch: Patch) -> None:
    patch.setattr(Mail, "came_damaged", lambda self, key: False)


def copies_never_count(patch: Patch) -> None:
    patch.setattr(Shadows, "fate", lambda self, plan, worker: Fate.KEPT)


def copies_count_whoever_lives(patch: Patch) -> None:
    patch.setattr(Shadows, "fate", lambda self, plan, worker: Fate.PROMOTED if self.counted else Fate.KEPT)


def a_takeover_leaves_out_what_nobody_has(patch: Patch) -> None:
    plain = shadow_takeover._resumed
    patch.setattr(shadow_takeover, "_resumed", lambda *given: tuple(plain(*given) or ())[1:])
    patch.setattr(shadow_takeover, "_is_complete", lambda *given: True)


def an_update_forgets_how_rerouted_work_is_ordered(patch: Patch) -> None:
    difference = plan_delta.difference

    def forgetful(before: PlanMessage, after: PlanMessage) -> Any:
        update = difference(before, after)
        return None if update is None else msgspec.structs.replace(update, layer_units=None)

    patch.setattr(plan_delta, "difference", forgetful)


def what_is_left_out_stays_in_the_sum(patch: Patch) -> None:
    patch.setattr(SimulatedHoldings, "leave_out", lambda self, microbatches: None)


def the_rate_is_not_scaled(patch: Patch) -> None:
    apply = SimulatedHoldings.apply

    def unscaled(self: SimulatedHoldings, groups: Iterable[int], step: int, factor: float, scale: float) -> None:
        apply(self, groups, step, factor, 1.0)

    patch.setattr(SimulatedHoldings, "apply", unscaled)


def sums_go_on_though_samples_are_left_out(patch: Patch) -> None:
    """What was sent of an accumulator has some of them."""
    finish = drop.finish_without

    def without_new_epochs(plan: Plan, *rest: Any) -> Plan:
        return msgspec.structs.replace(finish(plan, *rest), sync_epochs=plan.sync_epochs)

    patch.setattr(drop, "finish_without", without_new_epochs)


# Mistakes that were made once


def a_manifest_is_taken_for_that_of_another_step(patch: Patch) -> None:
    patch.setattr(Checkpoints, "is_made_whole", lambda self, step, folder: self.under_way is not None)


def gathering_counts_workers_of_nodes_that_come_later(patch: Patch) -> None:
    def is_gathered(self: Membership) -> bool:
        return len(self.addresses) >= (self._num_nodes - len(self.gone)) * self._devices_per_node

    patch.setattr(Membership, "is_gathered", property(is_gathered))


def what_idle_workers_hold_is_forgotten(patch: Patch) -> None:
    patch.setattr(RetainedReplicas, "added_to", lambda self, holders, step: dict(holders))


def a_commit_that_was_undone_is_told_again(patch: Patch) -> None:
    """In other words than before, by a coordinator whose journal lost the plan that goes back."""
    takes = ToldRecords.takes

    def takes_all(self: ToldRecords, record: AnyRecord, *, again: bool) -> bool:
        self._restored_in = 0
        return takes(self, record, again=again)

    patch.setattr(ToldRecords, "takes", takes_all)


LOSSES = frozenset({FaultKind.KILL})
VISITS = frozenset({FaultKind.NOTICE, FaultKind.DRAIN})
HANGS = frozenset({FaultKind.FREEZE, FaultKind.STUCK, FaultKind.HANG})
SILENCES = frozenset({FaultKind.DARK})
CRASHES = frozenset({FaultKind.CRASH})
SLOWNESS = frozenset({FaultKind.SLOW})
DAMAGES = frozenset({FaultKind.DAMAGE})

MUTATIONS: Mapping[Callable[[Patch], None], frozenset[FaultKind]] = {
    a_commit_without_all_votes: LOSSES,
    the_ledgers_are_ignored: LOSSES,
    only_the_pipeline_that_lost_a_worker_is_halted: LOSSES,
    a_vote_of_an_older_generation_counts: LOSSES,
    messages_of_dropped_routes_are_taken: LOSSES,
    sums_of_an_older_epoch_go_on: LOSSES,
    state_that_must_move_does_not: LOSSES,
    shadows_are_left_out_of_the_step: VISITS,
    exponents_of_a_checkpoint_are_forgotten: LOSSES,
    an_interrupted_step_begins_anew: LOSSES,
    workers_go_on_where_they_should_hold: LOSSES,
    fault_tolerance_is_quietly_lowered: LOSSES,
    nodes_that_gave_notice_are_released_at_once: VISITS,
    nobody_is_fenced: LOSSES,
    the_hung_are_not_found: HANGS,
    the_silent_are_not_found: SILENCES,
    checkpoints_are_written_by_whoever_was_asked_first: LOSSES,
    votes_of_before_the_restart_are_forgotten: CRASHES,
    a_commit_is_not_told_again_after_a_restart: CRASHES,
    a_commit_is_written_twice_after_a_power_cut: CRASHES,
    the_journal_takes_what_anybody_appends: frozenset({FaultKind.DEPOSE}),
    what_was_appended_without_an_answer_is_appended_again: frozenset({FaultKind.LATE}),
    a_speed_of_one_node_is_applied_to_another: SLOWNESS,
    a_node_is_judged_by_what_another_measured: SLOWNESS,
    a_step_that_is_to_begin_afresh_goes_on: DAMAGES,
    what_is_left_out_stays_in_the_sum: LOSSES,
    the_rate_is_not_scaled: LOSSES,
    sums_go_on_though_samples_are_left_out: LOSSES,
    degraded_plans_do_not_say_so: LOSSES,
    degraded_plans_are_refused: LOSSES,
    an_update_forgets_how_rerouted_work_is_ordered: LOSSES,
    copies_never_count: LOSSES,
    copies_count_whoever_lives: LOSSES,
    a_takeover_leaves_out_what_nobody_has: LOSSES,
}
"""And the kinds of faults of which a schedule that should find it has one at least."""


def schedules(kinds: frozenset[FaultKind]) -> Iterator[Schedule]:
    fitting = (which for which in map(schedule, itertools.count(FIRST)) if kinds & {f.kind for f in which.faults})
    return itertools.islice(fitting, MOST)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_protocol_is_found(mutation: Callable[[Patch], None]) -> None:
    for number, which in enumerate(schedules(MUTATIONS[mutation]), 1):
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            error = error_of(which)
        if error is not None:
            print(f"{mutation.__name__}: schedule {number}: {first_line(error)}")
            assert error_of(which) is None
            return
    pytest.fail(f"{MOST} schedules did not notice")


def test_state_that_moves_to_who_has_it_is_noticed(monkeypatch: Patch) -> None:
    """Of one worker it is forgotten that it holds a group, where others hold that too."""
    known = Run.holders

    def forgetful(self: Run) -> dict[WorkerId, tuple[int, ...]]:
        holders = known(self)
        last = max(holders, default=None)
        others = {group for worker, groups in holders.items() if worker != last for group in groups}
        if last is not None and holders[last] and others.issuperset(holders[last]):
            holders[last] = holders[last][1:]
        return holders

    monkeypatch.setattr(Run, "holders", forgetful)
    found = map(error_of, schedules(LOSSES))
    assert any(error is not None and "are up to date here, and move here" in str(error) for error in found)


@pytest.mark.parametrize(
    ("mutation", "case"),
    [
        (a_manifest_is_taken_for_that_of_another_step, "a-manifest-of-another-step"),
        (gathering_counts_workers_of_nodes_that_come_later, "a-node-that-comes-while-others-gather"),
        (what_idle_workers_hold_is_forgotten, "a-replica-on-an-idle-node"),
        (the_ledger_of_an_earlier_loss_is_forgotten, "a-ledger-forgotten"),
        (a_commit_that_only_a_worker_knows_is_ignored, "a-commit-that-only-workers-know"),
        (damage_is_not_told, "damage-of-state"),
        (
            who_cannot_reach_where_a_lost_device_was_accuses_the_one_that_came_back,
            "a-device-that-came-back-and-one-without-work-that-knew-it-before",
        ),
        (a_commit_that_was_undone_is_told_again, "a-commit-told-in-other-words-after-it-was-undone"),
        (
            what_was_held_before_the_job_went_back_counts,
            "an-idle-node-is-needed-after-other-samples-were-left-out",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_mistake_that_was_made_once_is_found_by_its_case(
    mutation: Callable[[Patch], None], case: str, monkeypatch: Patch
) -> None:
    """The delays of a case fall otherwise when the protocol says something more; then another seed's will do."""
    which = msgspec.json.decode((CORPUS / f"{case}.json").read_bytes(), type=Schedule)
    mutation(monkeypatch)
    seeds = range(which.seed, which.seed + 100)
    assert any(error_of(msgspec.structs.replace(which, seed=seed)) is not None for seed in seeds)
