"""Neighbours are in different zones where that can be; nodes stay where they were."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.plan import NodeId, Redundancy, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.finish_step.shadow_takeover import taken_over
from planaria.planner.placement.senders import Holders
from planaria.planner.rings import Lacks, conflicts, left_in_place, refilled, ring_shadows, spread
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile
from tests.plan.shadowed import ring_plan
from tests.proof import examples

PROFILE = uniform_profile(6, tied=False)
TEMPLATES = make_templates(
    PROFILE, PlannerSettings(num_microbatches=8, fault_tolerance=0, num_nodes=3, devices_per_node=1, min_nodes=3)
)


def nodes(*numbers: int) -> list[NodeId]:
    return [NodeId(number) for number in numbers]


def zones_of(names: str) -> dict[NodeId, str]:
    """Zone of node 0, 1, ..., one letter each."""
    return {NodeId(number): name for number, name in enumerate(names)}


def test_without_zones_nodes_are_in_order() -> None:
    assert spread(nodes(3, 1, 0, 2, 4), 2, 2, {}) == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("names", "depth"), [("aaabbb", 6), ("aabbcc", 3), ("aaaabbbbcccc", 3), ("aaaabbbbcccc", 4), ("abcabcabc", 3)]
)
def test_neighbours_are_in_different_zones(names: str, depth: int) -> None:
    rings = spread(nodes(*range(len(names))), len(names) // depth, depth, zones_of(names))
    assert sorted(node for ring in rings for node in ring) == list(range(len(names)))
    assert [conflicts(ring, zones_of(names)) for ring in rings] == [0] * len(rings)


@settings(deadline=None, max_examples=examples(80))
@given(names=st.text("abc", min_size=4, max_size=6))
def test_one_ring_is_as_good_as_any(names: str) -> None:
    zones, numbers = zones_of(names), nodes(*range(len(names)))
    best = min(conflicts(order, zones) for order in permutations(numbers))
    assert conflicts(spread(numbers, 1, len(names), zones)[0], zones) == best


def test_of_more_nodes_those_that_are_taken_are_of_many_zones() -> None:
    zones = zones_of("aaaaaabb")
    (ring,) = spread(nodes(*range(8)), 1, 4, zones)
    assert sorted(zones[node] for node in ring) == ["a", "a", "b", "b"]
    assert conflicts(ring, zones) == 0


def test_each_worker_holds_its_successors_stage() -> None:
    plan = ring_plan(Redundancy.EAGER_LAZY, pipelines=1)
    assert [(s.worker, s.first_layer, s.end_layer) for s in plan.shadows] == [(2, 0, 2), (0, 2, 4), (1, 4, 6)]


def test_with_several_devices_a_node_holds_the_next_ones() -> None:
    """Never what its own devices have: those are lost with it."""
    plan = ring_plan(Redundancy.EAGER_LAZY, pipelines=1, depth=4, layers=8)
    shadows = ring_shadows(plan.pipelines, 2)
    assert [(s.worker, s.first_layer) for s in shadows] == [(2, 0), (3, 2), (0, 4), (1, 6)]


def test_who_took_over_stays_in_his_own_place() -> None:
    plan = ring_plan(Redundancy.EAGER_LAZY)
    live = {worker for worker in plan.workers if worker not in (1, 3)}
    holders = {worker: plan.layers_held(plan.groups_of[worker]) for worker in live}
    pipelines = taken_over(plan, live, holders)
    after = msgspec.structs.replace(plan, pipelines=tuple(p for p in pipelines if p is not None))
    assert left_in_place(after, TEMPLATES[0], nodes(*live)) == [(0, None, 2), (None, 4, 5)]


def test_gaps_are_filled_from_other_zones_first_and_then_by_who_holds_most() -> None:
    plan = ring_plan(Redundancy.EAGER_LAZY)
    every = tuple(range(plan.num_layers))
    holders: Holders = {WorkerId(6): (), WorkerId(7): every, WorkerId(8): every}
    lacks = Lacks(plan, TEMPLATES[0], holders)
    rings = [(NodeId(0), None, NodeId(2))]
    waiting = nodes(6, 7, 8)
    assert refilled(rings, 1, 3, waiting, lacks, {}) == ((0, 7, 2),)
    zones = {NodeId(0): "a", NodeId(2): "b", NodeId(6): "c", NodeId(7): "a", NodeId(8): "b"}
    assert refilled(rings, 1, 3, waiting, lacks, zones) == ((0, 6, 2),)


def test_the_fullest_pipelines_stay() -> None:
    lacks = Lacks(ring_plan(Redundancy.EAGER_LAZY), TEMPLATES[0], {})
    rings = [(NodeId(0), None, None), (NodeId(3), None, NodeId(5))]
    assert refilled(rings, 1, 3, [], lacks, {}) == ((3, 0, 5),)
    assert refilled(rings, 2, 3, [], lacks, {}) is None
