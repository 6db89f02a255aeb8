"""Lays the first rows of a stream down as files, once: what is trained on is read again, and a stream cannot be.

One process reads; each file of rows is whole when it has its name, and the stream's position behind it is kept with it.
Whoever comes after an interruption goes on from there, and no row is left out or comes twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from planaria.data.reading.sources import Kind, SourceFile

_NOTE, _NEW = "stream.json", ".new"
_FILE_ROWS: Final = 4096

Row = Mapping[str, Any]


class Stream(Protocol):
    """Rows without a length, as the streaming datasets of `datasets` are."""

    def __iter__(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]:
        """Returns where the iteration is."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Has the next iteration begin there."""
        ...


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stream was read.

    Attributes:
        rows: that are in files.
        files: how many there are.
        state: of the stream behind them.
        is_over: whether nothing more is wanted, or there is nothing more.
    """

    rows: int = 0
    files: int = 0
    state: dict[str, Any] | None = None
    is_over: bool = False


def laid_down(
    opened: Callable[[], Stream], num_rows: int, columns: Collection[str], place: Path, tell: Callable[[str], None]
) -> tuple[SourceFile, ...]:
    """Returns files of the first rows of a stream, read on from where an earlier call was interrupted.

    Args:
        opened: returns the stream, at its beginning; not called where all is there.
        num_rows: how many rows are wanted; fewer, where the stream ends before.
        columns: of rows, that are kept.
        place: folder of this stream, these columns and this number of rows.
        tell: is told how far it is.
    """
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        at = _position(place)
        if not at.is_over:
            stream = opened()
            if at.state is not None:
                stream.load_state_dict(at.state)
            rows = iter(stream)
            while not at.is_over:
                at = _read_on(stream, rows, at, num_rows, columns, place)
                tell(f"{at.rows} of {num_rows} rows of the stream are read")
        return tuple(SourceFile(_file(place, number), Kind.JSON_LINES) for number in range(at.files))


def _read_on(stream: Stream, rows: Any, at: Position, num_rows: int, columns: Collection[str], place: Path) -> Position:
    """Writes the next file of rows, then the position behind it."""
    wanted = min(_FILE_ROWS, num_rows - at.rows)
    lines = [_line(row, columns) for row in islice(rows, wanted)]
    if lines:
        _write(_file(place, at.files), b"\n".join(lines) + b"\n")
    after = Position(
        rows=at.rows + len(lines),
        files=at.files + bool(lines),
        state=stream.state_dict(),
        is_over=len(lines) < wanted or at.rows + len(lines) >= num_rows,
    )
    _write(place / _NOTE, msgspec.json.encode(after))
    return after


def _line(row: Row, columns: Collection[str]) -> bytes:
    """Returns a row's columns as JSON; all of them where some are missing, which the reader tells."""
    kept = {name: row[name] for name in columns} if all(name in row for name in columns) else row
    try:
        return msgspec.json.encode(kept, enc_hook=lambda value: None)
    except (ValueError, TypeError):
        return b"null"  # no valid text: a bad row


def _position(place: Path) -> Position:
    try:
        at = msgspec.json.decode((place / _NOTE).read_bytes(), type=Position)
    except (OSError, msgspec.DecodeError):
        return Position()
    return at if all(_file(place, number).is_file() for number in range(at.files)) else Position()


def _file(place: Path, number: int) -> Path:
    return place / f"rows-{number:06}.jsonl"


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + _NEW)
    temporary.write_bytes(content)
    os.replace(temporary, path)
