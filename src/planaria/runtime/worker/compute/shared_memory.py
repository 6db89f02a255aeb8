"""Vectors that other workers of the same host can read in place, without a copy and without a file left behind.

A vector lies in an anonymous memory file (memfd). A peer opens it through /proc/PID/fd; what it has mapped stays
readable even when the owner dies. Whoever reads must know from elsewhere that the owner does not write meanwhile.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable

import torch

HOST_MEMORY = "host"
"""Name of the memory of a host's processors."""

_serials = itertools.count(1)


class SharedVector:
    """A vector in shared memory, owned by this process.

    Attributes:
        tensor: flat, zeroed at first.
        serial: unique within this process; a file descriptor's number is not.
    """

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        size = max(1, count) * dtype.itemsize
        self.serial = next(_serials)
        self._descriptor = os.memfd_create("planaria-sum", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, size)
        self.tensor = torch.frombuffer(mmap.mmap(self._descriptor, size), dtype=dtype)[:count]

    def address(self) -> torch.Tensor:
        """Returns what a peer needs to map the vector: int64 (pid, descriptor, serial, bytes)."""
        return torch.tensor([os.getpid(), self._descriptor, self.serial, self.tensor.nbytes])

    def __del__(self) -> None:
        os.close(self._descriptor)


def opened(address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns what lies at an address, in place, as a vector of that type; None when its owner ended before it was
    mapped.

    Raises:
        OSError: it is there and cannot be mapped (no right to, or too many files are open).
    """
    pid, descriptor, _, size_bytes = (int(number) for number in address)
    try:
        file = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        if has_ended(pid):
            return None
        raise
    try:
        memory = mmap.mmap(file, max(dtype.itemsize, size_bytes))
    finally:
        os.close(file)
    return torch.frombuffer(memory, dtype=dtype)[: size_bytes // dtype.itemsize]


class SharedReader:
    """Opens peers' vectors, each once.

    Args:
        opens: one that is new.
    """

    def __init__(self, opens: Callable[[torch.Tensor, torch.dtype], torch.Tensor | None] = opened) -> None:
        self._opens = opens
        self._mapped: dict[tuple[int, int], tuple[bytes, torch.Tensor]] = {}

    def read(self, peer: int, item: int, address: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the peer's vector for `item`, in place; None when its owner ended before it was mapped.

        Raises:
            OSError: see `opened`.
        """
        name = address.numpy().tobytes()
        known = self._mapped.get((peer, item))
        if known is not None and known[0] == name:
            return known[1]
        vector = self._opens(address, dtype)
        if vector is not None:
            self._mapped[peer, item] = name, vector
        return vector

    def keep_only(self, peers: set[int]) -> None:
        """Unmaps what belongs to workers that are no longer in the plan."""
        for entry in [entry for entry in self._mapped if entry[0] not in peers]:
            del self._mapped[entry]


def has_ended(pid: int) -> bool:
    """Whether a process is a zombie, or about to be one, whose files only root may open."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return "VmSize:" not in status.read()
    except (FileNotFoundError, ProcessLookupError):
        return True
