"""Transfer time: by hand, against an independent simulation, and never under the bound."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import msgspec
import pytest

from planaria.estimate.conditions import Conditions
from planaria.estimate.transfer_time import busy_s, transfer_time, wait_s
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Route, ScheduleKind, Stage, Transfer, WorkerId

LINKS = Links(
    within_node=LinkCost(latency_s=0.25, bandwidth_bytes_per_s=1200.0),
    between_nodes=LinkCost(latency_s=0.5, bandwidth_bytes_per_s=300.0),
)


def plan_of(moves: list[tuple[int, int, int]], sizes: list[int], per_node: int = 1) -> Plan:
    """Moves of (group, source, target); the plan is nothing else."""
    stages = (Stage(worker=WorkerId(0), first_layer=0, end_layer=len(sizes)),)
    return Plan(
        generation=1,
        num_layers=len(sizes),
        num_microbatches=1,
        devices_per_node=per_node,
        groups=tuple(Group(layers=(at,), size_bytes=size) for at, size in enumerate(sizes)),
        pipelines=(Pipeline(stages=stages),),
        routes=(),
        sync_epochs=(1,) * len(sizes),
        transfers=tuple(
            Transfer(group=group, source=WorkerId(source), target=WorkerId(target)) for group, source, target in moves
        ),
    )


def naive(plan: Plan) -> Fraction:
    """Every flow by itself, exact fractions, one event after the other."""
    flows: dict[tuple[int, int], list[Fraction]] = {}
    for move in plan.transfers:
        same = plan.node_of(move.source) == plan.node_of(move.target)
        link = LINKS.of(same_node=same)
        flow = flows.setdefault((move.source, move.target), [Fraction(0), Fraction(0)])
        flow[0] += Fraction(link.latency_s)
        flow[1] += move.moved_bytes(plan.groups[move.group]) / Fraction(link.bandwidth_bytes_per_s)
    now = Fraction(0)

    def ways(pair: tuple[int, int]) -> list[tuple[str, int]]:
        nodes = plan.node_of(WorkerId(pair[0])), plan.node_of(WorkerId(pair[1]))
        return [("o", pair[0]), ("i", pair[1])] if nodes[0] == nodes[1] else [("O", nodes[0]), ("I", nodes[1])]

    while flows:
        active = [pair for pair in flows if flows[pair][0] <= now]
        users = Counter(way for pair in active for way in ways(pair))
        share = {pair: Fraction(1, max(users[way] for way in ways(pair))) for pair in active}
        steps = [flows[pair][1] / share[pair] for pair in active]
        steps += [flow[0] - now for flow in flows.values() if flow[0] > now]
        step = min(steps)
        now += step
        for pair in active:
            flows[pair][1] -= share[pair] * step
            if not flows[pair][1]:
                del flows[pair]
    return now


def test_where_nothing_moves_nothing_is_waited_for() -> None:
    time = transfer_time(plan_of([], [1]), LINKS)
    assert (time.time_s, time.bound_s, time.moved_bytes, time.busiest_bytes) == (0.0, 0.0, 0, 0)


def test_one_message_takes_its_latency_and_its_bytes() -> None:
    """Parameters and two moments: 3 x 200 bytes at 300 a second, after half a second."""
    time = transfer_time(plan_of([(0, 1, 2)], [200]), LINKS)
    assert (time.time_s, time.bound_s, time.moved_bytes) == (2.5, 2.5, 600)


def test_a_way_out_is_shared_and_a_way_in_too() -> None:
    assert transfer_time(plan_of([(0, 1, 2), (0, 1, 3)], [200]), LINKS).time_s == 4.5
    assert transfer_time(plan_of([(0, 1, 3), (1, 2, 3)], [200, 200]), LINKS).time_s == 4.5
    assert transfer_time(plan_of([(0, 1, 3), (1, 2, 4)], [200, 200]), LINKS).time_s == 2.5


def test_devices_of_a_node_share_its_way_to_other_nodes_alone() -> None:
    apart = transfer_time(plan_of([(0, 0, 2), (1, 1, 4)], [200, 200], per_node=2), LINKS)
    assert (apart.time_s, apart.busiest_bytes) == (4.5, 1200)
    inside = transfer_time(plan_of([(0, 0, 1), (1, 1, 0)], [200, 200], per_node=2), LINKS)
    assert (inside.time_s, inside.busiest_bytes, inside.moved_bytes) == (0.75, 0, 1200)


def test_parts_from_two_sources_come_sooner_where_the_sources_are_busy() -> None:
    whole = plan_of([(0, 0, 2), (0, 0, 3), (0, 1, 4)], [200])
    halves = tuple(
        Transfer(group=0, source=WorkerId(source), target=WorkerId(target), part=part)
        for source, target, part in ((0, 2, None), (0, 3, (0, 100)), (1, 3, (100, 200)), (1, 4, None))
    )
    split = Plan(**{name: getattr(whole, name) for name in whole.__struct_fields__} | {"transfers": halves})
    assert transfer_time(whole, LINKS).time_s == 4.5
    assert transfer_time(split, LINKS).bound_s == 3.5
    assert transfer_time(split, LINKS).time_s == pytest.approx(3.5)


def test_it_is_the_independent_simulation_and_never_under_the_bound() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        sizes = [draw.randint(0, 9) * 50 for _ in range(4)]
        moves = {
            (draw.randrange(4), draw.randrange(6), draw.randrange(6, 12)) if draw.random() < 0.8 else (0, 2, 3)
            for _ in range(draw.randint(1, 14))
        }
        plan = plan_of(sorted(moves), sizes, draw.choice([1, 2, 8]))
        time = transfer_time(plan, LINKS)
        assert time.time_s == pytest.approx(float(naive(plan))), seed
        assert time.time_s >= time.bound_s * (1 - 1e-9), seed


# Who waits for state


def staged(num_stages: int) -> tuple[Plan, ModelProfile]:
    layers = tuple(
        LayerCost(
            name=f"layer.{at}",
            times=(LayerTimes(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0),),
            parameter_bytes=0,
            gradient_bytes=0,
            optimizer_bytes=0,
            activation_bytes=0,
            recompute_activation_bytes=0,
            output_bytes=0,
        )
        for at in range(num_stages)
    )
    free = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e18)
    stages = tuple(Stage(worker=WorkerId(at), first_layer=at, end_layer=at + 1) for at in range(num_stages))
    plan = Plan(
        generation=1,
        num_layers=num_stages,
        num_microbatches=4,
        devices_per_node=1,
        groups=tuple(Group(layers=(at,), size_bytes=0) for at in range(num_stages)),
        pipelines=(Pipeline(stages=stages),),
        routes=(Route(microbatches=(0, 1, 2, 3), hops=stages, counted=tuple(range(num_stages)), born=1),),
        sync_epochs=(1,) * num_stages,
    )
    profile = ModelProfile(
        layers=layers,
        groups=plan.groups,
        links=Links(within_node=free, between_nodes=free),
        device=DeviceKind(name="made up"),
    )
    return plan, profile


def test_who_has_nothing_to_do_at_first_may_get_his_state_late() -> None:
    plan, profile = staged(3)
    assert wait_s(plan, profile, {WorkerId(2): 2.0}) == 0.0
    assert wait_s(plan, profile, {WorkerId(2): 2.5}) == pytest.approx(0.5)
    assert wait_s(plan, profile, {WorkerId(0): 2.0}) == pytest.approx(2.0)
    assert wait_s(plan, profile, {WorkerId(0): 1.0, WorkerId(2): 2.5}) == pytest.approx(1.0)
    assert wait_s(plan, profile, {}) == 0.0


@pytest.mark.parametrize("kind", ScheduleKind)
def test_a_step_waits_no_longer_than_its_last_worker(kind: ScheduleKind) -> None:
    draw = random.Random(kind.value)
    plan, profile = staged(4)
    plan = msgspec.structs.replace(plan, schedule=kind)
    for _ in range(30):
        come_s = {WorkerId(at): draw.uniform(0, 5) for at in range(4) if draw.random() < 0.5}
        assert 0 <= wait_s(plan, profile, come_s) <= max(come_s.values(), default=0.0) + 1e-9


def test_each_receiver_has_his_own_end() -> None:
    found = transfer_time(plan_of([(0, 0, 1), (1, 2, 3)], [100, 300]), LINKS)
    assert found.come_s == {1: pytest.approx(0.5 + 1.0), 3: pytest.approx(0.5 + 3.0)}
    assert found.time_s == pytest.approx(3.5)


# What steps leave free of links


def test_messages_keep_the_links_of_both_ends_busy() -> None:
    """Four microbatches; each message takes a second, and as many go back."""
    plan, profile = staged(3)
    layers = tuple(msgspec.structs.replace(layer, output_bytes=100) for layer in profile.layers)
    slow = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=100.0)
    profile = msgspec.structs.replace(profile, layers=layers, links=Links(within_node=slow, between_nodes=slow))
    nodes = [NodeId(node) for node in (0, 1, 7)]
    assert busy_s(plan, profile, nodes) == {0: pytest.approx(4.0), 1: pytest.approx(8.0), 7: 0.0}
    assert busy_s(plan, profile, nodes[:1], Conditions(stretch=1.5)) == {0: pytest.approx(4.0)}


def test_sums_keep_the_links_of_owners_busy() -> None:
    """Of two owners each reads half of the other's gradients, and the total of the other half."""
    plan, profile = staged(1)
    group = Group(layers=(0,), size_bytes=200)
    other = Pipeline(stages=(Stage(worker=WorkerId(1), first_layer=0, end_layer=1),))
    plan = msgspec.structs.replace(plan, groups=(group,), pipelines=(*plan.pipelines, other))
    slow = LinkCost(latency_s=0.5, bandwidth_bytes_per_s=100.0)
    profile = msgspec.structs.replace(profile, groups=(group,), links=Links(within_node=slow, between_nodes=slow))
    assert busy_s(plan, profile, plan.nodes) == {0: pytest.approx(2.0), 1: pytest.approx(2.0)}
