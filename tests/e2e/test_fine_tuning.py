"""Fine-tuning on real processes: what is not trained stays as it was, and the rest has the reference's bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from planaria.checkpoint.manifest import newest
from planaria.checkpoint.state import read_parameters
from planaria.job.sections.model import LoraSection, ModelSection
from planaria.job.sections.train import ParameterRule
from planaria.job.settings import Job
from planaria.model.huggingface import HuggingFaceModel
from planaria.model.load import load_huggingface_model
from planaria.plan.costs.profile_check import decode_profile
from planaria.runtime.launch.export import export_run
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_optimizers import KILLS, ruled

FROZEN = ("transformer.w?e.weight", "transformer.h.0.*", "transformer.h.2.mlp.*")
"""Of gpt2: a prefix of layers, part of another one, and a tensor that the first and the last layer share."""


@pytest.mark.proof
def test_frozen_parameters_with_kills(text: Path, run: Run, reference: Reference, tmp_path: Path) -> None:
    job = ruled(make_job(text), *(ParameterRule(match=name, trainable=False) for name in FROZEN))
    outcome = run(job, *KILLS)
    outcome.assert_same_bits(reference(job))
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (4,)]
    embedding = decode_profile((outcome.result.folder / "profile.json").read_bytes()).layers[0]
    assert (embedding.frozen_bytes, embedding.parameter_bytes) == (4 * 16 * (259 + 16), 0)
    folder, manifest, _ = newest(outcome.result.folder / "checkpoints")
    trained = read_parameters(folder, manifest)
    assert not [name for name in trained if "wte" in name or ".h.0." in name or ".h.2.mlp." in name]
    export_run(outcome.result.folder, tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    first = initial(job)
    assert exported.keys() == first.keys()
    for name, value in exported.items():
        assert torch.equal(value, trained.get(name, first[name])), name
        assert torch.equal(value, first[name]) == (name not in trained), name


def initial(job: Job) -> dict[str, torch.Tensor]:
    """What every parameter begins with: frozen or not."""
    plain = msgspec.structs.replace(job.train, parameters=())
    model = load_huggingface_model(job.model, plain, vocab_size=259)
    groups = range(len(model.groups))
    return {name: value for group in groups for name, value in model.initial_state(group, plain.seed).items()}


@pytest.mark.proof
def test_adapters_with_kills(text: Path, run: Run, reference: Reference, tmp_path: Path) -> None:
    """They alone are trained; a folder with them merged, and peft with them alone, give the same logits."""
    from peft import PeftModel

    plain = make_job(text, "llama")
    whole = load_huggingface_model(plain.model, plain.train, vocab_size=259)
    base = whole.model_class(whole.config)
    base.eval().save_pretrained(tmp_path / "base")
    lora = LoraSection(r=4, lora_alpha=16, lora_dropout=0.1, target_modules=("q_proj", "down_proj"))
    model = ModelSection(type="auto", weights=str(tmp_path / "base"), lora=lora)
    job = msgspec.structs.replace(plain, model=model)
    outcome = run(job, *KILLS)
    outcome.assert_same_bits(reference(job))
    folder, manifest, _ = newest(outcome.result.folder / "checkpoints")
    trained = read_parameters(folder, manifest)
    assert len(trained) == 4 * 2 * 2
    assert all(".lora_" in name and bool(value.any()) for name, value in trained.items())
    export_run(outcome.result.folder, tmp_path / "merged")
    export_run(outcome.result.folder, tmp_path / "adapters", adapters=True)
    ids = torch.arange(16).unsqueeze(0)
    with torch.no_grad():
        found = through_layers(load_huggingface_model(job.model, job.train, vocab_size=259), trained, ids)
        before = base(ids).logits
        merged = whole.model_class.from_pretrained(tmp_path / "merged").eval()
        adapted = PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
        assert torch.allclose(merged(ids).logits, found, rtol=1e-4, atol=1e-5)
        assert torch.allclose(adapted(ids).logits, found, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(before, found, rtol=1e-2, atol=1e-3)


def through_layers(model: HuggingFaceModel, trained: Mapping[str, torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """Runs the model's layers with what was trained."""
    uses = {(at, local): spec.name for group in model.groups for spec in group.parameters for at, local in spec.uses}
    for index in range(len(model.layer_names)):
        layer = model.build_layer(index).eval()
        for (at, local), name in uses.items():
            if at == index:
                layer.get_parameter(local).copy_(trained[name])
        output = layer(*values)
        values = output if isinstance(output, tuple) else (output,)
    return values[0]
