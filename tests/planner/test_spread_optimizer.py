"""Stages whose devices spread the optimizer's state: one of them keeps a group, and the others get its parameters."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import msgspec
import pytest

from planaria.estimate.memory import fullest_device_bytes, memory_use
from planaria.job.registry import PolicyName
from planaria.plan.errors import NoReplica
from planaria.plan.groups import kept_groups
from planaria.plan.plan import Group, NodeId, Plan, PlanError, Redundancy, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.policy.interface import Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof

SEEDS = rest_in_proof(range(64), kept=12)

Held = Mapping[WorkerId, Collection[int]]


def setting(seed: int) -> tuple[random.Random, Policy]:
    draw = random.Random(seed)
    devices = draw.choice([2, 2, 3, 4])
    settings = PlannerSettings(
        num_microbatches=draw.choice([8, 9, 16, 21]),
        fault_tolerance=1,
        num_nodes=draw.randint(4, 7),
        devices_per_node=devices * draw.choice([1, 1, 2]),
        devices_per_stage=devices,
        spreads_optimizer=True,
        min_nodes=draw.randint(1, 2),
        redundancy=draw.choice([*Redundancy]),
    )
    name = draw.choice([PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE, PolicyName.REDUNDANCY])
    return draw, make_policy(name, Planner(uniform_profile(8), settings))


def first(policy: Policy) -> Plan:
    return policy.initial([NodeId(node) for node in range(policy.planner.settings.num_nodes)], 1).plan


def check_keepers(plan: Plan) -> None:
    assert plan.spreads_optimizer
    for mates in plan.stage_mates:
        kept = [group for worker in mates for group in plan.kept_of[worker]]
        assert sorted(kept) == list(plan.groups_of[mates[0]])
        shares = [len(plan.kept_of[worker]) for worker in mates]
        assert max(shares) - min(shares) <= 1


def check_state(plan: Plan, holders: Held) -> None:
    """Each group is whole at its keeper, or comes to it, and each other device of the stage gets its parameters."""
    whole = {(move.target, move.group): move.source for move in plan.transfers if move.with_optimizer}
    alone = {(move.target, move.group): move.source for move in plan.transfers if not move.with_optimizer}
    for (worker, group), source in whole.items():
        assert group in plan.kept_of[worker]
        assert group in holders[source] or (source, group) in whole
    for worker, groups in plan.groups_of.items():
        for group in groups:
            holds = group in holders.get(worker, ())
            if group in plan.kept_of[worker]:
                assert holds or (worker, group) in whole
            elif not holds:
                keeper = alone[worker, group]
                assert group in plan.kept_of[keeper]
                assert keeper // plan.devices_per_stage == worker // plan.devices_per_stage


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_nodes_and_devices_are_lost_every_group_is_whole_at_one_device_of_a_stage(seed: int) -> None:
    draw, policy = setting(seed)
    plan = first(policy)
    validate(plan, fault_tolerance=1, arrived=True)
    check_keepers(plan)
    lost_devices: set[WorkerId] = set()
    gone: set[NodeId] = set()
    for generation in range(2, 6):
        mates = draw.choice(plan.stage_mates)
        if draw.random() < 0.6 and len(mates) > 1:
            lost_devices.add(draw.choice(mates))
        else:
            gone.add(plan.node_of(mates[0]))
        live = [w for w in plan.workers if w not in lost_devices and plan.node_of(w) not in gone]
        holders = {worker: plan.kept_of[worker] for worker in live}
        held = {group for groups in holders.values() for group in groups}
        alone = frozenset(worker for worker in lost_devices if plan.node_of(worker) not in gone)
        policy = policy.with_planner(policy.planner.with_lost_devices(alone))
        request = ReplanRequest(plan=plan, lost=sorted(gone), holders=holders, generation=generation)
        if len(held) < len(plan.groups):
            with pytest.raises(PlanError):
                policy.reconfigure(request)
            return
        try:
            found = policy.reconfigure(request)
        except NoReplica:
            raise
        except PlanError:
            return  # too few nodes
        plan = found.plan
        validate(plan, fault_tolerance=None if found.is_degraded else 1, dropped=found.dropped, arrived=True)
        check_keepers(plan)
        check_state(plan, holders)
        if found.beside is not None:
            check_state(found.beside.plan, holders)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_needs_memory_for_what_it_keeps_alone(seed: int) -> None:
    _, policy = setting(seed)
    plan, profile = first(policy), policy.planner.profile
    plain = msgspec.structs.replace(plan, spreads_optimizer=False)
    for mates in plan.stage_mates:
        whole, parts = memory_use(plain, profile, mates[0]), [memory_use(plan, profile, mate) for mate in mates]
        assert sum(part.optimizer for part in parts) == whole.optimizer
        assert {part.parameters for part in parts} == {whole.parameters}
        assert {part.gradients for part in parts} == {whole.gradients}, "this profile's sums are what is counted"
        assert max(part.optimizer for part in parts) < whole.optimizer or len(plan.groups_of[mates[0]]) == 1
    assert fullest_device_bytes(plan, profile) == max(memory_use(plan, profile, w).total for w in plan.workers)


def test_no_device_keeps_much_more_than_another() -> None:
    plain, frozen = Group(layers=(0,), size_bytes=8), Group(layers=(0,), size_bytes=8, optimizer_bytes=0)
    groups = (plain, frozen, plain, plain, frozen, plain)
    assert kept_groups(groups, (0, 2, 3, 5), 2) == ((0, 3), (2, 5))
    assert kept_groups(groups, (0, 1, 4), 2) == ((0, 1, 4), (1, 4)), "what is not trained is whole everywhere"
    assert kept_groups(groups, (0, 1, 2), 1) == ((0, 1, 2),)
    large = Group(layers=(0,), size_bytes=20)
    assert kept_groups((plain, plain, large, plain), (0, 1, 2, 3), 2) == ((2,), (0, 1, 3))
    assert kept_groups((large, plain), (0, 1), 4) == ((0,), (1,), (), ())


@pytest.mark.parametrize("counted", [0, 2], ids=["counted in the sum", "counted apart"])
def test_a_stage_fits_spread_that_does_not_whole(counted: int) -> None:
    """One stage on the four devices of the only node."""
    profile = uniform_profile(8)
    layers = [msgspec.structs.replace(x, gradient_bytes=(1 + counted) * x.parameter_bytes) for x in profile.layers]
    profile = msgspec.structs.replace(profile, layers=tuple(layers))

    def first_of(memory_bytes: int, *, spreads: bool) -> Plan:
        settings = PlannerSettings(
            num_microbatches=8, fault_tolerance=0, num_nodes=1, devices_per_node=4, devices_per_stage=4,
            spreads_optimizer=spreads, memory_bytes=memory_bytes,
        )  # fmt: skip
        return first(make_policy(PolicyName.TEMPLATES, Planner(profile, settings)))

    spread, whole = (fullest_device_bytes(first_of(0, spreads=spreads), profile) for spreads in (True, False))
    kept = sum(layer.optimizer_bytes + (layer.parameter_bytes if counted else 0) for layer in layers)
    assert whole - spread == kept * 3 // 4
    assert fullest_device_bytes(first_of(spread, spreads=True), profile) == spread
    less = "more memory.*set fewer cluster.devices_per_stage"
    with pytest.raises(PlanError, match=f'With stages on 4 devices each.*{less} or cluster.optimizer_state = "spread"'):
        first_of(whole - 1, spreads=False)
    with pytest.raises(PlanError, match=r"a layer's is with one device. Set fewer cluster.devices_per_stage"):
        first_of(spread - 1, spreads=True)
