"""Keeps files in a folder of this machine: each is renamed into place when it is on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np


class LocalStore:
    """One folder. See `planaria.checkpoint.store.Store`.

    Args:
        folder: its path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def stamp(self) -> str:
        return ""

    def write(self, name: str, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(name, data)

    def publish(self, name: str, data: bytes, *, replaces: bool) -> None:
        """Writes the file over any other: the run's claim keeps others out of its folder."""
        self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        partial = self._folder / (name + ".part")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self._folder / name)
        except OSError:
            partial.unlink(missing_ok=True)  # on a full disk, half a file is in the way of the next one
            raise

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def sha256(self, name: str) -> str:
        with (self._folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def check(self, name: str, size_bytes: int, sha256: str) -> bool:
        return self.sha256(name) == sha256

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def tensors(self, name: str) -> LocalTensors:
        return LocalTensors(self._folder / name)

    def subfolders(self) -> list[str]:
        return [path.name for path in self._folder.iterdir() if path.is_dir()] if self._folder.is_dir() else []

    def delete(self, name: str) -> None:
        (self._folder / name).unlink()

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class LocalTensors:
    """A safetensors file on disk, mapped into memory."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._file: Any = safe_open(str(path), framework="np")

    def keys(self) -> list[str]:
        return list(self._file.keys())

    def get_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def get_tensor(self, name: str) -> np.ndarray:
        tensor: np.ndarray = self._file.get_tensor(name)
        return tensor
