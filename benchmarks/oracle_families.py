"""Families that the oracle trains: a small model of each, by Hugging Face's own class, and images for some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoConfig

CAUSAL, MASKED, SENTENCES, IMAGES = "CausalLM", "MaskedLM", "Seq2SeqLM", "ImageClassification"
"""Heads, as transformers names them: next tokens, hidden tokens, an encoder with a decoder, classes of images."""
VOCABULARY = 259
"""Of bytes."""
CLASSES = 4
_ENCODER = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
_DECODER = {**_ENCODER, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A small model, without dropout."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    head: str = CAUSAL
    learning_rate: float = 1e-3

    def build(self) -> Any:
        """Returns it with random weights, always the same."""
        size = {"num_labels": CLASSES} if self.head == IMAGES else {"vocab_size": VOCABULARY}
        defaults = AutoConfig.for_model(self.kind).to_dict()
        dropouts = {name: 0.0 for name, value in defaults.items() if "drop" in name and isinstance(value, float)}
        tokens = {name: None for name, value in defaults.items() if name.endswith("_token_id") and _is_outside(value)}
        config = AutoConfig.for_model(self.kind, **{**dropouts, **tokens, **size, **self.config})
        torch.manual_seed(11)
        return getattr(transformers, f"AutoModelFor{self.head}").from_config(config, dtype=torch.float32)


def _is_outside(token: object) -> bool:
    return isinstance(token, int) and token >= VOCABULARY


def _families(*families: Family) -> dict[str, Family]:
    return {family.kind: family for family in families}


FAMILIES = _families(
    Family(kind="gpt2", config={"n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 64}),
    Family(kind="llama", config=_DECODER),
    Family(kind="mistral", config={**_DECODER, "sliding_window": 8}),
    Family(kind="qwen2", config=_DECODER),
    Family(kind="qwen3", config={**_DECODER, "head_dim": 8}),
    Family(kind="gemma2", config={**_DECODER, "head_dim": 8, "sliding_window": 8}),
    Family(kind="gemma3_text", config={**_DECODER, "head_dim": 8, "sliding_window": 8, "num_hidden_layers": 6}),
    Family(kind="phi3", config={**_DECODER, "pad_token_id": 0}),
    Family(
        kind="opt",
        config={
            "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 48,
            "word_embed_proj_dim": 32, "max_position_embeddings": 64,
        },
    ),
    Family(kind="gpt_neox", config=_ENCODER),
    Family(kind="falcon", config={"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}),
    Family(kind="bloom", config={"hidden_size": 32, "n_layer": 4, "n_head": 4}),
    Family(kind="olmo2", config=_DECODER),
    Family(kind="mixtral", config={**_DECODER, "num_local_experts": 4}),
    Family(kind="qwen3_moe", config={**_DECODER, **_EXPERTS, "num_experts": 4}),
    Family(
        kind="deepseek_v3",
        config={
            **_ENCODER, **_EXPERTS, "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_routed_experts": 8,
            "n_group": 2, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "n_shared_experts": 1,
        },
    ),
    Family(kind="bert", config=_ENCODER, head=MASKED),
    Family(kind="roberta", config={**_ENCODER, "pad_token_id": 1}, head=MASKED),
    Family(kind="modernbert", config={**_ENCODER, "local_attention": 8}, head=MASKED),
    Family(
        kind="t5",
        config={"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
        head=SENTENCES,
    ),
    Family(kind="vit", config={**_ENCODER, "image_size": 64, "patch_size": 16}, head=IMAGES),
    Family(
        kind="resnet",
        config={"embedding_size": 8, "hidden_sizes": [8, 16, 16, 24], "depths": [1, 2, 1, 1], "layer_type": "basic"},
        head=IMAGES,
        learning_rate=1e-4,
    ),
)  # fmt: skip


def images(count: int = 64, size: int = 64) -> Sequence[dict[str, Any]]:
    """A dataset for `data.source`: noise, brighter in one quarter, which is its class."""
    generator = torch.Generator().manual_seed(4)
    found = []
    for number in range(count):
        pixels, half = torch.randn(3, size, size, generator=generator), size // 2
        label = number % CLASSES
        top, left = half * (label // 2), half * (label % 2)
        pixels[:, top : top + half, left : left + half] += 1.0
        found.append({"pixel_values": pixels, "labels": label})
    return found
