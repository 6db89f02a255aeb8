"""Instantiation: how many pipelines of which template, how many microbatches each, and a job's first plan.

Source: Oobleck, section 4.2. The slowest pipeline is minimised (not Eq. 6's variance), exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, Route, Stage, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.plan.templates import Template, check_replicas

_Floats = npt.NDArray[np.float64]
_NONE = -np.inf


def distribute(step_times: Sequence[Callable[[int], float]], num_microbatches: int) -> tuple[int, ...]:
    """Microbatches for each pipeline, at least one each, so that the slowest ends as early as possible.

    Args:
        step_times: for each pipeline, seconds as a function of its number of microbatches; not falling.
        num_microbatches: to be dealt out.

    Raises:
        PlanError: fewer microbatches than pipelines.
    """
    check_batch(len(step_times), num_microbatches)
    counts = [1] * len(step_times)
    # Giving the next microbatch to whoever would end first with it is optimal for the maximum of rising
    # functions.
    queue = [(time(2), place) for place, time in enumerate(step_times)]
    heapq.heapify(queue)
    for _ in range(num_microbatches - len(step_times)):
        _, place = queue[0]
        counts[place] += 1
        heapq.heapreplace(queue, (step_times[place](counts[place] + 1), place))
    return tuple(counts)


def check_batch(num_pipelines: int, num_microbatches: int) -> None:
    """Raise unless each pipeline gets a microbatch (Oobleck, section 4.2.2: recommend, never adjust).

    Raises:
        PlanError: it does not.
    """
    if num_microbatches < num_pipelines:
        raise PlanError(
            f"{num_pipelines} pipelines need at least {num_pipelines} microbatches, and a step has "
            f"{num_microbatches}. The nearest global batch that works is {num_pipelines} microbatches; or "
            "make the microbatch smaller."
        )


def instantiate(templates: Sequence[Template], num_nodes: int, settings: PlannerSettings) -> tuple[int, ...]:
    """How many pipelines of each template make the shortest step.

    Every node is used, unless no sum of template sizes gives their number (possible only where the number of
    layers cuts the templates short): then the most that can be. Exact: a bisection over the possible step
    times, each tried by a knapsack over nodes that maximises the microbatches done in that time.

    Raises:
        PlanError: too few nodes for f + 1 pipelines, or too few microbatches for the pipelines needed.
    """
    check_replicas(num_nodes, templates[0].num_nodes, settings.fault_tolerance)
    check_batch(settings.fault_tolerance + 1, settings.num_microbatches)
    total = settings.num_microbatches
    steps = np.arange(total, dtype=np.float64)
    times: list[_Floats] = [t.cost.path_s + steps * t.cost.period_s for t in templates]
    knapsack = _Knapsack([t.num_nodes for t in templates], num_nodes, settings)
    candidates = np.unique(np.concatenate(times))
    low, high = 0, len(candidates) - 1
    nodes = knapsack.usable([_done(time, candidates[high]) for time in times])
    _check_used(nodes, num_nodes, templates, settings)
    while low < high:
        middle = (low + high) // 2
        if knapsack.most([_done(time, candidates[middle]) for time in times])[nodes] >= total:
            high = middle
        else:
            low = middle + 1
    return knapsack.counts([_done(time, candidates[low]) for time in times], nodes)


def _done(times: _Floats, limit_s: float) -> int:
    """Microbatches that a pipeline does within limit_s."""
    return int(np.searchsorted(times, limit_s, side="right"))


def _check_used(nodes: int, num_nodes: int, templates: Sequence[Template], settings: PlannerSettings) -> None:
    largest = templates[-1].num_nodes
    fewest = -(-num_nodes // largest)
    if nodes < num_nodes and fewest > settings.num_microbatches:
        raise PlanError(
            f"{num_nodes} nodes make at least {fewest} pipelines of up to {largest} nodes each, and a step "
            f"has {settings.num_microbatches} microbatches. The nearest global batch that uses every node is "
            f"{fewest} microbatches; or make the microbatch smaller, or use fewer nodes."
        )


class _Knapsack:
    """Most microbatches for each number of nodes, with between f + 1 and num_microbatches pipelines."""

    def __init__(self, sizes: Sequence[int], num_nodes: int, settings: PlannerSettings) -> None:
        self._sizes = sizes
        self._num_nodes = num_nodes
        # Where the batch bounds the number of pipelines, count them all; else only up to f + 1, "or more".
        self._bounded = num_nodes // sizes[0] > settings.num_microbatches
        self._least = settings.fault_tolerance + 1
        self._levels = settings.num_microbatches if self._bounded else self._least

    def most(self, values: Sequence[int]) -> _Floats:
        """For each number of nodes used exactly, the most microbatches; -inf where there is no way."""
        return self._best(self._tables(values))

    def usable(self, values: Sequence[int]) -> int:
        """The most nodes that can be used exactly."""
        return int(np.flatnonzero(self.most(values) > _NONE)[-1])

    def counts(self, values: Sequence[int], nodes: int) -> tuple[int, ...]:
        """How many of each size reach `most(values)[nodes]`."""
        tables = self._tables(values)
        target = self._best(tables)[nodes]
        level = next(k for k in range(self._least, self._levels + 1) if tables[k][nodes] == target)
        counts = [0] * len(self._sizes)
        while nodes > 0:
            level, place = self._step(tables, values, level, nodes)
            counts[place] += 1
            nodes -= self._sizes[place]
        return tuple(counts)

    def _step(self, tables: list[_Floats], values: Sequence[int], level: int, nodes: int) -> tuple[int, int]:
        below = [level, level - 1] if level == self._levels and not self._bounded else [level - 1]
        for previous in below:
            for place, size in enumerate(self._sizes):
                usable = values[place] > 0 and size <= nodes
                if usable and tables[previous][nodes - size] + values[place] == tables[level][nodes]:
                    return previous, place
        raise AssertionError(f"no step leads to {nodes} nodes at level {level}")

    def _best(self, tables: list[_Floats]) -> _Floats:
        best: _Floats = np.max(np.stack(tables[self._least :]), axis=0)
        return best

    def _tables(self, values: Sequence[int]) -> list[_Floats]:
        """Table k: with exactly k pipelines; the last, unless bounded: with that many or more."""
        first = np.full(self._num_nodes + 1, _NONE)
        first[0] = 0.0
        tables = [first]
        items = [
            (size, value)
            for size, value in zip(self._sizes, values, strict=True)
            if value > 0 and size <= self._num_nodes
        ]
        for _ in range(self._levels):
            table = np.full(self._num_nodes + 1, _NONE)
            for size, value in items:
                np.maximum(table[size:], tables[-1][: self._num_nodes + 1 - size] + value, out=table[size:])
            tables.append(table)
        if not self._bounded and items:
            table = tables[-1]
            sizes = np.array([size for size, _ in items])
            gains = np.array([float(value) for _, value in items])
            for nodes in range(1, self._num_nodes + 1):
                fitting = int(np.searchsorted(sizes, nodes, side="right"))
                if fitting:
                    table[nodes] = max(table[nodes], (table[nodes - sizes[:fitting]] + gains[:fitting]).max())
        return tables


def place(template: Template, nodes: Sequence[NodeId], devices_per_node: int) -> Pipeline:
    """The template's pipeline on these nodes, the template's node i on nodes[i], devices in order."""
    device = [0] * template.num_nodes
    stages: list[Stage] = []
    for stage in template.stages:
        worker = WorkerId(nodes[stage.node] * devices_per_node + device[stage.node])
        device[stage.node] += 1
        stages.append(
            Stage(
                worker=worker,
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                num_devices=stage.num_devices,
            )
        )
    return Pipeline(stages=tuple(stages))


def contiguous_routes(
    pipelines: Sequence[Pipeline], counts: Sequence[int], num_layers: int, generation: int
) -> tuple[Route, ...]:
    """One route a pipeline; each takes the next `counts[i]` microbatches."""
    routes: list[Route] = []
    first = 0
    for pipeline, count in zip(pipelines, counts, strict=True):
        routes.append(
            Route(
                hops=pipeline.stages,
                microbatches=tuple(range(first, first + count)),
                born=generation,
                counted=tuple(range(num_layers)),
            )
        )
        first += count
    return tuple(routes)


def initial_plan(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    nodes: Sequence[NodeId],
    generation: int,
) -> Plan:
    """A job's first plan: the best instantiation, nodes in ascending order, largest pipelines first.

    Raises:
        PlanError: too few nodes or microbatches.
    """
    ordered = sorted(set(nodes))
    counts = instantiate(templates, len(ordered), settings)
    chosen = [t for t, count in zip(templates, counts, strict=True) for _ in range(count)][::-1]
    pipelines: list[Pipeline] = []
    used = 0
    for template in chosen:
        pipelines.append(place(template, ordered[used : used + template.num_nodes], settings.devices_per_node))
        used += template.num_nodes
    shares = distribute([template.time_s for template in chosen], settings.num_microbatches)
    return Plan(
        generation=generation,
        num_layers=profile.num_layers,
        num_microbatches=settings.num_microbatches,
        devices_per_node=settings.devices_per_node,
        groups=profile.groups,
        pipelines=tuple(pipelines),
        routes=contiguous_routes(pipelines, shares, profile.num_layers, generation),
        sync_epochs=(generation,) * len(profile.groups),
        schedule=settings.schedule,
    )
