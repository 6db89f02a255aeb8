"""The simulation itself on trial: the protocol is broken on purpose, each time in one way, and it must notice.

A schedule that finds a mutation keeps every promise without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.protocol.handlers import boundary, losses, restart
from planaria.protocol.messages.events import Command, Send
from planaria.protocol.messages.journal import JournalNode
from planaria.protocol.messages.to_worker import Commit
from planaria.protocol.run.returning import Position, ReturningWorkers
from planaria.protocol.run.run import Run
from planaria.protocol.step.commit import FIRST_EXPONENT
from planaria.runtime.worker.compute.accumulator import Accumulator
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.replica import Replica
from planaria.runtime.worker.interpreter import Interpreter
from planaria.runtime.worker.transport import state_transfer
from planaria.runtime.worker.transport.mailbox import Key, Mailbox
from planaria.runtime.worker.transport.sync import Sync
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
from tests.runtime.worker import dst
from tests.runtime.worker.schedules import Case
from tests.runtime.worker.test_cluster import Laboratory

pytestmark = pytest.mark.proof

FIRST = 2000
MOST = 60
"""Schedules within which every mutation must be found; most are by one of the first five."""

MORE_SEEDS = 12
"""Seeds of delays within which a case must find its mutation: a change elsewhere draws them otherwise."""

Patch = pytest.MonkeyPatch


def messages_of_dropped_routes_are_taken(patch: Patch) -> None:
    """A key without its epoch: what an older plan left under way is taken for the new one's."""
    put, poll = Mailbox.put, Mailbox.poll

    def blind(key: Key) -> Key:
        return Key(key.kind, key.sender, key.step, 0, key.item, key.layer)

    patch.setattr(Mailbox, "put", lambda self, key, tensors: put(self, blind(key), tensors))
    patch.setattr(Mailbox, "poll", lambda self, key: poll(self, blind(key)))


def state_is_sent_as_it_was_a_step_ago(patch: Patch) -> None:
    """Where digests are compared, whoever got such a state is fenced, and the bits stay right."""
    patch.setattr(Holdings, "digests", lambda self, groups, with_sums: {})
    apply, moving = Holdings.apply, state_transfer._moving
    earlier: dict[Replica, Replica] = {}

    def remember(self: Holdings, groups: Iterable[int], step: int, clip_factor: float, learning_rate: float) -> None:
        for group in groups:
            replica = self.replicas[group]
            earlier[replica] = self.new_replica(group)
            earlier[replica].load(replica.state, replica.step)
        apply(self, groups, step, clip_factor, learning_rate)

    def old(plan: Plan, transfer: Transfer, replica: Replica) -> tuple[torch.Tensor, ...]:
        return moving(plan, transfer, earlier.get(replica, replica))

    patch.setattr(Holdings, "apply", remember)
    patch.setattr(state_transfer, "_moving", old)


def shadows_are_left_out_of_the_step(patch: Patch) -> None:
    leave_shadows_out_of_the_step(patch, Interpreter)


def shadows_send_their_sums_and_get_none(patch: Patch) -> None:
    send = Sync._send

    def selective(self: Sync, owner: WorkerId, group: int, epoch: int, accumulator: Accumulator) -> None:
        assert self._plan is not None
        if owner in self._plan.layers_of:
            send(self, owner, group, epoch, accumulator)

    patch.setattr(Sync, "_send", selective)


def exponents_are_not_told(patch: Patch) -> None:
    begin_step = Holdings.begin_step
    patch.setattr(Holdings, "begin_step", lambda self, exponents: begin_step(self, (FIRST_EXPONENT,) * len(exponents)))


def a_step_is_applied_twice(patch: Patch) -> None:
    """By whoever gets a new plan after it."""
    adopt = Interpreter.adopt
    apply = Interpreter.apply
    last: dict[int, tuple[Interpreter, Commit, int]] = {}

    def remember(self: Interpreter, commit: Commit) -> None:
        apply(self, commit)
        last[id(self)] = (self, commit, self.plan.generation)

    def again(self: Interpreter, message: Any, *, continues: bool) -> None:
        known = last.pop(id(self), None)
        if known is not None and message.step == known[1].step + 1 and not message.plan.transfers:
            held = [g for g in self.plan.groups_of[self._worker] if g in self._holdings.replicas]
            self._holdings.apply(held, known[1].step, known[1].clip_factor, known[1].learning_rate)
        adopt(self, message, continues=continues)

    patch.setattr(Interpreter, "apply", remember)
    patch.setattr(Interpreter, "adopt", again)


def the_clip_factor_is_each_workers_own(patch: Patch) -> None:
    apply = Holdings.apply
    patch.setattr(Holdings, "apply", lambda self, groups, step, clip_factor: apply(self, groups, step, 1.0))


