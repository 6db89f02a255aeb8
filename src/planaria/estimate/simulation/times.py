"""Times of a step's forwards and backwards: what running workers by themselves tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec


class WorkerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one worker, in seconds from the step's beginning.

    Attributes:
        end_s: the end of its last compute (or message, where its sends block).
        compute_s: seconds that it computes.
        due_s: of each of its groups, when its gradients are whole.
        longest_s: of its longest forward or backward.
    """

    end_s: float
    compute_s: float
    due_s: dict[int, float]
    longest_s: float


@dataclass(frozen=True, kw_only=True)
class JointTimes:
    """Times of workers that hear from no others: those of a pipeline, or of all routes that cross.

    Attributes:
        parts: the workers', in order.
    """

    parts: tuple[WorkerTimes, ...]

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        """Seconds of each worker's compute."""
        return tuple(part.compute_s for part in self.parts)

    @cached_property
    def due_s(self) -> dict[int, float]:
        """Times at which each group's gradients are whole at all of these workers."""
        due_s: dict[int, float] = {}
        for part in self.parts:
            for group, due in part.due_s.items():
                due_s[group] = max(due_s.get(group, 0.0), due)
        return due_s

    @cached_property
    def longest_s(self) -> float:
        """Seconds of the longest forward or backward."""
        return max(part.longest_s for part in self.parts)

    @cached_property
    def ends_s(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """The groups and the end of the last compute of each worker."""
        return tuple((tuple(part.due_s), part.end_s) for part in self.parts)
