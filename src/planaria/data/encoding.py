"""Encodes the documents of files into one file of token ids: in bounded memory, on all cores, resumed where it stopped.

What was written so far is noted beside the ids every few seconds' work. A process that finds such a note reads on to
the same document without encoding what is there already.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from planaria.data.rows import BadRow, Piece, column_pieces, records, text_pieces
from planaria.data.sources import DataError, SourceFile
from planaria.data.tokenizer import Ids, Tokenizer, id_dtype
from planaria.job.settings import DataSection, OnBadRow

Tell = Callable[[str], None]
"""Is told how far the work is, about once a second."""

_NOTE = "encoding.json"
_BATCH_BYTES: Final = 2 << 20
_BATCH_PIECES: Final = 4096
_NOTED_BYTES: Final = 32 << 20
_TOLD_S: Final = 1.0


class Progress(msgspec.Struct, kw_only=True):
    """What was done of an encoding.

    Attributes:
        file: number of the file that comes next.
        pieces: that were read of it.
        num_tokens: that were written.
        text_bytes: that were read, of all files.
        bad_rows: that were left out.
        first_bad: the first of them, and why.
    """

    file: int = 0
    pieces: int = 0
    num_tokens: int = 0
    text_bytes: int = 0
    bad_rows: int = 0
    first_bad: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What to encode.

    Attributes:
        section: the job's [data].
        tokenizer: that encodes.
        files: of the source, in order.
        named: how messages call the source.
    """

    section: DataSection
    tokenizer: Tokenizer
    files: Sequence[SourceFile]
    named: str

    def write(self, output: Path, tell: Tell) -> Progress:
        """Writes the ids to a file, or what is missing of them.

        Raises:
            DataError: a file or a row cannot be read, or there is no text in them.
        """
        note = output.with_name(_NOTE)
        dtype = np.dtype(id_dtype(self.tokenizer.vocab_size)).newbyteorder("<")
        done = _read_note(note, output, dtype.itemsize)
        separator = (
            [self.tokenizer.separator_id] if self.section.eos and self.tokenizer.separator_id is not None else []
        )
        ending = np.array(separator, dtype=dtype)
        watch = _Watch(tell, sum(file.path.stat().st_size for file in self.files), done.text_bytes)
        noted_bytes = done.text_bytes
        with output.open("r+b" if output.exists() else "wb") as out, ThreadPoolExecutor(1) as encoder:
            out.truncate(done.num_tokens * dtype.itemsize)
            out.seek(0, os.SEEK_END)
            for batch, ids in _ahead(self._batches(done), encoder, self.tokenizer):
                for piece, of_piece in zip(batch.pieces, ids, strict=True):
                    out.write(of_piece.astype(dtype, copy=False).data)
                    done.num_tokens += len(of_piece)
                    if piece.is_last and len(ending):
                        out.write(ending.data)
                        done.num_tokens += len(ending)
                batch.count(done)
                watch.look(done.text_bytes)
                if done.text_bytes - noted_bytes >= _NOTED_BYTES:
                    noted_bytes = done.text_bytes
                    out.flush()
                    _write_note(note, done)
        note.unlink(missing_ok=True)
        if done.text_bytes == 0:
            output.unlink()
            raise DataError(f"{self.named} is empty ({len(self.files)} files). Give files with text.{_left_out(done)}")
        return done

    def _batches(self, done: Progress) -> Iterator[_Batch]:
        """Yields what is not encoded yet; a batch ends with its file."""
        first, skipped = done.file, done.pieces
        for number in range(first, len(self.files)):
            batch = _Batch(number, skipped if number == first else 0)
            for index, piece in enumerate(self._pieces(self.files[number])):
                if number == first and index < skipped:
                    continue
                if not batch.add(piece):
                    yield batch
                    batch = _Batch(number, index)
                    batch.add(piece)
            batch.ends_file = True
            yield batch

    def _pieces(self, file: SourceFile) -> Iterator[Piece | str]:
        """Reads a file's documents; a row that is left out comes as the reason."""
        try:
            if not file.kind.has_rows:
                yield from text_pieces(file)
                return
            column = self.section.column
            for number, record in enumerate(records(file, (column,), self.named), 1):
                try:
                    if isinstance(record, BadRow):
                        raise record
                    pieces = column_pieces(record, column)
                except BadRow as error:
                    reason = f"{file.path} row {number}: {error}"
                    if self.section.on_bad_row is OnBadRow.REFUSE:
                        raise DataError(
                            f'{self.named}: {reason}. Correct it, or set data.on_bad_row = "skip".'
                        ) from None
                    yield reason
                else:
                    yield from pieces
        except OSError as error:
            reason = error.strerror or " ".join(str(error).split())
            raise DataError(
                f"{self.named}: cannot read {file.path} ({reason}). Correct it, or make it again."
            ) from error


