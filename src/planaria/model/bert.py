"""BERT for masked language modelling as a list of layers: embeddings, encoder layers, prediction head."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertForMaskedLM,
    BertLayer,
    BertPredictionHeadTransform,
    BertPreTrainedModel,
)

from planaria.model.huggingface import Family, LayerPart

_WORDS = "bert.embeddings.word_embeddings.weight"
_BIAS = "cls.predictions.bias"
_DECODER = "cls.predictions.decoder."


class BertHead(nn.Module):
    """The prediction head: (microbatch, sequence, width) to logits (microbatch, sequence, vocabulary)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(self.transform(hidden))
        return logits


def _cut(config: Any) -> tuple[LayerPart, ...]:
    layers = [
        LayerPart(
            name=f"bert.encoder.layer.{index}",
            build=partial(BertLayer, config, layer_idx=index),
            names=(("", f"bert.encoder.layer.{index}."),),
        )
        for index in range(config.num_hidden_layers)
    ]
    tied = config.tie_word_embeddings
    return (
        LayerPart(name="bert.embeddings", build=partial(BertEmbeddings, config), names=(("", "bert.embeddings."),)),
        *layers,
        LayerPart(
            name="cls",
            build=partial(BertHead, config),
            names=(
                ("decoder.weight", _WORDS if tied else _DECODER + "weight"),
                ("decoder.bias", _BIAS if tied else _DECODER + "bias"),
                ("transform.", "cls.predictions.transform."),
            ),
        ),
    )


def _refuse(config: Any) -> str | None:
    for key in ("is_decoder", "add_cross_attention"):
        if getattr(config, key, False):
            return (
                f"model.config.{key} = true: planaria trains BERT as a masked language model, an encoder. "
                "Set it to false, or use gpt2 or llama for a decoder."
            )
    return None


def _aliases(name: str) -> tuple[str, ...]:
    names = {_WORDS: (_DECODER + "weight",), _BIAS: (_DECODER + "bias",), _DECODER + "bias": (_BIAS,)}
    if "LayerNorm" in name:
        # The names of the first TensorFlow checkpoints, still in bert-base-uncased.
        return (name.replace(".weight", ".gamma").replace(".bias", ".beta"),)
    return names.get(name, ())


FAMILY = Family(
    model_type="bert",
    config_class=BertConfig,
    model_class=BertForMaskedLM,
    initializer_class=BertPreTrainedModel,
    base_prefix="bert.",
    embedding=_WORDS,
    masked_lm=True,
    cut=_cut,
    refuse=_refuse,
    aliases=_aliases,
)
