"""The worker's machine: what it does with orders, in order and out of it."""

from __future__ import annotations

import msgspec
import pytest

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.from_worker import WorkerPhase
from planaria.protocol.messages.to_worker import Commit, Halt, PlanMessage, Recall, Save, StateSource, Stop
from planaria.protocol.worker.machine import (
    Adopt,
    Apply,
    CoordinatorBack,
    CoordinatorGone,
    End,
    ProgramDone,
    SendReport,
    SendReturned,
    SendVote,
    WorkerMachine,
    Write,
)
from tests.plan.profiles import uniform_profile


def make_plan(generation: int) -> Plan:
    settings = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=2, devices_per_node=1)
    plan = TemplatesPolicy.of(Planner(uniform_profile(4), settings)).initial([0, 1], 1).plan  # type: ignore[list-item]
    return msgspec.structs.replace(plan, generation=generation)


def order(generation: int, step: int, source: StateSource = StateSource.LIVE) -> PlanMessage:
    return PlanMessage(
        plan=make_plan(generation), step=step, addresses={WorkerId(0): "a:1"}, exponents=(), source=source
    )


def commit(generation: int, step: int, *, hold: bool = False) -> Commit:
    return Commit(generation=generation, step=step, clip_factor=1.0, exponents=(), hold=hold, loss=1.0, norm=1.0)


@pytest.fixture
def machine() -> WorkerMachine:
    """In generation 1, running step 1."""
    machine = WorkerMachine()
    (adopt,) = machine.handle(order(1, 1, StateSource.INITIAL))
    assert isinstance(adopt, Adopt)
    assert not adopt.continues
    return machine


def test_a_step_is_run_voted_on_and_applied(machine: WorkerMachine) -> None:
    assert machine.handle(ProgramDone(1, 1)) == (SendVote(1, 1),)
    assert machine.handle(commit(1, 1)) == (Apply(commit(1, 1), proceed=True),)
    assert (machine.phase, machine.step) == (WorkerPhase.RUNNING, 2)


def test_an_older_plan_is_ignored(machine: WorkerMachine) -> None:
    assert machine.handle(order(1, 1)) == ()
    assert machine.handle(order(0, 1)) == ()


def test_a_later_plan_within_the_step_continues_it(machine: WorkerMachine) -> None:
    assert machine.handle(Halt(generation=1, step=1)) == (SendReport(1, 1),)
    (adopt,) = machine.handle(order(2, 1))
    assert isinstance(adopt, Adopt)
    assert adopt.continues
    assert machine.handle(ProgramDone(1, 1)) == (), "the end of the old plan's program is no news"
    assert machine.phase is WorkerPhase.RUNNING


@pytest.mark.parametrize(("lineage", "forgets"), [(1, False), (2, True), (3, True)])
def test_what_was_held_before_the_job_went_back_is_forgotten(
    lineage: int, forgets: bool, machine: WorkerMachine
) -> None:
    """Also by a worker for whom the plan that went back had no place: its replicas may be of a step of that number."""
    machine.handle(ProgramDone(1, 1))
    machine.handle(commit(1, 1, hold=True))
    (adopt,) = machine.handle(msgspec.structs.replace(order(3, 2), lineage=lineage))
    assert isinstance(adopt, Adopt)
    assert adopt.forgets is forgets


def test_a_halt_of_an_older_generation_is_ignored(machine: WorkerMachine) -> None:
    machine.handle(order(2, 1))
    assert machine.handle(Halt(generation=1, step=1)) == ()


def test_state_is_saved_at_a_boundary(machine: WorkerMachine) -> None:
    machine.handle(ProgramDone(1, 1))
    machine.handle(commit(1, 1, hold=True))
    save = Save(step=1, serial=1, folder="f", groups=(0,))
    assert machine.handle(save) == (Write(save),)


@pytest.mark.parametrize(
    "message",
    [
        commit(1, 1),
        commit(1, 2),
        commit(2, 1),
        Save(step=0, serial=1, folder="f", groups=()),
        Save(step=7, serial=1, folder="f", groups=()),
    ],
)
def test_what_is_illegal_ends_the_worker(machine: WorkerMachine, message: Commit | Save) -> None:
    (end,) = machine.handle(message)
    assert isinstance(end, End)
    assert not end.clean
    assert "is illegal in phase running" in end.reason
    assert machine.handle(Stop(reason="late")) == ()


def test_what_is_told_to_the_next_coordinator(machine: WorkerMachine) -> None:
    """And nothing of what goes on changes by it."""
    assert machine.handle(CoordinatorBack(3)) == (
        SendReturned(
            connection=3, generation=1, step=1, phase=WorkerPhase.RUNNING, serial=0, commit=None, message=None
        ),
    )
    machine.handle(ProgramDone(1, 1))
    save = Save(step=1, serial=4, folder="f", groups=(0,))
    applied = commit(1, 1, hold=True)
    machine.handle(msgspec.structs.replace(applied, save=save))
    (told,) = machine.handle(CoordinatorBack(4))
    assert told == SendReturned(
        connection=4, generation=1, step=2, phase=WorkerPhase.IDLE, serial=4, commit=applied, message=None
    )
    machine.handle(msgspec.structs.replace(save, serial=5))
    (told,) = machine.handle(Recall())
    assert isinstance(told, SendReturned)
    assert (told.connection, told.serial, told.message) == (4, 5, order(1, 1, StateSource.INITIAL))
    assert machine.phase is WorkerPhase.IDLE


def test_without_a_coordinator_it_ends(machine: WorkerMachine) -> None:
    (end,) = machine.handle(CoordinatorGone())
    assert isinstance(end, End)
    assert not end.clean
