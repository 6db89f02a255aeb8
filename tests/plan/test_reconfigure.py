"""Reconfiguration: Oobleck's three ways, every node used, little moved, from balanced sources."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.instantiate import initial_plan, place
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, Route, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.reconfigure import Reconfiguration, reconfigure
from planaria.plan.reinstantiate import How, reinstantiate
from planaria.plan.salvage import finish_step, to_halt
from planaria.plan.settings import PlannerSettings
from planaria.plan.templates import make_templates
from planaria.plan.validate import validate
from tests.plan.machine import Machine
from tests.plan.profiles import random_jobs, uniform_profile

PROFILE = uniform_profile(8)


def settings_of(num_nodes: int, fault_tolerance: int = 1, min_nodes: int = 2) -> PlannerSettings:
    return PlannerSettings(
        num_microbatches=16,
        fault_tolerance=fault_tolerance,
        num_nodes=num_nodes,
        devices_per_node=1,
        min_nodes=min_nodes,
    )


def plan_with(sizes: list[int], planner: PlannerSettings) -> Plan:
    """A plan with pipelines of these sizes on nodes 0, 1, ..."""
    by_size = {template.num_nodes: template for template in make_templates(PROFILE, planner)}
    pipelines = []
    first = 0
    for size in sizes:
        pipelines.append(place(by_size[size], [NodeId(n) for n in range(first, first + size)], 1))
        first += size
    hops = pipelines[0].stages
    route = Route(hops=hops, microbatches=tuple(range(16)), born=1, counted=tuple(range(8)))
    return Plan(
        generation=1,
        num_layers=8,
        num_microbatches=16,
        devices_per_node=1,
        groups=PROFILE.groups,
        pipelines=tuple(pipelines),
        routes=(route,),
        sync_epochs=(1,) * len(PROFILE.groups),
    )


def lose(sizes: list[int], lost: set[int], fault_tolerance: int = 1, joined: int = 0) -> Reconfiguration:
    """What becomes of pipelines of these sizes (n0 = 2) when nodes are lost and `joined` ones come."""
    planner = settings_of(sum(sizes), fault_tolerance)
    plan = plan_with(sizes, planner)
    holders: dict[WorkerId, tuple[int, ...]] = {w: g for w, g in plan.groups_of.items() if w not in lost}
    holders.update({WorkerId(100 + number): () for number in range(joined)})
    gone = [NodeId(node) for node in lost]
    result = reconfigure(PROFILE, make_templates(PROFILE, planner), planner, plan, gone, holders, 2)
    validate(result.plan, fault_tolerance=fault_tolerance)
    assert len(result.plan.nodes) == len(holders)
    for move in result.plan.transfers:
        assert move.group in holders[move.source]
        assert move.group not in holders.get(move.target, ())
    return result


def sizes_of(result: Reconfiguration) -> list[int]:
    return [len(pipeline.stages) for pipeline in result.plan.pipelines]


def test_simple_the_template_of_the_remaining_nodes() -> None:
    result = lose([3, 3], {1})
    assert (sizes_of(result), result.how, result.rebuilt) == ([2, 3], How.SIMPLE, (0,))


def test_a_pipeline_with_no_node_left_is_dropped() -> None:
    result = lose([2, 2, 2], {0, 1})
    assert (sizes_of(result), result.how, result.rebuilt) == ([2, 2], How.SIMPLE, ())
    assert result.transfer_bytes == 0


def test_borrow_from_the_largest() -> None:
    result = lose([2, 4, 3], {0})
    assert (sizes_of(result), result.how) == ([2, 3, 3], How.BORROW)
    assert result.rebuilt == (0, 1)


def test_borrow_to_keep_the_replicas() -> None:
    result = lose([2, 5], {0, 1})
    assert (sorted(sizes_of(result)), result.how) == ([2, 3], How.BORROW)


def test_merge_where_nobody_can_lend() -> None:
    result = lose([2, 2, 2], {3})
    assert (sizes_of(result), result.how) == ([3, 2], How.MERGE)


def test_intact_pipelines_stay_exactly_where_they_are() -> None:
    planner = settings_of(6)
    plan = plan_with([3, 3], planner)
    result = lose([3, 3], {1})
    assert result.plan.pipelines[1] == plan.pipelines[1]
    assert {move.target for move in result.plan.transfers} <= {0, 2}


def test_nodes_keep_the_layers_that_they_have() -> None:
    """Nodes 0 and 2 hold layers 0-3, node 1 layers 4-7: made into one pipeline, 1 keeps the end and 2 is between."""
    result = lose([2, 2, 2], {3})
    assert result.plan.pipelines[0].workers == (0, 2, 1)
    old = plan_with([2, 2, 2], settings_of(6)).layers_of
    new = result.plan.layers_of
    moved = [layer for w in (0, 1, 2) for layer in set(new[WorkerId(w)]) - set(old[WorkerId(w)])]
    assert moved == [4, 5]
    assert result.transfer_bytes == len(moved) * PROFILE.groups[0].moved_bytes


def test_new_nodes_are_used() -> None:
    result = lose([3, 3], {1}, joined=1)
    assert 100 in result.plan.nodes
    result = lose([2, 2], {0}, joined=1)
    assert sizes_of(result) == [2, 2]
    assert result.how is How.SIMPLE


def test_sources_send_equal_shares() -> None:
    result = lose([2, 2, 2, 2, 2], {0}, joined=1)
    assert result.how is How.SIMPLE
    sent: Counter[WorkerId] = Counter()
    for move in result.plan.transfers:
        sent[move.source] += PROFILE.groups[move.group].size_bytes
    assert max(sent.values()) <= 400_000
    assert len(sent) >= 4


def test_too_few_nodes() -> None:
    with pytest.raises(TooFewNodes, match=r"3 nodes are left, and 2 replicas of 2 nodes each need 4") as info:
        lose([2, 2], {0})
    assert (info.value.needed, info.value.left) == (4, 3)


def test_no_replica() -> None:
    with pytest.raises(NoReplica, match="group 0") as info:
        lose([3, 3, 2], {0, 3, 6})
    assert info.value.group == 0


@settings(max_examples=100, deadline=None)
@given(
    alive=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    spares=st.integers(0, 3),
    smallest=st.integers(1, 4),
    num_templates=st.integers(4, 8),
    replicas=st.integers(1, 3),
)
def test_sizes_after_a_loss(alive: list[int], spares: int, smallest: int, num_templates: int, replicas: int) -> None:
    sizes = list(range(smallest, smallest + num_templates))
    total = sum(alive) + spares
    if total < replicas * smallest:
        return
    found = reinstantiate(alive, spares, sizes, replicas)
    if found is None:
        assert spares or max(alive) > sizes[-1] - smallest
        return
    result, how = found
    assert sum(result) == total
    assert all(size in sizes for size in result if size)
    assert sum(size > 0 for size in result) >= replicas
    if all(size == 0 or size in sizes for size in alive) and sum(map(bool, alive)) >= replicas:
        assert (result, how) == (alive, How.SIMPLE)


@settings(max_examples=150, deadline=None)
@given(job=random_jobs(), data=st.data())
def test_every_number_of_nodes_down_to_the_fewest(
    job: tuple[ModelProfile, PlannerSettings], data: st.DataObject
) -> None:
    """Lose nodes step by step, within steps and between them; each plan is valid, runs and uses all."""
    profile, planner = job
    templates = make_templates(profile, planner)
    plan = initial_plan(profile, templates, planner, [NodeId(n) for n in range(planner.num_nodes)], 1)
    live = set(plan.nodes)
    gapless = templates[-1].num_nodes >= 2 * templates[0].num_nodes - 1
    while True:
        lost = data.draw(st.sets(st.sampled_from(sorted(live)), min_size=1, max_size=2), label="lost")
        live -= lost
        holders = {w: g for w, g in plan.groups_of.items() if plan.node_of(w) in live}
        args = (profile, templates, planner, plan, lost, holders, plan.generation + 1)
        if len(live) < (planner.fault_tolerance + 1) * templates[0].num_nodes:
            with pytest.raises(TooFewNodes):
                reconfigure(*args)
            return
        if {g for groups in holders.values() for g in groups} != set(range(len(profile.groups))):
            with pytest.raises(NoReplica):
                reconfigure(*args)
            return
        if data.draw(st.booleans(), label="within a step"):
            workers = sorted(holders)
            layers = {worker: plan.layers_held(groups) for worker, groups in holders.items()}
            halted = to_halt(plan, workers)
            nothing = Ledger.empty(plan.num_layers)
            plan = finish_step(plan, workers, halted, nothing, layers, plan.generation + 1, profile)
        result = reconfigure(profile, templates, planner, plan, lost, holders, plan.generation + 1)
        plan = result.plan
        validate(plan, fault_tolerance=planner.fault_tolerance)
        if gapless:
            assert set(plan.nodes) == live
        live = set(plan.nodes)
        machine = Machine(plan, 0)
        machine.run()
        machine.check_sums()
