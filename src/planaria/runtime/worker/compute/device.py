"""The device that a worker computes on, set up so that the same work gives the same bits."""

from __future__ import annotations

import logging
from functools import cache

import torch

from planaria.job.settings import Device, Job, Numerics
from planaria.runtime.worker.device_claims import claim

log = logging.getLogger(__name__)


def open_device(job: Job, worker: int) -> torch.device:
    """The worker's device: of the host's GPUs the one that fewest processes have, for as long as this one lives.

    With exact numerics on CUDA, kernels that add in no fixed order are replaced by deterministic ones. CPU kernels
    are deterministic on one thread.

    Raises:
        ValueError: cluster.device is "cuda" and there is none.
    """
    if job.cluster.device is Device.CPU:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise NoDevice('cluster.device = "cuda", but torch sees no CUDA device here. Set cluster.device = "cpu".')
    if job.train.numerics is Numerics.EXACT:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda", _claimed(count, worker % count))


@cache
def _claimed(count: int, first: int) -> int:
    """By what the GPUs are called everywhere: their numbers differ between processes that see some of them only."""
    names = [str(getattr(torch.cuda.get_device_properties(place), "uuid", place)) for place in range(count)]
    try:
        return claim(names, first)
    except OSError as error:
        log.warning("nobody knows which GPUs of this host are free, so they are taken in turn: %s", error)
        return first


class NoDevice(ValueError):
    """The job asks for a device that this machine does not have."""
