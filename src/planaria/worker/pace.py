"""How long a worker's device takes: where a real device takes the time that it needs, an emulated one is made to.

The interpreter tells its pace what the device is about to do; `planaria.worker.emulated_time` is the one that waits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from planaria.plan.plan import Plan
from planaria.plan.program import Instruction


class Pace(Protocol):
    """Told of everything that takes a device's time, before it counts as done."""

    def adopt(self, plan: Plan) -> None:
        """A plan is in force, from now on."""
        ...

    def begin_step(self) -> None:
        """The commit of the step before has come, or the plan: nothing of the new step began earlier."""
        ...

    def compute(
        self,
        instruction: Instruction,
        *,
        forwards: Collection[int] = (),
        inputs: Collection[int] = (),
        weights: Collection[int] = (),
    ) -> None:
        """An instruction runs forwards of these layers, or gives gradients of these layers' inputs and weights.
        Returns when it would be done; raises Interrupted on an order, and when asked again goes on where it was."""
        ...

    def add_up(self, group: int, num_parts: int) -> None:
        """The sum of so many owners' gradients of a group is computed."""
        ...

    def drain(self) -> None:
        """Returns when the device has done all that it was given; raises Interrupted on an order."""
        ...

    def apply(self, groups: Collection[int]) -> None:
        """The optimizer updates these groups."""
        ...


class OwnPace:
    """A real device's: things take as long as they take."""

    def adopt(self, plan: Plan) -> None:
        pass

    def begin_step(self) -> None:
        pass

    def compute(
        self,
        instruction: Instruction,
        *,
        forwards: Collection[int] = (),
        inputs: Collection[int] = (),
        weights: Collection[int] = (),
    ) -> None:
        pass

    def add_up(self, group: int, num_parts: int) -> None:
        pass

    def drain(self) -> None:
        pass

    def apply(self, groups: Collection[int]) -> None:
        pass
