"""GPT-2 as a list of layers: token and position embedding, blocks, final norm with the (tied) head."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2LMHeadModel, GPT2PreTrainedModel

from planaria.model.huggingface import Family, LayerPart

_WTE = "transformer.wte.weight"


class GPT2Embedding(nn.Module):
    """The embedding layer: (microbatch, sequence) token ids to (microbatch, sequence, width)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.drop = nn.Dropout(config.embd_pdrop)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[-1], device=input_ids.device).unsqueeze(0)
        hidden: torch.Tensor = self.drop(self.wte(input_ids) + self.wpe(positions))
        return hidden


class GPT2Head(nn.Module):
    """The head: (microbatch, sequence, width) to logits (microbatch, sequence, vocabulary)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(self.ln_f(hidden))
        return logits


def _cut(config: Any) -> tuple[LayerPart, ...]:
    # A block without a mask is causal by itself: its attention sets is_causal.
    blocks = [
        LayerPart(
            name=f"transformer.h.{index}",
            build=partial(GPT2Block, config, layer_idx=index),
            names=(("", f"transformer.h.{index}."),),
        )
        for index in range(config.num_hidden_layers)
    ]
    head = _WTE if config.tie_word_embeddings else "lm_head.weight"
    return (
        LayerPart(name="transformer.wte", build=partial(GPT2Embedding, config), names=(("", "transformer."),)),
        *blocks,
        LayerPart(
            name="lm_head",
            build=partial(GPT2Head, config),
            names=(("lm_head.weight", head), ("ln_f.", "transformer.ln_f.")),
        ),
    )


def _refuse(config: Any) -> str | None:
    if config.add_cross_attention:
        return (
            "model.config.add_cross_attention = true: the blocks would need an encoder's output, which no "
            "layer returns. Set it to false."
        )
    return None


def _aliases(name: str) -> tuple[str, ...]:
    return ("lm_head.weight",) if name == _WTE else ()


FAMILY = Family(
    model_type="gpt2",
    config_class=GPT2Config,
    model_class=GPT2LMHeadModel,
    initializer_class=GPT2PreTrainedModel,
    base_prefix="transformer.",
    embedding=_WTE,
    masked_lm=False,
    cut=_cut,
    refuse=_refuse,
    aliases=_aliases,
)
