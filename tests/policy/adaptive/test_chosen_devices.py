"""How many devices a stage is on: the number is chosen by estimates and memory, and state follows when it changes."""

from __future__ import annotations

import dataclasses
import random

import pytest

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from tests.plan.profiles import uniform_profile
from tests.planner.test_stage_devices import check_state
from tests.proof import rest_in_proof

AFTER_A_LOSS = FailureForecast(after_loss=True)
SETTINGS = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=4, devices_per_node=4)


def policy_of(name: PolicyName, settings: PlannerSettings, devices: int, num_layers: int = 6) -> Policy:
    planner = Planner(uniform_profile(num_layers), dataclasses.replace(settings, devices_per_stage=devices))
    return make_policy(name, planner).with_forecast(AFTER_A_LOSS)


def first(policy: Policy, num_nodes: int = 4) -> Plan:
    return policy.initial([NodeId(node) for node in range(num_nodes)], 1).plan


def loses(plan: Plan, *lost: int) -> ReplanRequest:
    """The request after the loss of these nodes."""
    holders = {worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) not in lost}
    return ReplanRequest(
        plan=plan, lost=[NodeId(node) for node in lost], holders=holders, generation=plan.generation + 1
    )


@pytest.mark.parametrize("name", [PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE])
def test_a_job_begins_with_the_number_that_is_estimated_to_be_best(name: PolicyName) -> None:
    seconds = {
        devices: policy_of(name, SETTINGS, devices).initial([NodeId(n) for n in range(4)], 1).step_time_s
        for devices in (1, 2, 4)
    }
    chosen = policy_of(name, SETTINGS, 0).initial([NodeId(n) for n in range(4)], 1)
    assert chosen.step_time_s == min(seconds.values())
    assert chosen.plan.devices_per_stage == min(seconds, key=lambda devices: seconds[devices]) > 1
    names = [record.name for record in chosen.candidates]
    assert all(any(f"stages on {devices} device" in name for name in names) for devices in seconds)
    assert "With stages on 4 devices each" in chosen.reason


def test_nodes_of_one_device_have_the_plans_and_the_policy_that_they_had() -> None:
    settings = dataclasses.replace(SETTINGS, devices_per_node=1)
    left_open, fixed = (policy_of(PolicyName.ADAPTIVE, settings, devices) for devices in (0, 1))
    assert type(left_open) is type(fixed)
    asked = [NodeId(node) for node in range(4)]
    assert left_open.initial(asked, 1) == fixed.initial(asked, 1)


def test_state_that_is_whole_on_each_device_must_fit_there() -> None:
    """A stage of all six layers takes 6 x 1.6 MB and more; four devices, each with one or two of them, less."""
    tight = dataclasses.replace(SETTINGS, memory_bytes=6_000_000, min_nodes=1)
    with pytest.raises(PlanError):
        policy_of(PolicyName.TEMPLATES, dataclasses.replace(tight, num_nodes=2), 4)
    small = policy_of(PolicyName.TEMPLATES, dataclasses.replace(tight, num_nodes=2), 0)
    plan = first(small, 2)
    assert plan.devices_per_stage < 4
    assert small.planner.fits(plan)


def test_where_too_few_nodes_are_left_for_one_number_another_is_taken() -> None:
    """Two pipelines of two nodes; three nodes are too few for that, unless a node has more stages than one."""
    settings = dataclasses.replace(SETTINGS, devices_per_node=2, memory_bytes=8_000_000)
    plan = first(policy_of(PolicyName.TEMPLATES, settings, 2))
    assert min(len(pipeline.nodes(2)) for pipeline in plan.pipelines) == 2
    with pytest.raises(PlanError, match="2 replicas"):
        policy_of(PolicyName.TEMPLATES, settings, 2).reconfigure(loses(plan, 3))
    request = loses(plan, 3)
    found = policy_of(PolicyName.TEMPLATES, settings, 0).reconfigure(request)
    assert found.plan.devices_per_stage == 1
    assert "with 1 device a stage: 2 devices a stage has no plan any more" in found.reason
    validate(found.plan, fault_tolerance=1, arrived=True)
    check_state(found.plan, request.holders)


