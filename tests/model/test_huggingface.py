"""Layer lists compute what the Hugging Face models compute; initial weights follow (seed, group) alone."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch
from small_models import (
    TRAIN,
    VARIANTS,
    VOCAB_SIZE,
    filled_layers,
    load_small,
    random_ids,
    run_layers,
    small_section,
    whole_state,
)

from planaria.model.load import load_family, load_model
from planaria.model.model import GroupSpec

FAMILIES = ("gpt2", "bert", "llama")


def whole_model(model: Any, model_type: str, state: dict[str, torch.Tensor]) -> Any:
    whole = load_family(model_type).model_class(model.config)
    missing, unexpected = whole.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= set(whole._tied_weights_keys or ()) | {"cls.predictions.bias"}
    return whole


@pytest.mark.parametrize(("model_type", "overrides"), VARIANTS)
def test_layers_give_the_whole_models_logits(model_type: str, overrides: dict[str, Any]) -> None:
    model = load_small(model_type, **overrides)
    state = whole_state(model)
    with torch.no_grad():
        for value in state.values():
            value += 0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(5))
    whole = whole_model(model, model_type, state).eval()
    layers = [layer.eval() for layer in filled_layers(model, state)]
    ids = random_ids()
    with torch.no_grad():
        (logits,) = run_layers(layers, ids)
        expected = whole(input_ids=ids).logits
    assert logits.shape == (2, 16, VOCAB_SIZE)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_gradients_of_the_layers_sum_to_the_whole_models(model_type: str) -> None:
    dropout_off = {"gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"), "llama": ()}
    names = dropout_off.get(model_type, ("hidden_dropout_prob", "attention_probs_dropout_prob"))
    model = load_small(model_type, **dict.fromkeys(names, 0.0))
    state = whole_state(model)
    whole = whole_model(model, model_type, state).train()
    layers = filled_layers(model, state)
    ids = random_ids()
    labels = torch.where(torch.arange(16) % 3 == 0, random_ids(), -100)
    batch = {"input_ids": ids, "labels": labels}
    loss = model.loss(run_layers(layers, ids), batch)
    loss.backward()
    expected = model.loss((whole(input_ids=ids).logits,), batch)
    expected.backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    gradients = dict(whole.named_parameters())
    for group in model.groups:
        for spec in group.parameters:
            parts = [layers[layer].get_parameter(local).grad for layer, local in spec.uses]
            torch.testing.assert_close(sum(parts), gradients[spec.name].grad)


def test_a_tied_embedding_is_one_group_of_two_layers() -> None:
    model = load_small("gpt2")
    assert model.layer_names == ("transformer.wte", "transformer.h.0", "transformer.h.1", "lm_head")
    assert [group.layers for group in model.groups] == [(0,), (1,), (2,), (3,), (0, 3)]
    (tied,) = model.groups[-1].parameters
    assert tied.name == "transformer.wte.weight"
    assert tied.uses == ((0, "wte.weight"), (3, "lm_head.weight"))
    assert tied.decays
    assert not next(spec for spec in model.groups[3].parameters if spec.name.endswith("bias")).decays


def test_untied_models_have_own_groups_only() -> None:
    for model in (load_small("gpt2", tie_word_embeddings=False), load_small("llama")):
        assert [group.layers for group in model.groups] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_groups_cover_each_parameter_of_each_layer_once(model_type: str) -> None:
    model = load_small(model_type)
    uses = [use for group in model.groups for spec in group.parameters for use in spec.uses]
    held = [
        (index, name)
        for index in range(len(model.layer_names))
        for name, _ in model.build_layer(index).named_parameters(remove_duplicate=False)
    ]
    assert sorted(uses) == sorted(held)
    assert all(sorted_by_name(group) for group in model.groups)


def sorted_by_name(group: GroupSpec) -> bool:
    names = [spec.name for spec in group.parameters]
    return names == sorted(names)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_initial_state_is_a_function_of_seed_and_group(model_type: str) -> None:
    first = load_small(model_type)
    forwards = whole_state(first, seed=1)
    torch.manual_seed(99)
    second = load_small(model_type)
    backwards = {}
    for group in reversed(range(len(second.groups))):
        backwards.update(second.initial_state(group, 1))
    assert forwards.keys() == backwards.keys()
    assert all(torch.equal(forwards[name], backwards[name]) for name in forwards)
    other = whole_state(second, seed=2)
    assert any(not torch.equal(forwards[name], other[name]) for name in forwards)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_building_and_initialising_leave_the_random_numbers_alone(model_type: str) -> None:
    model = load_small(model_type)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    for index in range(len(model.layer_names)):
        model.build_layer(index)
    whole_state(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_weights_follow_the_familys_own_scheme() -> None:
    model = load_small("gpt2", n_embd=128, n_layer=8)
    state = whole_state(model)
    assert state["transformer.h.3.attn.c_attn.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert state["transformer.h.3.attn.c_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert state["transformer.h.3.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert state["transformer.wte.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(state["transformer.ln_f.weight"], torch.ones(128))
    assert not torch.equal(state["transformer.h.0.mlp.c_fc.weight"], state["transformer.h.1.mlp.c_fc.weight"])
    bert = whole_state(load_small("bert"))
    assert not bert["bert.embeddings.word_embeddings.weight"][0].any(), "BERT's padding row starts at zero"


def test_dropout_follows_torchs_random_numbers() -> None:
    model = load_small("gpt2")
    layer = filled_layers(model, whole_state(model))[1]
    hidden = torch.randn(2, 16, 32)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(layer(hidden))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_rotary_positions_stay_float32_when_parameters_do_not() -> None:
    model = load_small("llama")
    layer = model.build_layer(1)
    layer(torch.zeros(1, 16, 32))
    precise = layer._rotary
    layer.to(torch.bfloat16)
    layer(torch.zeros(1, 16, 32, dtype=torch.bfloat16))
    assert torch.equal(layer._rotary[0], precise[0].to(torch.bfloat16))
    layer(torch.zeros(1, 8, 32, dtype=torch.bfloat16))
    assert layer._rotary[0].shape[1] == 8


def test_rotary_positions_made_in_inference_serve_training() -> None:
    layer = load_small("llama").build_layer(1)
    with torch.inference_mode():
        layer(torch.zeros(1, 16, 32))
    layer(torch.zeros(1, 16, 32)).sum().backward()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_small_layers_are_built_within_ten_milliseconds(model_type: str) -> None:
    model = load_small(model_type)
    for index in range(len(model.layer_names)):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            model.build_layer(index)
            times.append(time.perf_counter() - start)
        assert statistics.median(times) < 0.010


def test_masked_lm_says_what_the_data_must_do() -> None:
    masked = {kind: load_model(small_section(kind), TRAIN, vocab_size=259).masked_lm for kind in FAMILIES}
    assert masked == {"gpt2": False, "bert": True, "llama": False}
