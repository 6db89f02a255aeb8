"""Which computations are run again, by whom, and that programs with audits still run to their end."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from planaria.plan.plan import Pipeline, Plan, Redundancy, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program.audits import audit_turns, audits_of, unaudited, with_audits
from planaria.plan.program.instructions import COMPUTING, Op
from planaria.plan.program.programs import program
from tests.plan.machine import Machine
from tests.plan.program.test_programs import chain, plan_of
from tests.plan.shadowed import ring_plan

KINDS = [*ScheduleKind]


def uneven(schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B, microbatches: int = 6) -> Plan:
    """Two pipelines that cut six layers at different places."""
    pipelines = [chain(2, 4, 6), chain(3, 6, worker=3)]
    half = microbatches // 2
    shares = [tuple(range(half)), tuple(range(half, microbatches))]
    routes = [
        Route(hops=hops, microbatches=share, born=1, counted=tuple(range(6)))
        for hops, share in zip(pipelines, shares, strict=True)
    ]
    return plan_of(routes, pipelines, 6, microbatches, schedule)


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("auditors", [1, 2])
def test_with_a_share_of_one_every_layer_of_every_microbatch_is_run_again(
    schedule: ScheduleKind, auditors: int
) -> None:
    for plan in (uneven(schedule), ring_plan(None, pipelines=3, microbatches=9, schedule=schedule)):
        audits = audits_of(plan, 1, 1, 1.0, auditors=auditors)
        machine = Machine(plan, seed=auditors, audits=audits)
        machine.run()
        machine.check_sums()
        times = min(auditors, len(plan.pipelines) - 1)
        everything = {(layer, m) for layer in range(plan.num_layers) for m in range(plan.num_microbatches)}
        assert machine.audited == Counter(dict.fromkeys(everything, times))
        assert not machine.messages, "what is sent to auditors is taken"


def test_everybody_has_its_turn_in_as_many_audits_as_are_to_be_expected() -> None:
    plan = uneven(microbatches=60)
    turns = audit_turns(plan)
    expected = Counter((w, a.first_layer, a.end_layer) for a in audits_of(plan, 1, 1, 1.0) for w in a.by)
    assert {(w, *piece): number for w, mine in turns.items() for piece, number in mine.items()} == expected


def test_audits_are_drawn_from_seed_and_step_whatever_the_plan_of_that_step() -> None:
    plan = uneven(microbatches=200)
    other = msgspec.structs.replace(plan, generation=9, routes=plan.routes[::-1])
    drawn = audits_of(plan, 1, 4, 0.1)
    assert sorted(drawn, key=repr) == sorted(audits_of(other, 1, 4, 0.1), key=repr)
    assert drawn != audits_of(plan, 1, 5, 0.1)
    assert drawn != audits_of(plan, 2, 4, 0.1)
    num_hops = 100 * 3 + 100 * 2
    assert 0.04 * num_hops < len({(a.microbatch, a.worker) for a in drawn}) < 0.18 * num_hops
    assert not audits_of(plan, 1, 4, 0.0)


def test_nobody_audits_its_own_node_or_what_passes_through_it() -> None:
    plan = msgspec.structs.replace(ring_plan(None, pipelines=2, depth=2), devices_per_node=2)
    for audit in audits_of(plan, 1, 1, 1.0, auditors=9):
        (route,) = (route for route in plan.routes if audit.microbatch in route.microbatches)
        passed = {hop.worker for hop in route.hops}
        assert audit.by
        assert passed.isdisjoint(audit.by)
        assert plan.node_of(audit.worker) not in map(plan.node_of, audit.by)


def test_what_devices_compute_together_one_of_another_node_runs_again() -> None:
    devices = 2
    plain = ring_plan(None, pipelines=2, depth=2)
    pipelines = tuple(
        Pipeline(stages=tuple(msgspec.structs.replace(s, worker=WorkerId(devices * s.worker + at)) for s in p.stages))
        for p in plain.pipelines
        for at in range(devices)
    )
    routes = tuple(
        msgspec.structs.replace(
            route,
            hops=tuple(msgspec.structs.replace(h, worker=WorkerId(devices * h.worker)) for h in route.hops),
        )
        for route in plain.routes
    )
    plan = plain.renewed(
        pipelines=pipelines,
        routes=routes,
        devices_per_node=devices,
        devices_per_stage=devices,
        shares_microbatches=True,
    )
    audits = audits_of(plan, 1, 1, 1.0, auditors=9)
    assert {(a.microbatch, layer) for a in audits for layer in range(a.first_layer, a.end_layer)} == {
        (microbatch, layer) for microbatch in range(plan.num_microbatches) for layer in range(plan.num_layers)
    }
    for audit in audits:
        (route,) = (route for route in plan.routes if audit.microbatch in route.microbatches)
        passed = {WorkerId(hop.worker + at) for hop in route.hops for at in range(devices)}
        assert plan.first_of(audit.worker) == audit.worker
        assert passed.isdisjoint(audit.by)
        assert len(audit.by) == devices, "each device of the other pipeline's stage can"


def test_of_a_worker_on_probation_all_is_audited_and_of_others_the_share() -> None:
    plan = uneven()
    audits = audits_of(plan, 1, 1, 0.0, wholly=(WorkerId(3),))
    assert {audit.worker for audit in audits} == {3}
    assert {audit.microbatch for audit in audits} == {3, 4, 5}


def test_layers_of_one_node_alone_are_not_audited_and_that_is_told() -> None:
    hops = chain(2, 4, 6)
    route = Route(hops=hops, microbatches=(0, 1), born=1, counted=tuple(range(6)))
    alone = plan_of([route], [hops], 6, 2)
    assert audits_of(alone, 1, 1, 1.0) == ()
    assert unaudited(alone) == (0, 1, 2, 3, 4, 5)
    assert unaudited(uneven()) == ()


def test_a_step_that_goes_on_and_an_evaluation_have_none() -> None:
    plan = uneven()
    rest = tuple(msgspec.structs.replace(route, counted=(0, 1)) for route in plan.routes)
    assert audits_of(msgspec.structs.replace(plan, routes=rest), 1, 1, 1.0) == ()
    assert audits_of(plan.evaluating(4), 1, 1, 1.0) == ()


def test_who_may_run_the_same_work_as_a_shadow_does_not_audit_it() -> None:
    plan = ring_plan(Redundancy.EAGER_EAGER, pipelines=2, depth=3)
    for audit in audits_of(plan, 1, 1, 1.0):
        shadowed = {layer for stage in plan.shadows if stage.worker in audit.by for layer in stage.layers}
        assert shadowed.isdisjoint(range(audit.first_layer, audit.end_layer))


def test_what_is_not_audited_stays_as_it_is_and_audits_come_before_the_vote() -> None:
    plan = uneven()
    audits = tuple(audit for audit in audits_of(plan, 1, 1, 1.0) if audit.microbatch == 0)
    for worker in plan.workers:
        plain, with_them = program(plan, worker), with_audits(program(plan, worker), audits, worker, plan)
        others = [i for i in with_them if i.microbatch != 0]
        assert others == [i for i in plain if i.microbatch != 0]
        ops = [i.op for i in with_them]
        if Op.AUDIT in ops:
            last = max(at for at, op in enumerate(ops) if op in COMPUTING and op is not Op.AUDIT)
            assert last < ops.index(Op.AUDIT) < ops.index(Op.VOTE)
    idle = Stage(worker=WorkerId(7), first_layer=0, end_layer=6)
    assert with_audits((), audits, idle.worker, plan) == ()
