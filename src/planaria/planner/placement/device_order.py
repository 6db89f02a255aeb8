"""In which order a node's stages lie on its devices, so that most of their state is where it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planaria.plan.plan import PlanError
from planaria.planner.placement.matching import Ints, cheapest

_MOST_STAGES = 9
"""On one node, of which all sets are looked at; more of equal size are matched to devices node by node."""

_TABLE_ENTRIES = 1 << 22
"""Kept in memory; a larger table is made in pieces, and the rows that are asked for are made again."""


class DeviceOrders:
    """The best order of a role's stages on each of several nodes.

    A stage of d devices takes d neighbouring ones, and its state is with the first of them. Exact: a dynamic program
    over the sets of stages that lie on the first devices, for all nodes at once; or, where all stages have equally
    many devices, a matching.

    Args:
        overlap: for each node, device and stage, what the device holds of the stage.
        num_devices: of each stage.

    Attributes:
        kept: for each node, the most that stays where it is.

    Raises:
        PlanError: the stages need more devices than a node has.
    """

    def __init__(self, overlap: Ints, num_devices: Sequence[int]) -> None:
        nodes, devices, stages = overlap.shape
        idle = devices - sum(num_devices)
        if idle < 0:
            raise PlanError(
                f"Stages of {', '.join(map(str, num_devices))} devices need {sum(num_devices)}, and a node has "
                f"{devices}. Use templates that were made for devices_per_node = {devices}."
            )
        # What is left idle is a stage that keeps nothing.
        self._overlap = np.concatenate([overlap, np.zeros((nodes, devices, idle), np.int64)], axis=2)
        self._counts = [*num_devices, *[1] * idle]
        self._num_stages = stages
        self._best: Ints | None = None
        self._matched: list[list[int]] = []
        if len(self._counts) > _MOST_STAGES and len(set(self._counts)) == 1:
            self._matched = [self._match(table) for table in self._overlap]
            places = np.arange(len(self._counts))
            self.kept: Ints = np.array(
                [table[starts, places].sum() for table, starts in zip(self._overlap, self._matched, strict=True)]
            )
        else:
            at_once = max(_TABLE_ENTRIES >> len(self._counts), 1)
            if nodes <= at_once:
                self._best = self._solve(self._overlap)
                self.kept = self._best[:, -1]
            else:
                pieces = [self._overlap[at : at + at_once] for at in range(0, nodes, at_once)]
                self.kept = np.concatenate([self._solve(piece)[:, -1] for piece in pieces])

    def _match(self, overlap: Ints) -> list[int]:
        """Each stage's first device on a node whose stages are all equally large."""
        size = self._counts[0]
        ones = np.ones(len(self._counts), np.int64)
        matching = cheapest(overlap.max() - overlap[::size].T, ones, ones)
        assert matching is not None, "every stage may take every place"
        return [size * int(place) for place in matching.flow.argmax(axis=1)]

    def _solve(self, overlap: Ints) -> Ints:
        """For each node and set of stages, the most that is kept when these lie on the first devices."""
        masks = np.arange(1 << len(self._counts))
        bits = [masks >> at & 1 for at in range(len(self._counts))]
        self._start = sum((bit * count for bit, count in zip(bits, self._counts, strict=True)), np.zeros_like(masks))
        sizes = sum(bits, np.zeros_like(masks))
        best = np.full((len(masks), len(overlap)), -1, np.int64)
        best[0] = 0
        by_stage = np.ascontiguousarray(overlap.transpose(2, 1, 0))
        for size in range(len(self._counts)):
            level = masks[sizes == size]
            for at, kept in enumerate(by_stage):
                before = level[level >> at & 1 == 0]
                after = before | 1 << at
                best[after] = np.maximum(best[after], best[before] + kept[self._start[before]])
        return best.T

    def starts(self, node: int) -> list[int]:
        """Each stage's first device on the node; where it makes no difference, stages are in their own order."""
        if self._matched:
            return self._matched[node][: self._num_stages]
        row = self._solve(self._overlap[node : node + 1])[0] if self._best is None else self._best[node]
        best, overlap = row.tolist(), self._overlap[node].tolist()
        starts = [0] * len(self._counts)
        mask = len(best) - 1
        while mask:
            for at in reversed(range(len(self._counts))):
                before = mask & ~(1 << at)
                start = int(self._start[before])
                if mask >> at & 1 and best[mask] == best[before] + overlap[start][at]:
                    starts[at] = start
                    mask = before
                    break
        return starts[: self._num_stages]
