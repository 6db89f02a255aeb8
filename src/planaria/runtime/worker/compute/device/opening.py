"""Opens the device that a worker computes on: which of the host's, and with settings that give the same bits."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO

import torch

from planaria.job.sections.cluster import Device as DeviceName
from planaria.job.sections.cluster import TransportKind
from planaria.job.sections.train import DType, Numerics
from planaria.job.settings import Job
from planaria.runtime.worker.compute.device.cuda_memory import shared_name
from planaria.runtime.worker.compute.device.cuda_queues import CudaQueues
from planaria.runtime.worker.compute.device.device import Device, HostDevice
from planaria.runtime.worker.compute.device.stand_in import StandInQueues
from planaria.runtime.worker.compute.device.streams import StreamDevice
from planaria.runtime.worker.compute.shared_memory import HOST_MEMORY

log = logging.getLogger(__name__)


_REPRODUCIBLE = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS gives the same bits on several streams (its manual, on reproducibility)."""

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def memory_of(job: Job) -> str:
    """Returns the name of the memory that workers of this host with the same name read in place; "": this one's is its
    own. Before any device is opened."""
    match job.cluster.device:
        case DeviceName.CPU | DeviceName.EMULATED:
            return HOST_MEMORY
        case _ if job.cluster.transport is not TransportKind.AUTO:
            return ""
        case DeviceName.STAND_IN:
            return "stand-in"
        case DeviceName.CUDA:
            return shared_name()


def open_device(job: Job, worker: int) -> Device:
    """Opens the worker's device: of the host's GPUs the one with fewest processes, for as long as this one lives.

    On CUDA, products of float32 values are rounded to TF32 if train.dtype says so, and not otherwise. CPU kernels are
    deterministic on one thread.

    Raises:
        NoDevice: cluster.device is "cuda" and there is none, or it could not give the same bits.
    """
    match job.cluster.device:
        case DeviceName.CPU | DeviceName.EMULATED:
            return HostDevice()
        case DeviceName.STAND_IN:
            return StreamDevice(torch.device("cpu"), StandInQueues(), lends=bool(memory_of(job)))
        case DeviceName.CUDA:
            pass
    count = torch.cuda.device_count()
    if count == 0:
        raise NoDevice('cluster.device = "cuda", but torch sees no CUDA device here. Set cluster.device = "cpu".')
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.train.dtype is DType.TF32
    if job.train.numerics is Numerics.EXACT:
        make_reproducible()
    return device_at(torch.device("cuda", _claimed(count, worker % count)), lends=bool(memory_of(job)))


def device_at(place: torch.device, *, lends: bool = False) -> Device:
    """Returns the device that torch has there."""
    return StreamDevice(place, CudaQueues(place), lends=lends) if place.type == "cuda" else HostDevice()


def make_reproducible() -> None:
    """Has torch use kernels on CUDA that give the same bits each time, and refuse what has none. Called before the
    first of them runs: cuBLAS looks at its workspaces once.

    Attention is computed by plain products: its fused kernels add in no fixed order on the way back.

    Raises:
        NoDevice: the environment asks for workspaces of cuBLAS with which bits differ.
    """
    given = os.environ.setdefault(_WORKSPACE, _REPRODUCIBLE[0])
    if given not in _REPRODUCIBLE:
        raise NoDevice(
            f"{_WORKSPACE} = {given!r}, with which products on CUDA differ from run to run, and train.numerics is "
            f'"exact". Unset it, or set train.numerics = "fast".'
        )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_math_sdp(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def _claimed(count: int, first: int) -> int:
    """Claims a GPU by its UUID: numbers of GPUs differ between processes that see only some of them."""
    names = [str(getattr(torch.cuda.get_device_properties(place), "uuid", place)) for place in range(count)]
    try:
        return claim(names, first)
    except OSError as error:
        log.warning("nobody knows which GPUs of this host are free, so they are taken in turn: %s", error)
        return first


class NoDevice(ValueError):
    """The job asks for a device that this machine does not have, or that cannot do what the job asks."""


_held: list[IO[bytes]] = []
"""Locks of this process, lifted when its end closes the files."""


def claim(names: Sequence[str], first: int, folder: Path | None = None) -> int:
    """Claims the device that fewest processes have, until this process ends.

    Args:
        names: of the devices, the same in all processes of the host.
        first: the place of the one that is taken if all are as free.
        folder: of the locks; None: the user's, on this host.

    Returns:
        The place of the device among the names.

    Raises:
        OSError: the folder cannot be written, or is another user's.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"planaria-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} is somebody else's")
    order = [(first + turn) % len(names) for turn in range(len(names))]
    for others in count():
        for place in order:
            lock = (folder / f"{names[place]}-{others}").open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            _held.append(lock)
            return place
    raise AssertionError("there is always a lock that nobody has")
