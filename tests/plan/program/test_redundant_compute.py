"""Which worker computes what of another's, and when."""

from __future__ import annotations

import msgspec
import pytest

from planaria.plan.plan import Redundancy, ScheduleKind, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import programs
from planaria.plan.program.routes import redundant_ring, redundant_workers
from planaria.plan.validate import validate
from tests.plan.shadowed import Machine, ring_plan


def own(instruction: Instruction) -> bool:
    return instruction.op not in (Op.SHADOW_FORWARD, Op.SHADOW_BACKWARD, Op.LOAD)


def test_each_worker_stands_in_for_its_successor_and_the_last_for_the_first() -> None:
    plan = ring_plan(Redundancy.EAGER_LAZY)
    validate(plan, fault_tolerance=3)
    assert redundant_workers(plan, plan.pipelines[0].stages) == (2, 0, 1)
    assert redundant_workers(plan, plan.pipelines[1].stages) == (5, 3, 4)


def test_nobody_stands_in_for_who_is_on_his_own_node() -> None:
    plan = msgspec.structs.replace(ring_plan(Redundancy.EAGER_LAZY), devices_per_node=3)
    assert redundant_workers(plan, plan.pipelines[0].stages) == (None, None, None)


@pytest.mark.parametrize("schedule", [*ScheduleKind])
@pytest.mark.parametrize("mode", [*Redundancy])
@pytest.mark.parametrize(
    ("pipelines", "depth", "microbatches"), [(2, 3, 12), (1, 2, 5), (1, 6, 3), (3, 1, 9), (2, 4, 2)]
)
def test_every_order_runs_to_its_end(
    pipelines: int, depth: int, microbatches: int, mode: Redundancy, schedule: ScheduleKind
) -> None:
    plan = ring_plan(mode, pipelines=pipelines, depth=depth, layers=12, microbatches=microbatches, schedule=schedule)
    machine = Machine(plan)
    machine.run()
    assert machine.counts_everything_once()
    work = 12 * microbatches
    assert machine.ran.get(Op.SHADOW_FORWARD, 0) == (work if mode.runs_forwards else 0)
    assert machine.ran.get(Op.SHADOW_BACKWARD, 0) == (work if mode.runs_backwards else 0)


@pytest.mark.parametrize("mode", [*Redundancy])
@pytest.mark.parametrize("schedule", [*ScheduleKind])
def test_what_counts_is_in_the_order_of_before(mode: Redundancy, schedule: ScheduleKind) -> None:
    """Shadows are put between; the only messages that are added are the gradients that eager backwards need."""
    plain = programs(ring_plan(None, microbatches=12, schedule=schedule))
    for worker, program in programs(ring_plan(mode, microbatches=12, schedule=schedule)).items():
        computes = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
        assert [i for i in program if i.op in computes] == [i for i in plain[worker] if i.op in computes]
        added = len(program) - len(plain[worker])
        assert added >= 0
        more = [i for i in program if i.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)]
        before = [i for i in plain[worker] if i.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)]
        assert (len(more) > len(before)) == mode.runs_backwards


def test_the_forward_before_the_last_one_comes_before_a_gradient_is_waited_for() -> None:
    """The first of three stages: two forwards ahead, the first gradient's bubble, then one before each gradient."""
    program = programs(ring_plan(Redundancy.EAGER_LAZY, pipelines=1, microbatches=6))[WorkerId(0)]
    names = {Op.FORWARD: "F", Op.BACKWARD: "B", Op.SHADOW_FORWARD: "S", Op.RECV_GRADIENT: "?"}
    seen = [f"{names[i.op]}{i.microbatch}" for i in program if i.op in names]
    assert seen[:14] == ["F0", "F1", "F2", "S0", "S1", "S2", "?0", "B0", "F3", "?1", "B1", "F4", "S3", "?2"]


def test_the_last_worker_begins_with_the_first_ones_forwards_and_ends_with_some() -> None:
    program = programs(ring_plan(Redundancy.EAGER_LAZY, pipelines=1, microbatches=8))[WorkerId(2)]
    names = {Op.FORWARD: "F", Op.BACKWARD: "B", Op.SHADOW_FORWARD: "S"}
    seen = [f"{names[i.op]}{i.microbatch}" for i in program if i.op in names]
    assert seen[:3] == ["S0", "S1", "F0"]
    assert seen[-2:] == ["S6", "S7"]
    loads = [at for at, i in enumerate(program) if i.op is Op.LOAD and i.microbatch == 0]
    assert program[loads[0] + 1].op is Op.SHADOW_FORWARD


def test_pipelines_of_one_stage_are_a_ring() -> None:
    plan = ring_plan(Redundancy.EAGER_LAZY, pipelines=3, depth=1)
    assert redundant_ring(plan, [WorkerId(0), WorkerId(1), WorkerId(2)]) == {0: 1, 1: 2, 2: 0}
    shadowed = {
        worker: {i.microbatch for i in program if i.op is Op.SHADOW_FORWARD}
        for worker, program in programs(plan).items()
    }
    assert shadowed == {0: {2, 3}, 1: {4, 5}, 2: {0, 1}}
