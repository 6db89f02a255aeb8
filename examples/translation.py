"""GNMT, a translation model of LSTMs with attention, as an ordinary module, and a dataset of pairs of sequences.

    planaria train examples/translation.toml

Nothing in the model says where it is cut: its lists of blocks do. The encoder's output, the attention's context and the
residuals skip layers; Planaria finds that in the module's own forward. Nothing is downloaded: the language is made up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

PAD, BEGIN, END = range(3)
FIRST_WORD = 3
IGNORED = -100


class Recurrent(nn.Module):
    def __init__(self, inputs: int, width: int, dropout: float, bidirectional: bool = False) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(inputs, width // (1 + bidirectional), batch_first=True, bidirectional=bidirectional)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.lstm(self.dropout(sequence))[0]
        return hidden


class Attention(nn.Module):
    """Additive attention (Bahdanau et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        both = torch.tanh(self.query(hidden)[:, :, None] + self.key(memory)[:, None])
        scores = self.score(both).squeeze(-1).masked_fill(is_padding[:, None], float("-inf"))
        return scores.softmax(-1) @ memory


class Gnmt(nn.Module):
    """Wu et al. 2016: the first encoder layer reads both ways, residuals from the third layer on, and every layer of
    the decoder is given the attention of its first one. A depth of 8 is the GNMT-16 that pipelines are measured with.
    """

    def __init__(self, vocab: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.encoder = nn.ModuleList(Recurrent(width, width, dropout, bidirectional=at == 0) for at in range(depth))
        self.attention = Attention(width)
        self.decoder = nn.ModuleList(Recurrent((1 + (at > 0)) * width, width, dropout) for at in range(depth))
        self.output = nn.Linear(2 * width, vocab)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.source(source)
        for at, layer in enumerate(self.encoder):
            memory = layer(memory) + memory if at >= 2 else layer(memory)
        first, *others = self.decoder
        hidden = first(self.target(target))
        context = self.attention(hidden, memory, source == PAD)
        for at, layer in enumerate(others, 1):
            read = layer(torch.cat([hidden, context], -1))
            hidden = read + hidden if at >= 2 else read
        logits: torch.Tensor = self.output(torch.cat([hidden, context], -1))
        return logits


def gnmt(vocab: int = 32, width: int = 64, depth: int = 8, dropout: float = 0.2) -> Gnmt:
    """The model, for `model.type`."""
    return Gnmt(vocab, width, depth, dropout)


def smoothed(outputs: tuple[torch.Tensor, ...], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy of what is not padding, with a tenth of the probability on all words (for `model.loss`)."""
    return functional.cross_entropy(
        outputs[0].float().flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1, ignore_index=IGNORED
    )


class Pairs:
    """Sentences and their translations: the words are others, and come in reverse. Both are padded to `longest`."""

    def __init__(self, count: int, longest: int, vocab: int) -> None:
        self._count, self._longest = count, longest
        self._dictionary = FIRST_WORD + np.random.default_rng(0).permutation(vocab - FIRST_WORD)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, npt.NDArray[np.int64]]:
        chance = np.random.default_rng(number)
        words = chance.integers(0, len(self._dictionary), chance.integers(3, self._longest + 1))
        translation = self._dictionary[words][::-1]
        return {
            "source": self._padded(words + FIRST_WORD, PAD),
            "target": self._padded(np.append(BEGIN, translation), PAD),
            "labels": self._padded(np.append(translation, END), IGNORED),
        }

    def _padded(self, ids: npt.NDArray[np.int64], filled_up: int) -> npt.NDArray[np.int64]:
        return np.pad(ids, (0, self._longest + 1 - len(ids)), constant_values=filled_up)


def pairs(count: int = 4096, longest: int = 8, vocab: int = 32) -> Pairs:
    """The dataset, for `data.source`."""
    return Pairs(count, longest, vocab)
