"""Trials: what a judge makes of the protocol with one change, each in a process forked for it.

Random schedules are the first judge; those that they miss go to tests (`suite`).
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from tests.testkit.mutants.sites import Site, install
from tests.testkit.schedules.corruption import audited, corrupted, succeeded
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.search import error_of

KINDS = (schedule, schedule, schedule, corrupted, audited, succeeded)
"""Kinds of schedules, in turn by seed. Among all that may befall, corruption alone would come too seldom."""

PROCESSOR_S = 60
"""Of the processor, after which a change is taken for a loop. A schedule takes 0.1 s or so."""
MEMORY_BYTES = 4 << 30

Line = tuple[str, int]
Tracer = Callable[[FrameType, str, Any], Any]
Case = TypeVar("Case")
"""What a judge tries: the seed of a schedule, the name of a test."""

Judge = Callable[[Sequence[Case]], int | None]
"""Returns which of these cases notices the change; None: none does."""


class Outcome(Enum):
    FOUND = "found"
    HUNG = "found, as it goes on without end"
    TESTED = "found by a test"
    MISSED = "missed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a change.

    Attributes:
        site: that was changed.
        outcome: of it.
        tried: cases that reach the site, and that it was tried with; 0 where it hung.
    """

    site: Site
    outcome: Outcome
    tried: int = 0

    @property
    def is_found(self) -> bool:
        return self.outcome not in (Outcome.MISSED, Outcome.NOT_REACHED)


def schedule_of(seed: int) -> Schedule:
    return KINDS[seed % len(KINDS)](seed)


def noticing(seeds: Sequence[int]) -> int | None:
    """Returns the first of these seeds whose schedule breaks a promise; None: none does."""
    return next((at for at, seed in enumerate(seeds) if error_of(schedule_of(seed)) is not None), None)


def tracer(files: set[str], reached: set[Line]) -> Tracer:
    """Returns what notes the lines of these files that run; it is for `sys.settrace`."""

    def of_a_frame(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return of_a_frame

    return of_a_frame


def reached_by(seeds: Iterable[int], paths: Iterable[Path]) -> dict[int, set[Line]]:
    """Returns the lines of these sources that the schedule of each seed runs.

    Raises:
        SystemExit: if a schedule fails with nothing changed.
    """
    files, lines = {str(path) for path in paths}, dict[int, set[Line]]()
    for seed in seeds:
        lines[seed] = set()
        sys.settrace(tracer(files, lines[seed]))
        try:
            error = error_of(schedule_of(seed))
        finally:
            sys.settrace(None)
        if error is not None:
            raise SystemExit(f"seed {seed} fails with nothing changed: {error}")
    return lines


def limit(processor_s: int = PROCESSOR_S) -> None:
    """Limits what this process may take."""
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def try_all(sites: Sequence[Site], reached: Mapping[Case, set[Line]], judge: Judge[Case], jobs: int) -> Iterator[Trial]:
    """Yields what a judge makes of each change, as they end; at most `jobs` processes at a time."""
    waiting, running = list(reversed(sites)), dict[int, tuple[Site, int]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            site = waiting.pop()
            cases = [case for case, lines in reached.items() if _is_reached(site, lines)]
            if not cases:
                yield Trial(site, Outcome.NOT_REACHED)
                continue
            reading, writing = os.pipe()
            if (pid := os.fork()) == 0:
                os.close(reading)
                _child(site, cases, judge, writing)
            os.close(writing)
            running[pid] = site, reading
        if running:
            pid, status = os.wait()
            site, reading = running.pop(pid)
            with os.fdopen(reading) as pipe:
                tried = int(pipe.read() or 0)
            if os.waitstatus_to_exitcode(status) == BROKEN:
                raise SystemExit(f"{site.path}:{site.lines[0]} cannot be changed")
            yield Trial(site, _OUTCOMES.get(os.waitstatus_to_exitcode(status), Outcome.HUNG), tried)


MISSED, FOUND, BROKEN = 0, 1, 2
_OUTCOMES = {MISSED: Outcome.MISSED, FOUND: Outcome.FOUND}


def _is_reached(site: Site, lines: set[Line]) -> bool:
    return any((str(site.path), line) in lines for line in range(site.lines[0], site.lines[1] + 1))


def _child(site: Site, cases: Sequence[Case], judge: Judge[Case], writing: int) -> None:
    """Tries a change until a case finds it; ends this process."""
    status = BROKEN
    try:
        limit()
        if install(site):
            found = judge(cases)
            os.write(writing, str(len(cases) if found is None else found + 1).encode())
            status = MISSED if found is None else FOUND
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
