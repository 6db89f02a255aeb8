"""How the coordinator refers to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """A whole checkpoint: the state after `step`, and the grid exponents of the next.

    `num_dropped`: microbatches that this run left out up to `step`.
    """

    step: int
    folder: str
    exponents: tuple[int, ...]
    num_dropped: int = 0
