"""Checks whether a file is what its name says: by its first bytes, and text by samples of what is in it.

Only samples are looked at, so that a file of any size is judged in milliseconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from planaria.data.reading.rows import open_file
from planaria.data.reading.sources import DataError, Kind, SourceFile

_UNREAD = {
    ".json": "JSON",
    ".csv": "a table",
    ".tsv": "a table",
    ".tfrecord": "TFRecord",
}
_MAGIC = {Kind.PARQUET: (b"PAR1",), Kind.ARROW: (b"ARROW1", b"\xff\xff\xff\xff")}
_PACKED = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_SUFFIXES = {"Parquet": ".parquet", "Arrow": ".arrow", "gzip": ".gz", "Zstandard": ".zst"}
_FORMATS = (
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "HDF5"),
    (b"%PDF", "PDF"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
)
_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"PK\x03\x04", "ZIP"),
)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16
_MAX_SHARE = 0.01
"""Share of bytes that no text has, above which a file is refused: a stray one makes no file unreadable."""

_CUT_BYTES = 8
"""Most errors that say nothing: characters are cut where a sample begins and ends."""

_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b\b")) + b"\x7f"
_REMEDY = "Write its texts to a .txt or a .jsonl file, or its token ids to a .npy file."


def check_file(file: SourceFile, field: str) -> None:
    """Refuses a file that does not hold what its name says.

    Args:
        file: to be read.
        field: how the message begins: the field of the job with its value.

    Raises:
        DataError: it does not, or cannot be read; the message says what it is instead.
    """
    path = file.path
    if file.kind is Kind.TOKENS:
        return
    if kind := _UNREAD.get(path.suffix.lower()):
        raise DataError(f"{field}: {path} is {kind}, not plain text, and is not read. {_REMEDY}")
    samples = _samples(path, field)
    if file.compression:
        if not samples[0].startswith(_PACKED[file.compression]):
            raise DataError(f"{field}: {path} is not compressed by {file.compression}, which its name says. Rename it.")
        samples = [_unpacked(file, field)]
    if magic := _MAGIC.get(file.kind):
        if not samples[0].startswith(magic):
            raise DataError(
                f"{field}: {path} is not {file.kind.value}, which its name says. Rename it, or make it again."
            )
        return
    for problem in (_format(samples[0], path), *map(_nonsense, samples)):
        if problem is not None:
            raise DataError(f"{field}: {path} {problem}")
    if file.kind is Kind.JSON_LINES and samples[0].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b""):
        raise DataError(f"{field}: {path} is not JSON Lines, which its name says: an object in each line. Rename it.")


def _unpacked(file: SourceFile, field: str) -> bytes:
    try:
        with open_file(file) as opened:
            return opened.read(_SAMPLE_BYTES)
    except OSError as error:
        raise DataError(
            f"{field}: cannot unpack {file.path} ({' '.join(str(error).split())}). Make it again."
        ) from error


def check_tokens(path: Path, field: str) -> None:
    """Refuses a file that is named as one of token ids and holds text.

    Raises:
        DataError: the file is text, or cannot be read.
    """
    if not any(map(_nonsense, _samples(path, field))):
        raise DataError(f"{field}: {path} holds text, and {path.suffix} means token ids. Name it {path.stem}.txt.")


def _samples(path: Path, field: str) -> list[bytes]:
    """Yields the file's first bytes and evenly spaced pieces of the rest; all of a file that is not large."""
    try:
        with path.open("rb") as file:
            last = max(0, file.seek(0, os.SEEK_END) - _SAMPLE_BYTES)
            samples = []
            for start in sorted({index * last // (_SAMPLES - 1) for index in range(_SAMPLES)}):
                file.seek(start)
                samples.append(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise DataError(f"{field}: cannot read {path} ({error.strerror}). Fix its permissions.") from error
    return samples


def _format(head: bytes, path: Path) -> str | None:
    """Returns what a file is whose first bytes say so, with the remedy."""
    for magic, kind in _FORMATS:
        if head.startswith(magic):
            remedy = f"Name it {path.stem}{_SUFFIXES[kind]}." if kind in _SUFFIXES else _REMEDY
            return f"is {kind}, not plain text. {remedy}"
    for magic, kind in _COMPRESSED:
        if head.startswith(magic):
            remedy = f"Name it {path.name}{_SUFFIXES[kind]}." if kind in _SUFFIXES else "Unpack it first."
            return f"is compressed ({kind}). {remedy}"
    return "is UTF-16 text. Save it as UTF-8." if head.startswith(_UTF_16) else None


def _nonsense(sample: bytes) -> str | None:
    """Returns why these bytes are not of a text, with the remedy; None: they may be."""
    num_control = len(sample) - len(sample.translate(None, _CONTROL))
    if b"\0" in sample or num_control > _MAX_SHARE * len(sample):
        return f"holds binary data ({num_control} control characters in {len(sample)} bytes). {_REMEDY}"
    num_broken = 0 if sample.isascii() else sample.decode(errors="replace").count("\ufffd")
    if num_broken > max(_MAX_SHARE * len(sample), _CUT_BYTES):
        return f"is not UTF-8 ({num_broken} errors in {len(sample)} bytes). Save it as UTF-8."
    return None
