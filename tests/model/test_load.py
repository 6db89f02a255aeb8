"""What cannot be loaded is refused with field, value and remedy; transformers is imported late."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import CONFIGS, TRAIN, VOCAB_SIZE, load_small, small_section, whole_state

from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import TrainSection
from planaria.model.load import load_model, preload_model
from planaria.model.model import ModelError


def refusal(section: ModelSection, *, vocab_size: int | None = VOCAB_SIZE, train: TrainSection = TRAIN) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(section, train, vocab_size=vocab_size)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        (ModelSection(type="gtp2"), ("model.type = 'gtp2'", "Did you mean 'gpt2'", "gpt2, bert, llama")),
        (ModelSection(type="mixtral-of-none"), ("model.type", "module:function")),
        (small_section("gpt2", n_layers=3), ("model.config.n_layers", "Did you mean 'n_layer'")),
        (small_section("gpt2", n_layer="two"), ("gpt2 config", "n_layer", "two")),
        (small_section("gpt2", n_head=5), ("[model.config]", "num_heads")),
        (small_section("llama", hidden_size=30), ("hidden size", "30")),
        (small_section("llama", num_key_value_heads=3), ("num_key_value_heads = 3", "divisor")),
        (small_section("bert", is_decoder=True), ("is_decoder = true", "false")),
        (small_section("gpt2", add_cross_attention=True), ("add_cross_attention = true", "false")),
        (small_section("opt", layerdrop=0.1), ("layerdrop = 0.1", "Set 0")),
        (small_section("mixtral", output_router_logits=True), ("output_router_logits = true", "false")),
        (ModelSection(type="auto"), ('"auto"', "model.weights")),
        (ModelSection(type="albert"), ("albert model cannot be cut", "is called twice in a forward")),
        (ModelSection(type="sam"), ("'sam'", "as a function")),
        (ModelSection(type="gpt2", split_at=("transformer.j.*",)), ("transformer.j.*",)),
        (small_section("gpt2", vocab_size=100), ("vocab_size = 100", "259")),
        (small_section("gpt2", n_positions=8), ("sequence_length = 16", "8 positions", "= 16")),
        (ModelSection(type="gpt2", loss="math:sqrt"), ("model.loss = 'math:sqrt'", "own loss")),
        (
            ModelSection(type="gpt2", weights="openai-community/gpt2"),
            ("hf download openai-community/gpt2 --local-dir gpt2",),
        ),
        (ModelSection(type="gpt2", weights="/nowhere"), ("model.weights = '/nowhere'", "not a folder")),
    ],
)
def test_refusals_name_the_value_and_the_remedy(section: ModelSection, parts: tuple[str, ...]) -> None:
    message = refusal(section)
    for part in parts:
        assert part in message


def test_the_tokenizers_vocabulary_is_the_default() -> None:
    assert load_small("gpt2").config.vocab_size == VOCAB_SIZE
    assert load_small("gpt2", vocab_size=512).config.vocab_size == 512
    assert load_small("gpt2").config.eos_token_id is None, "50256 is not in the vocabulary"


def write_weights(folder: Path, model_type: str, *, drop: str | None = None, shards: bool = False) -> dict[str, Any]:
    model = load_small(model_type)
    whole = model.model_class(model.config)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    state = {name: value for name, value in whole.state_dict().items() if name != drop}
    whole.save_pretrained(folder, state_dict=state, max_shard_size="20KB" if shards else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == shards
    return dict(whole.state_dict())


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("model_type", ["gpt2", "bert", "llama"])
def test_weights_come_from_a_local_folder(model_type: str, shards: bool, tmp_path: Path) -> None:
    expected = write_weights(tmp_path, model_type, shards=shards)
    section = ModelSection(type=model_type, weights=str(tmp_path))
    model = load_model(section, TRAIN, vocab_size=VOCAB_SIZE)
    state = whole_state(model)
    assert state
    for name, value in state.items():
        assert torch.equal(value, expected[name]), name


def test_weights_saved_without_the_head_serve_a_tied_model(tmp_path: Path) -> None:
    model = load_small("gpt2")
    whole = model.model_class(model.config)
    whole.transformer.save_pretrained(tmp_path)
    loaded = load_model(ModelSection(type="gpt2", weights=str(tmp_path)), TRAIN, vocab_size=VOCAB_SIZE)
    state = whole_state(loaded)
    assert torch.equal(state["transformer.h.1.mlp.c_fc.weight"], whole.transformer.h[1].mlp.c_fc.weight)
    assert torch.equal(state["transformer.wte.weight"], whole.lm_head.weight)


def test_old_names_of_bert_norms_are_understood(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    expected = write_weights(tmp_path, "bert")
    file = tmp_path / "model.safetensors"
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in load_file(file).items()
    }
    save_file(renamed, file)
    model = load_model(ModelSection(type="bert", weights=str(tmp_path)), TRAIN, vocab_size=VOCAB_SIZE)
    name = "bert.encoder.layer.0.output.LayerNorm.weight"
    assert torch.equal(whole_state(model)[name], expected[name])


def test_a_folder_of_weights_is_checked(tmp_path: Path) -> None:
    write_weights(tmp_path, "gpt2", drop="transformer.ln_f.weight")
    assert "'gpt2'" in refusal(ModelSection(type="llama", weights=str(tmp_path)))
    missing = load_model(ModelSection(type="gpt2", weights=str(tmp_path)), TRAIN, vocab_size=VOCAB_SIZE)
    with pytest.raises(ModelError, match=r"no tensor 'transformer\.ln_f\.weight'"):
        whole_state(missing)
    section = ModelSection(type="gpt2", weights=str(tmp_path), config={"n_embd": 64})
    other_shape = load_model(section, TRAIN, vocab_size=VOCAB_SIZE)
    with pytest.raises(ModelError, match="has shape"):
        whole_state(other_shape)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot read"):
        whole_state(load_model(ModelSection(type="gpt2", weights=str(tmp_path)), TRAIN, vocab_size=VOCAB_SIZE))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        whole_state(load_model(ModelSection(type="gpt2", weights=str(tmp_path)), TRAIN, vocab_size=VOCAB_SIZE))
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 2}))
    assert "None" in refusal(ModelSection(type="gpt2", weights=str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    assert "not JSON" in refusal(ModelSection(type="gpt2", weights=str(tmp_path)))


def test_processes_that_are_forked_with_a_model_find_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("planaria.model.load._preloaded", {})
    section = small_section("gpt2")
    preload_model(section, TRAIN, vocab_size=VOCAB_SIZE)
    first = load_model(section, TRAIN, vocab_size=VOCAB_SIZE)
    assert load_model(section, TRAIN, vocab_size=VOCAB_SIZE) is first
    preload_model(section, TRAIN, vocab_size=VOCAB_SIZE)
    assert load_model(section, TRAIN, vocab_size=VOCAB_SIZE) is first, "it is not loaded again"
    assert load_model(section, TRAIN, vocab_size=VOCAB_SIZE + 1) is not first
    assert load_model(small_section("gpt2", n_layer=3), TRAIN, vocab_size=VOCAB_SIZE) is not first
    write_weights(tmp_path, "gpt2")
    weighty = ModelSection(type="gpt2", weights=str(tmp_path))
    preload_model(weighty, TRAIN, vocab_size=VOCAB_SIZE)
    assert load_model(section, TRAIN, vocab_size=VOCAB_SIZE) is not first, "there is room for one"
    one, other = (load_model(weighty, TRAIN, vocab_size=VOCAB_SIZE) for _ in range(2))
    assert one is not other, "its files may be others by then"


def test_transformers_is_imported_only_for_its_families() -> None:
    script = (
        "import sys; import planaria.model.load, planaria.model.function; sys.exit(int('transformers' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_small_configs_are_what_the_tests_say() -> None:
    assert load_small("llama").config.head_dim == CONFIGS["llama"]["hidden_size"] // 4