class _Batch:
    """Pieces of one file that are encoded at once."""

    def __init__(self, file: int, first: int) -> None:
        self.pieces: list[Piece] = []
        self.ends_file = False
        self._file = file
        self._first = first
        self._num_read = 0
        self._num_bytes = 0
        self._bad: list[str] = []

    def add(self, piece: Piece | str) -> bool:
        """Adds what was read; False: it is full."""
        if self._num_bytes >= _BATCH_BYTES or self._num_read >= _BATCH_PIECES:
            return False
        self._num_read += 1
        if isinstance(piece, str):
            self._bad.append(piece)
        else:
            self._num_bytes += len(piece.text)
            self.pieces.append(piece)
        return True

    def count(self, done: Progress) -> None:
        done.file, done.pieces = (self._file + 1, 0) if self.ends_file else (self._file, self._first + self._num_read)
        done.text_bytes += self._num_bytes
        done.bad_rows += len(self._bad)
        done.first_bad = done.first_bad or next(iter(self._bad), "")


def _ahead(
    batches: Iterator[_Batch], encoder: ThreadPoolExecutor, tokenizer: Tokenizer
) -> Iterator[tuple[_Batch, list[Ids]]]:
    """Encodes one batch while the one before it is written."""
    before: tuple[_Batch, Future[list[Ids]]] | None = None
    for batch in batches:
        now = batch, encoder.submit(tokenizer.encode, [piece.text for piece in batch.pieces])
        if before is not None:
            yield before[0], before[1].result()
        before = now
    if before is not None:
        yield before[0], before[1].result()


class _Watch:
    def __init__(self, tell: Tell, size_bytes: int, done_bytes: int) -> None:
        self._tell = tell
        self._size_bytes = size_bytes
        self._first_bytes = done_bytes
        self._began = self._told = time.monotonic()

    def look(self, done_bytes: int) -> None:
        now = time.monotonic()
        if now - self._told < _TOLD_S:
            return
        self._told = now
        rate = (done_bytes - self._first_bytes) / (now - self._began) / 1e6
        of = f"of files of {self._size_bytes / 1e6:.0f} MB"
        self._tell(f"{done_bytes / 1e6:.0f} MB of text are tokens now, {of} ({rate:.1f} MB/s)")


def _left_out(done: Progress) -> str:
    return f" All {done.bad_rows} rows are bad: {done.first_bad}." if done.bad_rows else ""


def _read_note(note: Path, output: Path, id_bytes: int) -> Progress:
    try:
        done = msgspec.json.decode(note.read_bytes(), type=Progress)
        return done if output.stat().st_size >= done.num_tokens * id_bytes else Progress()
    except (OSError, msgspec.DecodeError):
        return Progress()


def _write_note(note: Path, done: Progress) -> None:
    temporary = note.with_name(note.name + ".new")
    temporary.write_bytes(msgspec.json.encode(done))
    os.replace(temporary, note)
