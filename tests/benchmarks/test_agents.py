"""A small crowd of agents, as `benchmarks/agents.py` connects thousands: it joins, trains, loses hosts and ends."""

from __future__ import annotations

import pytest
from agents import Options, measure


@pytest.mark.proof
def test_a_crowd_joins_under_tls_and_outlives_a_loss_and_a_rolling_loss() -> None:
    measured = measure(64, Options(losses=1, rolling=0.1, probes=False, step_s=0.05))
    seen = measured.seen
    assert seen.planned > seen.began
    assert len(seen.acting) == len(seen.decided) == len(seen.closed_at) == 1
    assert 0 < seen.acting[0] <= seen.decided[0]
    assert len(seen.rolling) == 6, "a plan without it came for each"
    assert len(seen.rolling_steps) == 2, "and calm steps follow"
    assert measured.shares
