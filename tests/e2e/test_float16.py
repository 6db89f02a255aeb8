"""float16: a step that overflows is skipped by all, and the loss is scaled by less from then on."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job


def test_the_scale_falls_until_gradients_fit_and_bits_stay(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(
        text,
        "function",
        cluster__nodes=5,
        model__loss="tests.e2e.large_loss:loss",
        train__dtype="float16",
        train__steps=7,
        run__checkpoint_every=2,
    )
    outcome = run(job, "kill:node=2,step=2,at=backward", "coordinator:step=4,at=commit")
    outcome.assert_same_bits(reference(job))
    skipped = [line["step"] for line in outcome.metrics if line.get("applied") is False]
    assert skipped == list(range(1, len(skipped) + 1))
    assert 1 < len(skipped) < 7
    assert [line["loss_scale"] for line in outcome.metrics] == [
        2.0 ** (16 - min(line["step"], len(skipped))) for line in outcome.metrics
    ]
