"""Validation: each way in which a plan can be wrong is found."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, Stage, Transfer, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(4)
SETTINGS = PlannerSettings(num_microbatches=6, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
PLAN = initial_plan(PROFILE, make_templates(PROFILE, SETTINGS), SETTINGS, [NodeId(n) for n in range(4)], 5)

replace = msgspec.structs.replace


def with_route(**changes: object) -> Plan:
    return replace(PLAN, routes=(replace(PLAN.routes[0], **changes), *PLAN.routes[1:]))


def with_stage(**changes: object) -> Plan:
    first = PLAN.pipelines[0]
    stages = (replace(first.stages[0], **changes), *first.stages[1:])
    return replace(PLAN, pipelines=(Pipeline(stages=stages), *PLAN.pipelines[1:]))


SIZE = PLAN.groups[0].size_bytes


def with_parts(*parts: tuple[int, int]) -> Plan:
    """Group 0 comes to worker 0 in parts, each from a source of its own."""
    moves = [
        Transfer(group=0, source=WorkerId(source), target=WorkerId(0), part=part)
        for source, part in enumerate(parts, start=2)
    ]
    return replace(PLAN, transfers=tuple(moves))


def with_transfer(group: int, source: int, target: int, times: int = 1) -> Plan:
    move = Transfer(group=group, source=WorkerId(source), target=WorkerId(target))
    return replace(PLAN, transfers=(move,) * times)


HOPS = PLAN.routes[0].hops


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(PLAN, pipelines=()), "no pipeline"),
        (replace(PLAN, pipelines=(*PLAN.pipelines, Pipeline(stages=()))), "pipeline 2 has no stage"),
        (with_stage(worker=WorkerId(-1)), "has worker -1"),
        (with_stage(num_devices=0), "has 0 devices"),
        (with_stage(num_devices=2), r"takes 2 devices, and its node has 1, of which it is number 0"),
        (replace(with_stage(num_devices=2), devices_per_node=4), r"takes device 1, which worker 0 drives"),
        (with_stage(end_layer=9), r"\[0, 9\) of pipeline 0 is no range of 4 layers"),
        (with_stage(worker=WorkerId(3)), "worker 3 is in pipelines 0 and 1"),
        (replace(PLAN, spare_in_flight=-1), "-1 microbatches are to be kept beyond"),
        (replace(PLAN, layer_units=((1, 1, 1),)), "1 layers have units, of 4"),
        (replace(PLAN, layer_units=((1, 1, -1),) * 4), "a layer takes less than no time"),
        (replace(PLAN, sync_epochs=(5,)), "1 sync epochs for 5 groups"),
        (replace(PLAN, sync_epochs=(6, 5, 5, 5, 5)), "group 0 has epoch 6 in generation 5"),
        (with_route(born=6), "born in 6 is in generation 5"),
        (with_route(microbatches=()), "no microbatch"),
        (with_route(microbatches=(1, 0, 2)), "not ascending"),
        (with_route(microbatches=(0, 1, 7)), "a step has 6"),
        (with_route(counted=()), "counts no layer"),
        (with_route(counted=(1, 0)), "not ascending"),
        (with_route(counted=(0, 4)), "of 4"),
        (with_route(hops=HOPS[1:]), "follows layer -1"),
        (with_route(hops=HOPS[:1]), "ends at layer 2 of 4"),
        (with_route(hops=(HOPS[0], replace(HOPS[1], worker=HOPS[0].worker))), "does not own all of"),
        (replace(PLAN, routes=(PLAN.routes[0], PLAN.routes[0])), "two routes born in 5"),
        (with_route(counted=(0, 1, 2)), "is not counted for layer 3"),
        (replace(PLAN, routes=PLAN.routes[1:]), "is not counted for layer 0"),
        (replace(PLAN, routes=(*PLAN.routes, replace(PLAN.routes[0], born=4))), "counted twice for layer 0"),
        (with_transfer(9, 0, 1), "the plan has 5 groups"),
        (with_transfer(0, 0, 0), "goes nowhere"),
        (with_transfer(0, 0, 1), "the target does not own it"),
        (with_transfer(0, 2, 0, times=2), "there twice"),
        (with_parts((0, 10), (11, SIZE)), r"bytes \[11, \d+\) of group 0 for worker 0 follow byte 9"),
        (with_parts((0, 10), (9, SIZE)), "follow byte 9"),
        (with_parts((0, 10), (10, SIZE - 1)), f"worker 0 gets {SIZE - 1} of {SIZE} bytes of group 0"),
        (with_parts((0, 0), (0, SIZE)), "are none"),
        (
            replace(
                PLAN,
                pipelines=PLAN.pipelines[:1],
                routes=(replace(PLAN.routes[0], microbatches=tuple(range(6))),),
            ),
            "layer 0 has 1 replica on different nodes; fault_tolerance = 1 needs 2",
        ),
        (replace(PLAN, devices_per_node=4), "layer 0 has 1 replica on different nodes"),
    ],
)
def test_each_fault_is_found(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        validate(plan, fault_tolerance=1)


def test_a_good_plan_passes() -> None:
    validate(PLAN, fault_tolerance=1)
    validate(with_transfer(0, 2, 0))
    validate(with_parts((10, SIZE), (0, 10)))


def test_a_group_without_owner_is_refused() -> None:
    stages = (Stage(worker=WorkerId(0), first_layer=0, end_layer=3),)
    with pytest.raises(PlanError, match="group 3 has no owner"):
        validate(replace(PLAN, pipelines=(Pipeline(stages=stages),)))


def test_earlier_counts_are_part_of_the_whole() -> None:
    half = replace(PLAN, routes=PLAN.routes[1:])
    first = sum(1 << m for m in PLAN.routes[0].microbatches)
    validate(half, already=Ledger.from_bits([first] * 4))
    checks: list[Callable[[], None]] = [
        lambda: validate(half, already=Ledger.from_bits([first] * 3 + [0])),
        lambda: validate(PLAN, already=Ledger.from_bits([1, 0, 0, 0])),
    ]
    for check in checks:
        with pytest.raises(PlanError, match=r"counted"):
            check()
