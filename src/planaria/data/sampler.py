"""Samples a microbatch: a pure function of (seed, step, microbatch); one to evaluate on is one of its number alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from planaria.data.order import MASKING, SPLIT, VALIDATION, Numbers, dealt, generator, permuted
from planaria.data.sources import DataError
from planaria.data.tokens import TokenSet, open_tokens, validation_folder
from planaria.job.settings import Job, TrainSection

Batch = dict[str, torch.Tensor]
"""`input_ids` and `labels`, int64, of shape (microbatch, sequence_length)."""

_IGNORED_LABEL = -100
_EVERY_RUN = 0
"""Seed of what is the same whatever train.seed is: which windows are held out, and what is masked of them."""

_MASKED_SHARE, _REPLACED_SHARE = 0.8, 0.1
"""Shares of the tokens to predict; the rest stay as they are (BERT, Devlin et al. 2019, section 3.1)."""


class Sampler:
    """Cuts the tokens into windows and deals them to microbatches.

    The tokens are cut into windows of `sequence_length` (each with the token after it, for the labels). Every
    epoch orders the windows anew and deals each of them once, to consecutive microbatches of consecutive
    steps. Any sampler with the same arguments gives the same microbatches, whatever was asked of it before.

    Args:
        tokens: what to deal.
        train: the job's [train].
        mask_probability: share of tokens to predict, for a masked language model.
        masked_lm: whether to hide tokens and ask for them, rather than for the next ones.
        eval_share: share of the windows to hold out.
        validation: other tokens to evaluate on.

    Raises:
        DataError: fewer tokens than one window has, or none left to train or to evaluate on, or a masked language
            model whose tokenizer cannot mask.
    """

    def __init__(
        self,
        tokens: TokenSet,
        train: TrainSection,
        mask_probability: float,
        masked_lm: bool,
        *,
        eval_share: float = 0.0,
        validation: TokenSet | None = None,
    ) -> None:
        if masked_lm and tokens.mask_token_id is None:
            raise DataError(
                f"data.tokenizer = {tokens.about.tokenizer!r} has no mask token, which a masked language "
                'model needs. Add "[MASK]" to it, or use another model.'
            )
        if masked_lm and not 0.0 < mask_probability <= 1.0:
            raise DataError(f"data.mask_probability = {mask_probability} is not above 0 and at most 1. Set it to 0.15.")
        self._tokens = tokens
        self._validation = validation
        self._train = train
        self._mask_probability = mask_probability
        self._masked_lm = masked_lm
        self._mask_token_id = -1 if tokens.mask_token_id is None else tokens.mask_token_id
        self._all_windows = _num_windows("data.source", tokens, train)
        self._num_held_out = _held_out(self._all_windows, eval_share, train.microbatch)
        self._num_eval_microbatches = self._num_held_out // train.microbatch
        if validation is not None:
            self._num_eval_microbatches = _num_windows("eval.source", validation, train) // train.microbatch
            if not self._num_eval_microbatches:
                raise DataError(
                    f"eval.source = {validation.about.source!r} has fewer windows of {train.sequence_length} tokens "
                    f"than one microbatch of {train.microbatch}. Give more data."
                )
        self._positions = np.arange(train.sequence_length + 1, dtype=np.int64)

    @property
    def num_windows(self) -> int:
        """Number of sequences in an epoch."""
        return self._all_windows - self._num_held_out

    @property
    def num_eval_microbatches(self) -> int:
        """Number of microbatches that are never trained on."""
        return self._num_eval_microbatches

    def windows(self, step: int, index: int) -> Numbers:
        """Returns the numbers of the windows that microbatch `index` of `step` holds.

        Args:
            step: from 0.
            index: of the microbatch within the step, from 0.
        """
        train, size = self._train, self.num_windows
        assert step >= 0
        assert 0 <= index < train.num_microbatches, f"microbatch {index} of {train.num_microbatches}"
        first = step * train.global_batch + index * train.microbatch
        epochs, places = np.divmod(np.arange(first, first + train.microbatch), size)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            places[of_epoch] = dealt(self._tokens.about.order, places[of_epoch], size, train.seed, int(epoch))
        return self._split(places)

    def held_out(self, index: int) -> Numbers:
        """Returns the numbers of the windows that microbatch `index` of those to evaluate on holds."""
        assert 0 <= index < self._num_eval_microbatches, f"microbatch {index} of {self._num_eval_microbatches}"
        first = index * self._train.microbatch
        places = np.arange(first, first + self._train.microbatch)
        return places if self._validation is not None else self._split(self.num_windows + places)

    def microbatch(self, step: int, index: int) -> Batch:
        """Returns the batch of microbatch `index` of `step`; see `windows`."""
        ids = self._read(self._tokens, self.windows(step, index))
        return self._batch(ids, generator(self._train.seed, MASKING, step, index))

    def eval_microbatch(self, index: int) -> Batch:
        """Returns the batch of microbatch `index` of those to evaluate on: the same in every run; see `held_out`."""
        ids = self._read(self._validation or self._tokens, self.held_out(index))
        return self._batch(ids, generator(_EVERY_RUN, VALIDATION, index))

    def _split(self, places: Numbers) -> Numbers:
        """Returns the windows at places of which the first are trained on, and the rest held out."""
        return permuted(places, self._all_windows, _EVERY_RUN, SPLIT) if self._num_held_out else places

    def _read(self, tokens: TokenSet, windows: Numbers) -> npt.NDArray[np.int64]:
        starts = windows * self._train.sequence_length
        ids: npt.NDArray[np.int64] = tokens.ids[starts[:, None] + self._positions].astype(np.int64)
        return ids

    def _batch(self, ids: npt.NDArray[np.int64], chance: np.random.Generator) -> Batch:
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
        replacements = chance.integers(0, self._tokens.vocab_size, ids.shape, dtype=np.int64)
        if not chosen.any():
            chosen.flat[chance.integers(0, chosen.size)] = True
        labels = np.where(chosen, ids, _IGNORED_LABEL)
        inputs = np.where(chosen & (fate < _MASKED_SHARE), self._mask_token_id, ids)
        replaced = chosen & (fate >= _MASKED_SHARE) & (fate < _MASKED_SHARE + _REPLACED_SHARE)
        return np.where(replaced, replacements, inputs), labels


def open_sampler(job: Job, folder: Path, *, masked_lm: bool) -> Sampler:
    """Opens what was prepared of a job's data in a folder.

    Raises:
        DataError: nothing was, or it is too little.
    """
    sampler = Sampler(
        open_tokens(folder),
        job.train,
        job.data.mask_probability,
        masked_lm,
        eval_share=job.eval.share,
        validation=open_tokens(validation_folder(folder)) if job.eval.source else None,
    )
    most = sampler.num_eval_microbatches
    if job.eval.every and job.eval.microbatches > most:
        raise DataError(
            f"eval.microbatches = {job.eval.microbatches} is more than the {most} that there are to evaluate on. "
            f"Set it to {most}, or give more data to evaluate on."
        )
    return sampler


def _num_windows(field: str, tokens: TokenSet, train: TrainSection) -> int:
    needed = train.sequence_length + 1
    if len(tokens) < needed:
        raise DataError(
            f"{field} = {tokens.about.source!r} has {len(tokens)} tokens, fewer than the {needed} of one sequence. "
            f"Give more data, or set train.sequence_length to {max(len(tokens) - 1, 1)} or less."
        )
    return (len(tokens) - 1) // train.sequence_length


def _held_out(num_windows: int, share: float, microbatch: int) -> int:
    """Returns how many windows are held out: whole microbatches."""
    num_held_out = math.ceil(share * num_windows / microbatch) * microbatch
    if num_held_out >= num_windows:
        raise DataError(
            f"eval.share = {share} holds out all of the {num_windows} windows of the data, in microbatches of "
            f"{microbatch}. Give more data, or a share or a microbatch that is smaller."
        )
    return num_held_out
