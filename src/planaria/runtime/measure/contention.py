"""Measures what the devices of one host cost each other: the same work in so many processes at once.

What counts is each process's own time, so cores that are too few do not count: the estimate knows their number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from planaria.plan.costs.model_profile import Contention
from planaria.runtime.measure.at_once import Meet, at_once
from planaria.runtime.thresholds import CONTENTION_REPEATS, CONTENTION_S

Make = Callable[[], Callable[[], object]]
"""Makes some work, in the process that is to do it; what it returns does it once."""


def measure_contention(
    compute: Make, update: Make, alone_s: tuple[float, float], counts: Sequence[int]
) -> tuple[Contention, ...]:
    """Measures so many devices at work at once, on processors.

    Args:
        compute: makes what computes a microbatch.
        update: makes what sums and applies gradients.
        alone_s: what either takes one device by the profile, so that both together are right for devices at work.
        counts: of devices, ascending, 2 or more each.

    Returns:
        An entry for each number, up to the last of which so many processes have room here.
    """
    measured: list[Contention] = []
    for number in counts:
        together = [_own_s(work, number) for work in (compute, update)]
        factors = [max(1.0, many / one) for many, one in zip(together, alone_s, strict=True) if many and one]
        if len(factors) < 2:
            break
        measured.append(Contention(num_devices=number, compute=factors[0], update=factors[1]))
    return tuple(measured)


def _own_s(make: Make, number: int) -> float | None:
    """Returns the seconds of its own time that the slowest of so many processes takes for the work while all are at it;
    None: one of them died."""
    found = at_once(number, partial(_repeat, make))
    return None if found is None else max(seconds for (seconds,) in found)


def _repeat(make: Make, place: int, meet: Meet) -> tuple[float]:
    """Does the work for a while; returns the median seconds of this process's own time that it took."""
    work = make()
    work()
    meet("")
    start, took = time.monotonic(), list[float]()
    while len(took) < 2 or time.monotonic() - start < CONTENTION_S / (1 if len(took) < CONTENTION_REPEATS else 5):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return (statistics.median(took),)
