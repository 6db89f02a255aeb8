"""A closer look at splits: with the stretches of stages that slow 1F1B down where messages take long.

A stage and the k before it form a cycle: a backward goes up to the first of them and comes back as a forward. It takes
k + 1 microbatches' worth of the schedule and holds two messages over each boundary inside. The planes of
`planaria.planner.templates.split_search` know such cycles only through the first or the last stage of the pipeline;
here a state remembers how long the last few stages are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planaria.plan.costs.pipeline_time import Floats, Ints
from planaria.plan.plan import ScheduleKind
from planaria.planner.templates.split_dp import longest_range, path_weights
from planaria.planner.templates.splits import Space, Split

_GRAIN = 1e-7
"""Lengths of stretches are rounded down to this part of the budget, so that equal ones are equal."""


@dataclass(frozen=True, slots=True)
class _States:
    """Ways to states, one a row: where they are, how long they are, and how long their last 1, 2, .. stages are."""

    used: Ints
    start: Ints
    way_s: Floats
    stretch_s: Floats
    parent: Ints

    def __len__(self) -> int:
        return len(self.used)


class StretchLook:
    """Whether a split passes a budget, for one number of nodes and microbatches.

    Args:
        space: of splits.
        nodes: whose devices are all used.
        num_microbatches: of the pipeline's step.
        remembered: stages that a state remembers.
        most_states: of one level, beyond which the look is given up: it then refuses nothing.
    """

    def __init__(self, space: Space, nodes: int, num_microbatches: int, *, remembered: int, most_states: int) -> None:
        self._space = space
        self._devices = nodes * space.per_node
        self._num = num_microbatches
        self._remembered = remembered
        self._most_states = most_states

    def run(self, budget_s: float, behind: list[Floats], stages: int | None) -> tuple[bool, Split | None]:
        """Whether some split may pass, and one that does.

        Args:
            budget_s: that no path is longer than.
            behind: for each number of stages to go, the shortest ways to the end, seen from the end.
            stages: of every split, if they have equally many.
        """
        states, levels = self._none(), []
        for after in range(len(behind) - 2, -1, -1):
            if behind[after + 1][-1, -1] < np.inf:
                states = self._with_start(states)
            levels.append(states)
            weights = path_weights(self._space.schedule, self._num, after, stages)
            states = self._step(states, behind[after], weights, after, budget_s)
            if len(states) > self._most_states:
                return True, None
        at = np.flatnonzero((states.used == self._devices) & (states.start == self._space.num_layers))
        if not len(at):
            return False, None
        levels.append(states)
        return True, self._split(levels, int(at[states.way_s[at].argmin()]))

    def _none(self) -> _States:
        none = np.zeros(0, dtype=np.int64)
        return _States(none, none, np.zeros(0), np.zeros((0, self._remembered)), none)

    def _with_start(self, states: _States) -> _States:
        return _States(
            np.append(states.used, 0),
            np.append(states.start, 0),
            np.append(states.way_s, 0.0),
            np.vstack([states.stretch_s, np.full((1, self._remembered), -np.inf)]),
            np.append(states.parent, -1),
        )

    def _split(self, levels: list[_States], at: int) -> Split:
        stages: list[tuple[int, int]] = []
        for level in range(len(levels) - 1, 0, -1):
            here, before = levels[level], int(levels[level].parent[at])
            if before < 0:
                break
            stages.append((int(here.start[at]), int(here.used[at] - levels[level - 1].used[before])))
            at = before
        return tuple(reversed(stages))

    def _step(self, states: _States, behind: Floats, weights: Floats, after: int, budget_s: float) -> _States:
        found = [
            self._stages_of(states, place, devices, behind, weights, after, budget_s)
            for place, devices in enumerate(self._space.counts.tolist())
        ]
        used, start, way, parent = (np.concatenate([part[n] for part in found]) for n in range(4))
        stretch = np.concatenate([part[4] for part in found])
        order = np.lexsort((parent, way, *stretch.T, start, used))
        used, start, way, parent, stretch = used[order], start[order], way[order], parent[order], stretch[order]
        first = np.ones(len(used), dtype=bool)
        same = (used[1:] == used[:-1]) & (start[1:] == start[:-1]) & (stretch[1:] == stretch[:-1]).all(axis=1)
        first[1:] = ~same
        states = _States(used[first], start[first], way[first], stretch[first], parent[first])
        if ((states.used[1:] == states.used[:-1]) & (states.start[1:] == states.start[:-1])).any():
            for column in range(1 + self._remembered):
                states = _undominated(states, column)
        return states

    def _stages_of(
        self,
        states: _States,
        place: int,
        devices: int,
        behind: Floats,
        weights: Floats,
        after: int,
        budget_s: float,
    ) -> tuple[Ints, Ints, Floats, Ints, Floats]:
        """The stages on so many devices that follow the states and pass."""
        space, costs = self._space, self._space.ahead
        fits = (states.used % space.per_node + devices <= space.per_node) & (states.used + devices <= self._devices)
        most = longest_range(costs.forward_s[place] + costs.backward_s[place], budget_s / self._num)
        before = np.flatnonzero(fits)
        end = states.start[before][:, None] + np.arange(1, most + 1)
        inside = end <= space.num_layers
        rows, end = before[np.nonzero(inside)[0]], end[inside]
        then = states.used[rows] + devices
        there = behind[self._devices - then, space.num_layers - end]
        start = states.start[rows]
        keep = (there < np.inf) & (costs.limit[place, start, end] >= after)
        rows, end, then, start, there = rows[keep], end[keep], then[keep], start[keep], there[keep]
        forward = costs.forward_s[place, end] - costs.forward_s[place, start]
        backward = costs.backward_s[place, end] - costs.backward_s[place, start]
        link = costs.link_s[(then % space.per_node != 0).astype(np.int64), end]
        if not space.overlap:
            forward = forward + link
            backward = backward + costs.link_s[(states.used[rows] % space.per_node != 0).astype(np.int64), start]
            link = np.zeros_like(link)
        here, stretch = states.way_s[rows], states.stretch_s[rows]
        passes = self._stretches_pass(here, there, forward + backward, stretch, after, budget_s)
        for weight in weights:
            length = weight[0] * here + weight[1] * there + weight[2] * forward + weight[3] * backward
            passes &= length + weight[4] * link <= budget_s
        rows, end, then, here, stretch = rows[passes], end[passes], then[passes], here[passes], stretch[passes]
        own = (forward + backward + 2.0 * link)[passes]
        grain = _GRAIN * budget_s / self._num
        longer = np.column_stack([own, stretch[:, :-1] + own[:, None]]) if self._remembered > 1 else own[:, None]
        return then, end, here + own, rows, np.floor(longer / grain) * grain

    def _stretches_pass(
        self, before: Floats, after_s: Floats, own: Floats, stretch: Floats, after: int, budget_s: float
    ) -> npt.NDArray[np.bool_]:
        """The first and the last microbatch go down and back; between them, trips up over the last stages."""
        schedule, num = self._space.schedule, self._num
        ahead = schedule.forwards_ahead(after, num)
        passes = np.ones(len(own), dtype=bool)
        room = num - 2 - ahead
        if schedule is ScheduleKind.GPIPE or room < 0:
            return passes
        for back in range(1, self._remembered + 1):
            up = schedule.forwards_ahead(after + back, num) - ahead
            trips = (room + 1) // (up + 1)
            if trips > 0:
                length = before + 2.0 * after_s + (num - ahead - trips * up) * own + trips * stretch[:, back - 1]
                passes &= length <= budget_s
        return passes


def _undominated(states: _States, column: int) -> _States:
    """Without the states that are nowhere shorter than the first, by one of their lengths, at the same place."""
    lengths = np.column_stack([states.way_s, states.stretch_s])
    order = np.lexsort((states.parent, *lengths.T, lengths[:, column], states.start, states.used))
    used, start, lengths = states.used[order], states.start[order], lengths[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (used[1:] != used[:-1]) | (start[1:] != start[:-1])
    first = np.flatnonzero(new)[np.cumsum(new) - 1]
    kept = order[new | (lengths < lengths[first]).any(axis=1)]
    return _States(
        states.used[kept], states.start[kept], states.way_s[kept], states.stretch_s[kept], states.parent[kept]
    )
