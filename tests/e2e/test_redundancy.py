"""Redundant computation on real processes: the reference's bits, and no state that moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof


@pytest.mark.parametrize(
    ("mode", "model", "changes"),
    rest_in_proof(
        [
            pytest.param("eager-lazy", "gpt2", {}),
            pytest.param("lazy-lazy", "llama", {"train__activation_checkpointing": True}),
            pytest.param("eager-eager", "bert", {}),
            pytest.param("eager-lazy", "gpt2", {"resilience__min_nodes_per_pipeline": 1, "cluster__nodes": 4}),
        ]
    ),
)
def test_predecessors_take_over_and_change_no_bit(
    mode: str, model: str, changes: dict[str, Any], text: Path, run: Run, reference: Reference
) -> None:
    """The second loss is at a shadow's own instruction, where there is one."""
    job = make_job(
        text,
        model,
        **{
            "resilience__policy": "redundancy",
            "resilience__redundancy": mode,
            "resilience__min_nodes_per_pipeline": 3,
            "cluster__nodes": 6,
            **changes,
        },
    )
    second = "backward" if mode == "lazy-lazy" else "shadow"
    outcome = run(job, "kill:node=1,step=2,at=backward", f"kill:node=3,step=3,at={second}")
    outcome.assert_same_bits(reference(job))
    taken = outcome.events("plan_taken")
    assert [plan["transfer_bytes"] for plan in taken] == [0] * len(taken)
    finished = [plan["reason"] for plan in taken if plan["purpose"] == "finish step"]
    assert len(finished) == 2
    assert all("takes over" in reason for reason in finished)
