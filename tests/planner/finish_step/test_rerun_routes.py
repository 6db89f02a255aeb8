"""Reruns over any holders of the layers: the least busy go first, however many there are."""

from collections import Counter

from planaria.plan.plan import Route, Stage
from planaria.planner.finish_step.rerun_routes import along_holders
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
