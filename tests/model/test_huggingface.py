"""Layer lists compute what the Hugging Face models compute; initial weights follow (seed, group) alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import (
    CONFIGS,
    FAMILIES,
    TRAIN,
    filled_layers,
    load_small,
    random_batch,
    run_layers,
    shaken,
    small_section,
    whole_state,
)

from planaria.model import comparison
from planaria.model.comparison import compare
from planaria.model.huggingface import logits
from planaria.model.load import load_model
from planaria.model.model import GroupSpec, ModelError
from planaria.model.tensors.batch_norms import statistics

OLDEST = ("gpt2", "bert", "llama")


@pytest.mark.parametrize(("model_type", "overrides"), FAMILIES)
def test_layers_give_the_whole_models_numbers(model_type: str, overrides: dict[str, Any]) -> None:
    """Logits, loss and gradients, to the last bit; but T5 adds up the gradients of its embedding's three uses anew."""
    model = load_small(model_type, **overrides)
    whole = model.model_class(model.config)
    state = shaken({name: parameter.detach() for name, parameter in whole.named_parameters()})
    layers = [layer.eval() for layer in filled_layers(model, state)]
    batch = random_batch(model)
    (found,), expected = run_layers(layers, *batch.values()), logits(whole.eval(), batch)
    assert torch.equal(found, expected)

    labels = torch.where(torch.arange(expected[..., 0].numel()) % 3 == 0, 1, -100).view(expected.shape[:-1])
    loss, other = (model.loss((one,), {"labels": labels}) for one in (found, expected))
    loss.backward()
    other.backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, other)
    for group in model.groups:
        for spec in group.parameters if not group.is_statistics else ():
            parts = [layers[layer].get_parameter(local).grad for layer, local in spec.uses]
            gradient = whole.get_parameter(spec.name).grad
            given = [part for part in parts if part is not None]
            if len(given) > 2:
                torch.testing.assert_close(sum(given), gradient)
            else:
                assert (gradient is None and not given) or torch.equal(sum(given), gradient), spec.name


@pytest.mark.parametrize("model_type", CONFIGS)
def test_initial_weights_are_drawn_as_the_family_does(model_type: str) -> None:
    model = load_small(model_type)
    mine = whole_state(model)
    for name, parameter in model.model_class(model.config).named_parameters():
        expected, found = parameter.detach(), mine[name]
        assert found.shape == expected.shape
        scale = float(expected.std(correction=0))
        if expected.numel() < 200:
            assert (scale == 0) == (float(found.std(correction=0)) == 0), name
        else:
            assert float(found.std()) == pytest.approx(scale, rel=0.15, abs=1e-6), name
            assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=scale + 1e-6), name


def test_a_config_that_the_layers_do_not_follow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_small("llama")
    compare(model, small_section("llama"), TRAIN)
    monkeypatch.setattr(comparison, "logits", lambda whole, batch: logits(whole, batch) + 1)
    with pytest.raises(ModelError, match=r"'llama': cut into 4 layers, it gives other outputs than whole"):
        compare(model, small_section("llama"), TRAIN)


def test_nothing_but_buffers_outside_of_blocks_is_in_memory() -> None:
    whole = load_small("llama")._whole
    assert all(parameter.is_meta for parameter in whole.parameters())
    assert not whole.model.rotary_emb.inv_freq.is_meta


def test_a_tied_embedding_is_one_group_of_two_layers() -> None:
    model = load_small("gpt2")
    assert model.layer_names == ("transformer.wte", "transformer.h.0", "transformer.h.1", "lm_head")
    assert [group.layers for group in model.groups] == [(0,), (1,), (2,), (3,), (0, 3)]
    (tied,) = model.groups[-1].parameters
    assert tied.name == "transformer.wte.weight"
    assert tied.uses == ((0, "transformer.wte.weight"), (3, "lm_head.weight"))
    assert tied.decays
    assert not next(spec for spec in model.groups[3].parameters if spec.name.endswith("bias")).decays


def test_untied_models_have_own_groups_only() -> None:
    for model in (load_small("gpt2", tie_word_embeddings=False), load_small("llama")):
        assert [group.layers for group in model.groups] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("model_type", CONFIGS)
def test_groups_cover_each_parameter_of_each_layer_once(model_type: str) -> None:
    model = load_small(model_type)
    uses = [use for group in model.groups for spec in group.parameters for use in spec.uses]
    layers = [model.build_layer(index) for index in range(len(model.layer_names))]
    held = [
        (index, name)
        for index, layer in enumerate(layers)
        for name, _ in (*layer.named_parameters(remove_duplicate=False), *statistics(layer))
    ]
    assert sorted(uses) == sorted(held)
    assert all(sorted_by_name(group) for group in model.groups)


def sorted_by_name(group: GroupSpec) -> bool:
    names = [spec.name for spec in group.parameters]
    return names == sorted(names)


@pytest.mark.parametrize("model_type", OLDEST)
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


@pytest.mark.parametrize("model_type", OLDEST)
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


def test_masked_lm_says_what_the_data_must_do() -> None:
    masked = {kind: load_model(small_section(kind), TRAIN, vocab_size=259).masked_lm for kind in OLDEST}
    assert masked == {"gpt2": False, "bert": True, "llama": False}
