"""Measures what the devices of one host cost each other: the same work in so many processes at once.

What counts is each process's own time: how much longer the cores are at it that several share, the estimate knows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from planaria.plan.costs.model_profile import Contention
from planaria.runtime.machine.limits import num_cores
from planaria.runtime.measure.at_once import Meet, at_once
from planaria.runtime.thresholds import CONTENTION_REPEATS, CONTENTION_S

Make = Callable[[], Callable[[], object]]
"""Makes some work, in the process that is to do it; what it returns does it once."""


def measure_contention(
    compute: Make, update: Make, alone_s: tuple[float, float], number: int
) -> tuple[Contention, ...]:
    """Measures so many devices at work at once, on processors; more than cores cost each other more, as they take
    turns.

    Args:
        compute: makes what computes a microbatch.
        update: makes what sums and applies gradients.
        alone_s: what either takes one device by the profile, so that both together are right for devices at work.
        number: of devices; below 2 nothing is measured.

    Returns:
        An entry; none, if so many processes have no room here.
    """
    if number < 2:
        return ()
    together = [_own_s(work, number) for work in (compute, update)]
    factors = [max(1.0, many / one) for many, one in zip(together, alone_s, strict=True) if many and one]
    if len(factors) < 2:
        return ()
    return (Contention(num_devices=number, compute=factors[0], update=factors[1]),)


def _own_s(make: Make, number: int) -> float | None:
    """Returns the seconds of its own time that the work takes a process while so many are at it: the slowest, for which
    the others wait, or where they take turns the mean, as the cores do all of it. None: one of them died."""
    found = at_once(number, partial(_repeat, make))
    if found is None:
        return None
    own_s = [seconds for (seconds,) in found]
    return max(own_s) if number <= num_cores() else statistics.mean(own_s)


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