def test_only_after_a_loss_adaptive_takes_a_number_that_is_clearly_better() -> None:
    plan = first(policy_of(PolicyName.TEMPLATES, SETTINGS, 1))
    request = loses(plan, 3)
    for name, forecast, devices in (
        (PolicyName.ADAPTIVE, AFTER_A_LOSS, 4),
        (PolicyName.ADAPTIVE, FailureForecast(at_once=False), 1),
        (PolicyName.TEMPLATES, AFTER_A_LOSS, 1),
    ):
        policy = policy_of(name, SETTINGS, 0).with_forecast(forecast)
        found = policy.reconfigure(request)
        assert (found.plan.devices_per_stage > 1) == (devices > 1)
        validate(found.plan, fault_tolerance=1, arrived=True)
        check_state(found.plan, request.holders)
        other = first(policy_of(PolicyName.TEMPLATES, SETTINGS, 4))
        if found.plan.devices_per_stage > 1:
            rates = [record.samples_per_s for record in found.candidates]
            assert rates == sorted(rates, reverse=True)
            assert "1 device a stage would give" in found.reason
            assert policy.warm_up(plan, found, 3) is None, "no step of one number has shadows of another's"
            assert policy.estimated(other).step_time_s > 0


@pytest.mark.parametrize("seed", rest_in_proof(range(40), kept=8))
def test_devices_that_are_lost_alone_are_done_without_whatever_their_number_becomes(seed: int) -> None:
    draw = random.Random(seed)
    per_node = draw.choice([2, 3, 4, 4])
    settings = dataclasses.replace(SETTINGS, devices_per_node=per_node, min_nodes=draw.choice([0, 1]))
    policy = policy_of(draw.choice([PolicyName.ADAPTIVE, PolicyName.TEMPLATES]), settings, 0, num_layers=8)
    plan, lost = first(policy), frozenset[WorkerId]()
    for _ in range(3):
        able = [w for w in plan.workers if sum(w // per_node == other // per_node for other in plan.workers) > 1]
        lost |= {draw.choice(able)}
        told = policy.with_planner(policy.planner.with_lost_devices(lost))
        holders = {worker: groups for worker, groups in plan.groups_of.items() if worker not in lost}
        request = ReplanRequest(plan=plan, lost=(), holders=holders, generation=plan.generation + 1)
        found = told.reconfigure(request)
        validate(found.plan, fault_tolerance=None if found.is_degraded else 1, dropped=found.dropped, arrived=True)
        assert lost.isdisjoint(found.plan.workers)
        check_state(found.plan, holders)
        plan = found.plan


@pytest.mark.parametrize("seed", rest_in_proof(range(60), kept=8))
def test_every_plan_of_a_history_of_losses_is_whole_and_its_state_comes_from_who_holds_it(
    seed: int, changing_devices: list[tuple[int, int]]
) -> None:
    draw = random.Random(seed)
    num_nodes = draw.randint(3, 6)
    settings = PlannerSettings(
        num_microbatches=draw.choice([8, 9, 16, 21]),
        fault_tolerance=1,
        num_nodes=num_nodes,
        devices_per_node=draw.choice([2, 2, 3, 4]),
        min_nodes=draw.choice([0, 0, 1]),
    )
    policy = policy_of(draw.choice([PolicyName.ADAPTIVE, PolicyName.TEMPLATES]), settings, 0, num_layers=8)
    plan, lost = first(policy, num_nodes), list[int]()
    while len(plan.nodes) > 2:
        lost.append(draw.choice(plan.nodes))
        request = loses(plan, *lost)
        found = policy.reconfigure(request)
        validate(found.plan, fault_tolerance=None if found.is_degraded else 1, dropped=found.dropped, arrived=True)
        check_state(found.plan, request.holders)
        plan = found.plan
