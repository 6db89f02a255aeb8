"""Keeps a device's time: a real device takes the time that it needs, an emulated one is made to take its profile's.

The interpreter tells its pace what the device is about to do; `planaria.runtime.worker.emulated.time` is the one that
waits.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Protocol

from planaria.plan.plan import Plan
from planaria.plan.program.instructions import Instruction
from planaria.protocol.worker.sums import Piece
from planaria.runtime.thresholds import NAP_S
from planaria.runtime.worker.compute.stopwatch import Stopwatch


class DeviceClock(Protocol):
    """A clock that is told of everything that takes a device's time, before it counts as done.

    Attributes:
        slowness: how many times longer than it could the device is to take, by a fault on order; 1: none.
    """

    slowness: float

    def stopwatch(self) -> float:
        """Returns seconds; their differences are how long the device computed."""
        ...

    def slow_down(self, took_s: float) -> None:
        """Makes an instruction take `slowness` times as long as its compute took."""
        ...

    def adopt(self, plan: Plan) -> None:
        """Notes that a plan is in force from now on."""
        ...

    def read(self, size_bytes: int) -> None:
        """Notes that all workers of the node have begun to read so much of a checkpoint, together."""
        ...

    def finish_reading(self) -> None:
        """Waits until what was begun last is read; raises Interrupted on an order, and may be called again."""
        ...

    def begin_step(self) -> None:
        """Notes that the last step's commit, or the plan, has come: nothing of the new step began earlier."""
        ...

    def compute(
        self,
        instruction: Instruction,
        *,
        forwards: Collection[int] = (),
        inputs: Collection[int] = (),
        weights: Collection[int] = (),
    ) -> None:
        """Takes the time of an instruction: forwards of these layers, or gradients of their inputs and weights.
        Returns when it would be done; raises Interrupted on an order, and when asked again goes on where it was."""
        ...

    def add_up(self, piece: Piece[Any]) -> None:
        """Notes that a piece of a sum is computed."""
        ...

    def drain(self) -> None:
        """Waits until the device has done all that it was given; raises Interrupted on an order."""
        ...

    def apply(self, groups: Collection[int]) -> None:
        """Notes that the optimizer updates these groups."""
        ...


class OwnPace(DeviceClock):
    """The clock of a real device: things take as long as they take, and nothing needs to be noted.

    Args:
        stopwatch: the device's stopwatch.
    """

    def __init__(self, stopwatch: Stopwatch = time.monotonic) -> None:
        self.slowness = 1.0
        self._stopwatch = stopwatch

    def stopwatch(self) -> float:
        return self._stopwatch()

    def slow_down(self, took_s: float) -> None:
        """Sleeps by the stopwatch: on shared cores a nap ends late, and the worker is not the slower for that."""
        naps = self._stopwatch is not time.thread_time  # which stands still meanwhile
        end = self._stopwatch() + took_s * (self.slowness - 1.0)
        while (left := end - self._stopwatch()) > 0:
            time.sleep(min(left, NAP_S) if naps else 0.0)
