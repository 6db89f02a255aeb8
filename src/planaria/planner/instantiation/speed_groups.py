"""Grouping: which nodes of different speed make a pipeline together, so that the step is shortest.

Which nodes go together, in which template, is chosen with the time model of `planaria.plan.costs.pipeline_time`:
exactly where the nodes have few different speeds; else exactly among groups of neighbours in the order of speed. These
are best of all in about four cases of five; on 12 to 64 nodes they were 0.3% slower on average and 4% at worst, on
clusters of up to 6 nodes whose speeds differ by up to a factor of 5, 2% and 50%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod

import numpy as np
import numpy.typing as npt

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Floats, NodeSpeeds, Template, TemplateSlowdown, Times, slowed, step_times
from planaria.plan.plan import NodeId
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import EXACT_GROUPS_COST, GROUPS_PRECISION
from planaria.planner.instantiation.knapsack import fewer_nodes
from planaria.planner.instantiation.microbatch_shares import check_batch, distribute
from planaria.planner.templates.templates import check_replicas

_Ints = npt.NDArray[np.int64]
_NONE = -np.inf
_CHUNK = 1 << 18
"""Cells of sums of tables that are processed at once, so that memory stays small."""

Group = tuple[Template, tuple[NodeId, ...], Times]
"""A group of nodes: a template, the node of each of its parts, and its step times there."""


def group_nodes(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    nodes: Sequence[NodeId],
    speeds: NodeSpeeds,
    *,
    exact: bool | None = None,
) -> list[Group]:
    """Returns the groups of nodes, and their templates, that make the shortest step; largest first.

    As `planaria.planner.instantiation.instantiate.instantiate`: at least f + 1 groups, each with a microbatch, every
    node used (or, where no sum of template sizes gives their number, all but the slowest).

    Args:
        profile: what layers and links cost.
        templates: the job's templates, fewest nodes first.
        settings: what the job asks of its plans.
        nodes: the nodes to group.
        speeds: node -> its speed, as a part of the others'.
        exact: over all ways to group them; False: over neighbours in the order of speed; None: exact if that is quick.

    Raises:
        PlanError: too few nodes for f + 1 pipelines, or too few microbatches for the pipelines needed.
    """
    check_replicas(len(nodes), templates[0].num_nodes, settings.fault_tolerance)
    check_batch(settings.fault_tolerance + 1, settings.num_microbatches)
    least, most = settings.fault_tolerance + 1, settings.most_pipelines
    sizes = [template.num_nodes for template in templates]
    usable = fewer_nodes(sizes, len(nodes), least, most)
    ordered = sorted(nodes, key=lambda node: (-speeds.get(node, 1.0), node))[:usable]
    moves = _Moves(profile, templates, settings.num_microbatches)
    by_speed = [list(run) for _, run in groupby(ordered, key=lambda node: speeds.get(node, 1.0))]
    classes = _Classes(moves, by_speed, speeds, least, most)
    if exact or (exact is None and classes.cost <= EXACT_GROUPS_COST):
        classes.prepare()
        return _shortest(classes, moves)
    return _shortest(_Neighbours(moves, ordered, speeds, least, most), moves)


class _Moves:
    """Counts how many microbatches slowed copies of templates do in a given time."""

    def __init__(self, profile: ModelProfile, templates: Sequence[Template], num_microbatches: int) -> None:
        self.templates = templates
        self.num_microbatches = num_microbatches
        self.paces = [TemplateSlowdown(template, profile) for template in templates]
        self.times = np.stack([step_times(template, num_microbatches) for template in templates])
        self._floor = -np.diff(self.times, axis=1).min(axis=1, initial=np.inf)

    def done(self, limit_s: float, template: _Ints, path_s: Floats, period_s: Floats) -> Floats:
        """Returns microbatches within limit_s of each copy: the number of its template, and what its speeds add."""
        period_s = np.maximum(period_s, self._floor[template])
        least = np.zeros(len(template), dtype=np.int64)
        most = np.full(len(template), self.num_microbatches)
        while (least < most).any():
            middle = (least + most + 1) // 2
            times = self.times[template, middle - 1] + path_s + (middle - 1) * period_s
            fits = times <= limit_s
            least, most = np.where(fits, middle, least), np.where(fits, most, middle - 1)
        return np.where(least > 0, least, _NONE)

    def group(self, at: int, nodes: Sequence[NodeId], speeds: NodeSpeeds) -> Group:
        """Returns the group of template number `at` on these nodes, fastest first."""
        pace = self.paces[at]
        placed = dict(zip(pace.parts, nodes, strict=True))
        parts = tuple(placed[part] for part in range(len(nodes)))
        slowdown = pace.on_parts([speeds.get(node, 1.0) for node in parts])
        return self.templates[at], parts, slowed(self.times[at], slowdown)


@dataclass(frozen=True, slots=True)
class _Copies:
    """Slowed copies of templates: numbers of the templates, and what the speeds add to their times."""

    template: _Ints
    path_s: Floats
    period_s: Floats


class _Neighbours:
    """Groups of neighbours among nodes in descending order of speed, by dynamic programming along them."""

    def __init__(self, moves: _Moves, nodes: Sequence[NodeId], speeds: NodeSpeeds, least: int, most: int) -> None:
        self._moves, self._nodes, self._speeds = moves, nodes, speeds
        self._sizes = np.array([template.num_nodes for template in moves.templates])
        # The number of groups counts up to the fewest that are needed, or, where the batch bounds it, to the most.
        self._bounded = len(nodes) // int(self._sizes[0]) > most
        self._least = least if self._bounded or -(-len(nodes) // int(self._sizes[-1])) < least else 0
        self._levels = most if self._bounded else self._least
        along = np.array([speeds.get(node, 1.0) for node in nodes])
        self._which = np.full((len(nodes), len(self._sizes)), -1)
        rows: list[Floats] = []
        for at, (pace, size) in enumerate(zip(moves.paces, self._sizes, strict=True)):
            if size <= len(nodes):
                slowdown = pace.on_runs(along, int(size))
                rows.append(np.stack([np.full_like(slowdown.path_s, at), slowdown.path_s, slowdown.period_s], axis=1))
        different, number = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        self._copies = _Copies(different[:, 0].astype(np.int64), different[:, 1], different[:, 2])
        first = 0
        for at, row in enumerate(rows):
            self._which[: len(row), at] = number.reshape(-1)[first : first + len(row)]
            first += len(row)

    def groups(self, limit_s: float) -> list[Group] | None:
        """Returns groups that do all microbatches within limit_s, if there are any."""
        copies = self._copies
        done = np.append(self._moves.done(limit_s, copies.template, copies.path_s, copies.period_s), _NONE)
        best = np.full((self._levels + 1, len(self._nodes) + 1), _NONE)
        came = np.zeros(best.shape, dtype=np.int64)
        level_of = np.zeros(best.shape, dtype=np.int64)
        best[0, 0] = 0
        for at, which in enumerate(self._which):
            ends = at + self._sizes[: int(np.count_nonzero(which >= 0))]
            value, fewer = self._with_one_more(best[:, at])
            values = value[:, None] + done[which[: len(ends)]]
            better = values > best[:, ends]
            best[:, ends] = np.where(better, values, best[:, ends])
            came[:, ends] = np.where(better, at, came[:, ends])
            level_of[:, ends] = np.where(better, fewer[:, None], level_of[:, ends])
        level = self._least + int(np.argmax(best[self._least :, -1]))
        if best[level, -1] < self._moves.num_microbatches:
            return None
        return list(self._back(level, came, level_of))[::-1]

    def _with_one_more(self, best: Floats) -> tuple[Floats, _Ints]:
        """Returns, for each number of groups, the best value with one group fewer, and that smaller number."""
        level = np.arange(-1, self._levels)
        value = np.append(_NONE, best[:-1])
        if not self._bounded and best[-1] > value[-1]:
            value[-1], level[-1] = best[-1], self._levels
        return value, level

    def _back(self, level: int, came: _Ints, level_of: _Ints) -> Iterator[Group]:
        end = len(self._nodes)
        while end:
            start = int(came[level, end])
            at = int(np.flatnonzero(self._sizes == end - start)[0])
            yield self._moves.group(at, self._nodes[start:end], self._speeds)
            level, end = int(level_of[level, end]), start


class _Classes:
    """Every way to group nodes of few different speeds: a knapsack over how many of each speed are used."""

    def __init__(
        self, moves: _Moves, by_speed: Sequence[Sequence[NodeId]], speeds: NodeSpeeds, least: int, most: int
    ) -> None:
        self._moves, self._by_speed, self._speeds, self._least = moves, by_speed, speeds, least
        self._counts = [len(nodes) for nodes in by_speed]
        sizes = [template.num_nodes for template in moves.templates]
        self._levels = min(most, sum(self._counts) // sizes[0])
        num_moves = sum(_compositions(size, self._counts) for size in sizes)
        self.cost = self._levels * num_moves * (1 + prod(count + 1 for count in self._counts) / 2000)

    def prepare(self) -> None:
        """Finds every way to take the nodes of a group, and what their speeds add; there can be very many."""
        sizes = [template.num_nodes for template in self._moves.templates]
        values = [self._speeds.get(nodes[0], 1.0) for nodes in self._by_speed]
        self._taken: list[tuple[int, ...]] = []
        rows: list[tuple[int, float, float]] = []
        for at, (pace, size) in enumerate(zip(self._moves.paces, sizes, strict=True)):
            for taken in product(*(range(min(count, size) + 1) for count in self._counts)):
                if sum(taken) == size:
                    fast_first = [speed for speed, count in zip(values, taken, strict=True) for _ in range(count)]
                    slowdown = pace.on_runs(np.array(fast_first), size)
                    rows.append((at, float(slowdown.path_s[0]), float(slowdown.period_s[0])))
                    self._taken.append(taken)
        table = np.array(rows)
        self._copies = _Copies(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])
        # Tables have as many cells again before each axis, where nothing is: whoever takes too many ends there.
        shape = [2 * count + 1 for count in self._counts]
        self._cells = np.ravel_multi_index(np.indices([count + 1 for count in self._counts]), shape).ravel()
        self._cells += np.ravel_multi_index(self._counts, shape)
        self._before = np.ravel_multi_index(np.array(self._taken).T, shape)
        self._num_padded = prod(shape)

    def groups(self, limit_s: float) -> list[Group] | None:
        """Returns groups that do all microbatches within limit_s, if there are any."""
        copies = self._copies
        done = self._moves.done(limit_s, copies.template, copies.path_s, copies.period_s)
        table = np.full(len(self._cells), _NONE)
        table[0] = 0
        tables = [table]
        useful, step = np.flatnonzero(done > 0), max(1, _CHUNK // len(self._cells))
        taken, values = self._before[useful, None], done[useful, None]
        padded = np.full(self._num_padded, _NONE)
        for _ in range(self._levels):
            padded[self._cells] = tables[-1]
            tables.append(np.full_like(table, _NONE))
            for at in range(0, len(useful), step):
                earlier = padded[self._cells - taken[at : at + step]] + values[at : at + step]
                np.maximum(tables[-1], earlier.max(axis=0), out=tables[-1])
        level = max(range(self._least, self._levels + 1), key=lambda k: (tables[k][-1], -k))
        if tables[level][-1] < self._moves.num_microbatches:
            return None
        return self._back(level, [table.reshape([count + 1 for count in self._counts]) for table in tables], done)

    def _back(self, level: int, tables: Sequence[Floats], done: Floats) -> list[Group]:
        left = self._counts
        rest = [list(nodes) for nodes in self._by_speed]
        groups: list[Group] = []
        for k in range(level, 0, -1):
            for number, taken in enumerate(self._taken):
                before = [have - take for have, take in zip(left, taken, strict=True)]
                if min(before) >= 0 and tables[k - 1][tuple(before)] + done[number] == tables[k][tuple(left)]:
                    break
            nodes: list[NodeId] = []
            for run, take in zip(rest, taken, strict=True):
                nodes += run[:take]
                del run[:take]
            groups.append(self._moves.group(int(self._copies.template[number]), nodes, self._speeds))
            left = before
        return groups


def _compositions(size: int, counts: Sequence[int]) -> int:
    """Returns in how many ways `size` nodes can be taken from classes of these counts."""
    ways = [1] + [0] * size
    for count in counts:
        ways = [sum(ways[max(0, at - count) : at + 1]) for at in range(size + 1)]
    return ways[size]


def _shortest(search: _Neighbours | _Classes, moves: _Moves) -> list[Group]:
    """Returns the groups with the shortest step, by bisection over its time."""
    low, high = 0.0, np.inf
    best: list[Group] | None = None
    while best is None or high - low > GROUPS_PRECISION * high:
        limit = high if best is None else (low + high) / 2
        found = search.groups(limit)
        if found is None:
            assert best is not None, "no groups even where time does not count"
            low = limit
            continue
        shares = distribute([times for _, _, times in found], moves.num_microbatches)
        best = found
        high = max(float(times[share - 1]) for (_, _, times), share in zip(found, shares, strict=True))
    return sorted(best, key=lambda group: -len(group[1]))
