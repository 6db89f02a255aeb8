"""Jobs that begin with another run's state: its parameters alone, or the optimizer's state as well."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from planaria.checkpoint.manifest import newest
from planaria.checkpoint.start import start_of
from planaria.checkpoint.state import read_parameters
from planaria.job.errors import UserError
from planaria.job.sections.train import ParameterRule
from planaria.job.settings import Job
from planaria.runtime.launch.export import export_for_torch
from planaria.runtime.launch.training.folder import job_folder
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_optimizers import ruled


def resolved(job: Job, tmp_path: Path) -> Job:
    """As `planaria train` completes it."""
    job = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, folder=str(tmp_path / "made")))
    with job_folder(job, "resolved", resume=False) as own:
        return own.job


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    path, manifest, _ = newest(folder / "checkpoints")
    return read_parameters(path, manifest)


def test_a_run_begins_with_anothers_state(text: Path, run: Run, reference: Reference, tmp_path: Path) -> None:
    """Of a run, and of what was exported for torch."""
    same: dict[str, Any] = {"train__lr_schedule": "constant", "train__warmup_steps": 0, "train__global_batch": 6}
    same["cluster__nodes"] = 5
    first = run(make_job(text, train__steps=3, **same)).result.folder
    before = parameters(first)
    shapes = {name: tensor.shape for name, tensor in before.items()}
    for_torch = tmp_path / "for-torch"
    export_for_torch(first, for_torch)
    for start in (for_torch, first):
        job = make_job(text, train__steps=2, train__start_from=str(start), train__start_optimizer=True, **same)
        job = resolved(job, tmp_path / f"of-{start.name}")
        assert job.train.start_steps == 3
        outcome = run(job, "kill:node=2,step=1,at=backward")
        outcome.assert_same_bits(reference(job))
        opened = start_of(job.train)
        assert opened is not None
        found = opened.state(shapes, ("exp_avg", "exp_avg_sq"))
        assert all(torch.equal(found["parameter"][name], tensor) for name, tensor in before.items())
    assert Path(job.train.start_from) == newest(first / "checkpoints")[0]
    fresh = run(make_job(text, train__steps=2, train__start_from=str(first), **same))
    assert fresh.losses[1] == outcome.losses[1]
    assert fresh.losses[2] != outcome.losses[2], "its optimizer began at nothing"


def test_what_a_job_cannot_begin_with_is_named(text: Path, run: Run, tmp_path: Path) -> None:
    folder = run(make_job(text, cluster__nodes=4, train__steps=2)).result.folder
    with pytest.raises(UserError, match=r"train.start_from = '.*nowhere' does not exist"):
        resolved(make_job(text, train__start_from=str(tmp_path / "nowhere")), tmp_path)
    with pytest.raises(UserError, match=r"is no run folder, no checkpoint of one .* goes into model.weights"):
        resolved(make_job(text, train__start_from=str(tmp_path)), tmp_path)
    with pytest.raises(UserError, match=r"train.start_optimizer = True .* train.start_from is missing"):
        make_job(text, train__start_optimizer=True)
    with pytest.raises(UserError, match=r"train.start_from = .* has no parameter 'model.*Start from a checkpoint of"):
        run(make_job(text, "llama", train__start_from=str(folder)))
    wider = make_job(text, train__start_from=str(folder), model__config__n_embd=32)
    with pytest.raises(UserError, match=r"'transformer.*' has shape \(.*\), and the model needs \(.*\)"):
        run(wider)
    rule = ParameterRule(match="transformer.wpe.weight", trainable=False)
    with pytest.raises(UserError, match=r"has 'transformer.wpe.weight', which is not trained here"):
        run(ruled(make_job(text, train__start_from=str(folder)), rule))


def test_a_start_that_is_not_whole_is_refused(text: Path, run: Run, tmp_path: Path) -> None:
    folder = run(make_job(text, cluster__nodes=4, train__steps=2)).result.folder
    whole = newest(folder / "checkpoints")[0]

    def refused(path: Path) -> str:
        with pytest.raises(UserError, match=r"^train\.start_from = ") as caught:
            resolved(make_job(text, train__start_from=str(path)), tmp_path)
        return str(caught.value)

    torn = shutil.copytree(whole, tmp_path / "torn")
    first = min(torn.glob("group-*"))
    first.write_bytes(first.read_bytes()[:-9])
    assert f"{first} is corrupt" in refused(torn)
    first.unlink()
    assert f"{first} is missing" in refused(torn)
    (torn / "manifest.json").unlink()
    assert "has no manifest.json: the checkpoint was not finished" in refused(torn)
    torch_form = tmp_path / "for-torch"
    export_for_torch(folder, torch_form)
    part = next(torch_form.glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-9])
    assert f"{part} is shorter than its .metadata says" in refused(torch_form)
    part.unlink()
    assert f"{part} is missing" in refused(torch_form)
    (torch_form / ".metadata").write_bytes(b"no pickle")
    assert ".metadata cannot be read" in refused(torch_form)
    (folder / "checkpoints").rename(tmp_path / "elsewhere")
    (folder / "checkpoints").mkdir()
    assert "has no checkpoint that is whole. Copy it again, or start from another." in refused(folder)
