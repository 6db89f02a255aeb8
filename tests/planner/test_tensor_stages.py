"""Tensor stages: plans in which the devices of a stage share each microbatch, for whatever is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from planaria.estimate.step_time import simulate
from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.program.instructions import Instruction
from planaria.plan.program.programs import programs
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.stage_devices import by_stage
from planaria.policy.interface import FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

SEEDS = rest_in_proof(range(48), kept=12)


def setting(seed: int, *, shares: bool = True) -> tuple[random.Random, Policy, PlannerSettings]:
    draw = random.Random(seed)
    devices = draw.choice([2, 2, 4])
    num_nodes = draw.randint(4, 7)
    settings = PlannerSettings(
        num_microbatches=draw.choice([8, 9, 16, 21]),
        fault_tolerance=1,
        num_nodes=num_nodes,
        devices_per_node=devices * draw.choice([1, 1, 2]),
        devices_per_stage=devices,
        min_nodes=draw.randint(1, 2),
        share_microbatches=shares,
    )
    policy = draw.choice([PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE])
    return draw, make_policy(policy, Planner(uniform_profile(8), settings)), settings


def first(policy: Policy, settings: PlannerSettings) -> Plan:
    return policy.initial([NodeId(node) for node in range(settings.num_nodes)], 1).plan


def check_programs(plan: Plan) -> None:
    """Every device of a stage does what the first one does, with the devices at its own place in other stages."""
    validate(plan, arrived=True)
    for evaluating in (plan, plan.evaluating(5)):
        every = programs(evaluating)
        assert every.keys() == set(plan.workers)
        for worker, instructions in every.items():
            own = every[plan.first_of(worker)]
            assert [moved(one, worker - plan.first_of(worker)) for one in own] == list(instructions)
            assert programs(evaluating, [worker])[worker] == instructions


def moved(instruction: Instruction, places: int) -> Instruction:
    if instruction.peer is None:
        return instruction
    return msgspec.structs.replace(instruction, peer=WorkerId(instruction.peer + places))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_devices_of_a_stage_run_each_microbatch(seed: int) -> None:
    _, policy, settings = setting(seed)
    plan = first(policy, settings)
    assert plan.shares_microbatches
    assert {hop.worker % settings.devices_per_stage for route in plan.routes for hop in route.hops} == {0}
    check_programs(plan)


@pytest.mark.parametrize("seed", SEEDS)
def test_places_are_those_of_stages_whose_devices_take_turns(seed: int) -> None:
    _, policy, settings = setting(seed)
    _, other, _ = setting(seed, shares=False)
    plan, turns = first(policy, settings), first(other, settings)
    assert turns.pipelines == plan.pipelines
    assert by_stage(plan).routes == by_stage(turns).routes
    assert not by_stage(plan).shares_microbatches


@pytest.mark.parametrize("seed", SEEDS)
def test_after_losses_microbatches_are_shared_where_every_device_is_there(seed: int) -> None:
    draw, policy, settings = setting(seed)
    plan, lost = first(policy, settings), frozenset[WorkerId]()
    for generation in range(2, 6):
        gone = list[NodeId]()
        if draw.random() < 0.5:
            gone = [draw.choice(plan.nodes)]
        else:
            lost = frozenset({draw.choice(plan.workers)}) if not lost else frozenset()
            policy = policy.with_planner(policy.planner.with_lost_devices(lost))
        holders = {w: g for w, g in plan.groups_of.items() if plan.node_of(w) not in gone and w not in lost}
        try:
            request = ReplanRequest(plan=plan, lost=gone, holders=holders, generation=generation)
            plan = policy.reconfigure(request).plan
        except PlanError:
            return
        assert plan.shares_microbatches == (not lost)
        check_programs(plan)
        if not plan.shares_microbatches:  # nothing stays on the first devices alone
            hops = (hop for route in plan.routes for hop in route.hops)
            assert any(hop.worker % settings.devices_per_stage for hop in hops)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_is_finished_without_the_mates_of_lost_devices(seed: int) -> None:
    """Some devices are lost alone, one after the other in one step: the others of their stages keep what they hold."""
    draw, policy, settings = setting(seed)
    plan, lost = first(policy, settings), set[WorkerId]()
    for generation in (2, 3):
        lost.add(draw.choice([worker for worker in plan.workers if worker not in lost]))
        if len({worker // settings.devices_per_node for worker in lost}) == settings.num_nodes:
            return
        policy = policy.with_planner(policy.planner.with_lost_devices(frozenset(lost)))
        live = [worker for worker in plan.workers if worker not in lost]
        owned = {worker: plan.layers_of[worker] for worker in live}
        request = FinishRequest(
            plan=plan,
            live=live,
            halted=sorted(to_halt(plan, live)),
            counted=Ledger.of([()] * plan.num_layers),
            holders=owned,
            generation=generation,
        )
        try:
            plan = policy.finish_step(request).plan
        except NoReplica:
            return  # the step is begun anew
        validate(plan)
        assert plan.shares_microbatches
        assert {worker: plan.layers_of[worker] for worker in live} == owned
        named = {hop.worker // settings.devices_per_stage for route in plan.routes for hop in route.hops}
        assert named.isdisjoint(worker // settings.devices_per_stage for worker in lost)
        assert programs(plan).keys() == set(live)
        assert {m for route in plan.routes for m in route.microbatches} == set(range(settings.num_microbatches))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"devices_per_stage": 1}, "1 devices cannot share a microbatch"),
        ({"pipelines": 1}, "share microbatches, and their stage has 2 devices"),
        ({"routes": 1}, "a route names worker 1, which is not the first of its stage"),
    ],
)
def test_a_plan_that_cannot_be_shared_is_refused(changes: dict[str, int], problem: str) -> None:
    settings = PlannerSettings(
        num_microbatches=8, fault_tolerance=1, num_nodes=2, devices_per_node=2, devices_per_stage=2,
        share_microbatches=True,
    )  # fmt: skip
    plan = first(make_policy(PolicyName.TEMPLATES, Planner(uniform_profile(8), settings)), settings)
    wrong = plan
    match next(iter(changes)):
        case "devices_per_stage":
            wrong = msgspec.structs.replace(plan, devices_per_stage=1)
        case "pipelines":
            kept = tuple(p for p in plan.pipelines if p.stages[0].worker != 1)
            wrong = msgspec.structs.replace(plan, pipelines=kept)
        case "routes":
            lane = next(p.stages for p in plan.pipelines if p.stages[0].worker == 1)
            wrong = msgspec.structs.replace(
                plan, routes=(msgspec.structs.replace(plan.routes[0], hops=lane), *plan.routes[1:])
            )
    validate(plan)
    with pytest.raises(PlanError, match=problem):
        validate(wrong)


def test_a_step_is_thought_to_take_a_share_of_the_time() -> None:
    settings = PlannerSettings(
        num_microbatches=8, fault_tolerance=1, num_nodes=2, devices_per_node=4, devices_per_stage=4
    )
    planner = Planner(uniform_profile(8), settings)
    turns = first(make_policy(PolicyName.TEMPLATES, planner), settings)
    sharing = Planner(uniform_profile(8), replace(settings, share_microbatches=True))
    plan = first(make_policy(PolicyName.TEMPLATES, sharing), settings)
    both = planner.step_s(turns), planner.step_s(plan)
    assert (planner.step_s(turns), planner.step_s(plan)) == both, "what is remembered of one is not of the other"
    assert both[1] < 1.2 * both[0]


UNEVEN = PlannerSettings(
    num_microbatches=10, fault_tolerance=1, num_nodes=2, devices_per_node=4, devices_per_stage=4, most_sharing=4
)
"""Each of two replicas has five microbatches: devices that take turns take two times that of one, or five quarters."""


def on_four(seconds: float) -> ModelProfile:
    """A profile in which four devices that share a microbatch take this part of the time of one."""
    alone = uniform_profile(8)
    layers = (
        msgspec.structs.replace(
            layer, times=(layer.on(1), msgspec.structs.replace(layer.on(1).scaled(seconds), num_devices=4))
        )
        for layer in alone.layers
    )
    return msgspec.structs.replace(alone, layers=tuple(layers))


@pytest.mark.parametrize(
    ("profile", "changes", "shares"),
    [
        (uniform_profile(8), {}, True),
        (on_four(0.3), {}, True),
        (on_four(0.5), {}, False),  # what they exchange takes too long
        (uniform_profile(8), {"num_microbatches": 8}, False),  # nobody is idle who takes turns
        (uniform_profile(8), {"most_sharing": 2}, False),
        (uniform_profile(8), {"most_sharing": 0}, False),
    ],
)
def test_microbatches_are_shared_where_that_is_clearly_quicker(
    profile: ModelProfile, changes: dict[str, int], shares: bool
) -> None:
    settings = replace(UNEVEN, **changes)
    policy = make_policy(PolicyName.ADAPTIVE, Planner(profile, settings))
    found = policy.initial([NodeId(0), NodeId(1)], 1)
    assert found.plan.shares_microbatches == shares
    assert ("share each microbatch" in found.reason) == shares
    assert found.step_time_s == policy.planner.step_s(found.plan)
    check_programs(found.plan) if shares else validate(found.plan)


def test_microbatches_are_shared_again_once_a_device_is_back() -> None:
    policy = make_policy(PolicyName.ADAPTIVE, Planner(uniform_profile(8), UNEVEN))
    plan = policy.initial([NodeId(0), NodeId(1)], 1).plan
    for generation, lost in enumerate([frozenset({WorkerId(1)}), frozenset[WorkerId]()], start=2):
        policy = policy.with_planner(policy.planner.with_lost_devices(lost))
        holders = {worker: groups for worker, groups in plan.groups_of.items() if worker not in lost}
        plan = policy.reconfigure(ReplanRequest(plan=plan, lost=[], holders=holders, generation=generation)).plan
        assert plan.shares_microbatches == (not lost)


@pytest.mark.parametrize("num_cores", [None, 2.0])
def test_every_device_that_shares_a_microbatch_computes(num_cores: float | None) -> None:
    """Beside, on cores that all of them share, the cores must do the work of all."""
    settings = replace(UNEVEN, num_cores=num_cores, share_microbatches=True)
    policy = make_policy(PolicyName.TEMPLATES, Planner(on_four(0.4), settings))
    found = policy.initial([NodeId(0), NodeId(1)], 1)
    microbatch_s = 0.4 * 8 * 0.030
    assert set(found.compute_s) == set(range(8))
    assert all(seconds == pytest.approx(5 * microbatch_s) for seconds in found.compute_s.values())
    least_s = 8 * 5 * microbatch_s / (num_cores or 8)
    assert least_s <= found.step_time_s < 1.2 * least_s
    assert found.step_time_s == pytest.approx(simulate(found.plan, on_four(0.4), policy.planner.conditions).step_time_s)
