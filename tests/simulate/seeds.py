"""Seeds in batches, for tests that share the schedules among files (each file runs in one process)."""

from __future__ import annotations

from tests.testkit.schedules.search import Failure, try_seed

BATCH = 100


def batches(first: int, number: int) -> list[range]:
    return [range(at, min(at + BATCH, first + number)) for at in range(first, first + number, BATCH)]


def failures(seeds: range) -> str:
    """What failed, in words; empty when nothing did."""
    found: list[Failure] = [failure for seed in seeds if (failure := try_seed(seed)) is not None]
    return "\n".join(f"python -m tests.testkit.dst --replay {failure.seed}: {failure.error}" for failure in found)
