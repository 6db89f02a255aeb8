"""Blocks of a run's stream for hosts that do not see the run folder: their agents ask for pieces, and get them.

It keeps nothing of who asked for what: another coordinator answers the next question as well.
"""

from __future__ import annotations

import os

from planaria.data.streams.blocks import Blocks
from planaria.protocol.messages.agent import BlockPiece, WantBlock
from planaria.runtime.thresholds import BLOCK_PIECE_BYTES


class StreamBlocks:
    """The blocks of one run.

    Args:
        blocks: in the run folder, where the stream's reader writes them.
        about: the file that says what the stream is.
    """

    def __init__(self, blocks: Blocks, about: bytes) -> None:
        self.about = about
        self._blocks = blocks

    def answer(self, wanted: WantBlock) -> BlockPiece:
        """Returns a piece of a block. Where that is not there it is read, and to be asked for again."""
        block, piece, size_bytes = wanted.block, b"", 0
        self._blocks.want_block(block)
        note = self._blocks.note(block)
        if note is not None:
            try:
                with self._blocks.path(block).open("rb") as file:
                    size_bytes = os.fstat(file.fileno()).st_size
                    file.seek(wanted.offset)
                    piece = file.read(BLOCK_PIECE_BYTES)
            except FileNotFoundError:
                pass  # it was removed, and is read again
        return BlockPiece(
            block=block,
            offset=wanted.offset,
            piece=piece,
            size_bytes=size_bytes,
            digest="" if note is None else note.digest,
            num_read=self._blocks.num_read,
            num_samples=self._blocks.num_samples,
            failure=self._blocks.failure,
        )
