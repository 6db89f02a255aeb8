"""Shortest ways through the states (devices used, layers placed) of a space of splits, stage by stage.

A plane has, for every state, the length of the shortest way to it, and infinity where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planaria.plan.chain import Floats, Ints
from planaria.plan.compiled import Work
from planaria.plan.split_levels import ADVANCE, MAX_COUNTS, RELAX, STAGES_PER_S
from planaria.plan.split_paths import path_weights
from planaria.plan.split_space import Space, Split, Walls


class Planes:
    """Of the splits over all devices of some nodes.

    Args:
        space: of splits.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        work: that this is part of.
    """

    def __init__(self, space: Space, nodes: int, num_microbatches: int, work: Work) -> None:
        self._space = space
        self._num = num_microbatches
        self._shape = (nodes * space.per_node + 1, space.num_layers + 1)
        self._stages = nodes * space.per_node if space.counts.tolist() == [1] else None
        self._work = work

    def _plane(self) -> Floats:
        plane = np.full(self._shape, np.inf)
        plane[0, 0] = 0.0
        return plane

    def relaxed(
        self, walls: Walls, *, slope: float = 1.0, constant_s: float = 0.0, share: float = 2.0, charge: float = 0.0,
        cap_s: float = np.inf, after: int = 0,
    ) -> tuple[Floats, Ints]:  # fmt: skip
        plane, parent = self._plane(), np.zeros(self._shape, dtype=np.int64)
        compiled = self._work.compiled
        forward_s, backward_s, link_s, _, limit_to = walls.tables(compiled=compiled)
        looked = RELAX.form(compiled=compiled)(
            plane, plane, parent, forward_s, backward_s, link_s, limit_to, self._space.counts, self._space.per_node,
            slope, constant_s, share, charge, -1.0, cap_s, after, 0,
        )  # fmt: skip
        self._work.add(looked / STAGES_PER_S)
        return plane, parent

    def fewest_stages(self) -> Split | None:
        """A split that fits, if any does: one with the fewest stages, since what follows a stage only adds to it."""
        walls = self._space.back
        plane, parent = self.relaxed(walls, slope=0.0, constant_s=1.0, share=0.0, after=-1)
        return self._walk_back(parent) if plane[-1, -1] < np.inf else None

    def shortest(self, cap_s: float, hidden: bool) -> Split | None:
        """The split with the shortest path under a period bound; of memory it knows only what stages always need."""
        plane, parent = self.relaxed(self._space.ahead, charge=0.0 if hidden else 1.0, cap_s=cap_s)
        if plane[-1, -1] == np.inf:
            return None
        stages = []
        used, end = self._shape[0] - 1, self._shape[1] - 1
        while used:
            start, place = divmod(int(parent[used, end]) // 2, MAX_COUNTS)
            stages.append((end, int(self._space.counts[place])))
            used, end = used - stages[-1][1], start
        return tuple(reversed(stages))

    def _walk_back(self, parent: Ints) -> Split:
        stages = []
        used, end = self._shape[0] - 1, self._shape[1] - 1
        while used:
            start, place = divmod(int(parent[used, end]) // 2, MAX_COUNTS)
            stages.append((self._space.num_layers - start, int(self._space.counts[place])))
            used, end = used - stages[-1][1], start
        return tuple(stages)

    def ways(self, walls: Walls, cap_s: float) -> Floats:
        """The shortest ways to each state, of any number of stages that take at most `cap_s`."""
        plane, _ = self.relaxed(walls, cap_s=cap_s)
        if not self._space.overlap:
            # Of the two messages over a state's boundary, one is charged to the stage on its other side.
            within = (np.arange(len(plane)) % self._space.per_node != 0).astype(np.int64)
            plane = plane - walls.link_s[within]
        return plane

    def behind(self, budget_s: float, before: Sequence[Floats]) -> list[Floats]:
        """For each number of stages to go, the shortest ways from a state to the end, seen from the end.

        Args:
            budget_s: that no path through a stage passes.
            before: the shortest ways to each state, by the number of stages to go; or one for any number.
        """
        planes = [self._plane()]
        parent = np.zeros(self._shape, dtype=np.int64)
        most = min(self._shape[0] - 1, self._space.num_layers) if len(before) == 1 else len(before) - 1
        other = np.ascontiguousarray(before[-1][::-1, ::-1])
        for after in range(most):
            weights = path_weights(self._space.schedule, self._num, after, self._stages)
            plane = np.full(self._shape, np.inf)
            if len(before) > 1:
                other = np.ascontiguousarray(before[after + 1][::-1, ::-1])
            self._step(planes[-1], plane, parent, other, self._space.back, weights, after, True, budget_s)
            if not (plane < np.inf).any():
                break
            planes.append(plane)
        return planes

    def before(self, budget_s: float, behind: Sequence[Floats]) -> tuple[list[Floats], Split | None]:
        """The counterpart of `behind`, and the way that passes with the shortest path, if one does."""
        planes, parents = [np.full(self._shape, np.inf)], []
        for after in range(len(behind) - 2, -1, -1):
            if behind[after + 1][-1, -1] < np.inf:
                planes[-1][0, 0] = 0.0
            weights = path_weights(self._space.schedule, self._num, after, self._stages)
            plane, parent = np.full(self._shape, np.inf), np.zeros(self._shape, dtype=np.int64)
            other = np.ascontiguousarray(behind[after][::-1, ::-1])
            self._step(planes[-1], plane, parent, other, self._space.ahead, weights, after, False, budget_s)
            planes.append(plane)
            parents.append(parent)
        if planes[-1][-1, -1] == np.inf:
            return planes, None
        used, end = self._shape[0] - 1, self._shape[1] - 1
        found = []
        for parent in reversed(parents):
            if not used:
                break
            start, place = divmod(int(parent[used, end]), MAX_COUNTS)
            found.append((end, int(self._space.counts[place])))
            used, end = used - found[-1][1], start
        return planes[::-1], tuple(reversed(found))

    def _step(
        self, source: Floats, target: Floats, parent: Ints, other: Floats, walls: Walls, weights: Floats, after: int,
        back: bool, budget_s: float,
    ) -> None:  # fmt: skip
        compiled = self._work.compiled
        forward_s, backward_s, link_s, limit, _ = walls.tables(compiled=compiled)
        looked = ADVANCE.form(compiled=compiled)(
            source, target, parent, other, forward_s, backward_s, link_s, limit, self._space.counts,
            np.ascontiguousarray(weights.T), self._space.per_node, after, back, self._space.overlap, budget_s,
        )  # fmt: skip
        self._work.add(looked / STAGES_PER_S)


def fewest_stages(space: Space, nodes: int, work: Work) -> Floats:
    """For each number of nodes up to `nodes`, the fewest stages of a split that fits the memory; infinite: none."""
    planes = Planes(space, nodes, 1, work)
    plane, _ = planes.relaxed(space.back, slope=0.0, constant_s=1.0, share=0.0, after=-1)
    return plane[:: space.per_node, -1]


def expected_s(space: Space, nodes: int, num_microbatches: int) -> float:
    """Rough seconds that a search takes, interpreted: of its states, and of what is simulated for them."""
    devices = nodes * space.per_node
    state_s = 1e-5 if space.counts.tolist() == [1] else 2.5e-5
    return (state_s * space.num_layers + 7e-7 * num_microbatches) * devices * min(space.num_layers, devices)
