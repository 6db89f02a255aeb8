"""Searches over splits against all splits of small instances."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from planaria.plan.compiled import Work
from planaria.plan.costs.model_profile import LayerTimes, LinkCost, Links
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import WORTH_COMPILING_S
from planaria.planner.templates.oobleck import OobleckSearch, objective_s
from planaria.planner.templates.split_dp import expected_s
from planaria.planner.templates.split_scores import Shared
from planaria.planner.templates.split_search import StepTimeSearch
from planaria.planner.templates.splits import make_space
from tests.plan.instances import Instance, all_splits, instances
from tests.plan.paper_planner import divide_and_conquer
from tests.plan.profiles import uniform_profile
from tests.proof import rest_in_proof


def search(instance: Instance, *, compiled: bool | None = None, enumerate_up_to: int = 0) -> StepTimeSearch:
    space = make_space(instance.profile, instance.settings)
    work = Work(compiled=compiled)
    return StepTimeSearch(space, instance.nodes, instance.microbatches, work=work, enumerate_up_to=enumerate_up_to)


@pytest.mark.parametrize("count", rest_in_proof([250, 1_000]))
def test_step_times_are_near_the_best_of_all_splits_and_never_under_the_bound(count: int) -> None:
    """Without the shortcut that scores all splits of a small one."""
    worst, solved = 0.0, 0
    for instance in instances(count, seed=1):
        splits = all_splits(instance)
        searching = search(instance)
        found = searching.run()
        if not splits:
            assert found is None
            continue
        assert found is not None
        assert found.split in splits
        best = min(searching.time_s(split) for split in splits)
        assert found.lower_bound_s <= best * (1 + 1e-9)
        assert found.time_s >= best
        worst, solved = max(worst, found.time_s / best), solved + 1
    assert solved > 0.6 * count
    assert worst <= 1.005


def test_bounds_hold_where_messages_take_as_long_as_stages_or_longer() -> None:
    solved, slow = 0, 0
    for number, instance in enumerate(instances(300, seed=7)):
        links = Links(
            within_node=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=(2e3, 1e5)[number % 2]),
            between_nodes=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=(1e3, 200.0)[number % 3 == 0]),
        )
        instance = replace(instance, profile=msgspec.structs.replace(instance.profile, links=links))
        splits = all_splits(instance)
        searching = search(instance)
        found = searching.run()
        if found is None:
            assert not splits
            continue
        times = {split: searching.time_s(split) for split in splits}
        assert found.lower_bound_s <= min(times.values()) * (1 + 1e-9)
        assert found.time_s <= min(times.values()) * 1.005
        forwards, backwards, messages = make_space(instance.profile, instance.settings).rows([found.split])
        slow += bool(messages.size and messages.max() > (forwards + backwards).max())
        solved += 1
    assert solved > 180
    assert slow > 30


def test_small_instances_are_solved_by_scoring_all_splits() -> None:
    for instance in instances(60, seed=2):
        searching = search(instance, enumerate_up_to=10_000)
        found = searching.run()
        assert set(searching.scored) == set(all_splits(instance))
        if found is not None:
            assert found.time_s <= found.lower_bound_s * 1.002


def test_interpreted_and_compiled_searches_find_the_same() -> None:
    for instance in instances(60, seed=3):
        compiled, interpreted = search(instance, compiled=True), search(instance, compiled=False)
        assert compiled.run() == interpreted.run()
        assert compiled.scored == interpreted.scored


@pytest.mark.parametrize("count", rest_in_proof([250, 1_000]))
def test_oobleck_objective_is_the_least_of_all_splits(count: int) -> None:
    """With and without a memory limit."""
    solved = 0
    for instance in instances(count, seed=4, most_layers=6):
        oobleck = OobleckSearch(make_space(instance.profile, instance.settings), instance.nodes)
        found = oobleck.run()
        splits = all_splits(instance)
        if not splits:
            assert found is None
            continue
        assert found is not None
        assert found[0] in splits
        assert found[1] == pytest.approx(min(map(oobleck.objective_s, splits)), rel=1e-9)
        solved += 1
    assert solved > 0.6 * count


def test_oobleck_objective_is_what_is_computed_by_hand() -> None:
    """S = 3, N_b = 12, the last of the slowest stages is the third: 7 + (12 - 3 + 2 - 1) * 3 + 3."""
    assert objective_s([3.0, 1.0, 3.0]) == 7 + 30 + 3
    assert objective_s([3.0, 1.0, 2.0]) == 6 + (12 - 3 + 0 - 1) * 3 + 6
    assert objective_s([5.0]) == 5 + 2 * 5 + 5


def test_never_worse_than_the_papers_divide_and_conquer() -> None:
    for instance in instances(150, seed=5, most_layers=8, most_devices=3):
        settings = replace(instance.settings, memory_bytes=0, powers_of_two=False)
        paper = divide_and_conquer(instance.profile, instance.nodes, settings.devices_per_node)
        found = OobleckSearch(make_space(instance.profile, settings), instance.nodes).run()
        if paper is None:
            assert found is None
            continue
        assert found is not None
        assert objective_s(paper.stages) == pytest.approx(paper.total)
        assert found[1] <= paper.total * (1 + 1e-9)


LAYERS_ON_1_TO_4_DEVICES = [
    (30.0, 33.0, 42.9, 55.77),
    (3.0, 3.9, 3.9, 4.29),
    (13.0, 16.9, 21.97, 17.58),
    (30.0, 33.0, 26.4, 26.4),
    (4.0, 5.2, 5.2, 6.76),
    (30.0, 39.0, 50.7, 40.56),
    (11.0, 12.1, 15.73, 12.58),
]
"""Layers that gain little from more devices: there the number of stages, and so the parts' N_b = 4 S', matter."""


def test_better_than_the_papers_divide_and_conquer_where_parts_of_the_best_are_not_the_best_parts() -> None:
    uniform = uniform_profile(len(LAYERS_ON_1_TO_4_DEVICES), tied=False)
    layers = tuple(
        msgspec.structs.replace(
            layer,
            times=tuple(
                LayerTimes(num_devices=d, forward_s=time, backward_input_s=0.0, backward_weight_s=0.0)
                for d, time in enumerate(times, start=1)
            ),
        )
        for layer, times in zip(uniform.layers, LAYERS_ON_1_TO_4_DEVICES, strict=True)
    )
    profile = msgspec.structs.replace(uniform, layers=layers)
    settings = PlannerSettings(num_microbatches=1, fault_tolerance=0, num_nodes=1, devices_per_node=4)
    paper = divide_and_conquer(profile, 1, 4)
    assert paper is not None
    assert paper.total == pytest.approx(618.4)
    found = OobleckSearch(make_space(profile, settings), 1).run()
    assert found == (((3, 1), (4, 2), (7, 1)), pytest.approx(616.0))


def test_many_microbatches_make_numba_pay() -> None:
    """What is simulated for candidates grows with them: half a minute without numba for 4,096 nodes."""
    settings = PlannerSettings(num_microbatches=64, fault_tolerance=1, num_nodes=32, devices_per_node=1)
    space = make_space(uniform_profile(24), settings)
    assert expected_s(space, 16, 32) < WORTH_COMPILING_S / 10 < WORTH_COMPILING_S < expected_s(space, 16, 8192)


@pytest.mark.proof
def test_what_need_not_be_scored_changes_nothing() -> None:
    """Neighbours whose bounds say that they are none of the best, and splits that another search has scored."""
    spared = 0
    for instance in instances(300, seed=11, most_layers=12, most_nodes=6):
        space = make_space(instance.profile, instance.settings)
        shared = Shared()
        searches = [
            StepTimeSearch(
                space,
                instance.nodes,
                instance.microbatches,
                enumerate_up_to=0,
                shared=shared,
                only_best=only,
            )
            for only in (True, False)
        ]
        founds = [searching.run() for searching in (*searches, search(instance))]
        assert founds[0] == founds[1] == founds[2]
        spared += len(searches[1].scored) - len(searches[0].scored)
    assert spared > 100


@pytest.mark.proof
def test_what_searches_share_changes_nothing() -> None:
    """Searches whose stages have other memory find the same, with or without each other, and spare some of the way."""
    num_searches = num_climbs = num_descents = num_tight = 0
    for instance in instances(400, seed=12, most_layers=12, most_nodes=4):
        most = StageCosts(instance.profile).state_bytes(0, instance.profile.num_layers)
        limits = (None, *(most * tenth // 10 for tenth in range(2, 11, 2)))
        shared = Shared()
        for limit in limits:
            settings = replace(instance.settings, memory_bytes=0 if limit is None else 900)
            space = make_space(instance.profile, settings, limit)
            alone, beside = (
                StepTimeSearch(
                    space, instance.nodes, instance.microbatches, enumerate_up_to=0, shared=known, only_best=True
                )
                for known in (None, shared)
            )
            found = alone.run()
            assert beside.run() == found
            num_searches += found is not None
            num_tight += space.limited and found is not None
        num_climbs += sum(map(len, shared.climbs.values()))
        num_descents += len(shared.descents)
    assert num_tight > 400
    assert num_descents < 0.9 * num_searches
    assert num_climbs < 0.9 * 2 * num_searches
