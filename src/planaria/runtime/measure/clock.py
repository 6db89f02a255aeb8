"""The clock that compute is measured with."""

from __future__ import annotations

import time

import torch


def compute_now(device: torch.device) -> float:
    """Returns seconds of which only differences mean something.

    On a CPU this thread's own time, which other programs of the machine do not lengthen: a worker has its core to
    itself when the estimate is to hold. On CUDA the time when all that was asked for is done.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()
