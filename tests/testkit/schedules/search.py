"""Search: run schedules, and make those that fail small enough to be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.weather import Weather

PLAIN = {
    "done": 0,
    "bad": (),
    "is_large": False,
    "is_tied": False,
    "checkpoint_every": 0,
    "num_zones": 0,
    "is_slow": False,
}
"""Plainer values that are tried for fields of a setup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A broken promise.

    Attributes:
        seed: of the schedule that was tried.
        error: in one line.
        smallest: the smallest schedule found that fails in the same way.
    """

    seed: int
    error: str
    smallest: Schedule


def error_of(which: Schedule) -> Exception | None:
    """Returns the exception of a schedule's run; None without any."""
    try:
        Cluster(which).run()
    except Exception as error:
        return error
    return None


def first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:300]


def try_seed(seed: int) -> Failure | None:
    """Runs the schedule of a seed."""
    which = schedule(seed)
    error = error_of(which)
    if error is None:
        return None
    return Failure(seed=seed, error=first_line(error), smallest=smaller(which, error))


def smaller(which: Schedule, error: Exception) -> Schedule:
    """Returns the schedule without what an error of the same kind does not need."""
    kind = _kind(error)
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _candidates(which):
            found = error_of(candidate)
            if found is not None and _kind(found) == kind:
                which, is_smaller = candidate, True
                break
    return msgspec.structs.replace(which, why=first_line(error))


def _candidates(which: Schedule) -> Iterator[Schedule]:
    """Yields schedules with a fault less, a step less, or something plainer."""
    replace, setup = msgspec.structs.replace, which.setup
    for at in range(len(which.faults)):
        yield replace(which, faults=which.faults[:at] + which.faults[at + 1 :])
    if which.calm is not None:
        broken = which.calm.broken
        for at in range(len(broken)):
            yield replace(which, calm=replace(which.calm, broken=broken[:at] + broken[at + 1 :]))
    elif setup.steps > setup.done + 1:
        yield replace(which, setup=replace(setup, steps=setup.steps - 1))
    for name, plain in PLAIN.items():
        if getattr(setup, name) != plain:
            yield replace(which, setup=replace(setup, **{name: plain}))
    if which.weather != Weather():
        yield replace(which, weather=Weather())


def _kind(error: Exception) -> str:
    return re.sub(r"\d+", "", first_line(error))[:60]
