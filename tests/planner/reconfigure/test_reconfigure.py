"""Reconfiguration: Oobleck's three ways, every node used, little moved, from balanced sources."""

from __future__ import annotations

import dataclasses
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import LayerTimes, ModelProfile
from planaria.plan.costs.pipeline_time import Template
from planaria.plan.errors import NoReplica, TooFewNodes
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, Route, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.finish_step.salvage import finish_step, to_halt
from planaria.planner.instantiation.instantiate import initial_plan, place
from planaria.planner.reconfigure.pipeline_sizes import How, Situation, reinstantiate, simple_sizes
from planaria.planner.reconfigure.reconfigure import Change, Reconfiguration, borrow, full, merge, reconfigure, simple
from planaria.planner.templates.templates import make_templates
from tests.plan.machine import Machine
from tests.plan.profiles import random_jobs, uniform_profile
from tests.proof import examples

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


def test_too_few_nodes_for_the_replicas_are_refused() -> None:
    with pytest.raises(TooFewNodes, match=r"3 nodes are left, and 2 replicas of 2 nodes each need 4") as info:
        lose([2, 2], {0})
    assert (info.value.needed, info.value.left) == (4, 3)


def test_a_group_without_a_replica_is_refused() -> None:
    with pytest.raises(NoReplica, match="group 0") as info:
        lose([3, 3, 2], {0, 3, 6})
    assert info.value.group == 0


@settings(max_examples=examples(100), deadline=None)
@given(
    alive=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    spares=st.integers(0, 3),
    smallest=st.integers(1, 4),
    num_templates=st.integers(4, 8),
    replicas=st.integers(1, 3),
)
def test_sizes_after_a_loss_are_those_of_the_paper(
    alive: list[int], spares: int, smallest: int, num_templates: int, replicas: int
) -> None:
    sizes = list(range(smallest, smallest + num_templates))
    total = sum(alive) + spares
    if total < replicas * smallest:
        return
    found = reinstantiate(
        Situation(before=alive, alive=alive, num_spares=spares, sizes=sizes, num_replicas=replicas, most=99)
    )
    if found is None:
        assert spares or max(alive) > sizes[-1] - smallest
        return
    result, how = found
    assert sum(result) == total
    assert all(size in sizes for size in result if size)
    assert sum(size > 0 for size in result) >= replicas
    if all(size == 0 or size in sizes for size in alive) and sum(map(bool, alive)) >= replicas:
        assert (result, how) == (alive, How.SIMPLE)


def change_of(sizes: list[int], lost: set[int], joined: int = 0, fault_tolerance: int = 1) -> Change:
    planner = settings_of(sum(sizes) + joined, fault_tolerance)
    plan = plan_with(sizes, planner)
    return Change(
        profile=PROFILE,
        templates=make_templates(PROFILE, planner),
        settings=planner,
        plan=plan,
        lost=[NodeId(node) for node in lost],
        joined=[NodeId(100 + number) for number in range(joined)],
        holders={worker: groups for worker, groups in plan.groups_of.items() if worker not in lost},
        generation=2,
    )


def shape(result: Reconfiguration | None) -> tuple[list[int], How] | None:
    return None if result is None else (sizes_of(result), result.how)


@pytest.mark.parametrize(
    ("sizes", "lost", "joined", "expected"),
    [
        # Two left: their template; nobody is too small, so the other ways give the same.
        ([3, 3], {1}, 0, [([2, 3], How.SIMPLE)] * 3),
        # One left, and somebody can lend; merging leaves two replicas.
        ([2, 4, 3], {0}, 0, [None, ([2, 3, 3], How.BORROW), ([4, 4], How.MERGE)]),
        # One left and nobody can lend.
        ([2, 2, 2], {3}, 0, [None, None, ([3, 2], How.MERGE)]),
        # Two with one left each; the first takes the only spare node of the third, for the second there is none.
        ([2, 2, 3, 2], {0, 2}, 0, [None, None, ([2, 3, 2], How.MERGE)]),
        # Gone altogether: without a loan there is one replica, and a merge does not help.
        ([2, 5], {0, 1}, 0, [None, ([3, 2], How.BORROW), None]),
        # Nodes that came: first the gap, then a new pipeline, then the smallest.
        ([3, 3], {1}, 1, [([3, 3], How.SIMPLE)] * 3),
        ([3, 3], {1}, 3, [([3, 3, 2], How.SIMPLE)] * 3),
        ([3, 3], {1}, 4, [([3, 3, 3], How.SIMPLE)] * 3),
        ([2, 2], {0}, 2, [([3, 2], How.SIMPLE)] * 3),
        ([2, 2], {0, 1}, 3, [([3, 2], How.SIMPLE)] * 3),
    ],
)
def test_each_way_is_taken_on_its_own(
    sizes: list[int], lost: set[int], joined: int, expected: list[tuple[list[int], How] | None]
) -> None:
    change = change_of(sizes, lost, joined)
    results = [simple(change), borrow(change), merge(change)]
    assert [shape(result) for result in results] == expected
    for result in results:
        if result is not None:
            validate(result.plan, fault_tolerance=1)
            assert len(result.plan.nodes) == sum(sizes) - len(lost) + joined


