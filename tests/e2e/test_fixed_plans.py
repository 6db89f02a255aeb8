"""Plans that a job asks for, on real processes: Oobleck's own, and pipelines of a number and a depth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job


@pytest.mark.proof
def test_a_loss_under_oobleck_s_objective_changes_no_bit(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__objective="oobleck", cluster__nodes=5, train__steps=4)
    outcome = run(job, "kill:node=1,step=2,at=backward")
    outcome.assert_same_bits(reference(job))
    taken = outcome.events("plan_taken")
    sizes = [sorted(len(pipeline) for pipeline in plan["pipelines"]) for plan in (taken[0], taken[-1])]
    assert sizes == [[2, 3], [2, 2]]
    assert "made again from the 2-node template" in taken[-1]["reason"]


def test_pipelines_of_a_fixed_depth_stay_while_a_node_waits(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, resilience__nodes_per_pipeline=3, resilience__num_pipelines=2, train__steps=4)
    outcome = run(job, "kill:node=1,step=2,at=backward")
    outcome.assert_same_bits(reference(job))
    taken = [plan for plan in outcome.events("plan_taken") if plan["purpose"] != "finish step"]
    assert [[len(pipeline) for pipeline in plan["pipelines"]] for plan in taken] == [[3, 3]] * len(taken)
