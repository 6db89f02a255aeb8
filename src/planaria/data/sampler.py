"""Deals samples to microbatches: a pure function of (seed, step, microbatch); to evaluate on, of its number alone."""

from __future__ import annotations

import math

import numpy as np

from planaria.data.order import CHANCE, SPLIT, VALIDATION, Numbers, dealt, generator, permuted
from planaria.data.reading.sources import DataError
from planaria.data.samples.samples import Batch, Samples
from planaria.data.streams.shuffled import StreamSamples
from planaria.job.sections.train import TrainSection

_EVERY_RUN = 0
"""Seed of what is the same whatever train.seed is: which samples are held out, and their chance."""


class Sampler:
    """Deals samples to microbatches.

    Every epoch orders the samples anew and deals each of them once, to consecutive microbatches of consecutive steps;
    those of a stream come as it gives them, but shuffled in groups. Any sampler with the same arguments gives the same
    microbatches, whatever was asked of it before.

    Args:
        samples: what to deal.
        train: the job's [train].
        eval_share: share of the samples to hold out.
        validation: other samples to evaluate on.

    Raises:
        DataError: none are left to train or to evaluate on.
    """

    def __init__(
        self, samples: Samples, train: TrainSection, *, eval_share: float = 0.0, validation: Samples | None = None
    ) -> None:
        self._samples = samples
        self._validation = validation
        self._train = train
        self._num_held_out = _held_out(samples, eval_share, train.microbatch)
        self._num_eval_microbatches = self._num_held_out // train.microbatch
        if validation is not None:
            self._num_eval_microbatches = len(validation) // train.microbatch
            if not self._num_eval_microbatches:
                raise DataError(
                    f"{validation.named} has fewer {validation.unit} than one microbatch of {train.microbatch}. "
                    "Give more data."
                )

    @property
    def samples(self) -> Samples:
        return self._samples

    @property
    def has_validation(self) -> bool:
        """Whether there are other samples to evaluate on."""
        return self._validation is not None

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch."""
        return len(self._samples) - self._num_held_out

    @property
    def num_eval_microbatches(self) -> int:
        """Number of microbatches that are never trained on."""
        return self._num_eval_microbatches

    def numbers(self, step: int, index: int) -> Numbers:
        """Returns the numbers of the samples that microbatch `index` of `step` holds.

        Args:
            step: from 0.
            index: of the microbatch within the step, from 0.
        """
        return self.dealt(of_microbatch(self._train, step, index))

    def dealt(self, places: Numbers) -> Numbers:
        """Returns the numbers of the samples that are dealt at these places, counted from the first one of all."""
        if isinstance(self._samples, StreamSamples):
            return self._samples.dealt(places, self._train.seed)
        size = self.num_samples
        epochs, places = np.divmod(places, size)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            places[of_epoch] = dealt(self._samples.order, places[of_epoch], size, self._train.seed, int(epoch))
        return self._split(places)

    def held_out(self, index: int) -> Numbers:
        """Returns the numbers of the samples that microbatch `index` of those to evaluate on holds."""
        assert 0 <= index < self._num_eval_microbatches, f"microbatch {index} of {self._num_eval_microbatches}"
        first = index * self._train.microbatch
        places = np.arange(first, first + self._train.microbatch)
        return places if self._validation is not None else self._split(self.num_samples + places)

    def microbatch(self, step: int, index: int) -> Batch:
        """Returns the batch of microbatch `index` of `step`; see `numbers`. Of a stream that of the next step is wanted
        then: most likely this process is to have that too, and it may lie on another host."""
        batch = self._samples.batch(self.numbers(step, index), generator(self._train.seed, CHANCE, step, index))
        if isinstance(self._samples, StreamSamples):
            self._samples.want(of_microbatch(self._train, step + 1, index), self._train.seed)
        return batch

    def eval_microbatch(self, index: int) -> Batch:
        """Returns the batch of microbatch `index` of those to evaluate on: the same in every run; see `held_out`."""
        samples = self._samples if self._validation is None else self._validation
        return samples.batch(self.held_out(index), generator(_EVERY_RUN, VALIDATION, index))

    def _split(self, places: Numbers) -> Numbers:
        """Returns the samples at places of which the first are trained on, and the rest held out."""
        return permuted(places, len(self._samples), _EVERY_RUN, SPLIT) if self._num_held_out else places


def of_microbatch(train: TrainSection, step: int, index: int) -> Numbers:
    """Returns the places of a microbatch's samples, counted from the first one that is dealt."""
    assert step >= 0
    assert 0 <= index < train.num_microbatches, f"microbatch {index} of {train.num_microbatches}"
    first = step * train.global_batch + index * train.microbatch
    return np.arange(first, first + train.microbatch)


def _held_out(samples: Samples, share: float, microbatch: int) -> int:
    """Returns how many samples are held out: whole microbatches."""
    num_held_out = math.ceil(share * len(samples) / microbatch) * microbatch
    if num_held_out >= len(samples):
        raise DataError(
            f"eval.share = {share} holds out all of the {len(samples)} {samples.unit}, in microbatches of "
            f"{microbatch}. Give more data, or a share or a microbatch that is smaller."
        )
    return num_held_out