def test_the_paper_takes_the_first_that_applies_for_each_pipeline() -> None:
    """The first pipeline borrows the only node that can be lent; the second then merges."""
    result = lose([2, 2, 3, 2], {0, 2})
    assert (sizes_of(result), result.how) == ([3, 2, 2], How.MERGE)


@settings(max_examples=examples(100), deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=4),
    data=st.data(),
    joined=st.integers(0, 4),
    steps_ahead=st.sampled_from([1, 100, 1_000_000]),
)
def test_the_full_search_is_never_worse(sizes: list[int], data: st.DataObject, joined: int, steps_ahead: int) -> None:
    """Than any of the ways, by its own measure; and by the step time alone than an instantiation afresh."""
    lost = data.draw(st.sets(st.integers(0, sum(sizes) - 1), max_size=sum(sizes) + joined - 4), label="lost")
    change = change_of(sizes, lost, joined)
    try:
        found = full(change, steps_ahead)
    except NoReplica:
        return
    validate(found.plan, fault_tolerance=1)
    assert len(found.plan.nodes) == sum(sizes) - len(lost) + joined

    def cost(result: Reconfiguration) -> float:
        return steps_ahead * result.step_time_s + result.transfer_s

    for way in (simple, borrow, merge):
        result = way(change)
        assert result is None or cost(found) <= cost(result) + 1e-9
    live = [node for node in range(sum(sizes)) if node not in lost] + [100 + number for number in range(joined)]
    anew = initial_plan(PROFILE, change.templates, change.settings, [NodeId(node) for node in live], 1)
    by_size = {template.num_nodes: template for template in change.templates}
    best = max(by_size[len(route.hops)].time_s(len(route.microbatches)) for route in anew.routes)
    if steps_ahead == 1_000_000:
        assert found.step_time_s == pytest.approx(best)
    assert found.step_time_s >= best - 1e-9


def test_a_full_search_weighs_steps_against_transfers() -> None:
    """Two large pipelines and a small one could be balanced better, which pays only after some steps."""
    change = change_of([6, 2], {1}, 3)
    soon, late = full(change, 0), full(change, 1_000_000)
    assert soon.transfer_s < late.transfer_s
    assert soon.step_time_s > late.step_time_s


def test_a_full_search_uses_every_node() -> None:
    """Even where it would move less to leave a node that came idle."""
    found = full(change_of([2, 2], set(), joined=1), 0)
    assert NodeId(100) in found.plan.nodes
    assert found.transfer_bytes > 0


def test_new_pipelines_are_no_more_than_the_batch_allows() -> None:
    situation = Situation(before=[2, 2], alive=[2, 2], num_spares=6, sizes=range(2, 7), num_replicas=2, most=3)
    assert simple_sizes(situation) == [4, 3, 3]


def test_a_node_that_leaves_still_sends() -> None:
    """Node 0 is the last to hold the first layers, and the plan must do without it."""
    change = dataclasses.replace(change_of([3, 3], {3}, joined=1), leaving=[NodeId(0)])
    for result in (simple(change), full(change)):
        assert result is not None
        validate(result.plan, fault_tolerance=1)
        assert NodeId(0) not in result.plan.nodes
        assert any(move.source == 0 for move in result.plan.transfers)


def test_a_slow_node_gets_less() -> None:
    change = change_of([3, 3], {1})
    even = reconfigured(dataclasses.replace(change, speeds={}))
    uneven = reconfigured(dataclasses.replace(change, speeds={NodeId(3): 0.5}))
    before, after = ([len(route.microbatches) for route in r.plan.routes] for r in (even, uneven))
    assert even.plan.pipelines == uneven.plan.pipelines
    assert before == [7, 9]
    assert after == [10, 6]
    assert uneven.step_time_s > even.step_time_s
    with pytest.raises(PlanError, match=r"Node 3 has speed 0\.0; it must be a positive number"):
        reconfigured(dataclasses.replace(change, speeds={NodeId(3): 0.0}))


def test_a_full_search_groups_slow_nodes() -> None:
    """A slow node in each pipeline holds both up; both in one hold up one, which gets less."""
    change = dataclasses.replace(change_of([4, 4], set()), speeds={NodeId(0): 0.25, NodeId(4): 0.25})
    found = full(change, 1_000_000)
    stays = simple(change)
    assert stays is not None
    assert found.step_time_s < stays.step_time_s
    assert found.how is How.INSTANTIATE


@settings(max_examples=examples(150), deadline=None)
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


