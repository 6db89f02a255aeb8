"""Memory of a GPU that other processes of the host read in place. It has not run on a GPU.

Nothing but torch's own sharing of tensors, by file descriptors (expandable segments): what a process has mapped stays
readable when the owner dies, which CUDA promises for no other kind. A process may be forbidden to take files of another
(containers do so, and Linux by Yama), and GPUs may be unable to reach each other's memory; then nothing is shared, and
all goes by way of the host.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import torch

from planaria.runtime.worker.compute.shared_memory import has_ended

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:"
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_FOR_CHILDREN = 1
"""The highest of Yama's scopes in which a process may let others of its user take its files."""
_NO_COUNTER = b"/planaria-has-no-counter"
"""Names no counter: torch passes over it when a reader closes memory."""
_PR_SET_PTRACER = 0x59616D61
_SYS_PIDFD_GETFD = 438


@cache
def shared_name() -> str:
    """Prepares this process to share memory of its GPUs, before it has any; returns a name that is the same for all
    workers of the host that can read each other's; "": nobody can read this one's."""
    settings = next(filter(None, map(os.environ.get, _ALLOCATOR)), "")
    if f"{_EXPANDABLE}False" in settings or not (reach_each_other() and may_take_files()):
        return ""
    if _EXPANDABLE not in settings:
        settings = ",".join(filter(None, (settings, f"{_EXPANDABLE}True")))
        torch.cuda.memory._set_allocator_settings(settings)
    places = range(torch.cuda.device_count())
    names = sorted(str(getattr(torch.cuda.get_device_properties(place), "uuid", place)) for place in places)
    return f"cuda-{hashlib.blake2b(' '.join(names).encode(), digest_size=4).hexdigest()}"


def reach_each_other() -> bool:
    """Returns whether there are GPUs, and each can read the memory of every other."""
    number = torch.cuda.device_count()
    pairs = itertools.permutations(range(number), 2)
    try:
        return number > 0 and all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs)
    except RuntimeError:
        return False  # whoever opens a device will say what is wrong


def may_take_files() -> bool:
    """Lets other processes of the user take this one's open files; returns whether it may take theirs."""
    try:
        if int(_YAMA.read_text()) > _FOR_CHILDREN:
            return False
    except OSError:
        pass  # a kernel without Yama
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    try:
        own = os.pidfd_open(os.getpid())
    except OSError:
        return False
    taken = libc.syscall(_SYS_PIDFD_GETFD, own, own, 0)
    for descriptor in (own, *((taken,) if taken >= 0 else ())):
        os.close(descriptor)
    return bool(taken >= 0)


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a vector lies.

    Attributes:
        share: what torch tells of shared memory: its handle, size and offset, a counter's handle and offset, an
            event's handle, and whether that is to be waited for.
    """

    pid: int
    size_bytes: int
    share: tuple[bytes, int, int, bytes, int, bytes, bool]


class CudaVector:
    """A vector of a GPU that other processes of the host can read. See `queues.Vector`."""

    def __init__(self, count: int, dtype: torch.dtype, place: torch.device) -> None:
        self.tensor = torch.zeros(max(1, count), dtype=dtype, device=place)[:count]
        self._address: torch.Tensor | None = None

    def address(self) -> torch.Tensor:
        if self._address is None:
            storage = self.tensor.untyped_storage()
            _, handle, size, offset, counter, place, *event = storage._share_cuda_()  # type: ignore[no-untyped-call]
            # Torch would keep the memory until one reader, and no more, has closed it. When it may be used again is
            # known without that counter.
            torch.UntypedStorage._release_ipc_counter_cuda(counter, place)
            share = handle, size, offset, _NO_COUNTER, 0, *event
            encoded = msgspec.msgpack.encode((os.getpid(), self.tensor.nbytes, share))
            self._address = torch.from_numpy(np.frombuffer(encoded, np.uint8).copy())
        return self._address


def opened(address: torch.Tensor, dtype: torch.dtype, place: torch.device) -> torch.Tensor | None:
    """Returns what another process has at an address, as a vector of that type in memory of this GPU, which reads it
    where it is; None: that process has ended before.

    Raises:
        RuntimeError: the owner lives, and its memory cannot be read.
    """
    told = msgspec.msgpack.decode(address.numpy().tobytes(), type=_Address)
    try:
        with torch.cuda.device(place):
            storage = torch.UntypedStorage._new_shared_cuda(place.index, *told.share)
            return torch.empty(0, dtype=dtype, device=place).set_(
                storage, 0, (told.size_bytes // dtype.itemsize,), (1,)
            )
    except RuntimeError as error:
        if has_ended(told.pid):
            return None
        said = str(error).partition("\n")[0]
        raise RuntimeError(
            f'memory that process {told.pid} of this host shares cannot be read: {said}. Set cluster.transport = "tcp".'
        ) from error
