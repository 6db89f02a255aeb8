"""Blocks of a run's stream, on a host that does not see where they are read: fetched as its workers want them.

Workers find them as they would in the run folder. One piece of one block is under way at a time. Pure but for files.
"""

from __future__ import annotations

from planaria.data.streams.blocks import Blocks, digest_of
from planaria.data.streams.shelf import Shelf
from planaria.job.errors import UserError
from planaria.protocol.messages.agent import BlockPiece, WantBlock
from planaria.runtime.thresholds import BLOCK_AGAIN_S


class OwnStream:
    """The blocks that workers of this host want, and what of them came.

    Args:
        blocks: where they lie here.
        shelf: how many may.
    """

    def __init__(self, blocks: Blocks, shelf: Shelf) -> None:
        self._blocks = blocks
        self._shelf = shelf
        self._wanted: dict[int, float] = {}
        """Blocks that are wanted, those first that were wanted first: when to ask for each, in monotonic seconds."""
        self._asked: WantBlock | None = None
        self._came = bytearray()
        """Pieces of the block that was asked for last."""

    def ask_again(self) -> None:
        """Has what was asked for asked again: no answer will come."""
        self._asked = None
        self._came.clear()

    def next(self, now: float) -> WantBlock | None:
        """Returns what to ask the coordinator for at monotonic seconds; None: nothing, or an answer is awaited."""
        if self._asked is not None:
            return None
        wants = self._blocks.taken_wants()
        self._shelf.wanted(wants)
        for block in sorted(wants):
            self._wanted.setdefault(block, now)
        for block in [block for block, at in self._wanted.items() if at <= now]:
            if not self._blocks.is_behind_the_end(block) and not self._blocks.path(block).exists():
                self._asked = WantBlock(block=block)
                return self._asked
            del self._wanted[block]
        return None

    def take(self, answer: BlockPiece, now: float) -> WantBlock | None:
        """Takes an answer; returns what to ask for next of the same block, if it is not whole.

        Raises:
            UserError: it cannot be written.
        """
        if self._asked is None or (answer.block, answer.offset) != (self._asked.block, self._asked.offset):
            return None
        try:
            return self._take(answer, now)
        except OSError as error:
            raise UserError(
                f"--folder: a block of the stream cannot be written to {self._blocks.folder} "
                f"({error.strerror or error}). Make room there."
            ) from None

    def _take(self, answer: BlockPiece, now: float) -> WantBlock | None:
        block, self._asked = answer.block, None
        if answer.num_read != self._blocks.num_read:
            self._blocks.tell_read(answer.num_read)
        if answer.num_samples is not None and self._blocks.num_samples is None:
            self._blocks.end(answer.num_samples)
        if answer.failure and not self._blocks.failure:
            self._blocks.keep_failure(answer.failure)
        self._came += answer.piece
        if answer.piece and len(self._came) < answer.size_bytes:
            self._asked = WantBlock(block=block, offset=len(self._came))
            return self._asked
        content = bytes(self._came)
        self._came.clear()
        if answer.size_bytes and digest_of(content) == answer.digest:
            self._blocks.keep(block, content, None)
            self._shelf.kept(block)
            del self._wanted[block]
        else:  # it is not read yet, or was removed meanwhile
            self._wanted[block] = now + BLOCK_AGAIN_S
        return None
