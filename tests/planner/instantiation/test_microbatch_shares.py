"""Batch distribution: the best of all, for either objective; and what is said of batches that do not suit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from planaria.plan.costs.pipeline_time import Times
from planaria.planner.instantiation.microbatch_shares import (
    Distribution,
    Undistributable,
    batches_told_by,
    check_batch,
    distribute,
    least_variance,
    microbatches_of,
)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a sum of positive numbers, order counted."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def slowest(times: Sequence[Times], counts: Sequence[int]) -> float:
    return max(float(time[count - 1]) for time, count in zip(times, counts, strict=True))


def variance(latencies: Sequence[float], counts: Sequence[int]) -> float:
    ends = [latency * count for latency, count in zip(latencies, counts, strict=True)]
    mean = sum(ends) / len(ends)
    return sum((end - mean) ** 2 for end in ends)


def test_the_slowest_pipeline_ends_as_early_as_it_can() -> None:
    """Any times that do not fall: straight, stepped or bent."""
    rng = random.Random(1)
    for _ in range(1000):
        num_pipelines, extra = rng.randint(1, 4), rng.randint(0, 6)
        total = num_pipelines + extra
        times = [np.cumsum([rng.choice([0, 1, 1, 2, 5]) for _ in range(total)]) / 8 for _ in range(num_pipelines)]
        counts = distribute(times, total)
        assert sum(counts) == total
        assert min(counts) >= 1
        assert slowest(times, counts) == min(slowest(times, c) for c in compositions(total, num_pipelines))


def test_of_equal_times_the_first_pipelines_get_more() -> None:
    assert distribute([np.arange(1.0, 8.0)] * 3, 7) == (3, 2, 2)


def test_eq6_has_the_least_variance_of_all() -> None:
    rng = random.Random(2)
    for _ in range(1000):
        num_pipelines, extra = rng.randint(1, 4), rng.randint(0, 7)
        latencies = [rng.randint(1, 12) / rng.choice([1, 3, 8]) for _ in range(num_pipelines)]
        total = num_pipelines + extra
        counts = least_variance(latencies, total)
        assert sum(counts) == total
        assert min(counts) >= 1
        least = min(variance(latencies, c) for c in compositions(total, num_pipelines))
        assert variance(latencies, counts) == pytest.approx(least, abs=1e-9)


def test_eq6_gives_deep_pipelines_too_few() -> None:
    """Two pipelines with one period; one is four times as deep. Fair shares are about equal; Eq. 6 gives it a fifth."""
    steps = np.arange(64)
    shallow, deep = 2.0 + steps, 8.0 + steps
    even = distribute([shallow, deep], 64)
    skewed = distribute([shallow, deep], 64, Distribution.EQ6)
    assert even == (35, 29)
    assert skewed == (51, 13)
    assert slowest([shallow, deep], skewed) / slowest([shallow, deep], even) == pytest.approx(52 / 36)


def test_too_few_microbatches_recommend_the_nearest_batch() -> None:
    with pytest.raises(
        Undistributable, match=r"3 pipelines need at least 3 .* nearest global batch .* 3 micro"
    ) as info:
        distribute([np.array([1.0, 2.0])] * 3, 2)
    assert (info.value.num_microbatches, info.value.below, info.value.above) == (2, None, 3)


@pytest.mark.parametrize(
    ("global_batch", "below", "above", "message"),
    [
        (100, 96, 104, r"100 samples is no whole number of microbatches of 8\. .* 96 or 104 samples"),
        (30, None, 40, "30 samples is no whole .* is 40 samples"),
        (32, None, 40, "5 pipelines need at least 5 microbatches of 8, and a global batch of 32 samples has 4"),
        (3, None, 40, "is 40 samples"),
    ],
)
def test_a_batch_that_cannot_be_shared_recommends_sizes_in_samples(
    global_batch: int, below: int | None, above: int, message: str
) -> None:
    with pytest.raises(Undistributable, match=message) as info:
        microbatches_of(global_batch, 8, num_pipelines=5)
    assert (info.value.below, info.value.above, info.value.microbatch) == (below, above, 8)
    assert microbatches_of(above, 8, num_pipelines=5) == above // 8
    assert microbatches_of(48, 8, num_pipelines=5) == 6


def test_what_to_write_into_the_job_is_told() -> None:
    text = r"a step has 12\. Set train\.global_batch = 26, or make the microbatch smaller\."
    with pytest.raises(Undistributable, match=text), batches_told_by("train.global_batch", 2):
        check_batch(13, 12)
    text = r"Set --global-batch = 96 or 104, or"
    with pytest.raises(Undistributable, match=text), batches_told_by("--global-batch", 8):
        microbatches_of(100, 8, num_pipelines=5)


def test_of_many_microbatches_the_next_goes_to_whoever_ends_first_with_it() -> None:
    """Pipelines of very different speed, so that one of them gets most."""
    rng = random.Random(3)
    for _ in range(60):
        total = rng.randint(50, 400)
        paces = [rng.choice([1, 1, 2, 3, 40]) for _ in range(rng.randint(2, 6))]
        times = [rng.randint(0, 20) + pace * np.arange(1.0, total + 1) for pace in paces]
        greedy = [1] * len(times)
        for _ in range(total - len(times)):
            greedy[min(range(len(times)), key=lambda at: (times[at][greedy[at]], at))] += 1
        assert distribute(times, total) == tuple(greedy)


def test_pipelines_of_one_template_share_as_others_of_the_same_times_do() -> None:
    draw = np.random.default_rng(4)
    for _ in range(200):
        num_pipelines, extra = int(draw.integers(1, 20)), int(draw.integers(0, 80))
        num_microbatches = num_pipelines + extra
        kinds = [np.cumsum(draw.integers(0, 4, num_microbatches)).astype(np.float64) for _ in range(3)]
        times = [kinds[int(draw.integers(len(kinds)))] for _ in range(num_pipelines)]
        alone = distribute([time.copy() for time in times], num_microbatches)
        assert distribute(times, num_microbatches) == alone
        assert sum(alone) == num_microbatches
