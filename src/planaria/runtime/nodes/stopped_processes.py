"""Finds processes that are stopped: there, and not running (SIGSTOP, a debugger). It asks the kernel, and kills nobody.

A process that is slow, short of cores, or waits for a disk is not stopped, however long it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from planaria.protocol.thresholds import DETECTOR_AWAY_S
from planaria.runtime.coordinator.nodes import process_state


class Stopped:
    """Tracks for how long processes have been stopped, as seen by repeated looks.

    Args:
        timeout_s: a stop that lasts longer is told of.
        now: monotonic seconds.
        state_of: the kernel's letter for a process.
    """

    def __init__(self, timeout_s: float, now: float, state_of: Callable[[int], str] = process_state) -> None:
        self._timeout_s = timeout_s
        self._looked = now
        self._state_of = state_of
        self._since: dict[int, float] = {}

    def look(self, pids: Iterable[int], now: float) -> list[tuple[int, float]]:
        """Returns those of these processes that have been stopped for too long, and for how many seconds.

        Whoever looks after a long time was stopped itself. Then all may have been, by one hand that lets all go on (a
        batch system that suspends a job), and whatever was seen before says nothing.
        """
        was_away, self._looked = now - self._looked > DETECTOR_AWAY_S, now
        before = {} if was_away else self._since
        self._since = {pid: before.get(pid, now) for pid in pids if self._state_of(pid) in "Tt"}
        return [(pid, now - since) for pid, since in self._since.items() if now - since > self._timeout_s]
