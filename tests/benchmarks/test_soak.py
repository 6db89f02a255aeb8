"""The soak: what it samples, and what it says of it."""

from __future__ import annotations

from dataclasses import replace

from papers.traces import with_interval
from soak import grown, soak

from planaria.job.registry import PolicyName


def test_some_minutes_leave_nothing_behind_and_what_grows_is_told() -> None:
    trace = with_interval(16, 60.0, 0.1, "made up")
    (sample,) = soak(trace, 0.05, 0.2, PolicyName.TEMPLATES, seed=1)
    assert sample.step > 2
    assert sample.nodes <= sample.processes <= sample.nodes + 2
    assert min(sample.coordinator_bytes, sample.worker_bytes, sample.journal_bytes, sample.connections) > 0
    assert grown([sample] * 8) == []
    assert "journal_bytes a node" in grown([*[sample] * 7, replace(sample, journal_bytes=2 * sample.journal_bytes)])[0]
    assert "processes" in grown([*[sample] * 7, replace(sample, processes=sample.nodes + 9)])[0]
