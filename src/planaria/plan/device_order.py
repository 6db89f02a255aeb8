"""In which order a node's stages lie on its devices, so that most of their state is where it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planaria.plan.matching import Ints
from planaria.plan.plan import PlanError


class DeviceOrders:
    """The best order of one role's stages on each of several nodes.

    A stage of d devices takes d neighbouring ones and its state is with the first of them. Exact: a dynamic program
    over the sets of stages that lie on the first devices, for all nodes at once.

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
        masks = np.arange(1 << len(self._counts))
        self._start = sum(((masks >> at & 1) * count for at, count in enumerate(self._counts)), np.zeros_like(masks))
        self._best = self._solve(nodes, masks)
        self.kept: Ints = self._best[:, -1]

    def _solve(self, nodes: int, masks: Ints) -> Ints:
        best = np.full((nodes, len(masks)), -1, np.int64)
        best[:, 0] = 0
        sizes = sum((masks >> at & 1 for at in range(len(self._counts))), np.zeros_like(masks))
        for size in range(len(self._counts)):
            level = masks[sizes == size]
            for at in range(len(self._counts)):
                before = level[level >> at & 1 == 0]
                after = before | 1 << at
                kept = best[:, before] + self._overlap[:, self._start[before], at]
                best[:, after] = np.maximum(best[:, after], kept)
        return best

    def starts(self, node: int) -> list[int]:
        """Each stage's first device on the node; where it makes no difference, stages are in their own order."""
        best, overlap = self._best[node], self._overlap[node]
        starts = [0] * len(self._counts)
        mask = len(best) - 1
        while mask:
            for at in reversed(range(len(self._counts))):
                before = mask & ~(1 << at)
                start = int(self._start[before])
                if mask >> at & 1 and best[mask] == best[before] + overlap[start, at]:
                    starts[at] = start
                    mask = before
                    break
        return starts[: self._num_stages]
