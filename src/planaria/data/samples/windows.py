"""Windows of tokens: those of a sequence as inputs, and as labels the next ones, or those that are hidden."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from planaria.data.order import Numbers
from planaria.data.reading.sources import DataError
from planaria.data.samples.samples import IGNORED_LABEL, Batch
from planaria.data.tokens.token_set import TokenSet
from planaria.job.sections.data import DOCUMENT_POSITIONS
from planaria.job.sections.train import TrainSection

_MASKED_SHARE, _REPLACED_SHARE = 0.8, 0.1
"""Shares of the tokens to predict; the rest stay as they are (BERT, Devlin et al. 2019, section 3.1)."""


class Labelling:
    """Makes inputs and labels of the tokens of windows, each with the token after it.

    Args:
        vocab_size: ids are below it.
        mask_token_id: what hides a token, if the tokenizer has one.
        tokenizer: the job's field, for messages.
        mask_probability: share of tokens to predict, for a masked language model.
        masked_lm: whether to hide tokens and ask for them, rather than for the next ones.

    Raises:
        DataError: a masked language model whose tokenizer cannot mask.
    """

    def __init__(
        self, *, vocab_size: int, mask_token_id: int | None, tokenizer: str, mask_probability: float, masked_lm: bool
    ) -> None:
        if masked_lm and mask_token_id is None:
            raise DataError(
                f"data.tokenizer = {tokenizer!r} has no mask token, which a masked language "
                'model needs. Add "[MASK]" to it, or use another model.'
            )
        if masked_lm and not 0.0 < mask_probability <= 1.0:
            raise DataError(f"data.mask_probability = {mask_probability} is not above 0 and at most 1. Set it to 0.15.")
        self._vocab_size = vocab_size
        self._mask_token_id = -1 if mask_token_id is None else mask_token_id
        self._mask_probability = mask_probability
        self._masked_lm = masked_lm

    def __call__(self, ids: npt.NDArray[np.int64], chance: np.random.Generator) -> Batch:
        """Returns `input_ids` and `labels`, a window each row."""
        if self._masked_lm:
            inputs, labels = self._mask(ids[:, :-1], chance)
        else:
            inputs, labels = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
        return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}

    def _mask(
        self, ids: npt.NDArray[np.int64], chance: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns inputs with hidden tokens, and labels that ask for those alone; at least one."""
        chosen = chance.random(ids.shape) < self._mask_probability
        fate = chance.random(ids.shape)
        replacements = chance.integers(0, self._vocab_size, ids.shape, dtype=np.int64)
        if not chosen.any():
            chosen.flat[chance.integers(0, chosen.size)] = True
        labels = np.where(chosen, ids, IGNORED_LABEL)
        inputs = np.where(chosen & (fate < _MASKED_SHARE), self._mask_token_id, ids)
        replaced = chosen & (fate >= _MASKED_SHARE) & (fate < _MASKED_SHARE + _REPLACED_SHARE)
        return np.where(replaced, replacements, inputs), labels


class Windows:
    """Cuts tokens into windows of `sequence_length`, each with the token after it, for the labels.

    Batches have `input_ids` and `labels`, int64, of shape (rows, sequence_length), and where documents are apart, the
    position of each token in its document, or in what the window has of it.

    Args:
        tokens: what to cut.
        train: the job's [train].
        mask_probability: share of tokens to predict, for a masked language model.
        masked_lm: whether to hide tokens and ask for them, rather than for the next ones.
        field: of the job, that names the source.
        are_apart: whether no document sees another in its window.

    Raises:
        DataError: fewer tokens than one window has, or a masked language model whose tokenizer cannot mask.
    """

    def __init__(
        self,
        tokens: TokenSet,
        train: TrainSection,
        mask_probability: float,
        masked_lm: bool,
        field: str = "data.source",
        *,
        are_apart: bool = False,
    ) -> None:
        self._label = Labelling(
            vocab_size=tokens.vocab_size,
            mask_token_id=tokens.mask_token_id,
            tokenizer=tokens.about.tokenizer,
            mask_probability=mask_probability,
            masked_lm=masked_lm,
        )
        self.named = f"{field} = {tokens.about.source!r}"
        self.unit = f"windows of {train.sequence_length} tokens"
        self.order = tokens.about.order
        if len(tokens) < train.sequence_length + 1:
            raise DataError(
                f"{self.named} has {len(tokens)} tokens, fewer than the {train.sequence_length + 1} of one sequence. "
                f"Give more data, or set train.sequence_length to {max(len(tokens) - 1, 1)} or less."
            )
        self._tokens = tokens
        self._length = train.sequence_length
        self._are_apart = are_apart
        self._positions = np.arange(self._length + 1, dtype=np.int64)

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def batch(self, numbers: Numbers, chance: np.random.Generator) -> Batch:
        places = numbers[:, None] * self._length + self._positions
        ids: npt.NDArray[np.int64] = self._tokens.ids[places].astype(np.int64)
        found = self._label(ids, chance)
        if self._are_apart:
            found[DOCUMENT_POSITIONS] = torch.from_numpy(self._within_documents(places[:, :-1]))
        return found

    def _within_documents(self, places: Numbers) -> Numbers:
        """Returns positions in documents of the tokens at these places, a window each row."""
        ends = self._tokens.documents
        ended = np.searchsorted(ends, places, side="right")
        begins = np.where(ended > 0, ends[ended - 1], 0)
        found: Numbers = places - np.maximum(begins, places[:, :1])
        return found
