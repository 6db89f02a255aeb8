"""Detours: routes for a step's microbatches over what is left of pipelines, when no state may move (ReCycle).

A microbatch stays on its pipeline where that has a live worker. Over a gap it hops to workers of other pipelines that
own the layers, over several where none owns them all. Who takes it follows from loads alone, in the seconds of the
profile; how long a step then takes is for `planaria.estimate` to say.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import Pipeline, PlanError, Stage, WorkerId

Hops = tuple[Stage, ...]
"""Hops of a route, in layer order, that cover every layer once."""

_Key = tuple[float, float, int]
"""Key to compare routes by: load of the busiest worker with the microbatch, that of all workers, number of hops."""


class Freedom(enum.Enum):
    """Choices of routes that a microbatch may take."""

    HOME = enum.auto()
    """Routes go along a pipeline, and to others only over its gaps."""
    BOTH = enum.auto()
    """Routes go as with HOME, or to any owner at any layer where that is less busy."""
    FREE = enum.auto()
    """Routes go to any owner at any layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchAssignment:
    """An assignment of microbatches to workers.

    Attributes:
        hops: for each pipeline (and the freedom to take none), its microbatches' in the order in which they set out.
        loads_s: of each worker, the seconds that it computes.
    """

    hops: tuple[tuple[Hops, ...], ...]
    loads_s: Mapping[WorkerId, float]

    @property
    def rank(self) -> tuple[float, float]:
        """Key to compare assignments of as many microbatches: the busiest worker's load, then unevenness."""
        return max(self.loads_s.values()), sum(load * load for load in self.loads_s.values())


def unowned(pipelines: Sequence[Pipeline], num_layers: int) -> tuple[int, ...]:
    """Returns the layers that no stage has."""
    owned = {layer for pipeline in pipelines for stage in pipeline.stages for layer in stage.layers}
    return tuple(layer for layer in range(num_layers) if layer not in owned)


@dataclass(frozen=True, slots=True)
class _Section:
    """A section of a pipeline's route: its own stage's, or a gap."""

    first: int
    end: int
    own: Stage | None


class _Edge(NamedTuple):
    """Part of a gap that one worker can run from a place on.

    Attributes:
        hop: the hop.
        cut: the layer at which it ends.
        goes_on: the worker has the layer before it, too.
        seconds: seconds of compute of the hop.
        link_s: of the message after it.
    """

    hop: Stage
    cut: int
    goes_on: bool
    seconds: float
    link_s: float


