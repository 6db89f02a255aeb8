"""How many blocks of a stream lie in a folder, and which are removed where they are too many."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from planaria.data.reading.sources import DataError
from planaria.data.streams.blocks import AHEAD_BLOCKS, Blocks, StreamAbout
from planaria.job.settings import Job

_BUFFERS: Final = 3


class Shelf:
    """The blocks that lie in a folder, as many as may.

    Args:
        blocks: whose folder it is.
        most: how many may lie there; those that were not wanted for the longest are removed. None: all stay.
    """

    def __init__(self, blocks: Blocks, most: int | None = None) -> None:
        self._blocks = blocks
        self._most = most
        self._lying = dict.fromkeys(blocks.lying)

    def wanted(self, blocks: Collection[int]) -> None:
        """Notes that blocks are wanted: the one that was wanted last is removed last."""
        for block in sorted(self._lying.keys() & blocks):
            del self._lying[block]
            self._lying[block] = None

    def kept(self, block: int) -> None:
        """Notes that a block was written, and removes others where there are too many."""
        self._lying.pop(block, None)
        self._lying[block] = None
        while self._most is not None and len(self._lying) > self._most:
            oldest = next(iter(self._lying))
            self._blocks.path(oldest).unlink(missing_ok=True)
            del self._lying[oldest]


def most_blocks(job: Job, about: StreamAbout) -> int | None:
    """Returns how many blocks of a stream may lie in a run's folder; None: all of them.

    Raises:
        DataError: data.stream_disk_gb is less than what a run needs at once.
    """
    if not job.data.stream_disk_gb:
        return None
    block_bytes = about.block_samples * about.row_bytes
    least = _BUFFERS * (max(job.data.shuffle_buffer, job.train.global_batch) // about.block_samples + AHEAD_BLOCKS)
    most = int(job.data.stream_disk_gb * 1e9 / block_bytes)
    if most < least:
        raise DataError(
            f"data.stream_disk_gb = {job.data.stream_disk_gb:g} is less than the {least * block_bytes / 1e9:.3g} GB of "
            f"{_BUFFERS} shuffle buffers. Set it to so much, or data.shuffle_buffer to fewer than "
            f"{job.data.shuffle_buffer} samples."
        )
    return most
