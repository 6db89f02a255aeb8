"""The adaptive policy on real processes: the reference's bits, and a record of what was weighed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job


@pytest.mark.proof
def test_each_loss_is_answered_with_the_best_of_its_candidates(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__policy="adaptive", cluster__nodes=8, train__steps=6)
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=2,step=3,at=recv", "kill:node=4,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    decided = [plan for plan in outcome.events("plan_taken") if plan["purpose"] in ("reconfigure", "warm up")]
    assert decided
    for plan in decided:
        assert plan["policy"] == "adaptive"
        best, *others = plan["candidates"]
        assert all(other["samples_per_s"] <= best["samples_per_s"] for other in others)
        assert f"Chosen: {best['name']}" in plan["reason"] or not others
        assert plan["estimated_transition_s"] == best["transition_s"]
