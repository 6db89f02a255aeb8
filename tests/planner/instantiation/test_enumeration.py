"""Enumeration: every set of pipelines that uses the nodes, and the one that Oobleck would take."""

from __future__ import annotations

import itertools

import pytest

from planaria.plan.costs.pipeline_time import step_times_of
from planaria.plan.settings import Objective, PlannerSettings
from planaria.plan.thresholds import MOST_ENUMERATED
from planaria.planner.instantiation.enumeration import quickest_of_all, sets_of
from planaria.planner.instantiation.instantiate import instantiate
from planaria.planner.instantiation.microbatch_shares import least_variance
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile


@pytest.mark.parametrize(
    ("sizes", "num_nodes", "least", "most"),
    [([2, 3, 4], 13, 2, 13), ([2, 3, 4], 13, 5, 6), ([3], 9, 1, 3), ([3], 10, 1, 4), ([2, 5], 3, 1, 3), ([1], 4, 5, 9)],
)
def test_sets_are_all_that_use_every_node(sizes: list[int], num_nodes: int, least: int, most: int) -> None:
    expected = {
        counts
        for counts in itertools.product(*(range(num_nodes // size + 1) for size in sizes))
        if sum(c * s for c, s in zip(counts, sizes, strict=True)) == num_nodes and least <= sum(counts) <= most
    }
    found = list(sets_of(sizes, num_nodes, least, most))
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_the_papers_set_is_the_quickest_by_the_papers_shares() -> None:
    profile = uniform_profile(12)
    planner = PlannerSettings(
        num_microbatches=24,
        fault_tolerance=1,
        num_nodes=11,
        devices_per_node=1,
        min_nodes=2,
        objective=Objective.OOBLECK,
    )
    templates = make_templates(profile, planner)
    times = step_times_of(templates, 24)

    def seconds(counts: tuple[int, ...]) -> float:
        own = [time for time, count in zip(times, counts, strict=True) for _ in range(count)]
        shares = least_variance([float(time[0]) for time in own], 24)
        return max(float(time[share - 1]) for time, share in zip(own, shares, strict=True))

    found = quickest_of_all(templates, 11, planner)
    assert found is not None
    assert seconds(found) == min(map(seconds, sets_of([t.num_nodes for t in templates], 11, 2, 24)))
    assert instantiate(templates, 11, planner) == found


def test_too_many_sets_are_not_tried_and_none_at_all_is_no_answer() -> None:
    planner = PlannerSettings(
        num_microbatches=200, fault_tolerance=1, num_nodes=100, devices_per_node=1, objective=Objective.OOBLECK
    )
    templates = make_templates(uniform_profile(12), planner)
    assert sum(1 for _ in itertools.islice(sets_of(range(1, 13), 100, 2, 200), MOST_ENUMERATED + 1)) > MOST_ENUMERATED
    assert quickest_of_all(templates, 100, planner) is None
    assert sum(instantiate(templates, 100, planner)) >= 2
    assert quickest_of_all(templates[1:2], 5, planner) is None
