"""Adapters: what is trained of a model that has them, what they begin with, and where they go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import TRAIN, VOCAB_SIZE, filled_layers, load_small, run_layers, shaken, small_section, whole_state

from planaria.job.sections.cluster import ClusterSection
from planaria.job.sections.model import LoraSection, ModelSection
from planaria.job.settings import Job
from planaria.model.export import export_adapters
from planaria.model.huggingface import HuggingFaceModel
from planaria.model.load import load_huggingface_model, load_model
from planaria.model.model import ModelError

TARGETS: list[tuple[str, tuple[str, ...]]] = [
    ("gpt2", ()),
    ("gpt2", ("all-linear",)),
    ("llama", ("embed_tokens", "lm_head", "gate_proj")),
    ("t5", ("q", "wo")),
]


def adapted(model_type: str, *targets: str) -> ModelSection:
    section = small_section(model_type)
    lora = LoraSection(r=2, lora_alpha=6, target_modules=targets)
    return ModelSection(type=section.type, config=section.config, lora=lora)


def load(section: ModelSection) -> HuggingFaceModel:
    return load_huggingface_model(section, TRAIN, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize(("model_type", "targets"), TARGETS)
def test_adapters_alone_are_trained_and_merge_into_the_rest(model_type: str, targets: tuple[str, ...]) -> None:
    plain, model = load_small(model_type), load(adapted(model_type, *targets))
    state = whole_state(model, TRAIN.seed)
    assert state
    assert all(".lora_" in name for name in state)
    first = whole_state(plain, TRAIN.seed)
    frozen = {name.replace(".base_layer", ""): value for name, value in model.frozen_state().items()}
    assert frozen.keys() == first.keys()
    assert all(torch.equal(frozen[name], first[name]) for name in first)
    batch = {
        name: torch.randint(2, VOCAB_SIZE, example.shape)
        if example.dtype == torch.int64
        else torch.randn(example.shape)
        for name, example in model.example.items()
    }
    with torch.no_grad():
        before, same = (
            run_layers([layer.eval() for layer in filled_layers(one, values)], *batch.values())[0]
            for one, values in ((plain, first), (model, state))
        )
        assert torch.equal(before, same), "adapters begin with a product of 0"
        trained = shaken(state)
        found = run_layers([layer.eval() for layer in filled_layers(model, trained)], *batch.values())[0]
        merged = dict(model.to_export(trained).named_parameters())
        again = run_layers([layer.eval() for layer in filled_layers(plain, merged)], *batch.values())[0]
    assert not torch.allclose(before, found, rtol=1e-3)
    assert torch.allclose(found, again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        (adapted("gpt2", "q_proj"), ("[model.lora]: target_modules = ['q_proj']", '["all-linear"]')),
        (adapted("gpt2", "ln_1"), ("[model.lora]: target_modules = ['ln_1']", '["all-linear"]')),
    ],
)
def test_what_cannot_be_adapted_is_refused(section: ModelSection, parts: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(section, TRAIN, vocab_size=VOCAB_SIZE)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts)


def test_adapters_of_a_job_that_has_none_are_not_written(tmp_path: Path) -> None:
    job = Job(model=small_section("gpt2"), train=TRAIN, cluster=ClusterSection(nodes=2))
    with pytest.raises(ModelError, match=r"--adapters: the run's job has no \[model\.lora\]"):
        export_adapters(job, {}, tmp_path)


def test_peft_is_asked_for_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "peft", missing)
    with pytest.raises(ModelError, match="pip install peft"):
        load_model(adapted("gpt2"), TRAIN, vocab_size=VOCAB_SIZE)
