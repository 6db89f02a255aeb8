"""Oobleck's appendices A and B, by trying every case up to 40 nodes: sizes cover, and merging finds a template."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

import pytest

from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.knapsack import Knapsack, usable_nodes
from planaria.planner.reconfigure.pipeline_sizes import How, Situation, merge_sizes, reinstantiate
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile

MOST = 40


def clusters() -> Iterator[tuple[int, int, int]]:
    """Every number of nodes N, smallest template n0, and f that fit."""
    for num_nodes in range(1, MOST + 1):
        for smallest in range(1, num_nodes + 1):
            for fault_tolerance in range(num_nodes // smallest):
                yield num_nodes, smallest, fault_tolerance


def reachable(smallest: int, largest: int, least: int) -> set[int]:
    """Sums of at least `least` numbers from smallest to largest, one number at a time."""
    sums = {0}
    found: set[int] = set()
    for number in range(1, MOST // smallest + 1):
        sums = {s + size for s in sums for size in range(smallest, largest + 1) if s + size <= MOST}
        if number >= least:
            found |= sums
    return found


def test_every_number_of_nodes_is_covered() -> None:
    """Appendix A: templates of n0 .. N - f n0 nodes fill any N' from (f + 1) n0 to N with f + 1 pipelines or more.

    It needs no condition on the number of templates: f pipelines of n0 leave N' - f n0 for one more, which has one.
    """
    num_cases = 0
    for num_nodes, smallest, fault_tolerance in clusters():
        least, sizes = fault_tolerance + 1, range(smallest, num_nodes - fault_tolerance * smallest + 1)
        covered = reachable(smallest, sizes[-1], least) if num_nodes == MOST else ()
        for left in range(least * smallest, num_nodes + 1):
            num_cases += 1
            assert usable_nodes(sizes, left, least, MOST) == left
            if covered:
                assert left in covered
                assert Knapsack(sizes, left, least, MOST).most([1] * len(sizes)) > 0
    assert num_cases > 10_000


@pytest.mark.parametrize("fault_tolerance", [0, 1, 2])
@pytest.mark.parametrize("smallest", [1, 2, 3])
def test_the_templates_are_those_of_the_appendix(smallest: int, fault_tolerance: int) -> None:
    """n0, n0 + 1, ... up to N - f n0, or up to the layers where they are fewer."""
    for num_nodes in range((fault_tolerance + 1) * smallest, 13):
        planner = PlannerSettings(
            num_microbatches=12,
            fault_tolerance=fault_tolerance,
            num_nodes=num_nodes,
            devices_per_node=1,
            min_nodes=smallest,
        )
        sizes = [template.num_nodes for template in make_templates(uniform_profile(6), planner)]
        assert sizes == list(range(smallest, min(num_nodes - fault_tolerance * smallest, 6) + 1))


@pytest.mark.parametrize("num_layers", [1, 2, 3, 5, 8, 13])
def test_what_is_covered_where_the_layers_cut_templates_short(num_layers: int) -> None:
    """A pipeline has at most as many nodes as layers. Then k pipelines take from k n0 to k n_max nodes, and what lies
    between those ranges is left over; nothing is where n_max >= 2 n0 - 1 (the paper's p > n0 - 1)."""
    seen: set[tuple[int, int, int]] = set()
    for num_nodes, smallest, fault_tolerance in clusters():
        least, largest = fault_tolerance + 1, min(num_nodes - fault_tolerance * smallest, num_layers)
        if smallest > largest or (smallest, largest, least) in seen:
            continue
        seen.add((smallest, largest, least))
        sizes = range(smallest, largest + 1)
        covered = reachable(smallest, largest, least)
        for left in range(least * smallest, MOST + 1):
            usable = usable_nodes(sizes, left, least, MOST)
            assert usable == max(nodes for nodes in covered if nodes <= left)
            assert left - usable < smallest
            if largest >= 2 * smallest - 1 and largest * least >= left:
                assert usable == left


def layouts() -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Pipelines of n0 nodes each, none with a node to lend, after any losses: n0, f, and the live nodes of each."""
    for smallest in range(1, MOST + 1):
        for num_pipelines in range(1, MOST // smallest + 1):
            for alive in combinations_with_replacement(range(smallest + 1), num_pipelines):
                if len(alive) > 6 and alive[0] > 0:
                    continue  # Many pipelines that all lost some: enough of these are tried with fewer.
                for fault_tolerance in range(sum(alive) // smallest):
                    yield smallest, fault_tolerance, alive


def test_merging_always_finds_a_template() -> None:
    """Appendix B: with templates up to N - f n0 for N no larger than what there was before the losses."""
    num_merged = 0
    for smallest, fault_tolerance, alive in layouts():
        largest = len(alive) * smallest - fault_tolerance * smallest
        situation = Situation(
            before=[smallest] * len(alive),
            alive=alive,
            num_spares=0,
            sizes=range(smallest, largest + 1),
            num_replicas=fault_tolerance + 1,
            most=MOST,
        )
        found = reinstantiate(situation)
        assert found is not None
        sizes, how = found
        assert sum(sizes) == sum(alive)
        assert sum(size > 0 for size in sizes) >= fault_tolerance + 1
        assert all(smallest <= size < 2 * smallest or size in alive for size in sizes if size)
        num_merged += how is How.MERGE
        if how is How.MERGE and fault_tolerance == 0:
            assert merge_sizes(situation) is not None
    assert num_merged > 1000
