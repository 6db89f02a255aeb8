"""Compiled layers on real processes: whatever is lost, the bits of a reference that compiles too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planaria.job.errors import UserError
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_optimizers import KILLS

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2, evaluated, in two passes": (
        "gpt2",
        {"eval__every": 2, "eval__share": 0.1, "eval__microbatches": 2, "cluster__schedule": "zb-h1"},
    ),
    "bfloat16, recomputed": (
        "llama",
        {
            "train__dtype": "bfloat16",
            "train__boundary_dtype": "bfloat16",
            "train__activation_checkpointing": True,
            "resilience__policy": "redundancy",
        },
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", JOBS)
def test_kills(name: str, text: Path, run: Run, reference: Reference) -> None:
    model, changes = JOBS[name]
    job = make_job(text, model, train__compile=True, **changes)
    outcome = run(job, *KILLS)
    outcome.assert_same_bits(reference(job))
    assert len(outcome.summary["recoveries"]) == len(KILLS)


def test_no_compiler_is_said_in_a_line(text: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder, exc

    from planaria.runtime.worker.compute.compilation import check_compiler

    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    job = make_job(text, train__compile=True)
    with pytest.raises(UserError, match=r"train\.compile = true needs a C\+\+ compiler.*Install g\+\+") as said:
        check_compiler(job)
    assert "\n" not in str(said.value)
    check_compiler(make_job(text))
