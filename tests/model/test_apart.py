"""Documents that are apart, and tokens beside what fills up, have the outputs that they should, or it is refused."""

from __future__ import annotations

import pytest
import torch
from small_models import TRAIN, VOCAB_SIZE, filled_layers, random_ids, run_layers, shaken, small_section
from torch import nn

from planaria.job.sections.data import DOCUMENT_POSITIONS, SOURCE_MASK
from planaria.job.sections.model import ModelSection
from planaria.model.comparison import compare
from planaria.model.config import TOKEN_MASK
from planaria.model.huggingface import logits
from planaria.model.load import load_huggingface_model, load_model
from planaria.model.model import Batch, ModelError

POSITIONS = torch.tensor([[*range(5), *range(9), 0, 1], [*range(16)]])
BATCH: Batch = {"input_ids": random_ids(), "labels": random_ids(), DOCUMENT_POSITIONS: POSITIONS}
KEPT_APART = ("gpt2", "llama", "qwen3", "phi3", "gpt_neox", "olmo2", "mixtral", "opt")


@pytest.mark.parametrize("model_type", KEPT_APART)
def test_documents_of_a_window_have_the_outputs_that_they_have_alone(model_type: str) -> None:
    section = small_section(model_type)
    model = load_huggingface_model(section, TRAIN, vocab_size=VOCAB_SIZE, example=BATCH)
    assert model.inputs == ("input_ids", DOCUMENT_POSITIONS)
    compare(model, section, TRAIN, BATCH)
    whole = model.model_class(model.config).eval()
    state = shaken({name: parameter.detach() for name, parameter in whole.named_parameters()})
    layers = [layer.eval() for layer in filled_layers(model, state)]
    (found,) = run_layers(layers, BATCH["input_ids"], POSITIONS)
    for row, begin, end in ((0, 0, 5), (0, 5, 14), (0, 14, 16), (1, 0, 16)):
        alone = logits(whole, {"input_ids": BATCH["input_ids"][row : row + 1, begin:end]})
        torch.testing.assert_close(found[row : row + 1, begin:end], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "overrides", "part"),
    [
        ("bert", {}, "does not predict the next token"),
        ("t5", {}, "takes no positions"),
        ("bloom", {}, "takes no positions"),
        ("mistral", {"sliding_window": 8}, "(model.config.sliding_window = 8), which would be lost"),
    ],
)
def test_models_that_cannot_are_refused(model_type: str, overrides: dict[str, object], part: str) -> None:
    with pytest.raises(ModelError, match=r'data\.packing = "apart"') as caught:
        load_model(small_section(model_type, **overrides), TRAIN, vocab_size=VOCAB_SIZE, example=BATCH)
    assert part in str(caught.value)


def test_a_model_whose_documents_see_each_other_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    section = small_section("llama")
    causal = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
    monkeypatch.setattr("planaria.model.huggingface._apart", lambda positions: causal & (positions >= 0).all())
    model = load_huggingface_model(section, TRAIN, vocab_size=VOCAB_SIZE, example=BATCH)
    with pytest.raises(ModelError, match=r"'llama' gives a document other outputs where another one is in its window"):
        compare(model, section, TRAIN, BATCH)


def layers() -> list[nn.Module]:
    return [nn.Embedding(VOCAB_SIZE, 8), nn.Linear(8, VOCAB_SIZE)]


def test_a_function_must_take_positions() -> None:
    with pytest.raises(ModelError, match=r"takes no document_positions"):
        load_model(ModelSection(type=f"{__name__}:layers"), TRAIN, vocab_size=VOCAB_SIZE, example=BATCH)


PAIRS: Batch = {"input_ids": random_ids(), SOURCE_MASK: (POSITIONS < 9).long(), "labels": random_ids()}


@pytest.mark.parametrize("model_type", ["t5"])
def test_an_encoder_does_not_read_what_fills_up(model_type: str) -> None:
    section = small_section(model_type)
    model = load_huggingface_model(section, TRAIN, vocab_size=VOCAB_SIZE, example=PAIRS)
    compare(model, section, TRAIN, PAIRS)
    with pytest.raises(ModelError, match=r'data\.packing = "translate": a llama model has no encoder'):
        load_model(small_section("llama"), TRAIN, vocab_size=VOCAB_SIZE, example=PAIRS)


MASK = torch.stack([torch.arange(16) < 9, torch.arange(16) >= 5]).long()
MASKED: Batch = {"input_ids": random_ids(), TOKEN_MASK: MASK, "labels": random_ids()}


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen3", "gemma2", "bert", "roberta", "t5"])
def test_a_dataset_s_mask_is_the_family_s_own(model_type: str) -> None:
    section = small_section(model_type, **({"sliding_window": 16} if model_type == "gemma2" else {}))
    model = load_huggingface_model(section, TRAIN, vocab_size=VOCAB_SIZE, example=MASKED)
    assert TOKEN_MASK in model.inputs
    compare(model, section, TRAIN, MASKED)


@pytest.mark.parametrize("model_type", ["gemma2", "modernbert"])
def test_a_mask_beside_which_a_narrow_window_would_be_lost_is_refused(model_type: str) -> None:
    section = small_section(model_type)
    model = load_huggingface_model(section, TRAIN, vocab_size=VOCAB_SIZE, example=MASKED)
    with pytest.raises(ModelError, match=rf"{model_type}' treats 'attention_mask' in a way of its own\. Leave it out"):
        compare(model, section, TRAIN, MASKED)


def test_a_model_that_takes_no_such_mask_is_refused() -> None:
    with pytest.raises(ModelError, match=r"forward fails with .*\. Leave 'attention_mask' out of the dataset's items"):
        load_huggingface_model(small_section("bloom"), TRAIN, vocab_size=VOCAB_SIZE, example=MASKED)
