"""Reruns over any holders of the layers: the least busy go first, however many there are."""

from collections import Counter

from planaria.plan.groups import Group
from planaria.plan.plan import Pipeline, Plan, Route, Stage
from planaria.planner.finish_step.rerun_routes import along_holders, in_whole_microbatches
from tests.plan.profiles import uniform_profile

PROFILE = uniform_profile(4)
ALL = tuple(range(4))


def test_work_is_dealt_evenly_over_holders_of_parts() -> None:
    halves = {worker: ALL[:2] if worker % 2 else ALL[2:] for worker in range(20)}
    routes = along_holders(halves, {}, (), {ALL: range(30)}, 1, PROFILE)
    done = Counter(hop.worker for route in routes for hop in route.hops for _ in route.microbatches)
    assert done == dict.fromkeys(range(20), 3)


def test_the_busy_wait_until_the_others_are_as_busy() -> None:
    busy = Route(
        hops=(Stage(worker=0, first_layer=0, end_layer=4),), microbatches=(100, 101), born=0, counted=ALL, reached=None
    )
    routes = along_holders(dict.fromkeys(range(3), ALL), {}, (busy,), {ALL: range(7)}, 1, PROFILE)
    assert [(route.hops[0].worker, route.microbatches) for route in routes] == [
        (1, (0, 2, 5)),
        (2, (1, 3, 6)),
        (0, (4,)),
    ]


def test_a_worker_with_two_runs_of_layers_is_as_busy_in_both() -> None:
    holders = {0: (0, 3), 1: (1, 2), 2: (3,)}
    routes = along_holders(holders, {}, (), {ALL: (0,)}, 1, PROFILE)
    assert [hop.worker for hop in routes[0].hops] == [0, 1, 0]


def test_to_be_estimated_microbatches_that_count_in_some_layers_are_parts_of_whole_ones() -> None:
    stages = [(Stage(worker=at, first_layer=0, end_layer=4),) for at in range(2)]
    more = Route(hops=stages[0], microbatches=tuple(range(10)), born=2, counted=(3,))
    each = [Route(hops=hops, microbatches=tuple(range(10, 14)), born=1, counted=ALL) for hops in stages]
    plan = Plan(
        generation=2,
        num_layers=4,
        num_microbatches=18,
        pipelines=tuple(Pipeline(stages=hops) for hops in stages),
        routes=(*each, more),
        groups=(Group(layers=ALL, size_bytes=1),),
        devices_per_node=1,
        sync_epochs=(1,),
    )
    first, second = in_whole_microbatches(plan, PROFILE).routes
    assert 4 + 10 / 4 < len(first.microbatches) < 4 + 10
    assert len(second.microbatches) == 4
    assert first.counted == second.counted == ALL
