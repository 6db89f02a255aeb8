"""Jobs that begin with another run's state: its parameters alone, or the optimizer's state as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from planaria.checkpoint.manifest import newest
from planaria.checkpoint.start import start_of
from planaria.checkpoint.state import read_parameters
from planaria.job.errors import UserError
from planaria.job.settings import Job, ParameterRule
from planaria.runtime.launch.export import export_for_torch
from planaria.runtime.launch.training.folder import job_folder
from tests.e2e.conftest import Run
from tests.e2e.jobs import Outcome, make_job
from tests.e2e.test_optimizers import ruled


def resolved(job: Job, tmp_path: Path) -> Job:
    """As `planaria train` completes it."""
    job = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, folder=str(tmp_path / "made")))
    with job_folder(job, "resolved", resume=False) as own:
        return own.job


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    path, manifest, _ = newest(folder / "checkpoints")
    return read_parameters(path, manifest)


@pytest.mark.parametrize("form", ["run", "torch"])
def test_a_run_begins_with_anothers_state(
    form: str, text: Path, run: Run, reference: Callable[[Job], Outcome], tmp_path: Path
) -> None:
    same: dict[str, Any] = {"train__lr_schedule": "constant", "train__warmup_steps": 0, "train__global_batch": 6}
    first = run(make_job(text, train__steps=3, **same))
    start = first.result.folder
    if form == "torch":
        start = tmp_path / "for-torch"
        export_for_torch(first.result.folder, start)
    job = make_job(text, train__steps=2, train__start_from=str(start), train__start_optimizer=True, **same)
    job = resolved(job, tmp_path)
    assert job.train.start_steps == 3
    assert form == "torch" or Path(job.train.start_from) == newest(first.result.folder / "checkpoints")[0]
    outcome = run(job, "kill:node=2,step=1,at=backward")
    outcome.assert_same_bits(reference(job))
    opened = start_of(job.train)
    assert opened is not None
    before = parameters(first.result.folder)
    shapes = {name: tensor.shape for name, tensor in before.items()}
    found = opened.state(shapes, ("exp_avg", "exp_avg_sq"))
    assert all(torch.equal(found["parameter"][name], tensor) for name, tensor in before.items())
    fresh = run(make_job(text, train__steps=2, train__start_from=str(start), **same))
    assert fresh.losses[1] == outcome.losses[1]
    assert fresh.losses[2] != outcome.losses[2], "its optimizer began at nothing"


def test_what_a_job_cannot_begin_with_is_named(text: Path, run: Run, tmp_path: Path) -> None:
    folder = run(make_job(text, train__steps=2)).result.folder
    with pytest.raises(UserError, match=r"train.start_from = '.*nowhere' is no run folder, no checkpoint of one"):
        resolved(make_job(text, train__start_from=str(tmp_path / "nowhere")), tmp_path)
    with pytest.raises(UserError, match=r"train.start_optimizer = True .* train.start_from is missing"):
        make_job(text, train__start_optimizer=True)
    other = make_job(text, "llama", train__start_from=str(folder))
    outcome = run(other)
    assert outcome.result.status == "failed"
    assert "has no parameter 'model" in outcome.result.message
    rule = ParameterRule(match="transformer.wpe.weight", trainable=False)
    outcome = run(ruled(make_job(text, train__start_from=str(folder)), rule))
    assert outcome.result.status == "failed"
    assert "has 'transformer.wpe.weight', which is not trained here" in outcome.result.message
