"""Reads the documents of a file one after the other, in bounded memory: text in pieces, or rows of a column.

Documents of more than a megabyte come in pieces. They are cut before a space between two letters, where a tokenizer
that splits words (byte-level byte pairs, word pieces) gives the same ids as for the whole.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import msgspec

from planaria.data.reading.sources import DataError, Kind, SourceFile

PIECE_BYTES: Final = 1 << 20
_TAIL = 1 << 16
_CUT = re.compile(rb".*[A-Za-z](?= [A-Za-z])", re.DOTALL)
_SPACE = re.compile(rb".*\S(?=\s)", re.DOTALL)
_ROWS_AT_ONCE = 256

Record = dict[str, Any]
Columns = Mapping[str, str]
"""The columns to read, and the field of the job that names each."""


class BadRow(ValueError):
    """A row that cannot be used; the message says why, and which it is."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a part of a long one.

    Attributes:
        text: UTF-8, or what a file of text has in its place.
        is_last: whether the document ends with it.
        answers: where those parts of it begin and end that are learned, of an example, which is one piece.
    """

    text: bytes
    is_last: bool = True
    answers: tuple[tuple[int, int], ...] = ()


def open_file(file: SourceFile) -> BinaryIO:
    """Opens a file to be read from its beginning, unpacked."""
    if not file.compression:
        return file.path.open("rb")
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(file.path), compression=file.compression), PIECE_BYTES)


def text_pieces(file: SourceFile) -> Iterator[Piece]:
    """Reads a file of text as one document."""
    with open_file(file) as opened:
        rest = opened.read(PIECE_BYTES)
        while more := opened.read(PIECE_BYTES):
            cut = _cut(rest)
            yield Piece(rest[:cut], is_last=False)
            rest = rest[cut:] + more
        yield from _pieces(rest)


def column_pieces(record: Record, column: str) -> Iterator[Piece]:
    """Returns the document in a row's column. Raises BadRow: there is none."""
    text = encoded(record, column)
    return _pieces(text) if text else iter(())


def encoded(record: Record, column: str) -> bytes:
    """Returns the text in a row's column. Raises BadRow: there is none."""
    text = value_of(record, column)
    if not isinstance(text, str):
        raise BadRow(f"{column!r} is {type(text).__name__}, not a text" if text is not None else f"{column!r} is null")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"{column!r} is no valid text ({error.reason})") from None


def value_of(record: Record, column: str) -> Any:
    """Returns what a row has in a column; "a.b" is what its column a has under b. Raises BadRow: it has none."""
    value: Any = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            raise BadRow(f"has no column {column!r}; it has {', '.join(record) or 'none'}")
        value = value[name]
    return value


def records(file: SourceFile, columns: Columns, named: str) -> Iterator[Record | BadRow]:
    """Reads the rows of a file; one that is broken comes as its error.

    Raises:
        DataError: the file is damaged, or has no such column.
    """
    read = {Kind.JSON_LINES: _json_lines, Kind.PARQUET: _parquet, Kind.ARROW: _arrow}[file.kind]
    is_first = True
    for record in read(file, columns, named):
        if is_first and not isinstance(record, BadRow):
            is_first = False
            for column in columns:
                if column.partition(".")[0] not in record:
                    raise _no_column(file, column, columns[column], list(record), named)
        yield record


def _no_column(file: SourceFile, column: str, field: str, there: list[str], named: str) -> DataError:
    choice = f"to {there[0]!r}" if len(there) == 1 else f"to one of {', '.join(there) or '(none)'}"
    return DataError(f"{named}: {file.path} has no column {column!r}. Set {field} {choice}.")


def _json_lines(file: SourceFile, columns: Columns, named: str) -> Iterator[Record | BadRow]:
    decoder = msgspec.json.Decoder()
    with open_file(file) as opened:
        for number, line in enumerate(opened):
            stripped = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 0 else line.strip()
            if not stripped:
                continue
            try:
                record = decoder.decode(stripped)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield BadRow(f"is not JSON ({error})")
                continue
            yield record if isinstance(record, dict) else BadRow("is not a JSON object")


def _parquet(file: SourceFile, columns: Columns, named: str) -> Iterator[Record | BadRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file.path) as table:
            wanted = _wanted(file, columns, table.schema_arrow.names, named)
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=wanted):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file, named, error) from error


def _arrow(file: SourceFile, columns: Columns, named: str) -> Iterator[Record | BadRow]:
    import pyarrow
    import pyarrow.ipc

    try:
        with pyarrow.memory_map(str(file.path)) as mapped:
            if mapped.read(6) == b"ARROW1":
                table = pyarrow.ipc.open_file(mapped)
                batches = (table.get_batch(index) for index in range(table.num_record_batches))
            else:
                mapped.seek(0)
                table = pyarrow.ipc.open_stream(mapped)
                batches = iter(table)
            wanted = _wanted(file, columns, table.schema.names, named)
            for batch in batches:
                for start in range(0, len(batch), _ROWS_AT_ONCE):
                    yield from batch.select(wanted).slice(start, _ROWS_AT_ONCE).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file, named, error) from error


def _wanted(file: SourceFile, columns: Columns, there: list[str], named: str) -> list[str]:
    for column in columns:
        if column.partition(".")[0] not in there:
            raise _no_column(file, column, columns[column], there, named)
    return list(dict.fromkeys(column.partition(".")[0] for column in columns))


def _damaged(file: SourceFile, named: str, error: Exception) -> DataError:
    return DataError(
        f"{named}: {file.path} cannot be read as {file.kind.value} ({' '.join(str(error).split())}). Make it again."
    )


def _pieces(text: bytes) -> Iterator[Piece]:
    while len(text) > PIECE_BYTES:
        cut = _cut(text[:PIECE_BYTES])
        yield Piece(text[:cut], is_last=False)
        text = text[cut:]
    yield Piece(text)


def _cut(text: bytes) -> int:
    """Returns where a text is cut that goes on: before its last space between letters, or else between characters."""
    begin = max(0, len(text) - _TAIL)
    tail = text[begin:]
    for pattern in (_CUT, _SPACE):
        if found := pattern.match(tail):
            return begin + found.end()
    end = len(text)
    while end > begin + 1 and text[end - 1] & 0xC0 == 0x80:  # the rest of a character of several bytes
        end -= 1
    return end - 1 if end > begin + 1 and text[end - 1] >= 0xC0 else end
