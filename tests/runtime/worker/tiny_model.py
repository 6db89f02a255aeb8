"""The smallest model that has all that is hard: a tied parameter, dropout, tuples between layers."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 4
VOCAB = 259
NOT_FINITE = (float("nan"), float("inf"))


class Embedding(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedding = self.token(input_ids)
        return self.dropout(embedding), embedding


class Block(nn.Module):
    """With probability `skip` a block does nothing, so that its parameters get no gradient at all; with probability
    `bad` its output, or the gradient of its weights, is NaN or infinite."""

    def __init__(self, dropout: float, skip: float, bad: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.skip = skip
        self.bad = bad

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.skip and float(torch.rand(())) < self.skip:
            return hidden, embedding
        added = self.dropout(torch.tanh(self.linear(hidden)))
        if self.bad and float(torch.rand(())) < self.bad:
            added = _spoilt(added)
        return hidden + added, embedding


def _spoilt(tensor: torch.Tensor) -> torch.Tensor:
    """Itself times NaN or infinity; or itself, with an infinite gradient."""
    manner = int(torch.randint(3, ()))
    if manner == 2:
        return tensor + torch.sqrt(tensor - tensor.detach())
    return tensor * NOT_FINITE[manner]


class Head(nn.Module):
    def __init__(self, token: nn.Embedding, *, tied: bool) -> None:
        super().__init__()
        self.logits = nn.Linear(WIDTH, VOCAB)
        if tied:
            self.logits.weight = token.weight

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        return self.logits(hidden + embedding)


class Recurrent(nn.LSTM):
    """Keeps a list of its weights, and computes other bits on a CPU where autograd does not follow."""

    def forward(self, hidden: torch.Tensor, embedding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(hidden)[0], embedding


def recurrent() -> list[nn.Module]:
    embedding = Embedding(0.1)
    return [
        embedding,
        *(Recurrent(WIDTH, WIDTH, batch_first=True) for _ in range(2)),
        Head(embedding.token, tied=True),
    ]


def layers(
    depth: int = 2, dropout: float = 0.1, tied: bool = True, skip: float = 0.0, bad: float = 0.0
) -> list[nn.Module]:
    """`depth` blocks between an embedding and a head."""
    embedding = Embedding(dropout)
    return [embedding, *(Block(dropout, skip, bad) for _ in range(depth)), Head(embedding.token, tied=tied)]
