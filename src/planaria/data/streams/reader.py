"""The process that reads a job's stream: `python -m planaria.data.streams.reader`.

Its standard input has one line, a `ReaderSettings`; where that ends, whoever started it is gone, and so is it. It reads
blocks that are wanted, in the stream's order, and writes them. It never decides what is trained on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final

import msgspec

from planaria.data.reading.sources import DataError
from planaria.data.samples.items import kinds, told
from planaria.data.streams.blocks import POLL_S, Blocks, digest_of, read_about
from planaria.data.streams.openers import Opened, Opener
from planaria.data.streams.reader_process import LOG, ReaderSettings
from planaria.data.streams.shelf import Shelf, most_blocks
from planaria.job.errors import UserError

_TOLD_S: Final = 1.0
_LOCK = "lock"
_DEAF_TO: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Batch systems signal every process of a node; what they mean is for whoever started this one to heed."""


class _Cursor:
    """A stream that is open before a block."""

    def __init__(self, opened: Opened, block: int) -> None:
        self.opened = opened
        self.block = block


class Reader:
    """Writes the blocks of a stream that are wanted.

    Args:
        blocks: where they go.
        opener: of the stream.
        most: how many blocks may lie there; those that were not wanted for the longest are removed. None: all stay.
    """

    def __init__(self, blocks: Blocks, opener: Opener, most: int | None = None) -> None:
        self._blocks = blocks
        self._opener = opener
        self._cursors: list[_Cursor] = []
        self._wanted: set[int] = set()
        self._trusts_positions = True
        self._told = 0.0
        self._shelf = Shelf(blocks, most)

    def read_wanted(self) -> bool:
        """Reads the first of the blocks that are wanted; False: none is.

        Raises:
            DataError: it cannot be read, or is not what it was before.
        """
        self._take_wants()
        for block in sorted(self._wanted):
            self._wanted.remove(block)
            if not self._blocks.is_behind_the_end(block) and not self._blocks.path(block).exists():
                self._read(block)
                return True
        return False

    def _read(self, block: int) -> None:
        """Reads as far as a block; what was never read on the way is kept as well."""
        cursor = self._cursor(block)
        while cursor.block <= block and not self._blocks.is_behind_the_end(block):
            self._take_wants()
            self._read_on(cursor, block)

    def _take_wants(self) -> None:
        wants = self._blocks.taken_wants()
        self._wanted |= wants
        self._shelf.wanted(wants)

    def _read_on(self, cursor: _Cursor, wanted: int) -> None:
        about, block = self._blocks.about, cursor.block
        rows: list[bytes] = []
        for _ in range(about.block_samples):
            try:
                item = next(cursor.opened)
            except StopIteration:
                break
            number = block * about.block_samples + len(rows)
            if kinds(item) != about.kinds:
                raise DataError(
                    f"{about.named}: sample {number} has {told(kinds(item))}, and sample 0 {told(about.kinds)}. "
                    "Make all samples alike, so that they can be stacked."
                )
            rows.append(about.row(item))
            self._tell(number + 1)
        content = b"".join(rows)
        before = self._blocks.note(block)
        if before is not None and before.digest != digest_of(content):
            first = block * about.block_samples
            raise DataError(
                f"{about.named}: read again, samples {first} to {first + about.block_samples - 1} are others than "
                "before. A stream must give the same samples in the same order each time. Take random numbers from "
                "torch, np.random or random, and files in a fixed order."
            )
        if len(rows) < about.block_samples:  # first: whoever has a block with an end in it knows of that
            self._blocks.end(block * about.block_samples + len(rows))
        if rows and (before is None or block == wanted):
            self._blocks.keep(block, content, cursor.opened.position)
            self._shelf.kept(block)
        cursor.block += 1

    def _cursor(self, block: int) -> _Cursor:
        """Returns the stream, open at or before a block: as near as it is, or can be opened."""
        before = [cursor for cursor in self._cursors if cursor.block <= block]
        nearest = max(before, key=lambda cursor: cursor.block, default=None)
        opened = self._opened_near(block, nearest.block if nearest is not None else 0)
        if opened is not None:
            nearest = opened
        elif nearest is None:
            nearest = _Cursor(self._opener.open(None, 0), 0)
        others = [cursor for cursor in self._cursors if cursor is not nearest]
        self._cursors = [nearest, *others[:1]]
        return nearest

    def _opened_near(self, block: int, behind: int) -> _Cursor | None:
        """Opens the stream at the last position that was saved behind one block and before another.

        A position is used only if the block before it, read from the position before, is what it was.
        """
        for at in range(block, behind + 1, -1):
            saved, earlier = self._blocks.note(at - 1), self._blocks.note(at - 2)
            if not self._trusts_positions or saved is None:
                continue
            position = None if earlier is None else earlier.position
            if saved.position is None or position is None:
                return None
            cursor = _Cursor(self._opener.open(position, (at - 1) * self._blocks.about.block_samples), at - 1)
            try:
                self._read_on(cursor, -1)
            except DataError:
                self._trusts_positions = False
                return None
            return cursor
        return None

    def _tell(self, num_samples: int) -> None:
        if time.monotonic() - self._told >= _TOLD_S:
            self._told = time.monotonic()
            self._blocks.tell_read(num_samples)


def main() -> None:
    """Reads until standard input ends. A stream that fails is recorded, and ends the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReaderSettings)
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.path[:] = settings.sys_path
    import torch

    from planaria.data.streams.preparation import opener_of

    torch.set_num_threads(1)
    folder = Path(settings.folder)
    with (folder / _LOCK).open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # the reader before is gone
        about = read_about(folder)
        assert about is not None, f"{folder} is of no stream"
        blocks = Blocks(folder, about)
        try:
            reader = Reader(blocks, opener_of(settings.job), most_blocks(settings.job, about))
            while True:
                if not reader.read_wanted():
                    time.sleep(POLL_S)
        except (DataError, UserError) as error:
            blocks.fail(error)
        except OSError as error:
            reason = error.strerror or str(error)
            blocks.fail(
                DataError(
                    f"{about.named}: its samples cannot be written to {error.filename or folder} ({reason}). Make room "
                    "there, and go on by --resume."
                )
            )
        except Exception as error:
            traceback.print_exc()
            text = f"{about.named}: the process that reads it fails with {type(error).__name__}: {error}."
            blocks.fail(DataError(f"{text} Its traceback is in {folder / LOG}."))


def _end_with_starter() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
