"""Sync rounds: no worker in two sums of a round, as few rounds as there can be, and early ones for what is ready."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Stage, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.plan.sums.rounds import colour
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import random_jobs
from tests.proof import examples

SEEDS = range(1000)


def _plan(job: tuple[ModelProfile, PlannerSettings]) -> Plan:
    profile, planner = job
    nodes = [NodeId(n) for n in range(planner.num_nodes)]
    return initial_plan(profile, make_templates(profile, planner), planner, nodes, 1)


def plan_of(cuts: Sequence[Sequence[int]], groups: Sequence[Group]) -> Plan:
    """One pipeline for each list of cuts, a worker a stage."""
    worker = 0
    pipelines = []
    for own in cuts:
        stages = []
        for first, end in pairwise(own):
            stages.append(Stage(worker=WorkerId(worker), first_layer=first, end_layer=end))
            worker += 1
        pipelines.append(Pipeline(stages=tuple(stages)))
    return Plan(
        generation=1,
        num_layers=cuts[0][-1],
        num_microbatches=1,
        devices_per_node=1,
        groups=tuple(groups),
        pipelines=tuple(pipelines),
        routes=(),
        sync_epochs=(1,) * len(groups),
    )


def random_plan(seed: int, num_tied: int) -> Plan:
    """Uneven pipelines over at most nine layers, some without parameters of their own."""
    draw = random.Random(seed)
    num_layers = draw.randint(2, 9)
    cuts = [
        [0, *sorted(draw.sample(range(1, num_layers), draw.randint(0, num_layers - 1))), num_layers]
        for _ in range(draw.randint(1, 4))
    ]
    groups = [
        Group(layers=(layer,), size_bytes=draw.randint(1, 5)) for layer in range(num_layers) if draw.random() < 0.95
    ]
    for at in range(num_tied):
        ends = (0, num_layers - 1)
        others = tuple(sorted(draw.sample(range(num_layers), draw.randint(2, min(3, num_layers)))))
        layers = ends if at == 0 and draw.random() < 0.6 else others
        groups.append(Group(layers=layers, size_bytes=draw.randint(1, 5)))
    if not groups:
        groups = [Group(layers=(0,), size_bytes=1)]
    draw.shuffle(groups)
    return plan_of(cuts, groups)


def fewest(plan: Plan) -> int:
    """Try every colouring, with ever more colours."""
    conflicts = [
        {other for groups in plan.groups_of.values() if group in groups for other in groups} - {group}
        for group in range(len(plan.groups))
    ]

    def possible(colours: list[int], count: int) -> bool:
        group = len(colours)
        if group == len(conflicts):
            return True
        for candidate in range(min(count, max(colours, default=-1) + 2)):
            if all(colours[other] != candidate for other in conflicts[group] if other < group):
                if possible([*colours, candidate], count):
                    return True
        return False

    return next(count for count in range(1, len(conflicts) + 1) if possible([], count))


def check(plan: Plan) -> int:
    """Returns how many rounds there are."""
    rounds = colour(plan)
    for groups in plan.groups_of.values():
        assert len({rounds[g] for g in groups}) == len(groups)
    assert sorted(set(rounds)) == list(range(max(rounds) + 1))
    return max(rounds) + 1


@settings(max_examples=examples(60), deadline=None)
@given(job=random_jobs())
def test_rounds_are_a_proper_colouring(job: tuple[ModelProfile, PlannerSettings]) -> None:
    check(_plan(job))


@settings(max_examples=examples(60), deadline=None)
@given(job=random_jobs())
def test_rounds_of_own_groups_are_the_fewest(job: tuple[ModelProfile, PlannerSettings]) -> None:
    plan = _plan(job)
    own = tuple(group for group in plan.groups if len(group.layers) == 1)
    plan = msgspec.structs.replace(plan, groups=own, sync_epochs=(1,) * len(own))
    assert check(plan) == max(len(groups) for groups in plan.groups_of.values())


def test_without_tied_groups_no_colouring_has_fewer_rounds() -> None:
    for seed in SEEDS:
        plan = random_plan(seed, 0)
        assert check(plan) == fewest(plan), seed


@pytest.mark.parametrize("num_tied", [1, 2, 3])
def test_tied_groups_seldom_cost_a_round_and_never_two(num_tied: int) -> None:
    over = []
    for seed in SEEDS:
        plan = random_plan(seed, num_tied)
        over.append(check(plan) - fewest(plan))
    assert max(over) <= 1
    assert sum(over) <= 0.005 * len(over)


def layers(*sizes: int) -> list[Group]:
    return [Group(layers=(layer,), size_bytes=size) for layer, size in enumerate(sizes)]


def test_rounds_are_in_the_order_of_the_backward() -> None:
    """Each stage's last layer first, whatever the sizes; of what is ready together, the larger first."""
    cuts = [[0, 3, 6], [0, 3, 6]]
    assert colour(plan_of(cuts, layers(1, 1, 9, 1, 1, 1))) == (2, 1, 0, 2, 1, 0)
    for size, rounds in ((1, (2, 1, 0, 2, 1, 0, 3)), (3, (3, 1, 0, 3, 1, 0, 2))):
        tied = Group(layers=(0, 5), size_bytes=size)
        assert colour(plan_of(cuts, [*layers(1, 1, 9, 1, 1, 1), tied])) == rounds


def test_workers_with_layers_here_and_there_have_proper_rounds() -> None:
    """As after a loss, before the step is finished: still no worker in two sums at once."""
    whole = plan_of([[0, 2, 4, 6]], [*layers(1, 1, 1, 1, 1, 1), Group(layers=(0, 5), size_bytes=1)])
    stages = [
        Stage(worker=WorkerId(worker), first_layer=first, end_layer=end)
        for worker, first, end in ((7, 0, 1), (8, 1, 3), (7, 3, 4), (8, 5, 6))
    ]
    plan = msgspec.structs.replace(whole, pipelines=(*whole.pipelines, Pipeline(stages=tuple(stages))))
    assert check(plan) == fewest(plan)
