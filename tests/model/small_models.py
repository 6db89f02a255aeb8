"""Small models of each family, and running a model layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import TrainSection
from planaria.model.load import load_huggingface_model
from planaria.model.model import Model, Tensors
from planaria.model.tensors.batch_norms import COUNT

VOCAB_SIZE = 259
TRAIN = TrainSection(steps=1, global_batch=4, microbatch=2, sequence_length=16, seed=7)
_ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_DECODER = {**_ENCODER, "num_key_value_heads": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "bert": {**_ENCODER, "num_attention_heads": 2},
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "qwen3": {**_DECODER, "head_dim": 8},
    "gemma2": {**_DECODER, "head_dim": 8, "sliding_window": 8},
    "gemma3_text": {**_DECODER, "head_dim": 8, "sliding_window": 8, "num_hidden_layers": 6},
    "phi3": _DECODER,
    "opt": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32,
    },
    "gpt_neox": _ENCODER,
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "olmo2": _DECODER,
    "mixtral": {**_DECODER, "num_local_experts": 4},
    "qwen3_moe": {**_DECODER, **_EXPERTS, "num_experts": 4},
    "deepseek_v3": {
        **_ENCODER, **_EXPERTS, "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_routed_experts": 8,
        "n_group": 2, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "n_shared_experts": 1,
    },
    "roberta": {**_ENCODER, "pad_token_id": 1},
    "modernbert": {**_ENCODER, "num_hidden_layers": 4, "local_attention": 8},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "vit": {**_ENCODER, "image_size": 16, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 24], "depths": [1, 2, 1, 1], "layer_type": "basic"},
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt2", {"tie_word_embeddings": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("bert", {}),
    ("bert", {"tie_word_embeddings": False}),
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
]
FAMILIES = [*VARIANTS, ("falcon", {"alibi": True})]
FAMILIES += [(kind, {}) for kind in CONFIGS if kind not in ("gpt2", "bert", "llama")]


def small_section(model_type: str, **overrides: Any) -> ModelSection:
    return ModelSection(type=model_type, config={**CONFIGS[model_type], **overrides})


def load_small(model_type: str, **overrides: Any) -> Any:
    return load_huggingface_model(small_section(model_type, **overrides), TRAIN, vocab_size=VOCAB_SIZE)


def whole_state(model: Model, seed: int = 0) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for group in range(len(model.groups)):
        state.update(model.initial_state(group, seed))
    return state


def shaken(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Moves every parameter a little, so that none is at a value of its own."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in state.items():
            value += 3.0 if name.endswith(COUNT) else 0.05 * torch.randn(value.shape, generator=generator)
    return state


def filled_layers(model: Model, state: Mapping[str, torch.Tensor]) -> list[nn.Module]:
    layers = [model.build_layer(index) for index in range(len(model.layer_names))]
    with torch.no_grad():
        for group in model.groups:
            for spec in group.parameters:
                for at, local in spec.uses if spec.name in state or not spec.is_statistic else ():
                    layer = layers[at]
                    own = layer.get_buffer(local) if spec.is_statistic else layer.get_parameter(local)
                    own.copy_(state[spec.name])
    return layers


def run_layers(layers: list[nn.Module], *inputs: torch.Tensor) -> Tensors:
    values: Tensors = inputs
    for layer in layers:
        output = layer(*values)
        values = output if isinstance(output, tuple) else (output,)
    return values


def random_ids(rows: int = 2, columns: int = 16) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (rows, columns), generator=torch.Generator().manual_seed(3))


def random_batch(model: Any) -> dict[str, torch.Tensor]:
    """What the model's first layer takes, by name."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randint(2, VOCAB_SIZE, example.shape, generator=generator)
        if example.dtype == torch.int64
        else torch.randn(example.shape, generator=generator)
        for name, example in model.example.items()
    }
