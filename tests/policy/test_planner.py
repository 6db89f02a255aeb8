"""Shapes: what is left out because of them would not have been taken, and a shape's step is that of its plans."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.costs.pipeline_time import step_times
from planaria.plan.plan import NodeId, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import instantiate, instantiate_beside
from planaria.planner.reconfigure.reconfigure import How, searched
from planaria.planner.reconfigure.surviving_plan import SurvivingPlan
from planaria.policy.interface import ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy, other_sets
from tests.plan.profiles import uniform_profile

HEAVY = 200_000_000
"""Bytes of a layer."""


class Watched(TemplatesPolicy):
    """Counts what it leaves out, or leaves out nothing."""

    is_open = False
    num_left_out = 0

    def _may_take_less(self, seconds: Iterable[float], least_s: float) -> bool:
        may = self.is_open or super()._may_take_less(seconds, least_s)
        Watched.num_left_out += not may
        return may


class Open(Watched):
    is_open = True


def some_policy(draw: random.Random, *, is_open: bool, devices: int = 1, is_heavy: bool = False) -> TemplatesPolicy:
    """Heavy: sums take so long that fewer pipelines are better than compute alone says."""
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=draw.choice([1e9, 1e10]))
    group_bytes = HEAVY if is_heavy else draw.choice([4_000, 40_000_000])
    profile = uniform_profile(draw.randint(8, 14), link=link, group_bytes=group_bytes)
    settings = PlannerSettings(
        num_microbatches=draw.choice([24, 32, 48]),
        fault_tolerance=1,
        num_nodes=draw.randint(8, 16),
        devices_per_node=devices,
        min_nodes=draw.randint(1, 3),
    )
    return (Open if is_open else Watched).of(Planner(profile, settings))


def changes(policy: TemplatesPolicy, draw: random.Random) -> list[ReplanRequest]:
    """Nodes come and go, one change after the other."""
    plan = policy.initial([NodeId(node) for node in range(policy.planner.settings.num_nodes)], 1).plan
    found: list[ReplanRequest] = []
    next_node = policy.planner.settings.num_nodes
    for _ in range(8):
        holders: dict[WorkerId, tuple[int, ...]] = dict(plan.groups_of)
        lost = draw.sample(plan.nodes, draw.choice([0, 1, 2]))
        holders = {worker: groups for worker, groups in holders.items() if plan.node_of(worker) not in lost}
        for _ in range(draw.choice([1, 1, 2, 3])):
            for device in range(plan.devices_per_node):
                holders[WorkerId(next_node * plan.devices_per_node + device)] = ()
            next_node += 1
        asked = ReplanRequest(plan=plan, lost=lost, holders=holders, generation=plan.generation + 1)
        found.append(asked)
        try:
            plan = policy.reconfigure(asked).plan
        except PlanError:
            break
    return found


@pytest.mark.proof
@pytest.mark.parametrize("devices", [1, 2])
def test_nothing_that_would_be_taken_is_left_out(devices: int) -> None:
    dealt_anew = other_sets_won = Watched.num_left_out = 0
    for seed in range(5 if devices == 1 else 3):
        is_heavy = seed % 2 > 0
        closed = some_policy(random.Random(seed), is_open=False, devices=devices, is_heavy=is_heavy)
        every = some_policy(random.Random(seed), is_open=True, devices=devices, is_heavy=is_heavy)
        for one in changes(closed, random.Random(seed)):
            try:
                found = closed.reconfigure(one)
                of_all = closed._made_of(closed.planner.templates, one)
            except PlanError:
                continue
            assert found == every.reconfigure(one)
            dealt_anew += found.how == How.INSTANTIATE
            other_sets_won += of_all.how is How.INSTANTIATE and found.plan.pipelines != of_all.plan.pipelines
    assert dealt_anew > 2
    assert other_sets_won > 2
    assert (Watched.num_left_out > 20) == (devices == 1)


def test_a_shapes_step_is_that_of_its_plans() -> None:
    compared = 0
    for seed in range(4):
        policy = some_policy(random.Random(seed), is_open=False)
        for one in changes(policy, random.Random(seed)):
            left = SurvivingPlan(one.change(policy.planner))
            for sizes in searched(left):
                built = left.build(sizes, How.INSTANTIATE).plan
                planner = policy.planner
                by_size = {template.num_nodes: template for template in planner.templates}
                shaped_s = planner.templates_s([by_size[size] for size in sizes if size])
                assert shaped_s == step_time_s(built, planner.profile)
                compared += 1
    assert compared > 50


def test_what_is_remembered_of_instantiations_is_what_would_be_found() -> None:
    draw = random.Random(3)
    policy = some_policy(draw, is_open=False)
    settings, num_nodes = policy.planner.settings, policy.planner.settings.num_nodes
    for templates in (policy.planner.templates, *other_sets(policy.planner.templates, num_nodes, settings)):
        for nodes in range(templates[0].num_nodes * 2, num_nodes + 1):
            kept = draw.choices(policy.planner.templates[:3], k=draw.choice([0, 1, 2]))
            times = [step_times(one, settings.num_microbatches) for one in kept]
            expected = instantiate(templates, nodes, settings, kept=times)
            assert instantiate_beside(templates, nodes, settings, kept) == expected
            assert instantiate_beside(templates, nodes, settings, kept[::-1]) == expected
