"""The papers' models at their real depth and small width: some steps with kills, and the reference's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from examples import pictures

from planaria.job.sections.data import DataSection
from planaria.job.sections.model import ModelSection
from planaria.plan.costs.profile_check import decode_profile
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_job
from tests.e2e.test_optimizers import KILLS

GPT = {"n_embd": 16, "n_head": 2, "n_positions": 16}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert-large": (
        "bert",
        {
            "num_hidden_layers": 24,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 16,
        },
        24 + 2,
    ),
    "gpt2-medium, gpt3-medium": ("gpt2", {"n_layer": 24, **GPT}, 24 + 2),
    "gpt2-xl": ("gpt2", {"n_layer": 48, **GPT}, 48 + 2),
}
"""Type, its config, and how many layers there are to plan with, the embedding and the head among them."""


@pytest.mark.proof
@pytest.mark.parametrize("name", MODELS)
def test_transformers_of_the_papers(name: str, text: Path, run: Run, reference: Reference) -> None:
    model_type, config, num_layers = MODELS[name]
    job = make_job(text, train__steps=4, train__learning_rate=1e-3)
    job = msgspec.structs.replace(job, model=ModelSection(type=model_type, config=config))
    survives(run(job, *KILLS), reference(job), num_layers)


@pytest.mark.proof
def test_resnet_152(tmp_path: Path, run: Run, reference: Reference) -> None:
    pictures.write(tmp_path / "pictures", num_train=60, num_validation=0)
    config = {
        "embedding_size": 8,
        "hidden_sizes": [16, 16, 16, 16],
        "depths": [3, 8, 36, 3],
        "layer_type": "bottleneck",
        "num_labels": 3,
    }
    source = DataSection(
        source="planaria.data.images:folder", config={"path": str(tmp_path / "pictures" / "train"), "size": 64}
    )
    model = ModelSection(type="resnet", config=config, split_at=("resnet.encoder.stages.*.layers.*",))
    job = msgspec.structs.replace(make_job(tmp_path, train__steps=3), model=model, data=source)
    survives(run(job, *KILLS), reference(job), sum((3, 8, 36, 3)) + 2)


def survives(outcome: Outcome, reference: Outcome, num_layers: int) -> None:
    outcome.assert_same_bits(reference)
    assert len(outcome.summary["recoveries"]) == len(KILLS)
    assert len(decode_profile((outcome.result.folder / "profile.json").read_bytes()).layers) == num_layers
