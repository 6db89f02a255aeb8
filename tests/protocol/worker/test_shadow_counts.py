"""Copies of what another worker counts: when they count, and when they are of no use."""

from __future__ import annotations

import msgspec

from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, Redundancy, WorkerId
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.finish_step.shadow_takeover import resume
from planaria.protocol.worker.shadow_counts import Fate, Shadows
from tests.plan.shadowed import ring_plan

PLAN = ring_plan(Redundancy.EAGER_EAGER)
SHADOW = WorkerId(0)


def shadows_of(plan: Plan) -> Shadows:
    """Worker 0 has copies of two of the three microbatches of worker 1."""
    shadows = Shadows()
    shadows.counted = {
        (layer, (microbatch, 1)) for layer in plan.pipelines[0].stages[1].layers for microbatch in (0, 1)
    }
    return shadows


def after_loss(*lost: int) -> Plan | None:
    live = [worker for worker in PLAN.workers if worker not in lost]
    holders = {worker: PLAN.layers_held(PLAN.groups_of[worker]) for worker in live}
    return resume(PLAN, live, to_halt(PLAN, live), Ledger.empty(PLAN.num_layers), holders, 2)


def test_shadows_count_once_their_owner_is_lost() -> None:
    plan = after_loss(1)
    assert plan is not None
    assert shadows_of(PLAN).fate(plan, SHADOW) is Fate.PROMOTED


def test_shadows_do_not_count_while_their_owner_lives() -> None:
    assert shadows_of(PLAN).fate(PLAN, SHADOW) is Fate.KEPT
    for lost in (2, 4):
        plan = after_loss(lost)
        assert plan is not None
        assert shadows_of(PLAN).fate(plan, SHADOW) is Fate.KEPT


def test_shadows_are_dropped_where_the_lost_layers_work_is_begun_anew() -> None:
    plan = after_loss(1)
    assert plan is not None
    anew = tuple(msgspec.structs.replace(route, born=2, reached=None) for route in plan.routes)
    assert shadows_of(PLAN).fate(msgspec.structs.replace(plan, routes=anew), SHADOW) is Fate.DROPPED


def test_shadows_are_dropped_where_all_that_they_are_of_is_begun_anew_by_its_owner() -> None:
    """Their owner may be lost later: then what it counted since is a copy here, and no more than that."""
    anew = tuple(msgspec.structs.replace(route, born=2) for route in PLAN.routes)
    assert shadows_of(PLAN).fate(msgspec.structs.replace(PLAN, routes=anew), SHADOW) is Fate.DROPPED
    one = tuple(
        msgspec.structs.replace(route, microbatches=tuple(m for m in route.microbatches if m)) for route in PLAN.routes
    )
    assert shadows_of(PLAN).fate(msgspec.structs.replace(PLAN, routes=one), SHADOW) is Fate.KEPT


def test_shadows_are_dropped_where_only_some_would_count() -> None:
    """They are one sum: nobody can take a part of it."""
    plan = after_loss(1)
    assert plan is not None
    routes = tuple(
        msgspec.structs.replace(route, microbatches=tuple(m for m in route.microbatches if m)) for route in plan.routes
    )
    assert shadows_of(PLAN).fate(msgspec.structs.replace(plan, routes=routes), SHADOW) is Fate.DROPPED
