"""The policy of rerouting on real processes: the reference's bits, and no state that moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof


@pytest.mark.parametrize(
    ("model", "changes"),
    rest_in_proof(
        [
            pytest.param("llama", {"train__activation_checkpointing": True}),
            pytest.param(
                "bert", {"cluster__devices_per_node": 2, "cluster__nodes": 5, "resilience__min_nodes_per_pipeline": 1}
            ),
            pytest.param("gpt2", {}),
        ]
    ),
)
def test_one_loss_after_the_other_is_rerouted(
    model: str, changes: dict[str, Any], text: Path, run: Run, reference: Reference
) -> None:
    """The second strikes a step whose routes cross."""
    job = make_job(text, model, resilience__policy="reroute", **{"cluster__nodes": 8, **changes})
    outcome = run(job, "kill:node=1,step=2,at=backward", "kill:node=2,step=3,at=recv", "kill:node=4,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    taken = outcome.events("plan_taken")
    assert {plan["policy"] for plan in taken} == {"reroute"}
    assert [plan["transfer_bytes"] for plan in taken] == [0] * len(taken)
    assert len(taken[-1]["pipelines"]) > 1


@pytest.mark.proof
def test_the_last_owner_is_lost_of_a_job_that_writes_no_checkpoints(text: Path, run: Run, reference: Reference) -> None:
    """Degraded from the fifth step on, which has the state saved; back to there when nobody has the first layers."""
    changes = {"resilience__policy": "reroute", "cluster__nodes": 8, "train__steps": 20, "run__checkpoint_every": 0}
    job = make_job(text, **changes)
    last = "kill:node=6,step=15,at=backward"
    outcome = run(job, *(f"kill:node={node},step={2 + at},at=backward" for at, node in enumerate((0, 2, 4))), last)
    outcome.assert_same_bits(reference(job))
    (restored,) = outcome.events("restored")
    saved = [record["step"] for record in outcome.events("checkpoint_saved")]
    assert saved[:-1] == [restored["to_step"]]
    assert 5 <= saved[0] < restored["from_step"] == 14
    assert "no replica of layer" in restored["reason"]


@pytest.mark.proof
def test_all_owners_of_a_layer_are_lost(text: Path, run: Run, reference: Reference) -> None:
    """Degraded first, and said; then back to the checkpoint."""
    job = make_job(text, resilience__policy="reroute", cluster__nodes=6, run__checkpoint_every=1, train__steps=8)
    outcome = run(job, *(f"kill:node={node},step={step},at=backward" for node, step in ((0, 3), (2, 4), (4, 6))))
    notes = [note["text"] for note in outcome.events("note")]
    assert any("the plan is degraded" in note for note in notes)
    assert outcome.summary["status"] == "exhausted", outcome.summary
    assert "no replica of layer" in outcome.summary["message"]
    assert outcome.losses == {step: reference(job).losses[step] for step in outcome.losses}
