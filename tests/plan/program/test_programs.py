"""Programs: the textbook order, and that every plan's programs run to their end and count everything once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import program
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from tests.plan.machine import Machine
from tests.plan.profiles import random_jobs
from tests.proof import examples


def chain(*ends: int, worker: int = 0) -> tuple[Stage, ...]:
    starts = (0, *ends[:-1])
    return tuple(
        Stage(worker=WorkerId(worker + place), first_layer=first, end_layer=end)
        for place, (first, end) in enumerate(zip(starts, ends, strict=True))
    )


def plan_of(
    routes: list[Route],
    pipelines: list[tuple[Stage, ...]],
    num_layers: int,
    num_microbatches: int,
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
) -> Plan:
    return Plan(
        generation=3,
        num_layers=num_layers,
        num_microbatches=num_microbatches,
        devices_per_node=1,
        groups=tuple(Group(layers=(layer,), size_bytes=1) for layer in range(num_layers)),
        pipelines=tuple(Pipeline(stages=stages) for stages in pipelines),
        routes=tuple(routes),
        sync_epochs=(1,) * num_layers,
        schedule=schedule,
    )


def one_pipeline(num_microbatches: int, schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B) -> Plan:
    hops = chain(2, 4, 6)
    route = Route(hops=hops, microbatches=tuple(range(num_microbatches)), born=1, counted=tuple(range(6)))
    return plan_of([route], [hops], 6, num_microbatches, schedule)


def letters(plan: Plan, worker: int) -> str:
    """F, B, I(nput), W(eights) with microbatch numbers; the pieces of one backward as one."""
    out: list[str] = []
    for instruction in program(plan, WorkerId(worker)):
        letter = {Op.FORWARD: "F", Op.BACKWARD: "B", Op.BACKWARD_INPUT: "I", Op.BACKWARD_WEIGHT: "W"}.get(
            instruction.op
        )
        if letter is not None:
            word = f"{letter}{instruction.microbatch}"
            if not out or out[-1] != word:
                out.append(word)
    return " ".join(out)


def most_kept(plan: Plan, worker: WorkerId) -> int:
    """Layers whose activations a worker keeps at most."""
    kept = most = 0
    for i in program(plan, worker):
        if i.op is Op.FORWARD and i.keeps:
            kept += i.end_layer - i.first_layer
        elif i.op is Op.BACKWARD:
            kept -= i.end_layer - i.first_layer
        elif i.op is Op.BACKWARD_WEIGHT:
            kept -= len(i.counted)
        most = max(most, kept)
    return most


def test_one_f_one_b_is_the_textbooks() -> None:
    plan = one_pipeline(4)
    assert letters(plan, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert letters(plan, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert letters(plan, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_runs_all_forwards_first() -> None:
    assert letters(one_pipeline(3, ScheduleKind.GPIPE), 1) == "F0 F1 F2 B0 B1 B2"


def test_split_backwards_leave_the_weights_for_later() -> None:
    """ZB-H1: the first stage has nobody to send a gradient to; a stage lags behind by as many as are before it."""
    plan = one_pipeline(4, ScheduleKind.ZERO_BUBBLE_H1)
    assert letters(plan, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert letters(plan, 1) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 W2 W3"
    assert letters(plan, 2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 W1 W2 W3"


def test_a_longer_warm_up_leaves_the_weights_for_longer() -> None:
    """ZB-H2: twice as many forwards ahead as stages follow, and weights behind as stages are before."""
    plan = one_pipeline(6, ScheduleKind.ZERO_BUBBLE_H2)
    assert letters(plan, 0) == "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"
    assert letters(plan, 1) == "F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5 W3 W4 W5"
    assert letters(plan, 2) == "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5 W1 W2 W3 W4 W5"


def test_the_last_weights_come_layer_by_layer_so_that_sums_start_early() -> None:
    plan = one_pipeline(3, ScheduleKind.ZERO_BUBBLE_H1)
    tail = [(i.op, i.microbatch, i.first_layer, i.counted, i.group) for i in program(plan, WorkerId(1))][-9:-1]
    assert (
        tail
        == [
            (Op.SEND_GRADIENT, 2, 2, (), -1),
            (Op.BACKWARD_WEIGHT, 1, 3, (3,), -1),
            (Op.BACKWARD_WEIGHT, 2, 3, (3,), -1),
            (Op.SYNC, -1, -1, (), 3),
            (Op.BACKWARD_WEIGHT, 1, 2, (2,), -1),
            (Op.BACKWARD_WEIGHT, 2, 2, (2,), -1),
            (Op.SYNC, -1, -1, (), 2),
            (Op.VOTE, -1, -1, (), -1),
        ][: len(tail)]
    )


def test_a_split_needs_a_gradient_that_goes_on_and_weights_that_count() -> None:
    hops = chain(2, 4, 6)
    routes = [
        Route(hops=hops, microbatches=(0,), born=1, counted=(0, 5)),
        Route(hops=hops, microbatches=(0,), born=3, counted=(1, 2, 3, 4)),
        Route(hops=hops, microbatches=(1,), born=3, counted=(2, 4)),
        Route(hops=hops, microbatches=(1,), born=2, counted=(0, 1, 3, 5)),
    ]
    plan = plan_of(routes, [hops], 6, 2, ScheduleKind.ZERO_BUBBLE_H1)
    backwards = {
        (i.born, i.microbatch, i.op, i.counted)
        for i in program(plan, WorkerId(1))
        if i.op in (Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT) and (i.born, i.microbatch) in ((1, 0), (3, 1))
    }
    assert backwards == {(1, 0, Op.BACKWARD, ()), (3, 1, Op.BACKWARD, ()), (3, 1, Op.BACKWARD, (2,))}
    machine = Machine(plan, 0)
    machine.run()
    machine.check_sums()


@pytest.mark.parametrize("kind", ScheduleKind)
def test_stages_keep_what_the_schedule_says(kind: ScheduleKind) -> None:
    for num_microbatches in (1, 2, 3, 9):
        plan = one_pipeline(num_microbatches, kind)
        for place in range(3):
            expected = kind.in_flight(2 - place, num_microbatches, place)
            assert most_kept(plan, WorkerId(place)) == 2 * expected


def test_messages_loads_and_syncs_of_a_middle_and_a_last_stage() -> None:
    plan = one_pipeline(1)
    middle = [(i.op, i.first_layer, i.group) for i in program(plan, WorkerId(1))]
    assert middle == [
        (Op.RECV_ACTIVATION, 2, -1),
        (Op.FORWARD, 2, -1),
        (Op.SEND_ACTIVATION, 4, -1),
        (Op.RECV_GRADIENT, 4, -1),
        (Op.BACKWARD, 3, -1),
        (Op.SYNC, -1, 3),
        (Op.BACKWARD, 2, -1),
        (Op.SYNC, -1, 2),
        (Op.SEND_GRADIENT, 2, -1),
        (Op.VOTE, -1, -1),
        (Op.APPLY, -1, -1),
    ]
    assert [i.op for i in program(plan, WorkerId(2))][:3] == [Op.LOAD, Op.RECV_ACTIVATION, Op.FORWARD]


def test_a_single_worker_loads_once_and_sends_nothing() -> None:
    hops = chain(2)
    plan = plan_of([Route(hops=hops, microbatches=(0, 1), born=3, counted=(0, 1))], [hops], 2, 2)
    ops = [i.op for i in program(plan, WorkerId(0))]
    assert ops.count(Op.LOAD) == 2
    assert not {Op.SEND_ACTIVATION, Op.RECV_GRADIENT} & set(ops)


def test_neighbouring_hops_on_one_worker_are_one() -> None:
    hops = (
        Stage(worker=WorkerId(0), first_layer=0, end_layer=1),
        Stage(worker=WorkerId(0), first_layer=1, end_layer=3),
        Stage(worker=WorkerId(1), first_layer=3, end_layer=4),
    )
    route = Route(hops=hops, microbatches=(0,), born=3, counted=(0, 1, 2, 3))
    plan = plan_of([route], [hops], 4, 1)
    forwards = [i for i in program(plan, WorkerId(0)) if i.op is Op.FORWARD]
    assert [(i.first_layer, i.end_layer) for i in forwards] == [(0, 3)]
    Machine(plan, 0).run()


def test_layers_below_the_lowest_counted_run_forward_only() -> None:
    hops = chain(2, 4, 6)
    whole = Route(hops=hops, microbatches=(0,), born=1, counted=tuple(range(6)))
    part = Route(hops=hops, microbatches=(1,), born=3, counted=(3, 4))
    plan = plan_of([whole, part], [hops], 6, 2)
    assert letters(plan, 0) == "F0 F1 B0"
    again = [i for i in program(plan, WorkerId(1)) if i.microbatch == 1]
    assert [i.op for i in again if i.op is Op.SEND_GRADIENT] == []
    assert [(i.first_layer, i.end_layer, i.counted) for i in again if i.op is Op.BACKWARD] == [(3, 4, (3,))]
    last = [i for i in program(plan, WorkerId(2)) if i.microbatch == 1 and i.op is Op.BACKWARD]
    assert [(i.first_layer, i.counted) for i in last] == [(5, ()), (4, (4,))]
    first = next(i for i in program(plan, WorkerId(0)) if i.op is Op.FORWARD and i.microbatch == 1)
    assert not first.keeps
    Machine(plan, 0).run()


def test_a_group_that_nothing_here_counts_is_synced_first() -> None:
    hops, rest = chain(1, 2), chain(1, worker=5)
    route = Route(hops=hops, microbatches=(0,), born=3, counted=(0, 1))
    plan = plan_of([route], [hops, rest], 2, 1)
    assert [i.op for i in program(plan, WorkerId(5))] == [Op.SYNC, Op.VOTE, Op.APPLY]


@pytest.mark.parametrize("kind", ScheduleKind)
def test_more_routes_leave_the_instructions_of_kept_ones_as_they_are(kind: ScheduleKind) -> None:
    plan = one_pipeline(4, kind)
    added = Route(hops=plan.routes[0].hops, microbatches=(4, 5), born=3, counted=(1, 2))
    longer = msgspec.structs.replace(plan, num_microbatches=6, routes=(*plan.routes, added))

    def work(of: Plan, worker: int) -> set[Instruction]:
        return {i for i in program(of, WorkerId(worker)) if i.born == 1}

    hops = plan.routes[0].hops
    swapped = (
        *hops[:1],
        *(msgspec.structs.replace(h, worker=o.worker) for h, o in zip(hops[1:], hops[:0:-1], strict=True)),
    )
    crossing = msgspec.structs.replace(longer, routes=(*plan.routes, msgspec.structs.replace(added, hops=swapped)))
    for worker in range(3):
        assert work(plan, worker) == work(longer, worker) == work(crossing, worker)


def test_the_bound_on_kept_activations_cannot_block() -> None:
    """Each of two workers begins a way, and has no room then for the long end of the other one."""
    there, back = (
        tuple(
            Stage(worker=WorkerId(worker), first_layer=first, end_layer=end)
            for worker, first, end in ((one, 0, cut), (other, cut, 6))
        )
        for one, other, cut in ((0, 1, 1), (1, 0, 1))
    )
    everything = tuple(range(6))
    routes = [
        Route(hops=there, microbatches=(0, 1), born=3, counted=everything),
        Route(hops=back, microbatches=(2, 3), born=3, counted=everything),
    ]
    holders = [(Stage(worker=WorkerId(w), first_layer=0, end_layer=6),) for w in range(2)]
    plan = plan_of(routes, holders, 6, 4)
    assert letters(plan, 1).startswith("F2 F0 B0")
    Machine(plan, 0).run()


def test_an_unknown_worker_is_refused() -> None:
    with pytest.raises(KeyError):
        program(one_pipeline(1), WorkerId(9))


def _plan(job: tuple[ModelProfile, PlannerSettings], schedule: ScheduleKind) -> Plan:
    profile, planner = job
    plan = initial_plan(
        profile, make_templates(profile, planner), planner, [NodeId(n) for n in range(planner.num_nodes)], 1
    )
    return msgspec.structs.replace(plan, schedule=schedule)


@settings(max_examples=examples(60), deadline=None)
@given(job=random_jobs(), schedule=st.sampled_from(ScheduleKind), seed=st.integers(0, 9))
def test_regular_programs_run_to_their_end(
    job: tuple[ModelProfile, PlannerSettings], schedule: ScheduleKind, seed: int
) -> None:
    plan = _plan(job, schedule)
    validate(plan, fault_tolerance=job[1].fault_tolerance)
    machine = Machine(plan, seed)
    machine.run()
    machine.check_sums()
    assert not machine.messages


@st.composite
def irregular_plans(draw: st.DrawFn) -> Plan:
    """Workers that hold random ranges, and routes that hop among them at will."""
    num_layers = draw(st.integers(1, 6))
    num_workers = draw(st.integers(1, 5))
    bounds = [(0, num_layers)] + [
        (first := draw(st.integers(0, num_layers - 1)), draw(st.integers(first + 1, num_layers)))
        for _ in range(num_workers - 1)
    ]
    pipelines = [
        (Stage(worker=WorkerId(w), first_layer=first, end_layer=end),) for w, (first, end) in enumerate(bounds)
    ]
    num_microbatches = draw(st.integers(1, 6))
    routes: list[Route] = []
    for microbatch in range(num_microbatches):
        everything = frozenset(range(num_layers))
        part = draw(st.frozensets(st.sampled_from(range(num_layers)), min_size=1))
        for born, counted in ((1, part), (2, everything - part)):
            if counted:
                hops = draw(_ways(bounds, num_layers))
                layers = tuple(sorted(counted))
                routes.append(Route(hops=hops, microbatches=(microbatch,), born=born, counted=layers))
    return plan_of(routes, pipelines, num_layers, num_microbatches, draw(st.sampled_from(ScheduleKind)))


@st.composite
def _ways(draw: st.DrawFn, bounds: list[tuple[int, int]], num_layers: int) -> tuple[Stage, ...]:
    hops: list[Stage] = []
    position = 0
    while position < num_layers:
        holders = [w for w, (first, end) in enumerate(bounds) if first <= position < end]
        worker = draw(st.sampled_from(holders))
        end = draw(st.integers(position + 1, bounds[worker][1]))
        hops.append(Stage(worker=WorkerId(worker), first_layer=position, end_layer=end))
        position = end
    return tuple(hops)


@settings(max_examples=examples(120), deadline=None)
@given(plan=irregular_plans(), seed=st.integers(0, 9))
def test_irregular_programs_run_to_their_end(plan: Plan, seed: int) -> None:
    validate(plan)
    machine = Machine(plan, seed)
    machine.run()
    machine.check_sums()
    assert not machine.messages
