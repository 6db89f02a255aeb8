"""Plans of places and of their devices: every device does its part, once, and what is under way stays where it is."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, Redundancy, Route, WorkerId
from planaria.plan.program.programs import programs
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.stage_devices import Devices, by_device, by_stage, places_held, places_holding
from planaria.policy.interface import FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

SEEDS = rest_in_proof(range(48), kept=12)


def setting(seed: int) -> tuple[random.Random, Policy, PlannerSettings]:
    draw = random.Random(seed)
    devices = draw.choice([2, 2, 3, 4])
    places = draw.choice([1, 1, 2])
    num_nodes = draw.randint(4, 7)
    settings = PlannerSettings(
        num_microbatches=draw.choice([8, 9, 16, 21]),
        fault_tolerance=1,
        num_nodes=num_nodes,
        devices_per_node=devices * places,
        devices_per_stage=devices,
        min_nodes=draw.randint(1, 2),
        redundancy=draw.choice([*Redundancy]),
    )
    policy = draw.choice([PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE, PolicyName.REDUNDANCY])
    return draw, make_policy(policy, Planner(uniform_profile(8), settings)), settings


def devices_of(settings: PlannerSettings, lost: frozenset[WorkerId] = frozenset()) -> Devices:
    return Devices(per_stage=settings.devices_per_stage, per_node=settings.devices_per_node, lost=lost)


def first(policy: Policy, settings: PlannerSettings) -> Plan:
    return policy.initial([NodeId(node) for node in range(settings.num_nodes)], 1).plan


def lanes(routes: tuple[Route, ...], devices: int) -> dict[tuple[int, int], int]:
    return {(route.born, m): route.hops[0].worker % devices for route in routes for m in route.microbatches}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_device_of_a_stage_takes_its_turn(seed: int) -> None:
    _, policy, settings = setting(seed)
    plan, devices = first(policy, settings), settings.devices_per_stage
    validate(plan, fault_tolerance=1, arrived=True)
    assert plan.devices_per_stage == devices
    assert all(len(mates) == devices for mates in plan.stage_mates)
    for pipeline in by_stage(plan).pipelines:
        own = pipeline.stages[0].worker
        shares = [0] * devices
        for route in plan.routes:
            if route.hops[0].worker // devices == own:
                shares[route.hops[0].worker % devices] += len(route.microbatches)
            assert len({hop.worker % devices for hop in route.hops}) == 1
        assert max(shares) - min(shares) <= 1
    assert programs(plan).keys() == set(plan.workers)


@pytest.mark.parametrize("seed", SEEDS)
def test_places_and_devices_are_the_same_plan(seed: int) -> None:
    _, policy, settings = setting(seed)
    plan = first(policy, settings)
    places = by_stage(plan)
    validate(places, fault_tolerance=1, arrived=True)
    assert places.devices_per_stage == 1
    again = by_device(places, devices_of(settings), plan)
    assert again.content_hash == plan.content_hash
    evaluating = plan.evaluating(settings.num_microbatches + 1)
    evaluated = by_device(by_stage(evaluating), devices_of(settings), evaluating).evaluation
    assert evaluated is not None
    assert evaluating.evaluation is not None
    devices = settings.devices_per_stage
    assert lanes(evaluated.routes, devices) == lanes(evaluating.evaluation.routes, devices)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_inside_a_step_leaves_what_is_under_way_in_its_lane(seed: int) -> None:
    draw, policy, settings = setting(seed)
    plan, devices = first(policy, settings), settings.devices_per_stage
    lost = draw.choice(plan.nodes)
    live = [worker for worker in plan.workers if plan.node_of(worker) != lost]
    halted = to_halt(plan, live)
    assert {worker // devices for worker in halted} == {w // devices for w in halted for _ in range(devices)}
    assert all(len({w in halted for w in mates if w in live}) <= 1 for mates in plan.stage_mates)
    holders = {worker: plan.layers_held(plan.groups_of[worker]) for worker in live}
    counted = Ledger.empty(plan.num_layers)
    found = policy.finish_step(
        FinishRequest(plan=plan, live=live, halted=sorted(halted), counted=counted, holders=holders, generation=2)
    )
    validate(found.plan, already=counted, dropped=found.dropped)
    before, after = lanes(plan.routes, devices), lanes(found.plan.routes, devices)
    assert all(after[key] == before[key] for key in after.keys() & before.keys())


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_loss_every_device_has_or_gets_its_state(seed: int) -> None:
    draw, policy, settings = setting(seed)
    plan = first(policy, settings)
    for generation in (2, 3):
        if len(plan.nodes) <= 2 * settings.min_nodes:
            return
        lost = draw.choice(plan.nodes)
        holders = {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) != lost}
        try:
            found = policy.reconfigure(ReplanRequest(plan=plan, lost=[lost], holders=holders, generation=generation))
        except PlanError:
            return
        validate(found.plan, fault_tolerance=None if found.is_degraded else 1, dropped=found.dropped, arrived=True)
        check_state(found.plan, holders)
        plan = found.plan


def check_state(plan: Plan, holders: Mapping[WorkerId, Collection[int]]) -> None:
    coming = {(move.target, move.group) for move in plan.transfers}
    for worker, groups in plan.groups_of.items():
        for group in groups:
            assert group in holders.get(worker, ()) or (worker, group) in coming
    devices = plan.devices_per_stage
    between: set[tuple[int, int]] = set()
    for move in plan.transfers:
        if move.source // devices == move.target // devices:
            assert move.group in holders[move.source] or (move.source, move.group) in coming
        else:
            assert move.group in holders[move.source]
            assert move.part is not None or (move.target // devices, move.group) not in between
            between.add((move.target // devices, move.group))


def test_a_device_that_lacks_what_another_of_its_stage_has_gets_that() -> None:
    _, policy, settings = setting(0)
    plan = first(policy, settings)
    holders = dict(plan.groups_of)
    holders[WorkerId(1)] = ()
    lost = plan.nodes[-1]
    holders = {w: groups for w, groups in holders.items() if plan.node_of(w) != lost}
    assert WorkerId(0) in places_held(holders, devices_of(settings))
    assert places_held(holders, devices_of(settings))[WorkerId(0)] == plan.groups_of[WorkerId(0)]
    assert places_holding(holders, devices_of(settings))[WorkerId(0)] == ()
    found = policy.reconfigure(ReplanRequest(plan=plan, lost=[lost], holders=holders, generation=2)).plan
    validate(found)
    check_state(found, holders)


def some_lost(draw: random.Random, plan: Plan) -> frozenset[WorkerId]:
    """Devices of the plan, of each stage fewer than all."""
    lost: set[WorkerId] = set()
    for mates in draw.sample(plan.stage_mates, draw.randint(1, len(plan.stage_mates))):
        lost |= set(draw.sample(mates, draw.randint(1, len(mates) - 1)))
    return frozenset(lost)


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_of_fewer_devices_are_a_plan_of_the_same_places(seed: int) -> None:
    draw, policy, settings = setting(seed)
    plan = first(policy, settings)
    lost = some_lost(draw, plan)
    fewer = by_device(by_stage(plan), devices_of(settings, lost))
    validate(fewer, fault_tolerance=1, arrived=True)
    assert set(fewer.workers) == set(plan.workers) - lost
    assert programs(fewer).keys() == set(fewer.workers)
    places = by_stage(fewer)
    assert places.pipelines == by_stage(plan).pipelines
    assert places.shadows == by_stage(plan).shadows
    assert places.routes == by_stage(plan).routes
    assert by_device(places, devices_of(settings, lost), fewer).content_hash == fewer.content_hash
    for mates in fewer.stage_mates:
        shares = [
            sum(len(r.microbatches) for r in fewer.routes if mate in {h.worker for h in r.hops}) for mate in mates
        ]
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rest_of_a_step_goes_on_when_devices_are_lost_alone(seed: int) -> None:
    draw, policy, settings = setting(seed)
    plan = first(policy, settings)
    lost = some_lost(draw, plan)
    live = [worker for worker in plan.workers if worker not in lost]
    halted = to_halt(plan, live)
    holders = {worker: plan.layers_held(plan.groups_of[worker]) for worker in live}
    counted = Ledger.empty(plan.num_layers)
    policy = policy.with_planner(policy.planner.with_lost_devices(lost))
    found = policy.finish_step(
        FinishRequest(plan=plan, live=live, halted=sorted(halted), counted=counted, holders=holders, generation=2)
    )
    validate(found.plan, already=counted, dropped=found.dropped)
    assert set(found.plan.workers).isdisjoint(lost)
    held = {worker: plan.groups_of[worker] for worker in live}
    after = policy.reconfigure(ReplanRequest(plan=found.plan, lost=(), holders=held, generation=3))
    validate(after.plan, fault_tolerance=None if after.is_degraded else 1, dropped=after.dropped, arrived=True)
    assert set(after.plan.workers) <= set(live)
    check_state(after.plan, held)
    again = policy.with_planner(policy.planner.with_lost_devices(frozenset()))
    back = {**held, **dict.fromkeys(lost, ())}
    whole = again.reconfigure(ReplanRequest(plan=after.plan, lost=(), holders=back, generation=4))
    validate(whole.plan, fault_tolerance=None if whole.is_degraded else 1, dropped=whole.dropped, arrived=True)
    assert {w for w in lost if plan.node_of(w) in whole.plan.nodes} <= set(whole.plan.workers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stage_without_devices_is_carried_by_the_others_of_its_node(seed: int) -> None:
    draw = random.Random(seed)
    devices = draw.choice([1, 1, 2])
    settings = PlannerSettings(
        num_microbatches=draw.choice([8, 9, 16]),
        fault_tolerance=1,
        num_nodes=draw.randint(2, 5),
        devices_per_node=devices * draw.choice([2, 3]),
        devices_per_stage=devices,
        redundancy=draw.choice([*Redundancy]),
    )
    name = draw.choice([PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE])
    policy = make_policy(name, Planner(uniform_profile(8), settings))
    plan = first(policy, settings)
    place = draw.choice(plan.workers) // devices
    lost = frozenset(WorkerId(place * devices + device) for device in range(devices))
    live = [worker for worker in plan.workers if worker not in lost]
    policy = policy.with_planner(policy.planner.with_lost_devices(lost))
    counted, holders = Ledger.empty(plan.num_layers), {w: plan.layers_held(plan.groups_of[w]) for w in live}
    found = policy.finish_step(
        FinishRequest(
            plan=plan,
            live=live,
            halted=sorted(to_halt(plan, live)),
            counted=counted,
            holders=holders,
            generation=2,
        )
    ).plan
    validate(found, already=counted)
    held: dict[WorkerId, tuple[int, ...]] = {worker: plan.groups_of[worker] for worker in live}
    after = policy.reconfigure(ReplanRequest(plan=found, lost=(), holders=held, generation=3))
    validate(after.plan, fault_tolerance=None if after.is_degraded else 1, arrived=True)
    assert programs(after.plan).keys() == set(after.plan.workers)
    assert set(after.plan.workers) <= set(live)
    assert place * devices // settings.devices_per_node in after.plan.nodes
    check_state(after.plan, held)
    while after.plan.transfers:  # one placement may open the way to a slightly better one; then it rests
        held = {worker: after.plan.groups_of.get(worker, ()) for worker in live}
        generation = after.plan.generation + 1
        assert generation < 7
        after = policy.reconfigure(ReplanRequest(plan=after.plan, lost=(), holders=held, generation=generation))
    whole = policy.with_planner(policy.planner.with_lost_devices(frozenset()))
    back = {**held, **dict.fromkeys(lost, ())}
    again = whole.reconfigure(ReplanRequest(plan=after.plan, lost=(), holders=back, generation=7))
    validate(again.plan, fault_tolerance=None if again.is_degraded else 1, arrived=True)
    check_state(again.plan, back)
    assert lost <= set(again.plan.workers) or name is not PolicyName.TEMPLATES  # rerouting places nothing anew


def test_a_node_with_fewer_devices_counts_as_slower() -> None:
    _, policy, settings = setting(0)
    devices = settings.devices_per_stage
    planner = policy.planner.with_lost_devices(frozenset({WorkerId(0)}))
    assert planner.of_places().speeds == {0: (devices - 1) / devices}
    assert not policy.planner.of_places().speeds


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_of_places_are_weighed_by_the_devices_that_live(seed: int) -> None:
    draw, policy, settings = setting(seed)
    plan = first(policy, settings)
    planner = policy.planner.with_lost_devices(some_lost(draw, plan))
    places = by_stage(plan)
    took_s = planner.estimate(by_device(places, planner.devices)).step_time_s
    of_places = planner.of_places()
    assert of_places.step_s(places) == took_s
    assert of_places.variant(min_nodes=1).step_s(places) == took_s
    assert of_places.estimate(places).compute_s.keys() == set(places.workers)
    told = policy.with_planner(planner)
    held = {worker: groups for worker, groups in plan.groups_of.items() if worker not in planner.lost_devices}
    found = told.reconfigure(ReplanRequest(plan=plan, lost=(), holders=held, generation=2))
    assert found.step_time_s == planner.step_s(found.plan)


def test_a_device_that_does_not_hold_what_its_stage_does_is_refused() -> None:
    _, policy, settings = setting(0)
    plan = first(policy, settings)
    first_stage = plan.pipelines[0].stages[0]
    cut = msgspec.structs.replace(first_stage, first_layer=first_stage.first_layer + 1)
    broken = Pipeline(stages=(cut, *plan.pipelines[0].stages[1:]))
    alone = msgspec.structs.replace(plan, pipelines=(broken, *plan.pipelines[1:]))
    with pytest.raises(PlanError, match=r"does not hold what worker \d does, with which it shares its stages"):
        validate(alone)


def test_a_place_with_a_device_missing_is_none() -> None:
    held = {WorkerId(0): (1, 2), WorkerId(1): (1,), WorkerId(2): (3,)}
    on = Devices(per_stage=2, per_node=4)
    assert places_held(held, on) == {0: (1, 2)}
    assert places_holding(held, on) == {0: (1,)}
    alone = Devices(per_stage=2, per_node=4, lost=frozenset({WorkerId(3)}))
    assert places_held(held, alone) == {0: (1, 2), 1: (3,)}
    carried = Devices(per_stage=2, per_node=4, lost=frozenset({WorkerId(2), WorkerId(3)}))
    assert places_held(dict.fromkeys(held.keys() - {2}, (7,)), carried) == {0: (7,), 1: (7,)}
    assert places_holding(dict.fromkeys(held.keys() - {2}, (7,)), carried) == {0: (7,)}


def test_d_devices_take_about_a_dth_of_the_time_of_one() -> None:
    seconds = {}
    for devices in (1, 2, 4):
        settings = PlannerSettings(
            num_microbatches=32, fault_tolerance=1, num_nodes=4, devices_per_node=devices, devices_per_stage=devices,
            min_nodes=2,
        )  # fmt: skip
        made = make_policy(PolicyName.TEMPLATES, Planner(uniform_profile(8, group_bytes=400), settings))
        seconds[devices] = made.initial([NodeId(node) for node in range(4)], 1).step_time_s
    assert 0.5 <= seconds[2] / seconds[1] < 0.6
    assert 0.25 <= seconds[4] / seconds[1] < 0.4


def test_a_stage_is_on_a_divisor_of_a_nodes_devices() -> None:
    with pytest.raises(PlanError, match=r"4 devices of a node are not shared by stages of 3"):
        PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=4, devices_per_stage=3)
