"""Encodes the documents of files into one file of token ids: in bounded memory, on all cores, resumed where it stopped.

Where windows need to know of documents, their ends are written beside, and a mark for each token: whether it is
learned. What was written so far is noted every few seconds' work. A process that finds such a note reads on to the same
document without encoding what is there already.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from planaria.data.reading.chats import RowFormat
from planaria.data.reading.rows import BadRow, Piece, records, text_pieces
from planaria.data.reading.sources import DataError, SourceFile
from planaria.data.tokens.tokenizer import Ids, Marks, Tokenizer, id_dtype
from planaria.job.sections.data import DataSection, OnBadRow, Packing

Tell = Callable[[str], None]
"""Is told how far the work is, about once a second."""

DOCUMENTS, ANSWERS = "documents.bin", "answers.bin"
"""Beside the ids: where each document ends (int64), and whether each token is learned (a byte)."""
NEW = ".new"
"""Ending of the names of files that are being written."""

_NOTE = "encoding.json"
_BATCH_BYTES: Final = 2 << 20
_BATCH_PIECES: Final = 4096
_NOTED_BYTES: Final = 32 << 20
_TOLD_S: Final = 1.0
_END: Final = np.dtype("<i8")

_Encoded = list[tuple[Ids, Marks | None]]
"""What pieces of documents are encoded to: of each, ids and marks."""


class Progress(msgspec.Struct, kw_only=True):
    """What was done of an encoding.

    Attributes:
        file: number of the file that comes next.
        pieces: that were read of it.
        num_tokens: that were written.
        text_bytes: that were read, of all files.
        bad_rows: that were left out.
        first_bad: the first of them, and why.
        num_documents: whose ends were written.
        key: of what is encoded.
    """

    file: int = 0
    pieces: int = 0
    num_tokens: int = 0
    num_documents: int = 0
    text_bytes: int = 0
    bad_rows: int = 0
    first_bad: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What to encode.

    Attributes:
        section: the job's [data].
        tokenizer: that encodes.
        format: makes documents of rows.
        files: of the source, in order.
        named: how messages call the source.
        key: hash of all that the ids are made from.
    """

    section: DataSection
    tokenizer: Tokenizer
    format: RowFormat
    files: Sequence[SourceFile]
    named: str
    key: str

    def write(self, output: Path, tell: Tell) -> Progress:
        """Writes the ids to a file, or what is missing of them.

        Raises:
            DataError: a file or a row cannot be read, or there is no text in them.
        """
        note = output.with_name(_NOTE)
        dtype = np.dtype(id_dtype(self.tokenizer.vocab_size)).newbyteorder("<")
        done = _read_note(note, self.key)
        if any(not path.exists() or path.stat().st_size < size for path, size in self._sizes(output, done).items()):
            done = Progress(key=self.key)
        has_ending = self.section.eos and self.format.ends_with_separator and self.tokenizer.separator_id is not None
        ending = np.array([self.tokenizer.separator_id] if has_ending else [], dtype=dtype)
        watch = _Watch(tell, sum(file.path.stat().st_size for file in self.files), done.text_bytes)
        noted_bytes = done.text_bytes
        with _Output(self._sizes(output, done), dtype, done) as out, ThreadPoolExecutor(1) as encoder:
            for batch, found in _ahead(self._batches(done), encoder, self._encoded):
                for piece, (ids, marks) in zip(batch.pieces, found, strict=True):
                    out.add(ids, marks)
                    if piece.is_last:
                        out.end(ending)
                batch.count(done)
                watch.look(done.text_bytes)
                if done.text_bytes - noted_bytes >= _NOTED_BYTES:
                    noted_bytes = done.text_bytes
                    out.flush()
                    _write_note(note, done)
        note.unlink(missing_ok=True)
        if done.text_bytes == 0:
            remove(output)
            raise DataError(f"{self.named} is empty ({len(self.files)} files). Give files with text.{_left_out(done)}")
        return done

    def _sizes(self, output: Path, done: Progress) -> dict[Path, int]:
        """Returns the files that are written, and how many bytes each has of what was done."""
        sizes = {output: done.num_tokens * np.dtype(id_dtype(self.tokenizer.vocab_size)).itemsize}
        if self.section.windows is not Packing.ACROSS:
            sizes[output.with_name(DOCUMENTS + NEW)] = done.num_documents * _END.itemsize
        if self.section.has_answers:
            sizes[output.with_name(ANSWERS + NEW)] = done.num_tokens
        return sizes

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
            for number, record in enumerate(records(file, self.format.columns, self.named), 1):
                try:
                    if isinstance(record, BadRow):
                        raise record
                    pieces = self.format.pieces(record)
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

    def _encoded(self, pieces: Sequence[Piece]) -> _Encoded:
        texts = [piece.text for piece in pieces]
        if self.section.has_answers:
            return [*self.tokenizer.encode_marked(texts, [piece.answers for piece in pieces])]
        return [(ids, None) for ids in self.tokenizer.encode(texts)]


def remove(output: Path) -> None:
    """Removes what was written of ids, and beside them."""
    for name in (output.name, DOCUMENTS + NEW, ANSWERS + NEW):
        output.with_name(name).unlink(missing_ok=True)


class _Output:
    """The files that are written: ids, ends of documents, and what is learned."""

    def __init__(self, sizes: Mapping[Path, int], dtype: np.dtype[Any], done: Progress) -> None:
        self._done = done
        self._dtype = dtype
        with ExitStack() as opened:
            files = [opened.enter_context(_opened(path, size)) for path, size in sizes.items()]
            self._files = opened.pop_all()
        self._ids = files[0]
        self._documents = files[1] if len(files) > 1 else None
        self._answers = files[2] if len(files) > 2 else None

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def add(self, ids: Ids, marks: Marks | None) -> None:
        self._ids.write(ids.astype(self._dtype, copy=False).data)
        self._done.num_tokens += len(ids)
        if self._answers is not None and marks is not None:
            self._answers.write(marks.data)

    def end(self, ending: Ids) -> None:
        """Ends a document; what ends it is learned."""
        self.add(ending, np.ones(len(ending), dtype=np.uint8))
        if self._documents is not None:
            self._documents.write(np.array([self._done.num_tokens], dtype=_END).data)
            self._done.num_documents += 1

    def flush(self) -> None:
        for file in (self._ids, self._documents, self._answers):
            if file is not None:
                file.flush()


def _opened(path: Path, size_bytes: int) -> BinaryIO:
    """Opens a file to go on after so many bytes; a new one, whatever was there, if these are none."""
    if size_bytes == 0:
        path.unlink(missing_ok=True)
        return path.open("wb")
    file = path.open("r+b")
    file.truncate(size_bytes)
    file.seek(0, os.SEEK_END)
    return file


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
    batches: Iterator[_Batch], encoder: ThreadPoolExecutor, encode: Callable[[Sequence[Piece]], _Encoded]
) -> Iterator[tuple[_Batch, _Encoded]]:
    """Encodes one batch while the one before it is written."""
    before: tuple[_Batch, Future[_Encoded]] | None = None
    for batch in batches:
        now = batch, encoder.submit(encode, batch.pieces)
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


def _read_note(note: Path, key: str) -> Progress:
    try:
        done = msgspec.json.decode(note.read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
        return Progress(key=key)
    return done if done.key == key else Progress(key=key)


def _write_note(note: Path, done: Progress) -> None:
    temporary = note.with_name(note.name + ".new")
    temporary.write_bytes(msgspec.json.encode(done))
    os.replace(temporary, note)
