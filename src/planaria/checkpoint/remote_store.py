"""Keeps files where a URL says, by fsspec (s3://, gs:// and more). Calls have time limits, and are retried.

A file there is whole or not there; what makes it count is written last, by a put that refuses another one where the
store can do that (S3, Google Cloud Storage).
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import logging
import threading
import uuid
from functools import partial
from typing import Any, Final

import numpy as np

from planaria.checkpoint.retries import PATIENCE_S, StoreError, Tries, line_of
from planaria.data.reading.remote import file_system
from planaria.job.errors import UserError

log = logging.getLogger(__name__)

_CALL_S, _SLOWEST_BYTES_PER_S = 30.0, 1e6
"""A call may take so long, and longer by its bytes at this speed."""
_S3FS = 's3fs (in a clone: pip install -e ".[s3]")'
_EXTRAS: Final = {"s3": _S3FS, "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_DTYPES: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "BOOL": "?",
}  # fmt: skip


class RemoteStore:
    """The folder that a URL names. See `planaria.checkpoint.store.Store`.

    Args:
        url: of a kind that fsspec knows.
        patience_s: how long a call is tried again.
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self._url = url.rstrip("/")
        self._try = Tries(self._url, patience_s)
        self._opened = threading.Lock()
        self._system: Any = None
        self._root = ""

    @property
    def stamp(self) -> str:
        return f"-{uuid.uuid4().hex[:12]}"

    def write(self, name: str, data: bytes) -> None:
        self._try(f"write {name}", lambda: self._put(name, data))

    def _put(self, name: str, data: bytes) -> None:
        self._call("pipe_file", self._path(name), data, size_bytes=len(data))
        found = int(self._call("info", self._path(name))["size"])
        if found != len(data):
            raise StoreError(errno.EIO, f"{name} has {found} bytes there, and {len(data)} were written")

    def publish(self, name: str, data: bytes, *, replaces: bool) -> None:
        if replaces:
            self.write(name, data)
            return
        try:
            self._try(f"write {name}", lambda: self._create(name, data))
        except OSError as error:
            # An attempt of our own may have come through whose answer did not.
            there = self.read(name) if self.has(name) else None
            if there is None:
                raise
            if there != data:
                raise FileExistsError(
                    errno.EEXIST, f"another coordinator has written {name} there; it stays as it is"
                ) from error

    def _create(self, name: str, data: bytes) -> None:
        path = self._path(name)
        try:
            if self._creates:
                self._call("pipe_file", path, data, mode="create")
                return
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOSYS:
                raise
        if self.has(name):  # not in one with the put: a store that cannot do better
            raise FileExistsError(errno.EEXIST, f"{name} is there already")
        self._call("pipe_file", path, data)

    @property
    def _creates(self) -> bool:
        """Whether the file system can be asked to put a file only where there is none."""
        system, _ = self._open()
        put = getattr(system, "_pipe_file", None) or system.pipe_file
        return "mode" in inspect.signature(put).parameters

    def read(self, name: str) -> bytes:
        size = self._size(name)
        data: bytes = self._try(f"read {name}", lambda: self._call("cat_file", self._path(name), size_bytes=size))
        return data

    def read_part(self, name: str, start: int, end: int) -> bytes:
        """Reads the bytes from `start` up to `end`."""
        path = self._path(name)
        data: bytes = self._try(
            f"read {name}", lambda: self._call("cat_file", path, start=start, end=end, size_bytes=end - start)
        )
        if len(data) != end - start:
            raise StoreError(errno.EIO, f"{name} ends after {start + len(data)} bytes")
        return data

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.read(name)).hexdigest()

    def check(self, name: str, size_bytes: int, sha256: str) -> bool:
        """Returns whether a file has its size: its sum is looked at when it is read, once and by who needs it."""
        return self._size(name) == size_bytes

    def has(self, name: str) -> bool:
        try:
            self._size(name)
        except FileNotFoundError:
            return False
        return True

    def tensors(self, name: str) -> RemoteTensors:
        return RemoteTensors(self, name)

    def subfolders(self) -> list[str]:
        try:
            found = self._try("list", lambda: self._call("ls", self._path(""), detail=False, refresh=True))
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in found]

    def remove(self) -> None:
        try:
            found = self._try("list", lambda: self._call("find", self._path("")))
            # One by one: lists are expanded, and a name may have what a pattern has. The last one written goes first.
            for path in sorted(map(str, found), key=lambda path: (not path.endswith(".json"), path)):
                self._try("remove", partial(self._call, "rm_file", path))
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._url, line_of(error))

    def delete(self, name: str) -> None:
        self._try(f"remove {name}", lambda: self._call("rm_file", self._path(name)))

    def _path(self, name: str) -> str:
        _, root = self._open()
        return f"{root}/{name}".rstrip("/")

    def _size(self, name: str) -> int:
        about = self._try(f"look at {name}", lambda: self._call("info", self._path(name)))
        return int(about["size"])

    def _call(self, method: str, *args: Any, size_bytes: int = 0, **options: Any) -> Any:
        system, _ = self._open()
        if system.async_impl:  # of others nothing is known that could stall
            options["timeout"] = _CALL_S + size_bytes / _SLOWEST_BYTES_PER_S
        elif method == "ls":
            options.pop("refresh")
        return getattr(system, method)(*args, **options)

    def _open(self) -> tuple[Any, str]:
        """Returns the file system, and the folder's path there.

        Raises:
            UserError: this kind of URL is not known, or what reads it is not installed.
        """
        with self._opened:
            if self._system is None:
                self._system, self._root = _opened(self._url)
        return self._system, self._root


def _opened(url: str) -> tuple[Any, str]:
    kind = url.partition("://")[0].lower()
    try:
        system, root = file_system(url, use_listings_cache=False)
    except ImportError as error:
        package = _EXTRAS.get(kind)
        remedy = f"Install it: pip install {package}." if package else line_of(error)
        raise UserError(f"{url}: what reads {kind}:// is not installed. {remedy}") from None
    except ValueError as error:
        raise UserError(f"{url}: {line_of(error)}. Give a URL that fsspec knows, as s3://bucket/folder.") from None
    return system, root.rstrip("/")


class RemoteTensors:
    """A safetensors file in a store, of which only what is asked for is read."""

    def __init__(self, store: RemoteStore, name: str) -> None:
        self._store = store
        self._name = name
        length = int.from_bytes(store.read_part(name, 0, 8), "little")
        self._begin = 8 + length
        header: dict[str, Any] = json.loads(store.read_part(name, 8, self._begin))
        self._about = {key: about for key, about in header.items() if key != "__metadata__"}

    def keys(self) -> list[str]:
        return list(self._about)

    def get_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._about[name]["shape"])

    def get_tensor(self, name: str) -> np.ndarray:
        about = self._about[name]
        start, end = (self._begin + offset for offset in about["data_offsets"])
        data = self._store.read_part(self._name, start, end) if end > start else b""
        return np.frombuffer(bytearray(data), dtype=_DTYPES[about["dtype"]]).reshape(about["shape"])
