"""Trials: what random schedules make of the protocol with one change, each in a process forked for it."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from tests.testkit.mutants.sites import Site, install
from tests.testkit.schedules.corruption import audited, corrupted, succeeded
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.search import error_of

KINDS = (schedule, schedule, schedule, corrupted, audited, succeeded)
"""Kinds of schedules, in turn by seed. Among all that may befall, corruption alone would come too seldom."""

PROCESSOR_S = 60
"""Of the processor, after which schedules of a change are taken for a loop. A schedule takes 0.1 s or so."""
MEMORY_BYTES = 4 << 30

Line = tuple[str, int]


class Outcome(Enum):
    FOUND = "found"
    HUNG = "found, as it goes on without end"
    MISSED = "missed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a change.

    Attributes:
        site: that was changed.
        outcome: of it.
        tried: schedules that reach the site, and that it was tried with; 0 where it hung.
    """

    site: Site
    outcome: Outcome
    tried: int = 0


def schedule_of(seed: int) -> Schedule:
    return KINDS[seed % len(KINDS)](seed)


def reached_by(seeds: Iterable[int], paths: Iterable[Path]) -> dict[int, set[Line]]:
    """Returns the lines of these sources that the schedule of each seed runs.

    Raises:
        SystemExit: if a schedule fails with nothing changed.
    """
    files, lines = {str(path) for path in paths}, dict[int, set[Line]]()

    def of_a_frame(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return of_a_frame

    for seed in seeds:
        reached = lines[seed] = set()
        sys.settrace(of_a_frame)
        try:
            error = error_of(schedule_of(seed))
        finally:
            sys.settrace(None)
        if error is not None:
            raise SystemExit(f"seed {seed} fails with nothing changed: {error}")
    return lines


def try_all(sites: Sequence[Site], reached: Mapping[int, set[Line]], jobs: int) -> Iterator[Trial]:
    """Yields what became of each change, as they end; at most `jobs` processes at a time."""
    waiting, running = list(reversed(sites)), dict[int, tuple[Site, int]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            site = waiting.pop()
            seeds = [seed for seed, lines in reached.items() if _is_reached(site, lines)]
            if not seeds:
                yield Trial(site, Outcome.NOT_REACHED)
                continue
            reading, writing = os.pipe()
            if (pid := os.fork()) == 0:
                os.close(reading)
                _child(site, seeds, writing)
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


def _child(site: Site, seeds: Sequence[int], writing: int) -> None:
    """Tries a change until a schedule finds it; ends this process."""
    status = BROKEN
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        if install(site):
            found = next((at for at, seed in enumerate(seeds) if error_of(schedule_of(seed)) is not None), None)
            os.write(writing, str(len(seeds) if found is None else found + 1).encode())
            status = MISSED if found is None else FOUND
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
