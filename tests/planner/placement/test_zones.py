"""Replicas over zones: an outage of one leaves every layer a replica wherever some assignment can, and takes no more
replicas of a layer than it must. On small clusters against all assignments, tried one by one."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from planaria.plan.costs.pipeline_time import Template
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.placement.placement import assign
from planaria.planner.placement.zones import Role, replicas_by_zone, zones_of_roles
from planaria.planner.reconfigure.reconfigure import reconfigure
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile

NAMES = "abc"


@dataclass(frozen=True)
class Case:
    """Pipelines that are cut somehow, some of them standing already, and nodes for the others."""

    num_layers: int
    cuts: tuple[tuple[Role, ...], ...]
    zones: Mapping[NodeId, str]
    speeds: tuple[float, ...]
    standing: tuple[Mapping[str, int], ...]

    @property
    def roles(self) -> list[Role]:
        return [
            Role(first_layer=role.first_layer, end_layer=role.end_layer, kind=kind)
            for role, kind in zip((role for cut in self.cuts for role in cut), self.speeds, strict=False)
        ]

    def badness(self, wanted: Sequence[str]) -> tuple[int, int]:
        """Layers that are all in one zone; squares of the replicas of a layer in a zone."""
        in_one = squares = 0
        for layer in range(self.num_layers):
            held = dict(self.standing[layer])
            for role, zone in zip(self.roles, wanted, strict=True):
                if role.first_layer <= layer < role.end_layer:
                    held[zone] = held.get(zone, 0) + 1
            in_one += len(held) == 1 < sum(held.values())
            squares += sum(number**2 for number in held.values())
        return in_one, squares

    @property
    def found(self) -> list[str]:
        roles, nodes = self.roles, list(self.zones)
        idle = [(node, self.speeds[at]) for at, node in enumerate(nodes) if at >= len(roles)]
        return zones_of_roles(roles, nodes[: len(roles)], idle, self.zones, self.standing)

    def all_ways(self) -> Iterator[tuple[str, ...]]:
        """Every node at every role that is of its kind."""
        nodes = list(zip(self.zones.values(), self.speeds, strict=True))

        def fill(at: int, left: tuple[tuple[str, float], ...]) -> Iterator[tuple[str, ...]]:
            if at == len(self.roles):
                yield ()
                return
            for node in sorted({node for node in left if node[1] == self.roles[at].kind}):
                rest = list(left)
                rest.remove(node)
                for more in fill(at + 1, tuple(rest)):
                    yield (node[0], *more)

        return fill(0, tuple(nodes))


def cut(draw: random.Random, num_layers: int, num_nodes: int) -> tuple[Role, ...]:
    ends = [0, *sorted(draw.sample(range(1, num_layers), num_nodes - 1)), num_layers]
    return tuple(Role(first_layer=first, end_layer=end) for first, end in itertools.pairwise(ends))


def case(seed: int) -> Case:
    draw = random.Random(seed)
    num_layers = draw.randint(2, 6)
    sizes = [draw.randint(1, min(3, num_layers)) for _ in range(draw.randint(2, 4))]
    while sum(sizes) > 8:
        sizes.pop()
    shared = {size: cut(draw, num_layers, size) for size in range(1, 4) if size <= num_layers}
    cuts = tuple(shared[size] if draw.random() < 0.7 else cut(draw, num_layers, size) for size in sizes)
    num_nodes = sum(sizes) + draw.choice([0, 0, 1, 2])
    names = NAMES[: draw.choice([2, 2, 3])]
    zones = {NodeId(node): draw.choice(names + names[0] * draw.choice([0, 0, 2])) for node in range(num_nodes)}
    speeds = tuple(draw.choice([1.0, 1.0, 0.5]) if draw.random() < 0.3 else 1.0 for _ in range(num_nodes))
    standing: tuple[Mapping[str, int], ...] = ({},) * num_layers
    if draw.random() < 0.4:
        stays = [draw.choice(names) for _ in range(num_layers)]
        standing = tuple({zone: 1} for zone in stays)
    return Case(num_layers=num_layers, cuts=cuts, zones=zones, speeds=speeds, standing=standing)


@pytest.mark.parametrize("seed", range(150))
def test_no_assignment_is_better(seed: int) -> None:
    which = case(seed)
    assert which.badness(which.found) == min(map(which.badness, which.all_ways()))


def test_each_kind_of_node_stays_with_its_roles() -> None:
    for seed in range(40):
        which = case(seed)
        left = sorted(zip(which.zones.values(), which.speeds, strict=True))
        for role, zone in zip(which.roles, which.found, strict=True):
            left.remove((zone, role.kind))


# Plans

LAYERS, MICROBATCHES = 8, 64


def templates(nodes: int, devices: int = 1, smallest: int = 2) -> tuple[Sequence[Template], PlannerSettings]:
    settings = PlannerSettings(
        num_microbatches=MICROBATCHES,
        fault_tolerance=1,
        num_nodes=nodes,
        devices_per_node=devices,
        min_nodes=smallest,
    )
    return make_templates(PROFILE, settings), settings


PROFILE = uniform_profile(LAYERS, tied=True)


def spread_of(plan: Plan, zones: Mapping[NodeId, str]) -> list[dict[str, int]]:
    return replicas_by_zone(plan.pipelines, plan.num_layers, zones, plan.devices_per_node)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("smallest", [2, 3])
@pytest.mark.parametrize("num_zones", [2, 3, 4])
def test_dealt_in_turn_a_zone_takes_few_replicas(num_zones: int, smallest: int, devices: int) -> None:
    """Without zones in mind, all first stages are in one of them."""
    made, settings = templates(12, devices, smallest)
    zones = {NodeId(node): f"zone-{node % num_zones}" for node in range(12)}
    plan = initial_plan(PROFILE, made, settings, list(zones), 1, zones=zones)
    validate(plan, fault_tolerance=1)
    for held in spread_of(plan, zones):
        assert max(held.values()) <= math.ceil(len(plan.pipelines) / num_zones)


def test_pipelines_stay_within_zones_where_they_can() -> None:
    made, settings = templates(12)
    zones = {NodeId(node): NAMES[node % 3] for node in range(12)}
    plan = initial_plan(PROFILE, made, settings, list(zones), 1, zones=zones)
    within = [len({zones[plan.node_of(worker)] for worker in pipeline.workers}) for pipeline in plan.pipelines]
    assert within == [1] * len(plan.pipelines)


def test_slow_nodes_stay_together() -> None:
    """Zones change who of equally fast nodes is where, and nothing else."""
    made, settings = templates(12)
    nodes = [NodeId(node) for node in range(12)]
    zones = {node: "ab"[node % 2] for node in nodes}
    speeds = {NodeId(node): 0.5 for node in (0, 1, 2, 3)}
    plain = initial_plan(PROFILE, made, settings, nodes, 1, speeds=speeds)
    plan = initial_plan(PROFILE, made, settings, nodes, 1, speeds=speeds, zones=zones)
    assert [speed_of(pipeline.workers, speeds) for pipeline in plan.pipelines] == [
        speed_of(pipeline.workers, speeds) for pipeline in plain.pipelines
    ]
    assert all(len(held) == 2 for held in spread_of(plan, zones))


def speed_of(workers: Sequence[WorkerId], speeds: Mapping[NodeId, float]) -> list[float]:
    return [speeds.get(NodeId(worker), 1.0) for worker in workers]


def test_without_zones_nothing_changes() -> None:
    made, settings = templates(12)
    nodes = [NodeId(node) for node in range(12)]
    plan = initial_plan(PROFILE, made, settings, nodes, 1)
    for zones in ({}, dict.fromkeys(nodes, "only")):
        assert initial_plan(PROFILE, made, settings, nodes, 1, zones=zones).content_hash == plan.content_hash


@pytest.mark.parametrize("seed", range(20))
def test_after_losses_replicas_are_spread_again(seed: int) -> None:
    """Whoever is made anew takes the zones that those who stay leave free; and a zone can be lost again."""
    draw = random.Random(seed)
    made, settings = templates(15)
    zones = {NodeId(node): NAMES[node % 3] for node in range(18)}
    plan = initial_plan(PROFILE, made, settings, [NodeId(node) for node in range(15)], 1, zones=zones)
    live = set(plan.nodes)
    for generation in range(2, 6):
        lost = draw.sample(sorted(live), 1)
        live -= set(lost)
        joined = {NodeId(draw.randrange(15, 18))} - live - set(lost)
        live |= joined
        holders = {WorkerId(worker): plan.groups_of.get(WorkerId(worker), ()) for worker in live}
        result = reconfigure(PROFILE, made, settings, plan, lost, holders, generation, zones=zones)
        plan = result.plan
        validate(plan, fault_tolerance=1)
        assert all(len(held) > 1 for held in spread_of(plan, zones))


def test_an_outage_of_a_zone_leaves_every_layer() -> None:
    made, settings = templates(12)
    zones = {NodeId(node): NAMES[node % 3] for node in range(12)}
    plan = initial_plan(PROFILE, made, settings, list(zones), 1, zones=zones)
    for zone in NAMES:
        lost = [node for node in zones if zones[node] == zone]
        holders = {worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) not in lost}
        after = reconfigure(PROFILE, made, settings, plan, lost, holders, 2, zones=zones).plan
        validate(after, fault_tolerance=1)
        assert all(len(held) == 2 for held in spread_of(after, zones))


def test_nothing_moves_for_zones_that_are_right_already() -> None:
    """Of nodes that hold what they shall, each keeps its place."""
    made, settings = templates(12)
    zones = {NodeId(node): NAMES[node % 3] for node in range(12)}
    plan = initial_plan(PROFILE, made, settings, list(zones), 1, zones=zones)
    chosen = [next(t for t in made if t.num_nodes == len(p.workers)) for p in plan.pipelines]
    again = assign(chosen, list(zones), 1, PROFILE.groups, plan.groups_of, zones)
    assert {stage for pipeline in again for stage in pipeline.stages} == set(plan.stages())
