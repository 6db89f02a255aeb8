"""The protocol broken on purpose, each time in one way, where both simulations must notice: see the tests of mutations
in tests/simulate and tests/runtime/worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, Route, Transfer, WorkerId
from planaria.planner.finish_step import salvage
from planaria.planner.placement import transfers as moving
from planaria.planner.placement.senders import Holders
from planaria.planner.reconfigure import surviving_plan
from planaria.policy import planner
from planaria.policy.interface import Candidate
from planaria.protocol.handlers import adopt_plan, boundary, step
from planaria.protocol.handlers import salvage as course_salvage
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.events import Command, Received
from planaria.protocol.messages.from_worker import Vote
from planaria.protocol.messages.to_worker import Commit
from planaria.protocol.phases import Phase
from planaria.protocol.planning import plan_selection
from planaria.protocol.planning.plan_selection import PlanSelector, Situation
from planaria.protocol.run.returning import ReturningWorkers
from planaria.protocol.run.run import Run
from planaria.protocol.step.ballot import Ballot
from planaria.protocol.step.commit import FIRST_EXPONENT
from planaria.protocol.step.halt_reports import Salvage
from planaria.protocol.transitions import TRANSITIONS
from planaria.protocol.worker.machine import Adopt, WorkerMachine

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


def sums_of_an_older_epoch_go_on(patch: Patch) -> None:
    """Contributions changed after a sum was begun, and it is taken all the same."""
    finished_by = salvage.Undone.finished_by

    def finish(undone: salvage.Undone, new: tuple[Route, ...]) -> Plan:
        return msgspec.structs.replace(finished_by(undone, new), sync_epochs=undone.plan.sync_epochs)

    patch.setattr(salvage.Undone, "finished_by", finish)


def state_that_must_move_does_not(patch: Patch) -> None:
    """The new owner begins with what it has: nothing."""
    original = moving.transfers

    def all_but_one(plan: Plan, holders: Holders) -> tuple[Transfer, ...]:
        return original(plan, holders)[1:]

    patch.setattr(moving, "transfers", all_but_one)


def exponents_of_a_checkpoint_are_forgotten(patch: Patch) -> None:
    def first(self: Run, checkpoint: CheckpointRef | None) -> tuple[int, ...]:
        return (FIRST_EXPONENT,) * self.settings.num_groups

    patch.setattr(Run, "exponents_of", first)


def leave_shadows_out_of_the_step(patch: Patch, interpreter: type) -> None:
    """They get their state beside a step, and not the step: it is one too old when they compute with it."""

    def apply(self: Any, commit: Commit) -> None:
        owned = set(self.plan.layers_of.get(self._worker, ()))
        groups = self.plan.groups_of[self._worker]
        mine = [g for g in groups if owned.intersection(self.plan.groups[g].layers)]
        self._holdings.apply(mine, commit.step, commit.clip_factor, commit.scale)
        for group in groups:
            self._holdings.replicas[group].step = commit.step
        self._holdings.keep_only(groups)

    patch.setattr(interpreter, "apply", apply)


def fault_tolerance_is_quietly_lowered(patch: Patch) -> None:
    """Fewer than (f + 1) n0 nodes are left, and training goes on."""
    before = PlanSelector.placement

    def lowered(self: PlanSelector, situation: Situation, **others: Any) -> Candidate:
        try:
            return before(self, situation, **others)
        except surviving_plan.TooFewNodes:
            left = {situation.plan.node_of(worker) for worker in situation.holders}
            return self.first(sorted(left))

    patch.setattr(PlanSelector, "placement", lowered)
    patch.setattr(plan_selection, "validate", lambda *arguments, **others: None)
    patch.setattr(planner, "initial_plan", _without_tolerance(planner.initial_plan))


def _without_tolerance(initial_plan: Callable[..., Plan]) -> Callable[..., Plan]:
    def lenient(profile: Any, shapes: Any, settings: Any, nodes: Any, generation: int, **others: Any) -> Plan:
        return initial_plan(profile, shapes, replace(settings, fault_tolerance=0), nodes, generation, **others)

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

    _release = adopt_plan.release
    for module in (adopt_plan, boundary, step):
        patch.setattr(module, "release", release)


def the_ledger_of_an_earlier_loss_is_forgotten(patch: Patch) -> None:
    patch.setattr(Salvage, "again", lambda self, dropped=(): Salvage())


def an_interrupted_step_begins_anew(patch: Patch) -> None:
    """A plan that finishes a step is taken for one that begins it: what was counted is lost."""
    plan = WorkerMachine._plan

    def forgetful(self: WorkerMachine, message: Any) -> tuple[Any, ...]:
        return tuple(Adopt(command.message, False, command.forgets) for command in plan(self, message))

    patch.setattr(WorkerMachine, "_plan", forgetful)


def votes_of_before_the_restart_are_forgotten(patch: Patch) -> None:
    patch.setattr(ReturningWorkers, "votes", lambda self, position: {})
