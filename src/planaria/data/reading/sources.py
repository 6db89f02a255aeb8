"""Finds where samples come from: files in a fixed order on this machine, each of a kind that its name says."""

from __future__ import annotations

import enum
import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from planaria.job.errors import UserCodeError
from planaria.job.registry import DataSource
from planaria.job.suggestions import hub_hint

_TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".java", ".js", ".html"})
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_SAVED, _SPLITS = "state.json", "dataset_dict.json"
"""What `datasets.save_to_disk` leaves beside the Arrow files of a split, and above its splits."""


class DataError(ValueError):
    """Data that cannot be had or used; the message names the field, the value and the remedy."""


class DataRaised(DataError, UserCodeError):
    """The user's dataset raised; `trace` shows where."""


class Kind(enum.Enum):
    """What a file holds; its value is for people."""

    TEXT = "text"
    JSON_LINES = "JSON Lines"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    TOKENS = "token ids"

    @property
    def has_rows(self) -> bool:
        """Whether its documents are rows with columns."""
        return self in (Kind.JSON_LINES, Kind.PARQUET, Kind.ARROW)


_SUFFIXES = {
    ".jsonl": Kind.JSON_LINES,
    ".ndjson": Kind.JSON_LINES,
    ".parquet": Kind.PARQUET,
    ".arrow": Kind.ARROW,
    ".feather": Kind.ARROW,
    ".bin": Kind.TOKENS,
    ".npy": Kind.TOKENS,
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source.

    Attributes:
        path: where it is.
        kind: what it holds, by its name.
        compression: "gzip" or "zstd", by its name; "": none.
    """

    path: Path
    kind: Kind
    compression: str = ""

    @classmethod
    def named(cls, path: Path) -> SourceFile:
        """Returns a file as its name describes it."""
        compression = _COMPRESSIONS.get(path.suffix.lower(), "")
        suffix = (path.with_suffix("") if compression else path).suffix.lower()
        return cls(path, _SUFFIXES.get(suffix, Kind.TEXT), compression)


def find_files(source: str, field: str = "data.source") -> tuple[SourceFile, ...]:
    """Returns the files of a source, all of one kind, in an order that depends on their names alone.

    Raises:
        DataError: there are none, or some of several kinds.
    """
    path = Path(source)
    files: list[Path]
    if source in [*DataSource]:
        found = DataSource(source).load()()
        if not found:
            raise DataError(f"{field} = {source!r}: This machine has none of its files. Give files of your own.")
        return tuple(SourceFile(file, Kind.TEXT) for file in sorted(found, key=Path.as_posix))
    if path.is_file():
        files = [path]
        remedy = ""
    elif path.is_dir():
        if saved := _saved(path, f"{field} = {source!r}"):
            return saved
        files = _of_folder(path)
        kinds = ", ".join(sorted({*_TEXT_SUFFIXES, *_SUFFIXES}))
        remedy = f"The folder has no files of a kind that is read ({kinds}). Give a glob, as in '{source}/*'."
    else:
        files = [Path(name) for name in glob.glob(source, recursive=True) if Path(name).is_file()]
        kind = "glob matches nothing" if glob.has_magic(source) else "file or folder does not exist"
        hint = hub_hint(source, "--repo-type", "dataset")
        hint += f'; or set {field} = "hf://{source}"' if hint else ""
        remedy = f"The {kind} (from {Path.cwd()}). Correct the path, or use {DataSource.PYTHON_STDLIB.value!r}.{hint}"
    if not files:
        raise DataError(f"{field} = {source!r}: {remedy}")
    return _of_one_kind([SourceFile.named(file) for file in sorted(files, key=Path.as_posix)], f"{field} = {source!r}")


def _of_folder(folder: Path) -> list[Path]:
    """Returns a folder's files of kinds that are read; token ids only where there is nothing else."""
    read: list[Path] = []
    tokens: list[Path] = []
    for path in folder.rglob("*"):
        file = SourceFile.named(path)
        plain = path.with_suffix("") if file.compression else path
        if file.kind is Kind.TEXT and plain.suffix.lower() not in _TEXT_SUFFIXES:
            continue
        if path.is_file():
            (tokens if file.kind is Kind.TOKENS else read).append(path)
    return read or tokens


def _of_one_kind(files: Iterable[SourceFile], named: str) -> tuple[SourceFile, ...]:
    by_kind: dict[Kind, list[SourceFile]] = {}
    for file in files:
        by_kind.setdefault(file.kind, []).append(file)
    if len(by_kind) > 1:
        told = " and ".join(
            f"{len(found)} of {kind.value} ({found[0].path}{', ...' if len(found) > 1 else ''})"
            for kind, found in by_kind.items()
        )
        raise DataError(f"{named} has files of several kinds: {told}. Give a glob of one kind.")
    return tuple(*by_kind.values())


def _saved(folder: Path, named: str) -> tuple[SourceFile, ...]:
    """Returns the Arrow files of a folder that `datasets.save_to_disk` made; none: it is another folder."""
    try:
        if (folder / _SPLITS).exists():
            splits = msgspec.json.decode((folder / _SPLITS).read_bytes())["splits"]
            raise DataError(f"{named} has the splits {', '.join(splits)}. Give one, as in '{folder / splits[0]}'.")
        if not (folder / _SAVED).exists():
            return ()
        names = [file["filename"] for file in msgspec.json.decode((folder / _SAVED).read_bytes())["_data_files"]]
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, OSError):
        return ()
    return tuple(SourceFile(folder / name, Kind.ARROW) for name in names)
