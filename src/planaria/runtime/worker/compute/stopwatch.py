"""The stopwatch of a real device: by its seconds a worker's compute is held against that of the other nodes.

Which clock is right depends on who else computes on the host:

- A core for each worker: wall-clock time. It tells of whatever makes a node slow: a slow core, a quota, a neighbour
  that takes the core away, processes that are stopped now and then.
- Workers that share cores (all nodes of a job on a laptop, say): wall-clock time less the time for which the thread was
  ready and waited for a core. That wait is the host's doing, and falls on some node or other by chance. What is left
  tells of slow cores and of stopped processes still; a quota on one node's processor time is not told from
  oversubscription. Where the system does not count such waits, processor time.
- CUDA: as the first, for what is slow on order; the streams time what they compute by events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

Stopwatch = Callable[[], float]
"""A function that returns seconds, of which only differences mean something. For the first thread that calls it."""

_SCHEDULE = "/proc/thread-self/schedstat"
"""File of the nanoseconds that the thread ran, those that it was ready and waited, and how often it ran."""


def stopwatch(device: torch.device, num_workers: int) -> Stopwatch:
    """Returns the stopwatch of a device.

    Args:
        device: what computes.
        num_workers: of the job, on this host.
    """
    if device.type == "cuda":
        return time.monotonic
    if num_workers <= len(os.sched_getaffinity(0)):
        return time.monotonic
    return _Oversubscribed() if os.path.exists(_SCHEDULE) else time.thread_time


class _Oversubscribed:
    """Measures wall-clock time less waits for a core."""

    def __init__(self) -> None:
        self._file: int | None = None

    def __call__(self) -> float:
        if self._file is None:
            self._file = os.open(_SCHEDULE, os.O_RDONLY | os.O_CLOEXEC)  # stays that of the thread which opens it
        while True:
            waited_ns = self._waited_ns()
            now = time.monotonic()
            if self._waited_ns() == waited_ns:  # else the wait fell between the two clocks
                return now - waited_ns * 1e-9

    def _waited_ns(self) -> int:
        assert self._file is not None
        return int(os.pread(self._file, 64, 0).split()[1])
