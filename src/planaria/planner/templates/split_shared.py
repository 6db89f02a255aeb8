"""What searches share that have the same layers, nodes and devices, but other memory for their stages.

Each answer is taken over only where the search would find the same by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planaria.plan.costs.pipeline_time import Ints
from planaria.planner.templates.splits import Space, Split, Stages

Times = dict[tuple[int, Split], float]
"""Simulated step times, by number of microbatches and split."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Record of which of some splits with equally many stages fit the memory."""

    stages: Stages
    answer: npt.NDArray[np.bool_]

    def holds(self, space: Space) -> bool:
        return bool((space.fit(self.stages) == self.answer).all())


@dataclass(frozen=True, slots=True, eq=False)
class Climb:
    """Record of a climb through neighbours: which of those that it met fit, and what it knew in the end."""

    fits: list[Fit]
    times: dict[Split, float]
    seen: set[Split]
    top: list[tuple[float, Split]]

    def holds(self, space: Space, aside: Collection[Split]) -> bool:
        """Returns whether a search here would climb the same way, with splits `aside` known and none the best."""
        return self.seen.isdisjoint(aside) and all(fit.holds(space) for fit in self.fits)


@dataclass(slots=True)
class Shared:
    """Findings that searches share so far.

    Attributes:
        times: of splits that were scored.
        widest: the first search's space.
        shortest: there, the shortest ways under period bounds, messages hidden or not.
        descents: by what they depend on, the bound and the splits that were scored on the way.
        climbs: by what was known before.
    """

    times: Times = field(default_factory=dict)
    widest: Space | None = None
    shortest: dict[tuple[float, bool], Split | None] = field(default_factory=dict)
    descents: dict[Hashable, tuple[float, list[Split]]] = field(default_factory=dict)
    climbs: dict[Hashable, list[Climb]] = field(default_factory=dict)


def limits_digest(space: Space, most_stages: int, longest_s: float) -> bytes:
    """Returns a digest, the same for spaces whose stages of up to `longest_s` have the same limits of followers."""
    costs = space.ahead
    prefix = costs.forward_s + costs.backward_s
    compute = prefix[:, None, :] - prefix[:, :, None]
    matters = (compute <= longest_s * (1 + 1e-6)) & np.triu(np.ones(compute.shape[1:], dtype=bool), k=1)
    limits: Ints = np.where(matters, np.minimum(costs.limit, most_stages), 0)
    return hashlib.sha256(limits.astype(np.int32).tobytes()).digest()
