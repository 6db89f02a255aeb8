"""Units of work: what is done at once for one microbatch on one hop of its route."""

from __future__ import annotations

import enum
from typing import NamedTuple

from planaria.plan.plan import WorkerId
from planaria.plan.program.hops import RouteHop


class Phase(enum.IntEnum):
    """Phases of a hop: what is computed at once."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    """A whole backward, or the input half of a split one."""
    WEIGHT_GRADIENTS = 2
    SHADOW_FORWARD = 3
    """A forward computed once more at the worker that shadows the hop."""
    SHADOW_BACKWARD = 4

    @property
    def is_shadow(self) -> bool:
        return self >= Phase.SHADOW_FORWARD


class Unit(NamedTuple):
    """One phase of a hop for one microbatch; of a shadow's phases, `by` is the worker that shadows the hop."""

    phase: Phase
    hop: RouteHop
    microbatch: int
    by: WorkerId | None = None
