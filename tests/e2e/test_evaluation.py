"""Evaluations: whatever is lost in one, and whenever, its numbers have the bits of one process alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planaria.job.settings import Job
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_emulated_job, make_job
from tests.proof import rest_in_proof

EVALUATED = {"eval__every": 2, "eval__share": 0.2, "eval__microbatches": 10}


def evaluated_job(text: Path, model: str = "gpt2", **changes: Any) -> Job:
    return make_job(text, model, **{**EVALUATED, **changes})


@pytest.mark.parametrize("model", rest_in_proof(["bert", "gpt2", "llama", "function"]))
def test_evaluations_have_the_references_bits(model: str, text: Path, run: Run, reference: Reference) -> None:
    job = evaluated_job(text, model, cluster__nodes=4)
    outcome = run(job)
    outcome.assert_same_bits(reference(job))
    assert sorted(outcome.evaluated) == [2, 4, 5]
    loss, perplexity, accuracy = outcome.evaluated[5]
    assert perplexity == pytest.approx(2.718281828**loss)
    assert 0 <= accuracy < 1
    assert outcome.losses == reference(make_job(text, model, eval__share=0.2)).losses, "it changes no training"


@pytest.mark.parametrize(
    "faults",
    rest_in_proof(
        [
            ("kill:node=1,step=2,at=evaluate", "kill:node=4,step=4,at=evaluate"),
            ("kill:node=0,step=3,at=vote", "kill:node=2,step=5,at=evaluate"),
            ("kill:node=3,step=3,at=recv", "kill:node=6,step=3,at=send"),
            ("hang:node=5,step=4,at=evaluate",),
            ("freeze:node=2,step=2,at=evaluate",),
        ]
    ),
)
def test_a_node_lost_in_an_evaluation(faults: tuple[str, ...], text: Path, run: Run, reference: Reference) -> None:
    job = evaluated_job(text)
    outcome = run(job, *faults)
    outcome.assert_same_bits(reference(job))
    assert len(outcome.events("node_lost")) == len(faults)
    assert len(outcome.summary["recoveries"]) >= 1


@pytest.mark.proof
@pytest.mark.parametrize(
    "faults",
    [
        ("kill:node=3,step=4,at=evaluate", "coordinator:step=5,at=evaluated"),
        ("coordinator:step=2,at=evaluated", "coordinator:step=5,at=vote"),
        ("coordinator:step=3,at=plan",),
        ("coordinator:step=3,at=send",),
    ],
)
def test_a_coordinator_that_dies_in_an_evaluation(
    faults: tuple[str, ...], text: Path, run: Run, reference: Reference
) -> None:
    job = evaluated_job(text)
    outcome = run(job, *faults)
    outcome.assert_same_bits(reference(job))
    assert [entry["step"] for entry in outcome.events("evaluated")] == [2, 4, 5], "each is told once"


@pytest.mark.proof
@pytest.mark.parametrize("policy", ["reroute", "redundancy", "morph", "drop"])
def test_under_every_policy(policy: str, text: Path, run: Run, reference: Reference) -> None:
    changes = {"run__checkpoint_every": 1} if policy == "morph" else {}
    job = evaluated_job(text, resilience__policy=policy, **changes)
    outcome = run(job, "kill:node=2,step=2,at=evaluate")
    of_reference = reference(job).evaluated
    if policy == "drop":  # later steps leave samples out
        assert outcome.evaluated.keys() == of_reference.keys()
        assert outcome.evaluated[2] == of_reference[2]
    else:
        assert outcome.evaluated == of_reference
    assert outcome.losses.keys() == reference(job).losses.keys()


def test_the_best_checkpoint_stays_beside_the_newest(text: Path, run: Run) -> None:
    """At this rate the model is best after its first step."""
    constant = {"train__lr_schedule": "constant", "train__warmup_steps": 0}
    job = evaluated_job(text, train__steps=6, train__learning_rate=2.0, eval__every=1, **constant)
    outcome = run(job)
    best = outcome.summary["evaluation"]["best"]
    assert best["loss"] == min(loss for loss, _, _ in outcome.evaluated.values())
    kept = sorted(
        int(folder.name.removeprefix("step-")) for folder in (outcome.result.folder / "checkpoints").iterdir()
    )
    assert (best["step"], kept) == (1, [1, 5, 6])


def test_a_target_ends_the_run(text: Path, run: Run, reference: Reference) -> None:
    job = evaluated_job(text, cluster__nodes=4, eval__stop_at__metric="loss", eval__stop_at__value=100.0)
    outcome = run(job)
    outcome.assert_same_bits(reference(job))
    assert outcome.summary["steps"] == 2
    assert "eval.stop_at" in outcome.summary["message"]


def test_emulated_devices_evaluate(slow_layers: Path, run: Run, reference: Reference) -> None:
    job = make_emulated_job(slow_layers, eval__every=2, eval__microbatches=12)
    outcome = run(job, "kill:node=2,step=2,at=evaluate")
    outcome.assert_same_bits(reference(job))
