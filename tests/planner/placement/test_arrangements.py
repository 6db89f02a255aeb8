"""Nodes of a zone in one pipeline, or at the same layers, as far as their numbers allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planaria.plan.pipeline import Pipeline, Stage
from planaria.plan.plan import NodeId, WorkerId
from planaria.planner.placement.arrangements import arrangements

ZONES = {NodeId(node): "ab"[node % 2] for node in range(8)}


def pipeline(*nodes: int, layers: int = 8) -> Pipeline:
    ends = [layers * (at + 1) // len(nodes) for at in range(len(nodes))]
    return Pipeline(
        stages=tuple(
            Stage(worker=WorkerId(node), first_layer=first, end_layer=end)
            for node, first, end in zip(nodes, [0, *ends], ends, strict=False)
        )
    )


def nodes_of(pipelines: tuple[Pipeline, ...]) -> list[list[int]]:
    return [[int(worker) for worker in one.workers] for one in pipelines]


def test_pipelines_inside_zones_then_layers() -> None:
    inside, by_layer = arrangements([pipeline(0, 1, 2, 3), pipeline(4, 5, 6, 7)], ZONES, 1)
    assert nodes_of(inside) == [[0, 4, 2, 6], [1, 5, 3, 7]]
    assert nodes_of(by_layer) == [[0, 2, 1, 3], [4, 6, 5, 7]]


def test_what_is_arranged_stays() -> None:
    for arranged in arrangements([pipeline(0, 1, 2, 3), pipeline(4, 5, 6, 7)], ZONES, 1):
        assert arranged in tuple(arrangements(arranged, ZONES, 1))


def test_a_node_in_two_pipelines_stays_where_it_is() -> None:
    assert not list(arrangements([pipeline(0, 1), pipeline(1, 2)], ZONES, 1))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.sampled_from("abc"), min_size=16, max_size=16))
def test_the_same_nodes_take_the_same_roles(sizes: list[int], names: list[str]) -> None:
    numbers = iter(range(16))
    made = [pipeline(*(next(numbers) for _ in range(size))) for size in sizes]
    zones = {NodeId(node): name for node, name in enumerate(names)}
    for arranged in arrangements(made, zones, 1):
        cuts = [[(stage.first_layer, stage.end_layer) for stage in one.stages] for one in arranged]
        assert cuts == [[(stage.first_layer, stage.end_layer) for stage in one.stages] for one in made]
        assert sorted(worker for one in arranged for worker in one.workers) == list(range(sum(sizes)))
