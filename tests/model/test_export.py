"""Trained weights leave as a Hugging Face folder and come back with the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import (
    FAMILIES,
    TRAIN,
    VOCAB_SIZE,
    filled_layers,
    load_small,
    random_batch,
    run_layers,
    shaken,
    small_section,
    whole_state,
)

from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.model import ModelSection
from planaria.job.settings import Job
from planaria.model.export import export
from planaria.model.huggingface import logits
from planaria.model.load import load_huggingface_model
from planaria.model.model import ModelError


def job_of(section: ModelSection) -> Job:
    return Job(model=section, train=TRAIN, cluster=ClusterSection(nodes=2))


@pytest.mark.parametrize(("model_type", "overrides"), FAMILIES)
def test_from_pretrained_gives_the_same_logits(model_type: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    """And the folder comes back as the initial weights of a job, by its own type or as "auto"."""
    model = load_small(model_type, **overrides)
    state = shaken(whole_state(model))
    export(job_of(small_section(model_type, **overrides)), state, tmp_path)

    loaded, info = model.model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = random_batch(model)
    with torch.no_grad():
        (found,) = run_layers([layer.eval() for layer in filled_layers(model, state)], *batch.values())
        assert torch.equal(logits(loaded.eval(), batch), found)

    again = load_huggingface_model(ModelSection(type="auto", weights=str(tmp_path)), TRAIN, vocab_size=VOCAB_SIZE)
    returned = whole_state(again)
    assert returned.keys() == state.keys()
    assert all(torch.equal(returned[name], state[name]) for name in state)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == model_type


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    state = whole_state(load_small("gpt2"))
    with pytest.raises(ModelError, match="only Hugging Face models"):
        export(job_of(ModelSection(type="layers:transformer")), state, tmp_path)
    with pytest.raises(ModelError, match="no tensor"):
        export(job_of(small_section("gpt2")), {}, tmp_path)
    with pytest.raises(ModelError, match=r"h\.2"):
        export(job_of(small_section("gpt2", n_layer=3)), state, tmp_path)
    assert not list(tmp_path.iterdir())
