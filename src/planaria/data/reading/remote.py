"""Fetches the files that a URL names to this machine, by fsspec: once, and again where they have changed there.

`hf://datasets/OWNER/NAME/...` are files of the Hugging Face hub. What was fetched is kept beside the tokens of other
runs, and does where there is no network.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from planaria.data.reading.sources import DataError
from planaria.job.errors import in_one_line

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FETCHED, _NOTE, _NEW = "fetched", "fetched.json", ".new"


def fetched(url: str, cache: Path, named: str, tell: Callable[[str], None]) -> str:
    """Returns where the files of a URL are on this machine: the file, or a folder of those of a folder or a glob.

    Args:
        url: of a kind that fsspec knows.
        cache: folder in which fetched files are kept.
        named: how messages call the source.
        tell: is told which file is fetched.

    Raises:
        DataError: they cannot be had.
    """
    place = _place(url, cache)
    place.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        before = _note_of(place)
        try:
            system, names = _found(url)
            now = {name: str(system.ukey(name)) for name in names}
        except Exception as error:  # each file system has errors of its own
            if before:
                tell(f"{url} cannot be looked at now: its files of before are read")
                return _where(place, list(before))
            raise DataError(
                f"{named} cannot be looked at ({in_one_line(error)}). Check the URL and the network, or copy the files "
                "here and give their path."
            ) from error
        if not now:
            raise DataError(f"{named}: the URL names no files. Correct it.")
        for number, (name, stamp) in enumerate(now.items(), 1):
            path = place / _local(name)
            if before.get(name) != stamp or not path.is_file():
                tell(f"file {number} of {len(now)} is fetched: {name}")
                _fetch(system, name, path, named)
        (place / (_NOTE + _NEW)).write_bytes(msgspec.json.encode(now))
        os.replace(place / (_NOTE + _NEW), place / _NOTE)
        for path in {*place.rglob("*")} - {place / _NOTE, *(place / _local(name) for name in now)}:
            if path.is_file():
                path.unlink()  # gone there
        return _where(place, list(now))


def fetched_folder(url: str, cache: Path, named: str, tell: Callable[[str], None]) -> Path:
    """Returns the folder on this machine that has the files of a URL of a folder, with their names below it.

    As `fetched`, also where there is one file alone.
    """
    from fsspec.core import url_to_fs

    fetched(url, cache, named, tell)
    return _place(url, cache) / _local(url_to_fs(url)[1])


def _place(url: str, cache: Path) -> Path:
    return cache / _FETCHED / hashlib.sha256(url.encode()).hexdigest()


def _found(url: str) -> tuple[Any, list[str]]:
    """Returns the file system of a URL, and the names of its files there."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    if glob.has_magic(path):
        names = [name for name in system.glob(path) if system.isfile(name)]
    else:
        names = system.find(path) if system.isdir(path) else [path]
    return system, sorted(names)


def _fetch(system: Any, name: str, path: Path, named: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _NEW)
    try:
        system.get_file(name, str(temporary))
        os.replace(temporary, path)
    except Exception as error:  # each file system has errors of its own
        temporary.unlink(missing_ok=True)
        raise DataError(
            f"{named}: {name} cannot be fetched to {path.parent} ({in_one_line(error)}). Try again, or copy it here "
            "and give its path."
        ) from error


def _note_of(place: Path) -> dict[str, str]:
    """Returns what was fetched whole before: a stamp by name; nothing where some of it is gone."""
    try:
        before = msgspec.json.decode((place / _NOTE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}
    return before if all((place / _local(name)).is_file() for name in before) else {}


def _where(place: Path, names: Sequence[str]) -> str:
    return str(place / _local(names[0])) if len(names) == 1 else str(place)


def _local(name: str) -> str:
    """Returns where a file of this name lies below the folder of its URL."""
    path = PurePosixPath(_URL.sub("", name.partition("?")[0]))
    return str(PurePosixPath(*(part for part in path.parts if part not in ("/", "..", "."))))
