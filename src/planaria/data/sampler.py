"""Samples the tokens of a microbatch: a pure function of (seed, step, microbatch)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from planaria.data.sources import DataError
from planaria.data.tokens import TokenSet
from planaria.job.settings import TrainSection

Batch = dict[str, torch.Tensor]
"""`input_ids` and `labels`, int64, of shape (microbatch, sequence_length)."""

_IGNORED_LABEL = -100
_ORDER, _MASKING = 0, 1
"""Domains of random numbers: no two of them draw from one stream."""

_MASKED_SHARE, _REPLACED_SHARE = 0.8, 0.1
"""Shares of the tokens to predict; the rest stay as they are (BERT, Devlin et al. 2019, section 3.1)."""


class Sampler:
    """Cuts the tokens into windows and deals them to microbatches.

    The tokens are cut into windows of `sequence_length` (each with the token after it, for the labels). Every
    epoch shuffles the windows anew and deals each of them once, to consecutive microbatches of consecutive
    steps. Any sampler with the same arguments gives the same microbatches, whatever was asked of it before.

    Args:
        tokens: what to deal.
        train: the job's [train].
        mask_probability: share of tokens to predict, for a masked language model.
        masked_lm: whether to hide tokens and ask for them, rather than for the next ones.

    Raises:
        DataError: fewer tokens than one window has, or a masked language model whose tokenizer cannot mask.
    """

    def __init__(self, tokens: TokenSet, train: TrainSection, mask_probability: float, masked_lm: bool) -> None:
        needed = train.sequence_length + 1
        if len(tokens) < needed:
            raise DataError(
                f"data.source = {tokens.about.source!r} has {len(tokens)} tokens, fewer than the {needed} "
                "of one sequence. Give more data, or set train.sequence_length to "
                f"{max(len(tokens) - 1, 1)} or less."
            )
        if masked_lm and tokens.mask_token_id is None:
            raise DataError(
                f"data.tokenizer = {tokens.about.tokenizer!r} has no mask token, which a masked language "
                'model needs. Add "[MASK]" to it, or use another model.'
            )
        if masked_lm and not 0.0 < mask_probability <= 1.0:
            raise DataError(f"data.mask_probability = {mask_probability} is not above 0 and at most 1. Set it to 0.15.")
        self._tokens = tokens
        self._train = train
        self._mask_probability = mask_probability
        self._masked_lm = masked_lm
        self._mask_token_id = -1 if tokens.mask_token_id is None else tokens.mask_token_id
        self._num_windows = (len(tokens) - 1) // train.sequence_length
        self._positions = np.arange(needed, dtype=np.int64)

    @property
    def num_windows(self) -> int:
        """Number of sequences in an epoch."""
        return self._num_windows

    def windows(self, step: int, index: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of the windows that microbatch `index` of `step` holds.

        Args:
            step: from 0.
            index: of the microbatch within the step, from 0.
        """
        train = self._train
        assert step >= 0
        assert 0 <= index < train.num_microbatches, f"microbatch {index} of {train.num_microbatches}"
        first = step * train.global_batch + index * train.microbatch
        return np.array(
            [
                self._order(sequence // self._num_windows)[sequence % self._num_windows]
                for sequence in range(first, first + train.microbatch)
            ],
            dtype=np.int64,
        )

    def microbatch(self, step: int, index: int) -> Batch:
        """Returns the batch of microbatch `index` of `step`; see `windows`."""
        starts = self.windows(step, index) * self._train.sequence_length
        ids = self._tokens.ids[starts[:, None] + self._positions].astype(np.int64)
        if self._masked_lm:
            inputs, labels = self._mask(ids[:, :-1], step, index)
        else:
            inputs, labels = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
        return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}

    def _order(self, epoch: int) -> npt.NDArray[Any]:
        return _shuffle(self._train.seed, epoch, self._num_windows)

    def _mask(
        self, ids: npt.NDArray[np.int64], step: int, index: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns inputs with hidden tokens, and labels that ask for those alone; at least one."""
        generator = _generator(self._train.seed, _MASKING, step, index)
        chosen = generator.random(ids.shape) < self._mask_probability
        fate = generator.random(ids.shape)
        replacements = generator.integers(0, self._tokens.vocab_size, ids.shape, dtype=np.int64)
        if not chosen.any():
            chosen.flat[generator.integers(0, chosen.size)] = True
        labels = np.where(chosen, ids, _IGNORED_LABEL)
        inputs = np.where(chosen & (fate < _MASKED_SHARE), self._mask_token_id, ids)
        replaced = chosen & (fate >= _MASKED_SHARE) & (fate < _MASKED_SHARE + _REPLACED_SHARE)
        return np.where(replaced, replacements, inputs), labels


def _generator(seed: int, *path: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed % 2**64, *path])))


@lru_cache(maxsize=4)
def _shuffle(seed: int, epoch: int, num_windows: int) -> npt.NDArray[Any]:
    dtype = np.uint32 if num_windows < 2**32 else np.uint64
    order = np.arange(num_windows, dtype=dtype)
    _generator(seed, _ORDER, epoch).shuffle(order)
    order.flags.writeable = False
    return order