class Detours:
    """Routes over these pipelines, which together own every layer.

    Args:
        pipelines: whole or with gaps, at least one.
        costs: of ranges of layers.
        num_layers: the model's number of layers.
        freedom: which of them are taken.
        speeds: of workers that compute slower or faster than the profile says.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        costs: StageCosts,
        num_layers: int,
        freedom: Freedom = Freedom.HOME,
        speeds: Mapping[WorkerId, float] | None = None,
    ) -> None:
        self._costs = costs
        self._num_layers = num_layers
        self._speeds = speeds or {}
        self._stages = [stage for pipeline in pipelines for stage in pipeline.stages]
        self._sections = [] if freedom is Freedom.FREE else [self._sections_of(pipeline) for pipeline in pipelines]
        if freedom is not Freedom.HOME:
            self._sections.append([_Section(0, num_layers, None)])
        self._peers: dict[tuple[int, int], tuple[list[int], Mapping[int, Sequence[_Edge]]]] = {}
        self._seconds: dict[tuple[WorkerId, int, int, int], float] = {}

    def deal(
        self, num_microbatches: int, head: float = 0.0, busy_s: Mapping[WorkerId, float] | None = None
    ) -> MicrobatchAssignment:
        """Assigns each microbatch to the pipeline on which it makes the busiest worker of its route least busy.

        Loads only grow, so a pipeline's key is looked at again only when it is the lowest.

        Args:
            num_microbatches: microbatches in the step.
            head: a worker counts as busy from the beginning for so many times what a microbatch takes to reach it: it
                waits before its first one, and perhaps after its last.
            busy_s: seconds for which workers have other work; it counts as theirs.
        """
        heads = {
            stage.worker: head * self._costs.forward_s(0, stage.first_layer, stage.num_devices)
            for stage in self._stages
        }
        busy = busy_s or {}
        loads = {worker: head_s + busy.get(worker, 0.0) for worker, head_s in heads.items()}
        queue = [(*self._key(self._hops(at, loads), loads), at) for at in range(len(self._sections))]
        heapq.heapify(queue)
        dealt: list[list[Hops]] = [[] for _ in self._sections]
        for _ in range(num_microbatches):
            while True:
                at = queue[0][-1]
                hops = self._hops(at, loads)
                entry = (*self._key(hops, loads), at)
                heapq.heapreplace(queue, entry)
                if queue[0] == entry:
                    break
            dealt[at].append(hops)
            self._load(hops, loads)
        return MicrobatchAssignment(
            hops=tuple(map(tuple, dealt)), loads_s={w: load - heads[w] for w, load in loads.items()}
        )

    def _sections_of(self, pipeline: Pipeline) -> list[_Section]:
        sections: list[_Section] = []
        position = 0
        while position < self._num_layers:
            here = [stage for stage in pipeline.stages if stage.first_layer <= position < stage.end_layer]
            if here:
                own = max(here, key=lambda stage: stage.end_layer)
                sections.append(_Section(position, own.end_layer, own))
            else:
                later = [stage.first_layer for stage in pipeline.stages if stage.first_layer > position]
                sections.append(_Section(position, min(later, default=self._num_layers), None))
            position = sections[-1].end
        return sections

    def _hops(self, at: int, loads: Mapping[WorkerId, float]) -> Hops:
        hops: list[Stage] = []
        more: dict[WorkerId, float] = {}
        for section in self._sections[at]:
            if section.own is not None:
                hops.append(_part(section.own, section.first, section.end))
                continue
            detour = self._around(section.first, section.end, loads, more)
            for hop in detour:
                more[hop.worker] = more.get(hop.worker, 0.0) + self._s(hop)
            hops += detour
        return tuple(hops)

    def _around(self, first: int, end: int, loads: Mapping[WorkerId, float], more: Mapping[WorkerId, float]) -> Hops:
        """Returns hops over a gap: the least load of the busiest, then the shortest messages, then the fewest hops.

        By dynamic programming over the places where some peer's stage begins or ends.
        """
        cuts, edges = self._peers_of(first, end)
        best: dict[int, tuple[tuple[float, float, int, tuple[WorkerId, ...]], Hops]] = {first: ((0.0, 0.0, 0, ()), ())}
        for start in cuts[:-1]:
            if start not in best:
                continue
            (busiest, messages, num_hops, workers), hops = best[start]
            last = workers[-1] if workers else None
            for edge in edges[start]:
                worker = edge.hop.worker
                if worker == last and edge.goes_on:
                    continue  # the same hop, in two
                busy = loads[worker] + more.get(worker, 0.0) + edge.seconds
                key = (
                    busy if busy > busiest else busiest,
                    messages + edge.link_s,
                    num_hops + 1,
                    (*workers, worker),
                )
                known = best.get(edge.cut)
                if known is None or key < known[0]:
                    best[edge.cut] = key, (*hops, edge.hop)
        if end not in best:
            raise PlanError(f"No live worker owns all of layers {first} to {end - 1}.")
        return best[end][1]

    def _peers_of(self, first: int, end: int) -> tuple[list[int], Mapping[int, Sequence[_Edge]]]:
        """Returns the places in a gap where a stage that owns some of it begins or ends, and the edges from each."""
        found = self._peers.get((first, end))
        if found is None:
            stages = [stage for stage in self._stages if stage.first_layer < end and stage.end_layer > first]
            ends = {cut for stage in stages for cut in (stage.first_layer, stage.end_layer) if first < cut < end}
            cuts = sorted({first, end, *ends})
            edges = {start: list(self._edges(stages, cuts, start)) for start in cuts[:-1]}
            found = self._peers[first, end] = cuts, edges
        return found

    def _edges(self, stages: Sequence[Stage], cuts: Sequence[int], start: int) -> Iterator[_Edge]:
        for stage in stages:
            if not stage.first_layer <= start < stage.end_layer:
                continue
            for cut in cuts:
                if start < cut <= stage.end_layer:
                    hop = _part(stage, start, cut)
                    yield _Edge(hop, cut, stage.first_layer < start, self._s(hop), self._costs.link_s(cut))

    def _key(self, hops: Hops, loads: Mapping[WorkerId, float]) -> _Key:
        own: dict[WorkerId, float] = {}
        for hop in hops:
            own[hop.worker] = own.get(hop.worker, loads[hop.worker]) + self._s(hop)
        return max(own.values()), sum(own.values()), len(hops)

    def _load(self, hops: Hops, loads: dict[WorkerId, float]) -> None:
        for hop in hops:
            loads[hop.worker] += self._s(hop)

    def _s(self, hop: Stage) -> float:
        key = (hop.worker, hop.first_layer, hop.end_layer, hop.num_devices)
        found = self._seconds.get(key)
        if found is None:
            seconds = self._costs.compute_s(hop.first_layer, hop.end_layer, hop.num_devices)
            found = self._seconds[key] = seconds / self._speeds.get(hop.worker, 1.0)
        return found


def _part(stage: Stage, first: int, end: int) -> Stage:
    if (stage.first_layer, stage.end_layer) == (first, end):
        return stage
    return Stage(worker=stage.worker, first_layer=first, end_layer=end, num_devices=stage.num_devices)
