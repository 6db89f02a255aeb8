"""Where tests of workers in virtual time run their schedules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.worker.dst import laboratory as new_laboratory
from tests.runtime.worker.test_cluster import Laboratory


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with new_laboratory() as place:
        yield place
