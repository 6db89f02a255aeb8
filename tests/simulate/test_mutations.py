"""The simulation itself on trial: the protocol is broken on purpose, each time in one way, and it must notice.

A schedule that finds a mutation keeps every promise without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.plan import aftermath, salvage, takeover
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, Transfer, WorkerId
from planaria.plan.sources import Holders
from planaria.policy import templates
from planaria.policy.proposal import Proposal
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol import placing, plan_update
from planaria.protocol.ballot import Ballot
from planaria.protocol.commit import FIRST_EXPONENT
from planaria.protocol.course import boundary, step, take
from planaria.protocol.course import salvage as course_salvage
from planaria.protocol.course.run import Run
from planaria.protocol.events import Command, Evict, Received
from planaria.protocol.kept import Kept
from planaria.protocol.liveness import Liveness
from planaria.protocol.mail import Key, Mail
from planaria.protocol.membership import Membership
from planaria.protocol.messages import Commit, PlanMessage, Vote
from planaria.protocol.phases import Phase
from planaria.protocol.placing import Placing, Situation
from planaria.protocol.returning import Returning
from planaria.protocol.salvage import Salvage
from planaria.protocol.saving import Checkpoints, Saving
from planaria.protocol.settings import CheckpointRef
from planaria.protocol.shadowing import Fate, Shadows
from planaria.protocol.speeds import Speeds
from planaria.protocol.transitions import TRANSITIONS
from planaria.protocol.worker import Adopt, Apply, WorkerMachine
from planaria.simulate import wire
from planaria.simulate.faults import FaultKind
from planaria.simulate.interpreter import Interpreter
from planaria.simulate.schedule import Schedule, schedule
from planaria.simulate.search import error_of, first_line
from planaria.simulate.server import Server

FIRST = 500_000
MOST = 600
"""Schedules within which every mutation must be found; most are by one of the first ten."""

CORPUS = Path(__file__).with_name("corpus")
Patch = pytest.MonkeyPatch


def a_commit_without_all_votes(patch: Patch) -> None:
    """All that is told of the step is there: norms, losses. What the others counted need not be."""

    def is_enough(self: Ballot, live: Collection[WorkerId]) -> bool:
        votes = self._votes.values()
        norms = {group for vote in votes for group in vote.norms}
        losses = {microbatch for vote in votes for microbatch in vote.losses}
        return len(norms) == len(self._plan.groups) and len(losses) == self._plan.num_microbatches

    patch.setattr(Ballot, "is_enough", is_enough)


def the_ledgers_are_ignored(patch: Patch) -> None:
    """What is in live accumulators runs again."""
    patch.setattr(Salvage, "counted", lambda self, num_layers: Ledger.empty(num_layers))


def only_the_pipeline_that_lost_a_worker_is_halted(patch: Patch) -> None:
    def to_halt(plan: Plan, live: Collection[WorkerId], unready: Collection[WorkerId] = ()) -> frozenset[WorkerId]:
        broken = [p.workers for p in plan.pipelines if not set(p.workers) <= set(live)]
        return frozenset(worker for workers in broken for worker in workers if worker in live)

    patch.setattr(course_salvage, "to_halt", to_halt)


def a_vote_of_an_older_generation_counts(patch: Patch) -> None:
    voted = TRANSITIONS[Phase.TRAINING, "Vote"]

    def accept(run: Run, event: Received) -> list[Command]:
        assert isinstance(event.message, Vote)
        message = msgspec.structs.replace(event.message, generation=run.plan.generation)
        return voted(run, Received(event.worker, message))

    patch.setitem(TRANSITIONS, (Phase.TRAINING, "Vote"), accept)  # type: ignore[arg-type]


def messages_of_dropped_routes_are_taken(patch: Patch) -> None:
    """A key without its epoch: what an older plan left under way is taken for the new one's."""
    put, take, contains = Mail.put, Mail.take, Mail.__contains__

    def blind(key: Key) -> Key:
        return Key(key.kind, key.sender, key.step, 0, key.item, key.layer)

    patch.setattr(Mail, "put", lambda self, key, payload: put(self, blind(key), payload))
    patch.setattr(Mail, "take", lambda self, key: take(self, blind(key)))
    patch.setattr(Mail, "__contains__", lambda self, key: contains(self, blind(key)))


def sums_of_an_older_epoch_go_on(patch: Patch) -> None:
    """Contributions changed after a sum was begun, and it is taken all the same."""
    finish_step = salvage.finish_step

    def finish(plan: Plan, *arguments: Any) -> Plan:
        return msgspec.structs.replace(finish_step(plan, *arguments), sync_epochs=plan.sync_epochs)

    patch.setattr(templates, "finish_step", finish)


