"""Redundant compute: what one worker computed in the step in progress that another one computes as well.

Bookkeeping alone. As long as the other one lives, a second copy of what it counts is no part of any sum, and of no
ledger: its own says who counts. Once it is lost, the plan that finishes the step says whether the copies count instead.
"""

from __future__ import annotations

import enum
from typing import SupportsFloat

from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.worker.progress import Work


class Fate(enum.Enum):
    """What becomes of the copies under a new plan for the step in progress."""

    KEPT = enum.auto()
    """The copies stay: the other worker lives."""
    PROMOTED = enum.auto()
    """The copies count: this worker goes on in the other's place, with all of them."""
    DROPPED = enum.auto()
    """The copies are dropped: what was counted runs anew, here or elsewhere."""


class Shadows:
    """What one worker computed redundantly.

    Attributes:
        counted: layer and work of each copy.
        losses: of microbatches whose last layer ran here as a shadow's.
    """

    def __init__(self) -> None:
        self.counted: set[tuple[int, Work]] = set()
        self.losses: dict[int, SupportsFloat] = {}

    def clear(self) -> None:
        """Forgets all copies, because a step begins."""
        self.counted.clear()
        self.losses.clear()

    def fate(self, plan: Plan, worker: WorkerId) -> Fate:
        """Returns what becomes of the copies. A worker goes on in another's place when the plan gives it the very work
        that the other had; then, and only then, all copies are to count here."""
        if not self.counted:
            return Fate.KEPT
        layers = {layer for layer, _ in self.counted}
        owned = layers.intersection(plan.layers_of.get(worker, ()))
        given, first = set[tuple[int, Work]](), plan.first_of(worker)
        for route in plan.routes:
            here = {layer for hop in route.hops if hop.worker == first for layer in hop.layers}
            for layer in layers & here & set(route.counted):
                given.update((layer, (microbatch, route.born)) for microbatch in route.microbatches)
        if self.counted <= given:
            return Fate.PROMOTED
        lives = {(m, route.born) for route in plan.routes for m in route.microbatches}
        works = {work for _, work in self.counted}
        if works.isdisjoint(lives) or (owned and not works <= lives):
            return Fate.DROPPED
        return Fate.DROPPED if owned and given & self.counted else Fate.KEPT
