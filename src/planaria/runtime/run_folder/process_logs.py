"""Reads the logs of a run's processes, one file each, while they may still be written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from planaria.job.parse import job_from_json
from planaria.runtime.run_folder.run_folder import RunFolder

_WORKER = re.compile(r"worker-(\d+)\.log")
_TAIL_BYTES = 1 << 20
"""Most bytes of a file that are looked through for its last lines, and about as many are given at a time."""


def log_files(folder: RunFolder, node: int | None = None) -> list[Path]:
    """Returns the logs that there are, workers last and by number; of a node, its workers' alone."""
    per_node = job_from_json(folder.job.read_bytes()).cluster.devices_per_node
    numbered = [(path, _WORKER.fullmatch(path.name)) for path in folder.logs.glob("*.log")]
    workers = sorted((int(match[1]), path) for path, match in numbered if match is not None)
    others = sorted(path for path, match in numbered if match is None)
    if node is not None:
        return [path for worker, path in workers if worker // per_node == node]
    return others + [path for _, path in workers]


class LogReader:
    """Gives what a run's logs have that was not given yet."""

    def __init__(self, folder: RunFolder, node: int | None) -> None:
        self._folder = folder
        self._node = node
        self._read: dict[Path, int] = {}

    def new_lines(self, last: int = 0) -> Iterator[tuple[str, Sequence[str]]]:
        """Yields each file's name with its new whole lines, if there are any: the `last` ones, or (0) all, those of a
        long file in several parts."""
        for path in log_files(self._folder, self._node):
            with path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._read.get(path, 0), end - _TAIL_BYTES if last else 0))
                while whole := _whole_lines(file):
                    yield path.name, whole.decode(errors="replace").splitlines()[-last:]
                self._read[path] = file.tell()


def _whole_lines(file: IO[bytes]) -> bytes:
    """Reads about as many bytes of whole lines as are given at a time; b"": there is no whole line more."""
    begin = file.tell()
    piece = file.read(_TAIL_BYTES)
    if len(piece) == _TAIL_BYTES and b"\n" not in piece:
        piece += file.readline()
    whole = piece[: piece.rfind(b"\n") + 1]
    file.seek(begin + len(whole))
    return whole
