"""Measures what the devices of one host cost each other: the same work in so many processes at once, and in one alone.

What counts is each process's own time, so cores that are too few do not count: the estimate knows their number.
"""

from __future__ import annotations

import os
import statistics
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from planaria.plan.costs.model_profile import Contention
from planaria.runtime.thresholds import CONTENTION_S

Make = Callable[[], Callable[[], object]]
"""Makes some work, in the process that is to do it; what it returns does it once."""

_SECONDS = struct.Struct("d")


def measure_contention(compute: Make, update: Make, counts: Sequence[int]) -> tuple[Contention, ...]:
    """Measures so many devices at work at once, on processors.

    Args:
        compute: makes what computes a microbatch.
        update: makes what sums and applies gradients.
        counts: of devices, ascending, 2 or more each.

    Returns:
        An entry for each number, up to the last of which so many processes have room here.
    """
    alone = [_own_s(work, 1) for work in (compute, update)] if counts else []
    measured: list[Contention] = []
    for number in counts:
        together = [_own_s(work, number) for work in (compute, update)]
        factors = [max(1.0, many / one) for many, one in zip(together, alone, strict=True) if many and one]
        if len(factors) < 2:
            break
        measured.append(Contention(num_devices=number, compute=factors[0], update=factors[1]))
    return tuple(measured)


def _own_s(make: Make, number: int) -> float | None:
    """Returns the seconds of its own time that the slowest of so many processes takes for the work while all are at it;
    None: one of them died."""
    ready, start, told = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            _work(make, ready, start, told)
        children.append(pid)
    for end in (ready[1], start[0], told[1]):
        os.close(end)
    are_ready = [os.read(ready[0], 1) for _ in children]
    os.close(start[1])  # the signal to begin
    found = [os.read(told[0], _SECONDS.size) for _ in children]
    for end in (ready[0], told[0]):
        os.close(end)
    for pid in children:
        os.waitpid(pid, 0)
    if not (all(are_ready) and all(found)):
        return None
    return max(float(_SECONDS.unpack(each)[0]) for each in found)


def _work(make: Make, ready: tuple[int, int], start: tuple[int, int], told: tuple[int, int]) -> NoReturn:
    """Does the work in a process of its own, and ends that."""
    status = 1
    try:
        os.close(start[1])
        work = make()
        work()
        os.write(ready[1], b".")
        os.close(ready[1])  # so that whoever dies before is noticed
        os.read(start[0], 1)
        until, took = time.monotonic() + CONTENTION_S, list[float]()
        while len(took) < 2 or time.monotonic() < until:
            began = time.thread_time()
            work()
            took.append(time.thread_time() - began)
        os.write(told[1], _SECONDS.pack(statistics.median(took)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
