"""Who is stopped for too long, and who only seems to be."""

from __future__ import annotations

import pytest

from planaria.runtime.nodes.stopped_processes import Stopped
from planaria.runtime.thresholds import STOPPED_LOOK_S

TIMEOUT_S = 1.0


class Kernel:
    """States of processes, and somebody who looks at them again and again."""

    def __init__(self) -> None:
        self.states = {1: "S", 2: "R"}
        self.now = 100.0
        self._stopped = Stopped(TIMEOUT_S, self.now, lambda pid: self.states[pid])

    def look_for(self, seconds: float) -> list[int]:
        """Those that were found meanwhile, each once."""
        found = []
        end = self.now + seconds
        while self.now < end:
            self.now += STOPPED_LOOK_S
            found += [pid for pid, _ in self._stopped.look(self.states, self.now) if pid not in found]
        return found


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.mark.parametrize("state", ["T", "t"])
def test_whoever_is_stopped_is_found_after_the_deadline(state: str, kernel: Kernel) -> None:
    kernel.states[2] = state
    assert kernel.look_for(TIMEOUT_S) == []
    assert kernel.look_for(2 * STOPPED_LOOK_S) == [2]


@pytest.mark.parametrize("state", ["R", "S", "D"])
def test_whoever_is_slow_is_not_stopped(state: str, kernel: Kernel) -> None:
    kernel.states[1] = state
    assert kernel.look_for(1000.0) == []


def test_short_stops_do_not_add_up(kernel: Kernel) -> None:
    for _ in range(10):
        kernel.states[1] = "T"
        assert kernel.look_for(TIMEOUT_S - 2 * STOPPED_LOOK_S) == []
        kernel.states[1] = "S"
        kernel.look_for(STOPPED_LOOK_S)


def test_whoever_was_stopped_together_with_the_observer_has_the_whole_time_again(kernel: Kernel) -> None:
    """A batch system suspends a job and lets it go on, one process after the other."""
    kernel.states[1] = "T"
    kernel.look_for(TIMEOUT_S / 2)
    kernel.now += 600.0
    assert kernel.look_for(TIMEOUT_S / 2) == []
    kernel.states[1] = "S"
    assert kernel.look_for(10 * TIMEOUT_S) == []
    kernel.now += 600.0
    kernel.states[1] = "T"
    assert kernel.look_for(3 * TIMEOUT_S) == [1], "one that stays stopped is found all the same"
