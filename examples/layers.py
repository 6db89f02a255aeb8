"""A model of your own: any function that returns a list of layers, used as model type "layers:transformer".

A layer's forward takes what the layer before it returns, a tensor or a tuple of tensors, so the model can be
cut between any two of them. Here a block passes the embedding on beside its output, and the head adds them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Embedding(nn.Module):
    def __init__(self, vocab: int, width: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedding = self.token(input_ids) + self.position[: input_ids.shape[1]]
        return embedding, embedding


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length, width = hidden.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(self.norm(hidden)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.mlp(hidden), embedding


class Head(nn.Module):
    def __init__(self, width: int, token: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, token.num_embeddings, bias=False)
        self.logits.weight = token.weight  # tied: the same parameter in the first layer and in the last

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(hidden + embedding))


def transformer(
    width: int = 64, depth: int = 4, vocab: int = 259, context: int = 128, num_heads: int = 4
) -> list[nn.Module]:
    """A small causal language model; `vocab` is that of the byte tokenizer."""
    embedding = Embedding(vocab, width, context)
    nn.init.normal_(embedding.token.weight, std=0.02)
    return [embedding, *(Block(width, num_heads) for _ in range(depth)), Head(width, embedding.token)]
