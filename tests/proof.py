"""What `make test` tries of a long random search; `make proof` tries all of it."""

from __future__ import annotations

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
