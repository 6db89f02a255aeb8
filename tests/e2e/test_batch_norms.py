"""Running statistics of batch norms on real processes: the reference's bits after kills, and torch's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from planaria.checkpoint.manifest import newest
from planaria.checkpoint.state import read_parameters
from planaria.data.opening import open_data
from planaria.job.sections.data import DataSection
from planaria.job.sections.model import ModelSection
from planaria.job.settings import Job
from planaria.model.tensors.batch_norms import statistics
from planaria.runtime.launch.export import export_run
from planaria.runtime.launch.reference import Drops, train_reference
from planaria.runtime.run_folder.recorder import read_drops
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.compute.engine import real_engine
from tests.e2e.conftest import Run
from tests.e2e.jobs import Outcome, make_job
from tests.e2e.test_optimizers import KILLS
from tests.proof import rest_in_proof

LAYERS = """
import torch
from torch import nn


class Picture(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids).unsqueeze(1)


class Head(nn.Linear):
    def forward(self, picture):
        return super().forward(picture.mean(dim=1))


def norms(width, depth):
    convolutions = [nn.Conv2d(3 if at else 1, 3, 3, padding=1) for at in range(depth)]
    blocks = [nn.Sequential(one, nn.BatchNorm2d(3, momentum=0.3), nn.ReLU()) for one in convolutions]
    return [Picture(259, width), *blocks, Head(width, 259)]


def pictures():
    generator = torch.Generator().manual_seed(4)
    return [{"pixel_values": torch.randn(3, 32, 32, generator=generator), "labels": at % 2} for at in range(60)]
"""
JOBS: dict[str, dict[str, Any]] = {
    "templates": {},
    "recomputed": {"train__activation_checkpointing": True, "resilience__policy": "redundancy"},
}


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of six layers, four of which have batch norms."""
    folder = tmp_path / "normed"
    folder.mkdir()
    (folder / "normed.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(folder)
    return folder


def job_of(text: Path, **changes: Any) -> Job:
    job = make_job(text, **changes)
    return msgspec.structs.replace(job, model=ModelSection(type="normed:norms", config={"width": 16, "depth": 4}))


def alone(job: Job, layers: Path, drops: Drops | None = None) -> Outcome:
    return Outcome(train_reference(job, RunFolder.create(layers, "alone"), import_path=layers, drops=drops))


@pytest.mark.parametrize("name", rest_in_proof(list(JOBS)))
def test_kills(name: str, layers: Path, text: Path, run: Run) -> None:
    job = job_of(text, eval__share=0.1, eval__every=2, eval__microbatches=2, **JOBS[name])
    outcome = run(job, *KILLS, import_path=layers)
    expected = alone(job, layers)
    outcome.assert_same_bits(expected)
    assert expected.evaluated
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (4,)]


def test_for_a_microbatch_that_is_left_out_the_statistics_stand_in(layers: Path, text: Path, run: Run) -> None:
    job = job_of(text, resilience__policy="drop")
    outcome = run(job, "kill:node=2,step=3,at=backward", import_path=layers)
    drops = read_drops(outcome.result.folder / "events.jsonl")
    assert drops
    outcome.assert_same_bits(alone(job, layers, drops))


@pytest.mark.proof
def test_a_resnet_with_kills(layers: Path, text: Path, run: Run) -> None:
    config = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 2], "layer_type": "basic"}
    model, data = ModelSection(type="resnet", config=config), DataSection(source="normed:pictures")
    job = msgspec.structs.replace(make_job(text, train__steps=3), model=model, data=data)
    outcome = run(job, *KILLS, import_path=layers)
    outcome.assert_same_bits(alone(job, layers))
    assert len(outcome.result.recoveries) == 2
    export_run(outcome.result.folder, layers / "exported")
    exported = load_file(layers / "exported" / "model.safetensors")
    folder, manifest, _ = newest(outcome.result.folder / "checkpoints")
    for name, value in read_parameters(folder, manifest).items():
        assert torch.equal(exported[name].float(), value), name


def test_numbers_are_torchs(layers: Path, text: Path) -> None:
    """Of a loop over the same microbatches, with weights that stay as they are."""
    job = job_of(text, train__learning_rate=1e-30, train__steps=3)
    outcome = alone(job, layers)
    folder, manifest, _ = newest(outcome.result.folder / "checkpoints")
    saved = read_parameters(folder, manifest)
    engine = real_engine(job, open_data(job, RunFolder(outcome.result.folder).data), 0)
    modules = [engine.model.build_layer(index) for index in range(len(engine.model.layer_names))]
    with torch.no_grad():
        for step in range(1, job.train.steps + 1):
            for microbatch in range(job.train.num_microbatches):
                values = engine.batches.microbatch(step, microbatch)["input_ids"]
                for module in modules:
                    values = module(values)
    found = {f"layers.{at}.{name}": value for at, module in enumerate(modules) for name, value in statistics(module)}
    assert len(found) == 4 * 3
    for name, value in found.items():
        assert torch.allclose(saved[name], value.float(), rtol=1e-6, atol=1e-6), name
    assert saved["layers.1.1.num_batches_tracked"] == 3 * 9
