"""Finds where text comes from: files in a fixed order on this machine. Reads nothing but names and sizes."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from planaria.job.suggestions import hub_hint

PYTHON_STDLIB = "python-stdlib"
"""The source code of the installed Python's own standard library: real text, present on every machine."""

TOKEN_SUFFIXES = (".bin", ".npy")

_TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".java", ".js", ".html"})
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "ensurepip"}
)


class DataError(ValueError):
    """Data that cannot be had or used; the message names the field, the value and the remedy."""


def is_token_file(source: str) -> bool:
    """Whether a source is a file of token ids, rather than text."""
    return source.endswith(TOKEN_SUFFIXES)


def find_text_files(source: str) -> tuple[Path, ...]:
    """Returns the text files of a source, in an order that depends on their names alone.

    Raises:
        DataError: there are none.
    """
    path = Path(source)
    if source in NAMED_SOURCES:
        files = NAMED_SOURCES[source]()
        remedy = "This machine has none of its files. Give a file, a folder or a glob of your own."
    elif path.is_file():
        files = [path]
        remedy = ""
    elif path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix in _TEXT_SUFFIXES and file.is_file()]
        kinds = ", ".join(sorted(_TEXT_SUFFIXES))
        remedy = f"The folder has no text files ({kinds}). Give a glob, as in '{source}/*'."
    else:
        files = [Path(name) for name in glob.glob(source, recursive=True) if Path(name).is_file()]
        kind = "glob matches nothing" if glob.has_magic(source) else "file or folder does not exist"
        hint = hub_hint(source, "--repo-type", "dataset")
        remedy = f"The {kind} (from {Path.cwd()}). Correct the path, or use {PYTHON_STDLIB!r}.{hint}"
    if not files:
        raise DataError(f"data.source = {source!r}: {remedy}")
    return tuple(sorted(files, key=lambda file: file.as_posix()))


def _stdlib_files() -> list[Path]:
    files = []
    for folder, subfolders, names in os.walk(sysconfig.get_path("stdlib")):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return files


NAMED_SOURCES: Mapping[str, Callable[[], list[Path]]] = {
    PYTHON_STDLIB: _stdlib_files,
}
"""Sources of text that a job names instead of a path, and what finds their files on this machine."""


def read_texts(files: Iterable[Path]) -> Iterator[bytes]:
    """Reads the files' contents, one after the other.

    Raises:
        DataError: one cannot be read.
    """
    for file in files:
        try:
            yield file.read_bytes()
        except OSError as error:
            raise DataError(f"data.source: cannot read {file} ({error.strerror}). Fix its permissions.") from error
