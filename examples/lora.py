"""Writes a small Llama of random weights as a Hugging Face folder, in place of one that somebody has trained.

python examples/lora.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def write(folder: Path, width: int = 64, depth: int = 6) -> None:
    """Writes config.json and model.safetensors; its vocabulary is that of the byte tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