def state_that_must_move_does_not(patch: Patch) -> None:
    """The new owner begins with what it has: nothing."""
    original = aftermath.transfers

    def all_but_one(plan: Plan, holders: Holders) -> tuple[Transfer, ...]:
        return original(plan, holders)[1:]

    patch.setattr(aftermath, "transfers", all_but_one)


def shadows_are_left_out_of_the_step(patch: Patch) -> None:
    """They get their state beside a step, and not the step: it is one too old when they compute with it."""

    def apply(self: Interpreter, commit: Commit) -> None:
        owned = set(self.plan.layers_of.get(self._worker, ()))
        groups = self.plan.groups_of[self._worker]
        mine = [g for g in groups if owned.intersection(self.plan.groups[g].layers)]
        self._holdings.apply(mine, commit.step, commit.clip_factor)
        for group in groups:
            self._holdings.replicas[group].step = commit.step
        self._holdings.keep_only(groups)

    patch.setattr(Interpreter, "apply", apply)


def exponents_of_a_checkpoint_are_forgotten(patch: Patch) -> None:
    def first(self: Run, checkpoint: CheckpointRef | None) -> tuple[int, ...]:
        return (FIRST_EXPONENT,) * self.settings.num_groups

    patch.setattr(Run, "exponents_of", first)


def an_interrupted_step_begins_anew(patch: Patch) -> None:
    """A plan that finishes a step is taken for one that begins it: what was counted is lost."""
    plan = WorkerMachine._plan

    def forgetful(self: WorkerMachine, message: Any) -> tuple[Any, ...]:
        return tuple(Adopt(command.message, False) for command in plan(self, message))

    patch.setattr(WorkerMachine, "_plan", forgetful)


def workers_go_on_where_they_should_hold(patch: Patch) -> None:
    commit = WorkerMachine._commit

    def eager(self: WorkerMachine, message: Commit) -> tuple[Any, ...]:
        commands = commit(self, msgspec.structs.replace(message, hold=False))
        return tuple(Apply(command.commit, True) if isinstance(command, Apply) else command for command in commands)

    patch.setattr(WorkerMachine, "_commit", eager)


def fault_tolerance_is_quietly_lowered(patch: Patch) -> None:
    """Fewer than (f + 1) n0 nodes are left, and training goes on."""
    before = Placing.placement

    def lowered(self: Placing, situation: Situation, **others: Any) -> Proposal:
        try:
            return before(self, situation, **others)
        except aftermath.TooFewNodes:
            left = {situation.plan.node_of(worker) for worker in situation.holders}
            return self.first(sorted(left))

    patch.setattr(Placing, "placement", lowered)
    patch.setattr(placing, "validate", lambda *arguments, **others: None)
    patch.setattr(templates, "initial_plan", _without_tolerance(templates.initial_plan))


