"""Devices of a stage that spread the optimizer's state give each other the parameters that they make."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.protocol.messages.to_worker import Commit, PlanMessage, StateSource
from planaria.protocol.worker.machine import ProgramDone, WorkerMachine
from planaria.protocol.worker.mail import Kind
from tests.protocol.worker.test_passing_on import Mail, Moves, Replica, plan_of

ME, MATE = WorkerId(2), WorkerId(3)
MADE_HERE, MADE_THERE = 0, 1
"""Groups."""


def spread(generation: int, *transfers: Transfer) -> Plan:
    return msgspec.structs.replace(plan_of(*transfers), generation=generation, spreads_optimizer=True)


def begin(moves: Moves, plan: Plan, *, step: int = 2, source: StateSource = StateSource.LIVE) -> None:
    message = PlanMessage(plan=plan, step=step, addresses={}, exponents=(), source=source)
    moves._machine.handle(message)
    moves.begin(message, forgets=source is not StateSource.LIVE)


@pytest.fixture
def moves() -> Moves:
    """As the first step has just been committed."""
    found = Moves(ME, WorkerMachine(), Mail())
    begin(found, spread(1), step=1)
    found._holdings.replicas = {group: Replica() for group in (MADE_HERE, MADE_THERE)}
    found.collect()
    found.settle()
    found._machine.handle(ProgramDone(1, 1))
    commit = Commit(generation=1, step=1, clip_factor=1.0, exponents=(), hold=False)
    found._machine.handle(commit)
    found.give_parameters(commit)
    return found


def test_who_loads_what_it_keeps_has_written_it(moves: Moves) -> None:
    begin(moves, spread(2), source=StateSource.CHECKPOINT)
    assert moves._holdings.written == [MADE_HERE]


def is_awaited(moves: Moves, group: int) -> bool:
    return moves.is_needed_by(Instruction(op=Op.FORWARD, first_layer=group, end_layer=group + 1))


def is_complete(moves: Moves) -> bool:
    return moves.is_complete


def arrive(moves: Moves, group: int = MADE_THERE) -> None:
    mail: Any = moves._mail
    gift = next(gift for gift in moves._made if gift.group == group)
    mail.came[moves._key(gift)] = "parameters"
    moves.collect()


def test_each_gives_what_it_makes_and_awaits_the_rest(moves: Moves) -> None:
    assert spread(1).kept_of == {0: (0,), 1: (1,), 2: (0,), 3: (1,)}
    assert [(key.kind, key.item, key.step) for key in moves.sent] == [(Kind.PARAMETERS, MADE_HERE, 2)]
    assert [gift.target for gift in moves.given] == [MATE]
    assert [gift.source for gift in moves._made] == [MATE], "devices of other stages make theirs themselves"
    assert moves.is_settled
    assert not is_complete(moves)
    assert (is_awaited(moves, MADE_HERE), is_awaited(moves, MADE_THERE)) == (False, True)
    assert moves.is_needed_by(None)
    assert moves.is_needed_by(Instruction(op=Op.VOTE)), "once it is committed, the source may change what it sends"
    arrive(moves)
    assert is_complete(moves)
    assert moves._holdings.replicas == {MADE_HERE: Replica(0), MADE_THERE: Replica(1, ["parameters"])}


def test_a_step_that_is_not_applied_changes_no_parameters(moves: Moves) -> None:
    arrive(moves)
    moves.give_parameters(Commit(generation=1, step=2, clip_factor=0.0, exponents=(), hold=False))
    assert is_complete(moves)
    assert len(moves.sent) == 1


def test_what_was_made_is_awaited_under_the_next_plan_too(moves: Moves) -> None:
    begin(moves, spread(2))
    moves.collect()
    moves.settle()
    assert not is_complete(moves)
    arrive(moves)
    assert is_complete(moves)


def test_who_gets_the_parameters_anew_awaits_nothing_else(moves: Moves) -> None:
    anew = Transfer(group=MADE_THERE, source=MATE, target=ME, with_optimizer=False)
    begin(moves, spread(2, anew))
    assert not moves._made
    assert moves.collect() == anew


@pytest.mark.parametrize(("step", "source"), [(3, StateSource.LIVE), (2, StateSource.INITIAL)])
def test_what_was_made_before_the_job_went_elsewhere_is_awaited_no_more(
    step: int, source: StateSource, moves: Moves
) -> None:
    begin(moves, spread(2), step=step, source=source)
    assert not moves._made
