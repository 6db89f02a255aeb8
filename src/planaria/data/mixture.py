"""Deals from several sources by weight: which one a sample comes from is a function of its number alone.

Each source has a sampler, and so epochs, of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from planaria.data.order import CHANCE, Numbers, generator
from planaria.data.sampler import Sampler, of_microbatch
from planaria.data.samples.samples import Batch
from planaria.job.sections.train import TrainSection

_PARTS = 1 << 20
"""Parts that the samples are dealt in; each source has a whole number of them, by its weight."""


class Mixture:
    """Deals samples of several sources to microbatches; see `planaria.data.sampler.Sampler`.

    Args:
        samplers: one for each source; where the first has other samples to evaluate on, these are evaluated on alone.
        weights: of the sources, above 0.
        train: the job's [train].
    """

    def __init__(self, samplers: Sequence[Sampler], weights: Sequence[float], train: TrainSection) -> None:
        self._samplers = samplers
        self._train = train
        self._parts = [max(1, round(weight / sum(weights) * _PARTS)) for weight in weights]
        self._evaluated = samplers[:1] if samplers[0].has_validation else samplers
        self._num_eval_microbatches = self._before_one_runs_out([one.num_eval_microbatches for one in self._evaluated])

    @property
    def num_eval_microbatches(self) -> int:
        """Number of microbatches that are never trained on: until a source has no more, by weight as in training."""
        return self._num_eval_microbatches

    def microbatch(self, step: int, index: int) -> Batch:
        """Returns the batch of microbatch `index` of `step`: each row from its source."""
        sources, places = dealt_by_weight(of_microbatch(self._train, step, index), self._parts)
        chance = generator(self._train.seed, CHANCE, step, index)
        rows: list[Numbers] = []
        batches: list[Batch] = []
        for source in np.unique(sources).tolist():
            rows.append(np.flatnonzero(sources == source))
            sampler = self._samplers[source]
            batches.append(sampler.samples.batch(sampler.dealt(places[rows[-1]]), chance))
        back = torch.from_numpy(np.argsort(np.concatenate(rows)))
        return {name: torch.cat([batch[name] for batch in batches])[back] for name in batches[0]}

    def eval_microbatch(self, index: int) -> Batch:
        """Returns the batch of microbatch `index` of those to evaluate on, all of one source: the same in every run."""
        assert 0 <= index < self._num_eval_microbatches, f"microbatch {index} of {self._num_eval_microbatches}"
        sources, places = dealt_by_weight(np.array([index]), self._parts[: len(self._evaluated)])
        return self._evaluated[int(sources[0])].eval_microbatch(int(places[0]))

    def _before_one_runs_out(self, sizes: Sequence[int]) -> int:
        sources, places = dealt_by_weight(np.arange(sum(sizes)), self._parts[: len(sizes)])
        are_out = places >= np.array(sizes)[sources]
        return int(np.argmax(are_out)) if are_out.any() else sum(sizes)


def dealt_by_weight(numbers: Numbers, parts: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Returns which source each number is dealt from, and how many of that source came before it.

    Any run of numbers has each source in the ratio of its parts, but for less than one for each source before it.

    Args:
        numbers: from 0.
        parts: of the sources, above 0; less than 2**43 / max(numbers).
    """
    sources, places = np.full(len(numbers), len(parts) - 1), numbers.astype(np.int64)
    is_open = np.ones(len(numbers), dtype=np.bool_)
    for source, part in enumerate(parts[:-1]):
        rest = sum(parts[source:])
        before = places * part // rest
        is_own = is_open & ((places + 1) * part // rest > before)
        sources[is_own] = source
        is_open &= ~is_own
        places = np.where(is_own, before, np.where(is_open, places - before, places))
    return sources, places
