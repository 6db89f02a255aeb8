"""A while of chaos on real processes: `make chaos` in small. PLANARIA_CHAOS_SEED gives another schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts.chaos import Chaos, ordered_faults

from planaria.job.settings import Job
from tests.e2e.conftest import Run
from tests.e2e.jobs import Outcome, make_job

STEPS = 120


@pytest.mark.parametrize("seed", [int(os.environ.get("PLANARIA_CHAOS_SEED", "1"))])
def test_chaos(seed: int, tmp_path: Path, text: Path, run: Run, reference: Callable[[Job], Outcome]) -> None:
    job = make_job(text, train__steps=STEPS, resilience__when_exhausted="wait", run__checkpoint_every=3)
    chaos = Chaos(tmp_path / "run-0", seed=seed, seconds=20.0, keep_nodes=5, most_nodes=8, step_s=0.05)
    faults = ordered_faults(seed, job.cluster.nodes, 6, 40)
    outcome = run(job, *map(str, faults), observers=[chaos])
    chaos.join()
    assert sum(chaos.told.blows.values()) >= 15, chaos.told
    assert len(chaos.told.blows) >= 4
    outcome.assert_same_bits(reference(job))
