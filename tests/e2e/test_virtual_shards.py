"""Layers in shards on real processes: whatever is lost, the bits of a reference that computes in shards too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_optimizers import KILLS
from tests.proof import rest_in_proof

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gpt2, in two passes": ("gpt2", {"cluster__schedule": "zb-h1"}),
    "bfloat16": ("llama", {"train__dtype": "bfloat16", "train__boundary_dtype": "bfloat16"}),
    "recomputed": ("gpt2", {"train__activation_checkpointing": True, "resilience__policy": "redundancy"}),
}


@pytest.mark.parametrize("name", rest_in_proof(list(JOBS)))
def test_kills(name: str, text: Path, run: Run, reference: Reference) -> None:
    model, changes = JOBS[name]
    job = make_job(text, model, model__virtual_shards=2, **changes)
    run(job, *KILLS).assert_same_bits(reference(job))
