"""The other half of the random schedules: pytest's processes take one file each."""

from __future__ import annotations

import pytest

from tests.simulate.seeds import batches, failures


@pytest.mark.parametrize("seeds", batches(100_000, 1100), ids=str)
def test_every_promise_is_kept(seeds: range) -> None:
    assert not failures(seeds)
