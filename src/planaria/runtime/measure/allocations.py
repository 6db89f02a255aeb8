"""Measures how much memory a piece of work takes at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(Protocol):
    """Bytes allocated since the measurement began."""

    def live_bytes(self) -> int:
        """Returns how many of the allocated bytes are still in use."""
        ...

    def peak_bytes(self) -> int:
        """Returns the most bytes that were in use at one time."""
        ...


@contextmanager
def follow_allocations(device: torch.device) -> Iterator[Allocations]:
    """Measures what the torch operations inside allocate, beyond what was there before.

    On CUDA the allocator tells, kernels' workspaces included. On the CPU each operation's results are followed; what a
    kernel allocates and frees within itself is not seen.
    """
    if device.type == "cuda":
        yield _CudaAllocations(device)
        return
    with _Follower() as follower:
        yield follower


class _CudaAllocations:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        self._before = torch.cuda.memory_allocated(device)

    def live_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device) - self._before

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) - self._before


class _Follower(TorchDispatchMode):
    """Follows the storages that operations return, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._peak = 0
        self._old: set[int] = set()
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler, which takes a second, only to be told that nothing is compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {_address(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        # What comes in from outside was there before.
        self._old |= given - self._live.keys()
        results = func(*args, **kwargs)
        self._forget_freed()
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and _address(tensor) not in self._old:
                storage = tensor.untyped_storage()
                self._live[_address(tensor)] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        self._peak = max(self._peak, self._sum())
        return results

    def _forget_freed(self) -> None:
        for address in [at for at, (alive, _) in self._live.items() if alive.expired()]:  # type: ignore[no-untyped-call]
            del self._live[address]

    def _sum(self) -> int:
        return sum(size for _, size in self._live.values())

    def live_bytes(self) -> int:
        self._forget_freed()
        return self._sum()

    def peak_bytes(self) -> int:
        return self._peak


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
