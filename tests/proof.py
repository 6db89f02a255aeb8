"""What `make test` tries of a long random search; `make proof` tries all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def rest_in_proof(values: Iterable[Any], kept: int = 1) -> list[ParameterSet]:
    """Returns a test's parameters, of which all but the first are left to `make proof`."""
    return [
        pytest.param(*value.values if isinstance(value, ParameterSet) else (value,), marks=[pytest.mark.proof] * rest)
        for rest, value in ((at >= kept, value) for at, value in enumerate(values))
    ]


def batches(seeds: range, size: int, kept: int) -> list[ParameterSet]:
    """Returns a test's seeds: the first `kept` in one batch, the others left to `make proof`, `size` a batch."""
    rest = seeds[kept:]
    return rest_in_proof([seeds[:kept], *(rest[at : at + size] for at in range(0, len(rest), size))])


def examples(full: int) -> int:
    """Returns how many examples a property is tried with: all in `make proof`, an eighth, but at least 25, else."""
    return full if os.environ.get("PLANARIA_PROOF") else min(full, max(25, full // 8))
