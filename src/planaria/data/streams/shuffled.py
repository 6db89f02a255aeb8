"""Samples of a stream in a seeded order, dealt as the samples of any other source.

The order is that of a shuffle buffer: in groups of so many samples, each permuted by a key of (seed, pass, group). So
it is a function of a sample's place, the seed and, in the last group, of where the stream ends; nobody need keep the
buffer, and any process has the same.
"""

from __future__ import annotations

import numpy as np

from planaria.data.order import SHUFFLE, Numbers, permuted
from planaria.data.reading.sources import DataError
from planaria.data.samples.samples import Batch
from planaria.data.samples.windows import Labelling
from planaria.data.streams.blocks import AHEAD_BLOCKS, Blocks
from planaria.data.streams.openers import WINDOW
from planaria.data.tokens.encoding import Tell
from planaria.job.history import KEYED
from planaria.job.sections.data import DataSection
from planaria.job.sections.train import TrainSection


class StreamSamples:
    """Samples of a stream; see `planaria.data.samples.samples.Samples`. There are as many as a run needs.

    Args:
        blocks: that are read.
        section: the job's [data].
        train: the job's [train].
        label: makes inputs and labels where samples are windows of tokens.
    """

    def __init__(
        self, blocks: Blocks, section: DataSection, train: TrainSection, label: Labelling | None = None
    ) -> None:
        self.named = blocks.about.named
        self.unit = "samples"
        self.order = KEYED
        self._blocks = blocks
        self._buffer = section.shuffle_buffer
        self._repeats = section.repeat
        self._train = train
        self._label = label
        self._ahead = -1

    def __len__(self) -> int:
        return self._train.steps * self._train.global_batch

    def batch(self, numbers: Numbers, chance: np.random.Generator) -> Batch:
        found = self._blocks.batch(numbers)
        return found if self._label is None else self._label(found[WINDOW].numpy().astype(np.int64), chance)

    def dealt(self, places: Numbers, seed: int) -> Numbers:
        """Returns the numbers of the samples at these places, waiting until they are read.

        Args:
            places: counted from the first sample that is dealt, which is that of step 1.
            seed: of the order.

        Raises:
            DataError: the stream ends before, or cannot be read.
        """
        places = places - self._train.global_batch  # steps count from 1
        assert places.min() >= 0, "samples of step 0, which there is not"
        return self._shuffled(*self._passes(places), seed)

    def want(self, places: Numbers, seed: int) -> None:
        """Has the samples at these places brought here, as far as it is known which they are; waits for none.

        Args:
            places: counted as for `dealt`.
            seed: of the order.
        """
        places = places - self._train.global_batch
        end = self._blocks.num_samples
        if places[-1] >= len(self) or (end is not None and not self._repeats and places[-1] >= end):
            return
        passes, within = (np.zeros_like(places), places) if end is None else np.divmod(places, end)
        self._blocks.want_missing(self._shuffled(passes, within, seed))

    def _shuffled(self, passes: Numbers, within: Numbers, seed: int) -> Numbers:
        """Returns the numbers of the samples at places within passes through the stream."""
        found = np.empty_like(within)
        groups = within // self._buffer
        for one, group in sorted({*zip(passes.tolist(), groups.tolist(), strict=True)}):
            is_here = (passes == one) & (groups == group)
            first = group * self._buffer
            end = self._blocks.num_samples
            size = self._buffer if end is None else min(self._buffer, end - first)
            found[is_here] = first + permuted(within[is_here] - first, size, seed, SHUFFLE, one, group)
        return found

    def wait(self, step: int, tell: Tell) -> None:
        """Waits until the samples of a step are read.

        Raises:
            DataError: the stream ends before the run's last step, or cannot be read.
        """
        last = step * self._train.global_batch - 1
        self._has(last, tell)
        end = self._blocks.num_samples
        if end is not None and not self._repeats and end < len(self):
            raise self._ended(end)

    def _passes(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """Returns in which pass through the stream places are, and where in it."""
        if self._has(int(places.max())):
            return np.zeros_like(places), places
        end = self._blocks.num_samples
        assert end is not None
        if not self._repeats:
            raise self._ended(end)
        return np.divmod(places, end)

    def _has(self, place: int, tell: Tell = lambda text: None) -> bool:
        """Waits until all samples of a place's group are read; False: the stream ends before the place."""
        last = (place // self._buffer + 1) * self._buffer - 1
        self._read_ahead(last)
        self._blocks.wait(last, tell)
        end = self._blocks.num_samples
        return end is None or place < end

    def _read_ahead(self, number: int) -> None:
        """Has the samples read that come after these, as far as the run needs them."""
        most = -(-len(self) // self._buffer) * self._buffer - 1
        ahead = min(number + max(self._buffer, AHEAD_BLOCKS * self._blocks.about.block_samples), most)
        if ahead > self._ahead:
            self._ahead = ahead
            self._blocks.want(ahead)

    def _ended(self, end: int) -> DataError:
        enough = end // self._train.global_batch
        remedy = f"train.steps to at most {enough}" if enough else "train.global_batch to fewer"
        return DataError(
            f"{self.named} ends after {end} samples, and the run needs {len(self)} ({self._train.steps} steps of "
            f"{self._train.global_batch}). Set data.repeat = true, or {remedy}."
        )
