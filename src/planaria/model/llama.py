"""Llama as a list of layers: token embedding, decoder layers, final norm with the head.

Each decoder layer computes the rotary cosines and sines itself: they are a few kilobytes for all heads and
microbatches, cheaper to compute than to send between stages.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from planaria.model.huggingface import Family, LayerPart

_EMBED = "model.embed_tokens.weight"


class LlamaEmbedding(nn.Module):
    """The embedding layer: (microbatch, sequence) token ids to (microbatch, sequence, width)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed_tokens(input_ids)
        return hidden


class LlamaBlock(nn.Module):
    """A decoder layer with its own rotary positions, causal without a mask."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        self.layer = LlamaDecoderLayer(config, index)
        self._config = config
        self._rotary: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        length = hidden.shape[1]
        rotary = self._rotary
        if (
            rotary is None
            or rotary[0].shape[1] != length
            or rotary[0].device != hidden.device
            or rotary[0].dtype != hidden.dtype
        ):
            rotary = self._rotary = _cosines_and_sines(self._config, hidden)
        output: torch.Tensor = self.layer(hidden, position_embeddings=rotary)
        return output


def _cosines_and_sines(config: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines, (1, sequence, head width), from float32 frequencies whatever the parameters' dtype."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        positions = torch.arange(like.shape[1], device=like.device).unsqueeze(0)
        cosines, sines = LlamaRotaryEmbedding(config)(like, positions)
    return cosines, sines


class LlamaHead(nn.Module):
    """The head: (microbatch, sequence, width) to logits (microbatch, sequence, vocabulary)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(self.norm(hidden))
        return logits


def _cut(config: Any) -> tuple[LayerPart, ...]:
    blocks = [
        LayerPart(
            name=f"model.layers.{index}",
            build=partial(LlamaBlock, config, index),
            names=(("layer.", f"model.layers.{index}."),),
        )
        for index in range(config.num_hidden_layers)
    ]
    head = _EMBED if config.tie_word_embeddings else "lm_head.weight"
    return (
        LayerPart(name="model.embed_tokens", build=partial(LlamaEmbedding, config), names=(("", "model."),)),
        *blocks,
        LayerPart(
            name="lm_head",
            build=partial(LlamaHead, config),
            names=(("lm_head.weight", head), ("norm.", "model.norm.")),
        ),
    )


def _refuse(config: Any) -> str | None:
    if config.num_attention_heads % config.num_key_value_heads:
        return (
            f"model.config.num_key_value_heads = {config.num_key_value_heads} does not divide "
            f"num_attention_heads = {config.num_attention_heads}. Choose a divisor."
        )
    return None


def _aliases(name: str) -> tuple[str, ...]:
    return ("lm_head.weight",) if name == _EMBED else ()


FAMILY = Family(
    model_type="llama",
    config_class=LlamaConfig,
    model_class=LlamaForCausalLM,
    initializer_class=LlamaPreTrainedModel,
    base_prefix="model.",
    embedding=_EMBED,
    masked_lm=False,
    cut=_cut,
    refuse=_refuse,
    aliases=_aliases,
)