def uneven_devices(template: Template, devices_per_node: int) -> Template:
    """The same template on nodes of more devices: the last stage of a node takes all that are left."""
    used = dict.fromkeys(range(template.num_nodes), 0)
    stages = []
    for stage in template.stages:
        last = stage is template.stages_of(stage.node)[-1]
        devices = devices_per_node - used[stage.node] if last else 1
        used[stage.node] += devices
        stages.append(dataclasses.replace(stage, num_devices=devices))
    return dataclasses.replace(template, stages=tuple(stages))


@settings(max_examples=examples(100), deadline=None)
@given(job=random_jobs(), spare_devices=st.integers(0, 2), data=st.data())
def test_losses_and_joins_in_any_order_leave_valid_plans(
    job: tuple[ModelProfile, PlannerSettings], spare_devices: int, data: st.DataObject
) -> None:
    """Nodes go and come, alone and together, some of them slow, stages of several devices among them."""
    profile, planner = job
    devices = planner.devices_per_node + spare_devices
    templates = [uneven_devices(template, devices) for template in make_templates(profile, planner)]
    profile = on_any_devices(profile, devices)
    planner = dataclasses.replace(planner, devices_per_node=devices)
    smallest, replicas = templates[0].num_nodes, planner.fault_tolerance + 1
    plan = initial_plan(profile, templates, planner, [NodeId(n) for n in range(planner.num_nodes)], 1)
    live, newest = set(plan.nodes), planner.num_nodes
    gapless = templates[-1].num_nodes >= 2 * smallest - 1
    for generation in range(2, 7):
        lost = data.draw(st.sets(st.sampled_from(sorted(live)), max_size=3), label="lost")
        room = max(0, planner.num_nodes - len(live - lost))
        came = data.draw(st.integers(0, room), label="came")
        joined = {NodeId(newest + number) for number in range(came)}
        newest += came
        live = (live - lost) | joined
        holders = {w: groups for w, groups in plan.groups_of.items() if plan.node_of(w) in live}
        if len(live) < replicas * smallest:
            return
        speeds = data.draw(st.dictionaries(st.sampled_from(sorted(live)), st.sampled_from([0.5, 0.8])), label="speeds")
        change = Change(
            profile=profile,
            templates=templates,
            settings=planner,
            plan=plan,
            lost=lost,
            holders=holders,
            generation=generation,
            joined=joined,
            speeds=speeds,
        )
        way = full if data.draw(st.booleans(), label="search") else reconfigured
        try:
            result = way(change)
        except NoReplica:
            return
        validate(result.plan, fault_tolerance=planner.fault_tolerance)
        if gapless:
            assert set(result.plan.nodes) == live
        unchanged = [p for at, p in enumerate(result.plan.pipelines) if at not in result.rebuilt]
        assert set(unchanged) <= set(plan.pipelines)
        for move in result.plan.transfers:
            assert move.group in holders[move.source]
        plan, live = result.plan, set(result.plan.nodes)


def reconfigured(change: Change) -> Reconfiguration:
    return reconfigure(
        change.profile,
        change.templates,
        change.settings,
        change.plan,
        change.lost,
        change.holders,
        change.generation,
        joined=change.joined,
        speeds=change.speeds,
    )


def on_any_devices(profile: ModelProfile, most: int) -> ModelProfile:
    """The profile with times for more devices: half of it on two, a third on three."""
    layers = tuple(
        msgspec.structs.replace(
            layer,
            times=tuple(
                LayerTimes(
                    num_devices=d,
                    forward_s=layer.on(1).forward_s / d,
                    backward_input_s=layer.on(1).backward_input_s / d,
                    backward_weight_s=layer.on(1).backward_weight_s / d,
                )
                for d in range(1, most + 1)
            ),
        )
        for layer in profile.layers
    )
    return msgspec.structs.replace(profile, layers=layers)


def test_a_node_is_used_whose_other_workers_own_nothing() -> None:
    """Two nodes of two devices, one stage on both of each; the second device's worker drives nothing."""
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=1)
    templates = [uneven_devices(template, 2) for template in make_templates(PROFILE, planner)]
    planner = dataclasses.replace(planner, devices_per_node=2)
    profile = on_any_devices(PROFILE, 2)
    plan = initial_plan(profile, templates, planner, [NodeId(n) for n in range(4)], 1)
    validate(plan, fault_tolerance=1)
    assert all(worker % 2 == 0 for worker in plan.workers)
    for others in (True, False):
        holders: dict[WorkerId, tuple[int, ...]] = dict(plan.groups_of)
        if others:
            holders |= {WorkerId(worker + 1): () for worker in plan.groups_of}
        result = reconfigure(profile, templates, planner, plan, [], holders, 2)
        assert (result.rebuilt, result.transfer_bytes, result.plan.nodes) == ((), 0, plan.nodes)
    lost = plan.node_of(plan.pipelines[0].workers[0])
    left = {worker: groups for worker, groups in plan.groups_of.items() if plan.node_of(worker) != lost}
    result = reconfigure(profile, templates, planner, plan, [lost], left, 2)
    assert result.plan.nodes == tuple(node for node in plan.nodes if node != lost)
