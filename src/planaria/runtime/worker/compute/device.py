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

from planaria.job.sections.cluster import Device
from planaria.job.sections.train import DType, Numerics
from planaria.job.settings import Job

log = logging.getLogger(__name__)


def open_device(job: Job, worker: int) -> torch.device:
    """Opens the worker's device: of the host's GPUs the one with fewest processes, for as long as this one lives.

    On CUDA, products of float32 values are rounded to TF32 if train.dtype says so, and not otherwise; with exact
    numerics, kernels that add in no fixed order are replaced by deterministic ones. CPU kernels are deterministic on
    one thread.

    Raises:
        ValueError: cluster.device is "cuda" and there is none.
    """
    if job.cluster.device is Device.CPU:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise NoDevice('cluster.device = "cuda", but torch sees no CUDA device here. Set cluster.device = "cpu".')
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.train.dtype is DType.TF32
    if job.train.numerics is Numerics.EXACT:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    return torch.device("cuda", _claimed(count, worker % count))


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
    """The job asks for a device that this machine does not have."""


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
