"""Small models of each family, and running a model layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from planaria.job.settings import ModelSection, TrainSection
from planaria.model.load import load_huggingface_model
from planaria.model.model import Model, Tensors

VOCAB_SIZE = 259
TRAIN = TrainSection(steps=1, global_batch=4, microbatch=2, sequence_length=16, seed=7)
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "bert": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    },
    "llama": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
    },
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt2", {"tie_word_embeddings": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("bert", {}),
    ("bert", {"tie_word_embeddings": False}),
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
]


def small_section(model_type: str, **overrides: Any) -> ModelSection:
    return ModelSection(type=model_type, config={**CONFIGS[model_type], **overrides})


def load_small(model_type: str, **overrides: Any) -> Any:
    return load_huggingface_model(small_section(model_type, **overrides), TRAIN, vocab_size=VOCAB_SIZE)


def whole_state(model: Model, seed: int = 0) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for group in range(len(model.groups)):
        state.update(model.initial_state(group, seed))
    return state


def filled_layers(model: Model, state: Mapping[str, torch.Tensor]) -> list[nn.Module]:
    layers = [model.build_layer(index) for index in range(len(model.layer_names))]
    with torch.no_grad():
        for group in model.groups:
            for spec in group.parameters:
                for layer, local in spec.uses:
                    layers[layer].get_parameter(local).copy_(state[spec.name])
    return layers


def run_layers(layers: list[nn.Module], *inputs: torch.Tensor) -> Tensors:
    values: Tensors = inputs
    for layer in layers:
        output = layer(*values)
        values = output if isinstance(output, tuple) else (output,)
    return values


def random_ids(rows: int = 2, columns: int = 16) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (rows, columns), generator=torch.Generator().manual_seed(3))
