"""Lines appended to a file by a process that a full disk does not stop, or another one that goes on with it.

What the disk refuses is kept in memory and written, in order, once there is room again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

MOST_KEPT = 100_000
"""Most lines that are kept for later; beyond that the oldest are dropped, and their number is told."""


_TAIL_BYTES = 1 << 16
"""Bytes of a file's end that are looked through at a time: it may be hundreds of MB long."""


class Lines:
    """A file to append to. Opening it drops a line that a crash cut short."""

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._kept: deque[bytes] = deque(maxlen=MOST_KEPT)
        self._num_refused = 0

    def write(self, line: bytes) -> None:
        """Appends a line, or keeps it for later. Never raises OSError."""
        if self._num_refused:
            self._num_refused += 1
        self._kept.append(line)
        try:
            self._flush()
        except OSError as error:
            if not self._num_refused:
                log.warning(
                    "%s: %s. Training goes on; what is to be written there is kept until it can be.",
                    self._path,
                    error.strerror,
                )
                self._num_refused = 1
        else:
            if self._num_refused:
                log.warning("%s can be written again; %d lines waited.", self._path, self._num_refused)
            self._num_refused = 0

    def _flush(self) -> None:
        while self._kept:
            line = self._kept[0]
            written = self._file.write(line)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # A disk takes what it has room for. The rest is written where it belongs, behind its beginning.
            if written < len(line):
                self._kept[0] = line[written:]
            else:
                self._kept.popleft()

    def close(self) -> None:
        """Closes the file; what the disk still refuses is lost."""
        self._file.close()


def take_over_file(path: Path) -> None:
    """Puts a copy in a file's place: a process that has it open still, as one that was stopped, writes to nowhere."""
    copy = path.with_name(f".{path.name}.partial")
    try:
        if path.exists():
            shutil.copy(path, copy)
            copy.replace(path)
    except OSError as error:
        log.warning("%s: %s. A process that wrote it before may write it still.", path, error.strerror or error)
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)


def lacking(path: Path, lines: Sequence[bytes]) -> Sequence[bytes]:
    """Returns those of some whole lines, in order, that a file lacks at its end: all behind the last one that it has.
    None, where its last line is not among them."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - max(map(len, lines), default=0)))
        tail = file.read()
    return next((lines[at:] for at in range(len(lines), 0, -1) if tail.endswith(lines[at - 1])), () if tail else lines)


def _drop_partial_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = at = file.seek(0, os.SEEK_END)
        whole = 0
        while at > 0 and not whole:
            at = max(0, at - _TAIL_BYTES)
            file.seek(at)
            newline = file.read(_TAIL_BYTES).rfind(b"\n")
            whole = at + newline + 1 if newline >= 0 else 0
        if whole < end:
            file.truncate(whole)
