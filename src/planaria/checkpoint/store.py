"""Opens the place where a checkpoint's files lie: a folder of this machine, or a URL that fsspec knows."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote

import numpy as np

from planaria.checkpoint.local_store import LocalStore
from planaria.checkpoint.remote_store import RemoteStore
from planaria.checkpoint.retries import PATIENCE_S
from planaria.job.errors import UserError
from planaria.job.values import is_url

Place = Path | str
"""A folder, or a URL of one."""
_FILE = "file://"
_PATIENCE_AT_START_S: Final = 10.0


class GroupTensors(Protocol):
    """The tensors of one group's file, read as they are asked for."""

    def keys(self) -> Sequence[str]:
        """Returns the tensors' names."""

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor, without reading it."""

    def get_tensor(self, name: str) -> np.ndarray:
        """Reads one tensor."""


class Store(Protocol):
    """The files of one folder. What fails raises OSError: FileNotFoundError where there is no such file."""

    @property
    def stamp(self) -> str:
        """Part of files' names by which those of two runs differ; "": no other run writes here."""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file durably, whole or not at all."""

    def publish(self, name: str, data: bytes, *, replaces: bool) -> None:
        """Writes the file that makes the others count, last.

        Raises:
            FileExistsError: there is another one, and `replaces` is false, as far as the store can tell.
        """

    def read(self, name: str) -> bytes:
        """Reads a file."""

    def sha256(self, name: str) -> str:
        """Returns the SHA-256 (hex) of a file."""

    def check(self, name: str, size_bytes: int, sha256: str) -> bool:
        """Returns whether a file is what was written, as far as that can be told before it is needed."""

    def has(self, name: str) -> bool:
        """Returns whether there is such a file."""

    def tensors(self, name: str) -> GroupTensors:
        """Opens a safetensors file."""

    def subfolders(self) -> list[str]:
        """Returns the names of folders in this one."""

    def delete(self, name: str) -> None:
        """Removes a file."""

    def remove(self) -> None:
        """Removes the folder; what cannot be removed stays."""


def store_at(place: Place, patience_s: float = PATIENCE_S) -> Store:
    """Returns the store of a folder, which need not be there yet.

    Args:
        place: the folder.
        patience_s: how long what fails at a URL is tried again.
    """
    text = str(place)
    if text.startswith(_FILE):
        return LocalStore(Path(unquote(text.removeprefix(_FILE))))
    return RemoteStore(text, patience_s) if is_url(text) else LocalStore(Path(place))


def below(place: Place, name: str) -> Place:
    """Returns the place of a folder in this one."""
    return f"{place}/{name}" if isinstance(place, str) else place / name


def check_writable(url: str, named: str) -> None:
    """Checks that files can be written, read and removed under a URL; one that does not answer is waited for briefly.

    Raises:
        UserError: they cannot; `named` is what messages call the place.
    """
    store = store_at(url, patience_s=_PATIENCE_AT_START_S)
    name = f".probe-{secrets.token_hex(4)}"  # hosts may look at the same time
    try:
        store.write(name, b"planaria")
        store.read(name)
        store.delete(name)
    except OSError as error:
        raise UserError(
            f"{named}: files cannot be written, read and removed there ({error.strerror or error}). Check that the "
            "bucket exists, the credentials, their rights, and the network."
        ) from None


def has_checkpoints(url: str) -> bool:
    """Returns whether there are checkpoints under a URL."""
    return any(name.startswith("step-") for name in store_at(url).subfolders())
