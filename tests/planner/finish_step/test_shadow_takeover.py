"""Shadows go on where their workers were, in the middle of a step."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.plan import Plan, Redundancy, ScheduleKind, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import program
from planaria.plan.validate import validate
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.finish_step.shadow_takeover import resume, taken_over
from tests.plan.shadowed import Machine, ring_plan
from tests.proof import examples


def held(plan: Plan, live: tuple[WorkerId, ...]) -> dict[WorkerId, tuple[int, ...]]:
    return {worker: plan.layers_held(plan.groups_of[worker]) for worker in live}


def struck(machine: Machine, *lost: int, generation: int = 2) -> Plan | None:
    """The plan that goes on after a loss, which the machine then has."""
    machine.lose(lost)
    halted = to_halt(machine.plan, machine.live)
    counted = machine.ledger(halted)
    plan = resume(machine.plan, machine.live, halted, counted, held(machine.plan, machine.live), generation)
    if plan is not None:
        validate(plan, already=counted)
        machine.go_on(plan)
    return plan


@settings(deadline=None, max_examples=examples(60))
@given(
    mode=st.sampled_from(Redundancy),
    schedule=st.sampled_from(ScheduleKind),
    shape=st.sampled_from([(2, 3, 8), (1, 4, 6), (2, 2, 4), (3, 1, 6), (1, 5, 3)]),
    seed=st.integers(0, 1 << 30),
)
def test_shadows_finish_the_step_after_a_loss_anywhere(
    mode: Redundancy, schedule: ScheduleKind, shape: tuple[int, int, int], seed: int
) -> None:
    """The step ends, and nothing that survived is counted twice or missing. (Bits: tests/runtime/worker.)"""
    pipelines, depth, microbatches = shape
    plan = ring_plan(mode, pipelines=pipelines, depth=depth, microbatches=microbatches, schedule=schedule)
    if mode.runs_backwards:
        return  # copies count in what workers do with them: test_shadow_counts.py, and the same two
    draw, machine = random.Random(seed), Machine(plan)
    left = draw.randrange(60 * depth)

    def stop(worker: WorkerId, instruction: Instruction) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    machine.run(stop)
    new = struck(machine, draw.choice(plan.workers))
    assert new is not None
    machine.run()
    assert machine.counts_everything_once()


@pytest.mark.parametrize("mode", [*Redundancy])
def test_all_that_survives_stays_done(mode: Redundancy) -> None:
    """A loss at the very end: the shadow runs the lost stage's backwards, and its forwards if it had not; nobody else
    computes anything. (Copies of backwards count as done; here nobody promotes them.)"""
    machine = Machine(ring_plan(mode))
    machine.run(lambda worker, instruction: False)
    new = struck(machine, 1)
    assert new is not None
    assert [stage.worker for stage in new.pipelines[0].stages] == [0, 0, 2]
    machine.run()
    lost = 2 * 3
    assert machine.ran.get(Op.FORWARD, 0) == (0 if mode.runs_forwards else lost)
    assert machine.ran.get(Op.BACKWARD, 0) == (0 if mode.runs_backwards else lost)
    gradients = [i for i in machine.sent if i.op is Op.SEND_GRADIENT]
    assert len(gradients) == (0 if mode.runs_backwards else 3)  # the copies came before
    assert not [i for i in machine.sent if i.op is Op.SEND_ACTIVATION]


def test_the_merged_program_follows_the_papers_rules() -> None:
    """Section 5.2: messages first, none between the two, the lost one's successor is heard, backwards come first."""
    machine = Machine(ring_plan(Redundancy.EAGER_LAZY))
    halfway = {"left": 40}

    def stop(worker: WorkerId, instruction: Instruction) -> bool:
        halfway["left"] -= 1
        return halfway["left"] < 0

    machine.run(stop)
    new = struck(machine, 1)
    assert new is not None
    merged = program(new, WorkerId(0))
    peers = {i.peer for i in merged if i.peer is not None}
    assert peers == {2}
    for before, after in pairwise(merged):
        if after.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
            assert before.op not in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT)
        if before.op is Op.RECV_GRADIENT:
            assert after.op is Op.BACKWARD
    backwards = [i.microbatch for i in merged if i.op is Op.BACKWARD]
    assert backwards == sorted(backwards)


@pytest.mark.parametrize("lost", [(0, 1), (1, 2), (2, 0)])
def test_a_worker_and_its_shadow_cannot_be_taken_over(lost: tuple[int, int]) -> None:
    machine = Machine(ring_plan(Redundancy.EAGER_LAZY))
    assert struck(machine, *lost) is None


def test_two_of_one_pipeline_that_are_no_neighbours_and_one_of_another() -> None:
    machine = Machine(ring_plan(Redundancy.EAGER_LAZY, depth=4, layers=8))
    new = struck(machine, 0, 2, 5)
    assert new is not None
    assert [[stage.worker for stage in p.stages] for p in new.pipelines] == [[3, 1, 1, 3], [4, 4, 6, 7]]
    machine.run()
    assert machine.counts_everything_once()


def test_what_was_counted_by_who_is_lost_now_and_belongs_to_nobodys_work_is_begun_anew() -> None:
    """The second loss of a pipeline, when microbatches that were done had left the plan."""
    machine = Machine(ring_plan(Redundancy.EAGER_LAZY, pipelines=1, depth=4, layers=8, microbatches=6))
    machine.run(lambda worker, i: worker == 0 and i.op is Op.BACKWARD and i.microbatch == 4)
    first = struck(machine, 3)
    assert first is not None
    assert struck(machine, 1, generation=3) is None


def test_a_shadow_without_its_state_takes_nothing_over() -> None:
    plan = ring_plan(Redundancy.EAGER_LAZY)
    live = tuple(worker for worker in plan.workers if worker != 1)
    holders = held(plan, live) | {WorkerId(0): (0, 1)}
    assert taken_over(plan, live, holders)[0] is None
    machine = Machine(plan)
    machine.lose([1])
    halted = to_halt(plan, live)
    assert resume(plan, live, halted, machine.ledger(halted), holders, 2) is None


def test_without_redundancy_shadows_only_hold() -> None:
    plan = msgspec.structs.replace(ring_plan(Redundancy.EAGER_LAZY), redundancy=None)
    machine = Machine(plan)
    machine.run()
    assert Op.SHADOW_FORWARD not in machine.ran
    assert struck(machine, 1) is None
