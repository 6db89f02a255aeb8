"""What a plan takes over from the one before it is what it would find by itself."""

from __future__ import annotations

import random

import msgspec
import pytest

from planaria.plan.plan import Group, Pipeline, Plan, Route, Stage, WorkerId, counted_together

NUM_LAYERS = 6
GROUPS = (*(Group(layers=(layer,), size_bytes=8) for layer in range(NUM_LAYERS)), Group(layers=(0, 5), size_bytes=4))
FACTS = ("layers_of", "groups_of", "devices_of", "num_owners", "is_apart", "workers", "owners_of")


def pipeline(draw: random.Random, workers: list[int]) -> Pipeline:
    """Whole, or what is left of one, over some of these workers."""
    cuts = [0, *sorted(draw.sample(range(1, NUM_LAYERS), len(workers) - 1)), NUM_LAYERS]
    stages = [
        Stage(worker=WorkerId(worker), first_layer=first, end_layer=end, num_devices=draw.choice((1, 1, 1, 2)))
        for worker, first, end in zip(workers, cuts, cuts[1:], strict=False)
    ]
    return Pipeline(stages=tuple(stages[draw.choice((0, 0, 1)) :] or stages))


def plan_of(pipelines: list[Pipeline]) -> Plan:
    return Plan(
        generation=1,
        num_layers=NUM_LAYERS,
        num_microbatches=1,
        devices_per_node=2,
        groups=GROUPS,
        pipelines=tuple(pipelines),
        routes=(),
        sync_epochs=(1,) * len(GROUPS),
    )


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_plan_that_follows_knows_what_a_plan_alone_finds(is_apart: bool) -> None:
    draw = random.Random(5)
    for _ in range(300):
        before = plan_of([pipeline(draw, list(range(4 * at, 4 * at + draw.randint(1, 4)))) for at in range(4)])
        known = [getattr(before, fact) for fact in FACTS]
        free = [worker for worker in range(24) if worker not in before.layers_of] if is_apart else list(range(24))
        pipelines = [kept for kept in before.pipelines if draw.random() < 0.6]
        freed = set(before.workers) - {worker for kept in pipelines for worker in kept.workers}
        free = sorted({*free, *freed})
        draw.shuffle(free)
        while len(free) > 3 and draw.random() < 0.7:
            num = draw.randint(1, 3)
            pipelines.append(pipeline(draw, free[:num]))
            free = free[num:]
        draw.shuffle(pipelines)
        found, alone = plan_of(pipelines).following(before), plan_of(pipelines)
        for fact in FACTS:
            assert getattr(found, fact) == getattr(alone, fact), fact
        assert list(found.layers_of) == list(found.groups_of) == sorted(found.layers_of)
        assert [getattr(before, fact) for fact in FACTS] == known


def test_nothing_is_taken_over_where_shadows_hold_layers_too() -> None:
    draw = random.Random(5)
    before = plan_of([pipeline(draw, [0, 1]), pipeline(draw, [2, 3])])
    assert before.groups_of
    shadow = Stage(worker=WorkerId(0), first_layer=3, end_layer=4)
    after = msgspec.structs.replace(before, shadows=(shadow,))
    assert after.following(before).groups_of == msgspec.structs.replace(after).groups_of != before.groups_of


def test_what_is_counted_together_goes_by_the_layers_not_by_their_object() -> None:
    routes = [
        Route(hops=(), microbatches=microbatches, born=1, counted=tuple(layers))
        for microbatches, layers in (((0, 1), [0, 1]), ((3,), [0, 1]), ((2,), [1]))
    ]
    assert counted_together(routes) == {(0, 1): 0b1011, (1,): 0b0100}
