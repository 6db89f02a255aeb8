"""What `make test` tries of a long random search; `make proof` tries all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def rest_in_proof(values: Iterable[T], kept: int = 1) -> list[ParameterSet]:
    """Returns a test's parameters, of which all but the first are left to `make proof`."""
    return [pytest.param(value, marks=[pytest.mark.proof] * (at >= kept)) for at, value in enumerate(values)]
