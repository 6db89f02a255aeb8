"""Transfer time: by hand, against an independent simulation, and never under the bound."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest

from planaria.estimate.transition import transfer_time
from planaria.plan.plan import Group, Pipeline, Plan, Stage, Transfer, WorkerId
from planaria.plan.profile import LinkCost, Links

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


def test_nothing_moves() -> None:
    time = transfer_time(plan_of([], [1]), LINKS)
    assert (time.time_s, time.bound_s, time.moved_bytes, time.busiest_bytes) == (0.0, 0.0, 0, 0)


def test_one_message() -> None:
    """Parameters and two moments: 3 x 200 bytes at 300 a second, after half a second."""
    time = transfer_time(plan_of([(0, 1, 2)], [200]), LINKS)
    assert (time.time_s, time.bound_s, time.moved_bytes) == (2.5, 2.5, 600)


def test_a_way_out_is_shared_and_a_way_in_too() -> None:
    assert transfer_time(plan_of([(0, 1, 2), (0, 1, 3)], [200]), LINKS).time_s == 4.5
    assert transfer_time(plan_of([(0, 1, 3), (1, 2, 3)], [200, 200]), LINKS).time_s == 4.5
    assert transfer_time(plan_of([(0, 1, 3), (1, 2, 4)], [200, 200]), LINKS).time_s == 2.5


def test_devices_of_a_node_share_its_way_to_other_nodes_alone() -> None:
    apart = transfer_time(plan_of([(0, 0, 2), (1, 1, 4)], [200, 200], per_node=2), LINKS)
    assert (apart.time_s, apart.busiest_bytes, apart.between_nodes_bytes) == (4.5, 1200, 1200)
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
