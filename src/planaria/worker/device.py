"""The device that a worker computes on, set up so that the same work gives the same bits."""

from __future__ import annotations

import torch

from planaria.job.settings import Device, Job, Numerics


def open_device(job: Job, worker: int) -> torch.device:
    """The worker's device; workers share the GPUs of a host in turn.

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
    return torch.device("cuda", worker % count)


class NoDevice(ValueError):
    """The job asks for a device that this machine does not have."""