def a_commit_is_told_again_with_another_clip_factor(patch: Patch) -> None:
    """Recomputed, when the norms that it was computed from are gone."""
    _tell_again(patch, clip_factor=1.0)


def a_commit_is_told_again_without_its_hold(patch: Patch) -> None:
    """Some wait at the boundary, and others go on."""
    _tell_again(patch, hold=False)


def _tell_again(patch: Patch, **others: Any) -> None:
    begin = restart.go_on_from

    def altered(run: Run, position: Position) -> list[Command]:
        commands = begin(run, position)
        return [
            Send(command.worker, msgspec.structs.replace(command.message, **others))
            if isinstance(command, Send) and isinstance(command.message, Commit) and command.message == position.commit
            else command
            for command in commands
        ]

    patch.setattr(restart, "go_on_from", altered)


def a_loss_is_not_written_down(patch: Patch) -> None:
    """Whoever begins on the journal hears of the node's death as of a new one."""
    lose = losses.lose

    def quietly(run: Run, event: Any) -> list[Command]:
        return [command for command in lose(run, event) if not isinstance(command, JournalNode)]

    for module in (losses, restart):
        patch.setattr(module, "lose", quietly)


def accumulators_of_before_the_restart_are_forgotten(patch: Patch) -> None:
    """Of routes that an earlier loss broke: what is counted there would run again."""
    patch.setattr(ReturningWorkers, "earlier", lambda self, position: {})


def a_plan_that_was_written_down_is_not_sent_again(patch: Patch) -> None:
    patch.setattr(ReturningWorkers, "lacks_plan", lambda self, position: [])


def whoever_stopped_before_the_restart_is_taken_to_go_on(patch: Patch) -> None:
    """Nobody is newly lost, so nothing is done for those that a loss halted."""

    def go_on(run: Run, position: Position) -> list[Command]:
        return boundary.after_commit(run, position.step - 1) if position.is_boundary else []

    patch.setattr(restart, "_go_on_within", go_on)


MUTATIONS: Mapping[Callable[[Patch], None], str] = {
    a_commit_without_all_votes: "losses",
    the_ledgers_are_ignored: "losses",
    only_the_pipeline_that_lost_a_worker_is_halted: "losses",
    messages_of_dropped_routes_are_taken: "losses",
    sums_of_an_older_epoch_go_on: "losses",
    state_is_sent_as_it_was_a_step_ago: "losses",
    state_that_must_move_does_not: "losses",
    shadows_are_left_out_of_the_step: "visits",
    shadows_send_their_sums_and_get_none: "visits",
    exponents_are_not_told: "losses",
    exponents_of_a_checkpoint_are_forgotten: "holders",
    a_step_is_applied_twice: "losses",
    the_clip_factor_is_each_workers_own: "losses",
    an_interrupted_step_begins_anew: "losses",
    fault_tolerance_is_quietly_lowered: "losses",
    nodes_that_gave_notice_are_released_at_once: "visits",
    a_commit_is_told_again_with_another_clip_factor: "restarts",
    a_commit_is_told_again_without_its_hold: "restarts",
    a_loss_is_not_written_down: "restarts",
    a_plan_that_was_written_down_is_not_sent_again: "restarts",
    votes_of_before_the_restart_are_forgotten: "restarts",
    whoever_stopped_before_the_restart_is_taken_to_go_on: "restarts",
}
"""And the kind of schedules that should find it."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_protocol_is_found(mutation: Callable[[Patch], None], laboratory: Laboratory) -> None:
    make = dst.KINDS[MUTATIONS[mutation]]
    for seed in range(FIRST, FIRST + MOST):
        which = make(seed, laboratory)
        laboratory.reference(which.job)  # that of what is not broken
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            error = dst.error_of(which, laboratory)
        if error is not None:
            print(f"seed {seed} of {FIRST}..: {dst.first_line(error)}")
            assert dst.error_of(which, laboratory) is None
            return
    pytest.fail(f"{MOST} schedules did not notice")


@pytest.mark.parametrize(
    ("mutation", "case"),
    [
        (the_ledger_of_an_earlier_loss_is_forgotten, "a-ledger-forgotten"),
        (accumulators_of_before_the_restart_are_forgotten, "a-ledger-forgotten-by-a-restart"),
        (a_vote_of_an_older_generation_counts, "a-vote-of-an-older-generation"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_mistake_that_was_made_once_is_found_by_its_case(
    mutation: Callable[[Patch], None], case: str, laboratory: Laboratory, monkeypatch: Patch
) -> None:
    path = Path(__file__).parent / "corpus" / f"{case}.json"
    which = msgspec.json.decode(path.read_bytes(), type=Case).schedule_with(str(laboratory.source))
    mutation(monkeypatch)
    assert any(dst.error_of(replace(which, seed=which.seed + more), laboratory) for more in range(MORE_SEEDS))