def _without_tolerance(initial_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    def lenient(profile: Any, shapes: Any, settings: Any, nodes: Any, generation: int) -> Plan:
        return initial_plan(profile, shapes, replace(settings, fault_tolerance=0), nodes, generation)

    return lenient


def nodes_that_gave_notice_are_released_at_once(patch: Patch) -> None:
    """At the next boundary, whether or not the plan does without them."""

    def release(run: Run) -> list[Command]:
        plan = run.plan
        run.current = msgspec.structs.replace(plan, pipelines=(), shadows=())
        try:
            return _release(run)
        finally:
            run.current = plan

    _release = take.release
    for module in (take, boundary, step):
        patch.setattr(module, "release", release)


def nobody_is_fenced(patch: Patch) -> None:
    """A node that is lost is not killed, its connections stay, and it is heard."""
    carry_out = Server._carry_out

    def lenient(self: Server, command: Command) -> None:
        if not isinstance(command, Evict):
            carry_out(self, command)

    patch.setattr(Server, "_carry_out", lenient)


def the_hung_are_not_found(patch: Patch) -> None:
    patch.setattr(Liveness, "hung", lambda self, now, instruction_s, step_s: iter(()))


def the_silent_are_not_found(patch: Patch) -> None:
    patch.setattr(Liveness, "silent", lambda self, now: iter(()))


def checkpoints_are_written_by_whoever_was_asked_first(patch: Patch) -> None:
    """Answers to an earlier order are taken for the one under way."""
    patch.setattr(Saving, "is_answered_by", lambda self, message: True)


def votes_of_before_a_restart_are_forgotten(patch: Patch) -> None:
    patch.setattr(Returning, "votes", lambda self, position: {})


def a_commit_is_not_told_again_after_a_restart(patch: Patch) -> None:
    patch.setattr(Returning, "lacks_commit", lambda self, position: ())


def a_speed_of_one_node_is_applied_to_another(patch: Patch) -> None:
    with_speeds = TemplatesPolicy.with_speeds

    def shifted(self: TemplatesPolicy, speeds: Mapping[NodeId, float]) -> TemplatesPolicy:
        return with_speeds(self, {NodeId(node ^ 1): speed for node, speed in speeds.items()})

    patch.setattr(TemplatesPolicy, "with_speeds", shifted)


def a_node_is_judged_by_what_another_measured(patch: Patch) -> None:
    measured = Speeds._measured

    def shifted(self: Speeds, compute_s: Mapping[WorkerId, float]) -> Any:
        found = measured(self, compute_s)
        return dict(zip(sorted(found), [found[node] for node in sorted(found, reverse=True)], strict=True))

    patch.setattr(Speeds, "_measured", shifted)


def a_step_that_is_to_begin_afresh_goes_on(patch: Patch) -> None:
    plan = WorkerMachine._plan
    patch.setattr(
        WorkerMachine, "_plan", lambda self, message: plan(self, msgspec.structs.replace(message, afresh=False))
    )


def degraded_plans_do_not_say_so(patch: Patch) -> None:
    sentence = ReroutePolicy._sentence
    patch.setattr(ReroutePolicy, "_sentence", lambda *args: replace(sentence(*args), is_degraded=False))
    patch.setattr(placing, "validate", lambda *arguments, **others: None)


def degraded_plans_are_refused(patch: Patch) -> None:
    """The policy forgets that it means them: the job ends where it could go on."""
    sentence = ReroutePolicy._sentence
    patch.setattr(ReroutePolicy, "_sentence", lambda *args: replace(sentence(*args), is_degraded=False))


def damage_is_not_told(patch: Patch) -> None:
    patch.setattr(Mail, "came_damaged", lambda self, key: False)


def copies_never_count(patch: Patch) -> None:
    patch.setattr(Shadows, "fate", lambda self, plan, worker: Fate.KEPT)


def copies_count_whoever_lives(patch: Patch) -> None:
    patch.setattr(Shadows, "fate", lambda self, plan, worker: Fate.PROMOTED if self.counted else Fate.KEPT)


def a_takeover_leaves_out_what_nobody_has(patch: Patch) -> None:
    plain = takeover._resumed
    patch.setattr(takeover, "_resumed", lambda *given: tuple(plain(*given) or ())[1:])
    patch.setattr(takeover, "_is_complete", lambda *given: True)


def an_update_forgets_how_rerouted_work_is_ordered(patch: Patch) -> None:
    def forgetful(before: PlanMessage, after: PlanMessage) -> Any:
        update = plan_update.difference(before, after)
        return None if update is None else msgspec.structs.replace(update, layer_units=None)

    patch.setattr(wire, "difference", forgetful)


# Mistakes that were made once


def the_ledger_of_an_earlier_loss_is_forgotten(patch: Patch) -> None:
    patch.setattr(Salvage, "again", lambda self: Salvage())


def a_manifest_is_taken_for_that_of_another_step(patch: Patch) -> None:
    patch.setattr(Checkpoints, "is_under_way", lambda self, step: self.under_way is not None)


def gathering_counts_workers_of_nodes_that_come_later(patch: Patch) -> None:
    def is_gathered(self: Membership) -> bool:
        return len(self.addresses) >= (self._num_nodes - len(self.gone)) * self._devices_per_node

    patch.setattr(Membership, "is_gathered", property(is_gathered))


def what_idle_workers_hold_is_forgotten(patch: Patch) -> None:
    patch.setattr(Kept, "added_to", lambda self, holders, step: dict(holders))


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
    votes_of_before_a_restart_are_forgotten: CRASHES,
    a_commit_is_not_told_again_after_a_restart: CRASHES,
    a_speed_of_one_node_is_applied_to_another: SLOWNESS,
    a_node_is_judged_by_what_another_measured: SLOWNESS,
    a_step_that_is_to_begin_afresh_goes_on: DAMAGES,
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


@pytest.mark.parametrize(
    ("mutation", "case"),
    [
        (a_manifest_is_taken_for_that_of_another_step, "a-manifest-of-another-step"),
        (gathering_counts_workers_of_nodes_that_come_later, "a-node-that-comes-while-others-gather"),
        (what_idle_workers_hold_is_forgotten, "a-replica-on-an-idle-node"),
        (the_ledger_of_an_earlier_loss_is_forgotten, "a-ledger-forgotten"),
        (damage_is_not_told, "damage-of-state"),
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
