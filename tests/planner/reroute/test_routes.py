"""Detours: who may take what, and how evenly."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from planaria.estimate.lower_bound import least_rerouted_s
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import Pipeline, Plan, ScheduleKind, Stage, WorkerId
from planaria.plan.validate import validate
from planaria.planner.reroute.plans import carriers, homes, left_over, rerouted, shares
from planaria.planner.reroute.routes import Detours, Freedom, MicrobatchAssignment, unowned
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(8, link=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e30))
COSTS = StageCosts(PROFILE)


def pipelines(*cuts: tuple[int, ...], lost: tuple[int, ...] = ()) -> tuple[Pipeline, ...]:
    """Stages between the cuts; workers count up, those who are lost included."""
    workers = itertools.count()
    made = [
        [Stage(worker=WorkerId(next(workers)), first_layer=a, end_layer=b) for a, b in itertools.pairwise(each)]
        for each in cuts
    ]
    left = [tuple(stage for stage in stages if stage.worker not in lost) for stages in made]
    return tuple(Pipeline(stages=stages) for stages in left if stages)


def planned(left: tuple[Pipeline, ...], deal: MicrobatchAssignment) -> Plan:
    return rerouted(
        PROFILE, left, deal, devices_per_node=1, generation=1, schedule=ScheduleKind.ZERO_BUBBLE_H1, spare_in_flight=4
    )


EVEN = (0, 2, 4, 6, 8)


def test_whole_pipelines_share_evenly_and_keep_to_themselves() -> None:
    left = pipelines(EVEN, EVEN, EVEN)
    plan = planned(left, Detours(left, COSTS, 8).deal(7))
    assert sorted(shares(plan)) == [2, 2, 3]
    assert not carriers(plan)


def test_stages_of_two_devices_begin_when_those_before_them_are_done() -> None:
    """A profile without times on one device is enough."""
    layers = tuple(
        msgspec.structs.replace(layer, times=tuple(msgspec.structs.replace(t, num_devices=2) for t in layer.times))
        for layer in PROFILE.layers
    )
    costs = StageCosts(msgspec.structs.replace(PROFILE, layers=layers))
    left = tuple(
        Pipeline(stages=tuple(msgspec.structs.replace(stage, num_devices=2) for stage in pipeline.stages))
        for pipeline in pipelines(EVEN, EVEN, lost=(5,))
    )
    alone = Detours(pipelines(EVEN, EVEN, lost=(5,)), COSTS, 8).deal(6, 1.0)
    assert Detours(left, costs, 8).deal(6, 1.0).loads_s == alone.loads_s


def test_the_work_of_a_lost_stage_is_dealt_evenly_to_its_peers() -> None:
    left = pipelines(EVEN, EVEN, EVEN, EVEN, lost=(5,))
    deal = Detours(left, COSTS, 8).deal(64)
    assert sorted(deal.loads_s[WorkerId(w)] for w in (1, 9, 13)) == pytest.approx([21 * 0.06, 21 * 0.06, 22 * 0.06])
    plan = planned(left, deal)
    assert shares(plan) == (16, 16, 16, 16)
    assert set(carriers(plan)) == {1, 9, 13}
    assert homes(plan).count(1) == 3


def test_a_gap_is_crossed_over_several_peers() -> None:
    """Nobody else owns layers 0 to 3 as a whole."""
    left = pipelines((0, 4, 8), (0, 2, 6, 8), lost=(0,))
    deal = Detours(left, COSTS, 8).deal(6)
    crossing = [hops for hops in deal.hops[0] if hops[-1].worker == 1]
    assert crossing
    assert all([hop.worker for hop in way] == [2, 3, 1] for way in crossing)
    validate(planned(left, deal))


@pytest.mark.parametrize("freedom", Freedom)
@pytest.mark.parametrize("seed", range(25))
def test_any_deal_is_a_valid_plan_that_takes_at_least_the_bound(seed: int, freedom: Freedom) -> None:
    draw = random.Random(seed)
    cuts = [(0, *sorted(draw.sample(range(1, 8), draw.randint(0, 3))), 8) for _ in range(draw.randint(2, 4))]
    workers = range(sum(len(each) - 1 for each in cuts))
    left = pipelines(*cuts, lost=tuple(draw.sample(workers, draw.randint(0, min(4, len(workers) - 1)))))
    if unowned(left, 8):
        return
    number = draw.randint(1, 20)
    deal = Detours(left, COSTS, 8, freedom).deal(number, draw.choice([0.0, 1.0, 2.0]))
    plan = planned(left, deal)
    validate(plan)
    busy = dict.fromkeys(plan.layers_of, 0.0)
    for route in plan.routes:
        for hop in route.hops:
            busy[hop.worker] += len(route.microbatches) * 0.03 * len(hop.layers)
    assert busy == pytest.approx(dict(deal.loads_s))
    assert least_rerouted_s(PROFILE, left, number) <= step_time_s(plan, PROFILE) * (1 + 1e-9)


def test_freedom_spares_a_stage_that_is_busy_anyhow() -> None:
    """The short stages of two pipelines run every microbatch, and both long ones share what is between."""
    left = pipelines((0, 2, 8), (0, 6, 8))
    home, free = (Detours(left, COSTS, 8, freedom).deal(24).rank for freedom in (Freedom.HOME, Freedom.FREE))
    assert home[0] == pytest.approx(12 * 6 * 0.03)
    assert 24 * 2 * 0.03 <= free[0] < 1.05 * 24 * 2 * 0.03


def test_what_is_left_of_a_plan_is_owned_by_whoever_holds_it() -> None:
    left = pipelines(EVEN, EVEN)
    plan = planned(left, Detours(left, COSTS, 8).deal(4))
    holders = dict(plan.groups_of)
    assert left_over(plan, holders, []) == plan.pipelines
    gone = left_over(plan, holders, [1, 4, 5, 6, 7])
    assert [[stage.worker for stage in pipeline.stages] for pipeline in gone] == [[0, 2, 3]]
    # Who has lost its state, or never got it, owns what it holds.
    holders[WorkerId(2)] = tuple(g for g in holders[WorkerId(2)] if PROFILE.groups[g].layers != (5,))
    some = left_over(plan, holders, [4, 5, 6, 7])
    assert some[0].stages[2] == Stage(worker=WorkerId(2), first_layer=4, end_layer=5)


@pytest.mark.parametrize("freedom", Freedom)
def test_a_worker_with_two_stages_that_meet_is_a_way_over_both(freedom: Freedom) -> None:
    """A predecessor that took its successor's place over, and nobody else is left."""
    worker = WorkerId(0)
    two = (Stage(worker=worker, first_layer=0, end_layer=4), Stage(worker=worker, first_layer=4, end_layer=8))
    deal = Detours((Pipeline(stages=two),), COSTS, 8, freedom).deal(3)
    assert {hops for of_pipeline in deal.hops for hops in of_pipeline} == {two}
