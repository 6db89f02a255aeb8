"""Checks whether a file is text to train on: by its name, by its first bytes, and by samples of what is in it.

Only samples are looked at, so that a file of any size is judged in milliseconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from planaria.data.sources import DataError

_RECORDS = {
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".json": "JSON",
    ".csv": "a table",
    ".tsv": "a table",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".tfrecord": "TFRecord",
}
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
_REMEDY = "Write its texts to a .txt file, or its token ids to a .npy file."


def check_text(path: Path, field: str) -> None:
    """Refuses a file that is not text.

    Args:
        path: of the file.
        field: how the message begins: the field of the job with its value.

    Raises:
        DataError: the file is not text, or cannot be read; the message says what it is instead.
    """
    if kind := _RECORDS.get(path.suffix.lower()):
        raise DataError(f"{field}: {path} is {kind}, not plain text, and is not read yet. {_REMEDY}")
    samples = _samples(path, field)
    for problem in (_format(samples[0]), *map(_nonsense, samples)):
        if problem is not None:
            raise DataError(f"{field}: {path} {problem}")


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


def _format(head: bytes) -> str | None:
    """Returns what a file is whose first bytes say so, with the remedy."""
    for magic, kind in _FORMATS:
        if head.startswith(magic):
            return f"is {kind}, not plain text. {_REMEDY}"
    for magic, kind in _COMPRESSED:
        if head.startswith(magic):
            return f"is compressed ({kind}). Unpack it first."
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
