"""Instantiation: how many pipelines of which template make the shortest step, and a job's first plan.

Source: Oobleck, section 4.2. Instead of listing all sets of pipelines, the step time is bisected and each time tried
with a knapsack, so the answer is exact and quick for thousands of nodes.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

import numpy as np

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import (
    NodeSpeeds,
    Template,
    TemplateSlowdown,
    Times,
    check_speeds,
    slowed,
    step_times_of,
)
from planaria.plan.plan import NodeId, Pipeline, Plan, Route, Stage, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.enumeration import quickest_of_all
from planaria.planner.instantiation.knapsack import Knapsack, fewer_nodes
from planaria.planner.instantiation.microbatch_shares import check_batch, shares_of
from planaria.planner.instantiation.speed_groups import group_nodes
from planaria.planner.placement.zones import Role, Zones, differ, zone_of, zones_of_roles
from planaria.planner.templates.templates import check_replicas


def instantiate(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings, *, kept: Sequence[Times] = ()
) -> tuple[int, ...]:
    """Returns how many pipelines of each template make the shortest step.

    Every node is used, unless no sum of template sizes gives their number (possible only where the number of layers,
    memory, or the shape that is asked for, cuts the templates short): then the most that can be. Exact over all such
    sets with at least f + 1 pipelines and a microbatch for each; of equally fast ones, one that could do the most
    microbatches in that time. Under Oobleck's objective, the set that the paper takes (see `enumeration`), unless
    pipelines are kept.

    Args:
        templates: the job's templates, fewest nodes first.
        num_nodes: for the new pipelines.
        settings: what the job asks of its plans.
        kept: step times of pipelines that are there already, on other nodes, and share the batch.

    Raises:
        PlanError: too few nodes for f + 1 pipelines.
        Undistributable: too few microbatches for the pipelines needed.
    """
    if settings.is_oobleck and not kept:
        found = quickest_of_all(templates, num_nodes, settings)
        if found is not None:
            return found
    return _instantiate(templates, num_nodes, *_limits(settings), kept)


def _limits(settings: PlannerSettings) -> tuple[int, int, int]:
    """Returns f, microbatches in a step, and the most pipelines."""
    return settings.fault_tolerance, settings.num_microbatches, settings.most_pipelines


def _instantiate(
    templates: Sequence[Template],
    num_nodes: int,
    fault_tolerance: int,
    num_microbatches: int,
    most_pipelines: int,
    kept: Sequence[Times],
) -> tuple[int, ...]:
    least = max(0, fault_tolerance + 1 - len(kept))
    if not kept:
        check_replicas(num_nodes, templates[0].num_nodes, fault_tolerance)
    check_batch(fault_tolerance + 1, num_microbatches)
    times = step_times_of(templates, num_microbatches)
    sizes, most = [t.num_nodes for t in templates], most_pipelines - len(kept)
    return fewest_seconds(sizes, times, num_nodes, least, num_microbatches, kept, most)


def instantiate_beside(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings, kept: Iterable[Template]
) -> tuple[int, ...]:
    """Returns what `instantiate` does, cached, for nodes of speed 1 beside existing pipelines of the templates `kept`:
    as nodes come and go, the same numbers are asked for again and again."""
    return _found_beside(
        _Same(templates), num_nodes, *_limits(settings), _Same(sorted(kept, key=attrgetter("num_nodes")))
    )


class _Same:
    """Cache key of templates, compared by identity: comparing their contents takes as long as instantiating."""

    __slots__ = ("_hash", "templates")

    def __init__(self, templates: Iterable[Template]) -> None:
        self.templates = tuple(templates)
        self._hash = hash(tuple(map(id, self.templates)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or len(self.templates) != len(other.templates):
            return False
        return all(map(operator.is_, self.templates, other.templates))


@lru_cache(maxsize=1 << 11)
def _found_beside(
    templates: _Same, num_nodes: int, fault_tolerance: int, num_microbatches: int, most_pipelines: int, kept: _Same
) -> tuple[int, ...]:
    """Returns the cached result of `instantiate_beside`. The order of the kept templates makes no difference: of their
    times it takes the union, sums of whole numbers and the greatest count."""
    times = step_times_of(kept.templates, num_microbatches)
    return _instantiate(templates.templates, num_nodes, fault_tolerance, num_microbatches, most_pipelines, times)


def fewest_seconds(
    sizes: Sequence[int],
    times: Sequence[Times],
    num_nodes: int,
    least: int,
    num_microbatches: int,
    kept: Sequence[Times] = (),
    most: int | None = None,
) -> tuple[int, ...]:
    """Returns what `instantiate` does, from numbers alone.

    Args:
        sizes: nodes of each template, ascending.
        times: for each template, seconds of a step with 1, 2, ... microbatches.
        num_nodes: for the new pipelines.
        least: fewest new pipelines.
        num_microbatches: microbatches in a step.
        kept: see `instantiate`.
        most: new pipelines; None: as many as there are microbatches for.

    Raises:
        Undistributable: too few microbatches for the pipelines needed.
    """
    most = num_microbatches - len(kept) if most is None else most
    num_nodes = fewer_nodes(sizes, num_nodes, least, most, len(kept))
    if not num_nodes:
        return (0,) * len(sizes)
    knapsack = Knapsack(sizes, num_nodes, least, most)
    counted = Counter(map(id, kept))
    standing = [(time, counted[known]) for known, time in {id(time): time for time in kept}.items()]
    values = _Search(knapsack, sizes, times, standing, num_nodes, num_microbatches).run()
    counts = knapsack.counts(values)
    assert counts is not None
    return counts


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for the least step time in which pipelines that fill the nodes can do all microbatches. Of existing ones
    it has the times, and how many have these."""

    knapsack: Knapsack
    sizes: Sequence[int]
    times: Sequence[Times]
    kept: Sequence[tuple[Times, int]]
    num_nodes: int
    num_microbatches: int

    def run(self) -> list[int]:
        """Returns the microbatches that each size does in the least step time."""
        low, high = self._bracket()
        candidates = np.sort(np.concatenate([time[_done(time, low) : _done(time, high)] for time in self._all_times()]))
        first, last = 0, len(candidates) - 1
        while first < last:
            middle = (first + last) // 2
            if self._suffices(float(candidates[middle])):
                last = middle
            else:
                first = middle + 1
        return self._values(float(candidates[first]))

    def _bracket(self) -> tuple[float, float]:
        """Returns a time that does not suffice and one that does: from the lower bound, with growing steps."""
        high = max(float(time[-1]) for time in self._all_times())
        low = self._lower_bound(high)
        step = low / 512
        while step and low + step < high:
            if self._suffices(low + step):
                return low, low + step
            low += step
            step *= 2
        return low, high

    def _lower_bound(self, high: float) -> float:
        """Returns a time that does not suffice, close to the least if nodes could be cut as finely as one likes."""
        low = 0.0
        for _ in range(18):
            middle = (low + high) / 2
            per_node = max(value / size for value, size in zip(self._values(middle), self.sizes, strict=True))
            if self.num_nodes * per_node + self._done_by_kept(middle) > self.num_microbatches - 0.5:  # Rounding aside.
                high = middle
            else:
                low = middle
        return low

    def _suffices(self, limit_s: float) -> bool:
        if any(time[0] > limit_s for time, _ in self.kept):
            return False
        return self.knapsack.most(self._values(limit_s)) + self._done_by_kept(limit_s) >= self.num_microbatches

    def _values(self, limit_s: float) -> list[int]:
        return [_done(time, limit_s) for time in self.times]

    def _done_by_kept(self, limit_s: float) -> int:
        return sum(number * _done(time, limit_s) for time, number in self.kept)

    def _all_times(self) -> list[Times]:
        return [*self.times, *(time for time, _ in self.kept)]


def _done(times: Times, limit_s: float) -> int:
    """Returns how many microbatches a pipeline does within limit_s."""
    return int(times.searchsorted(limit_s, side="right"))


def place(template: Template, nodes: Sequence[NodeId], devices_per_node: int) -> Pipeline:
    """Returns the template's pipeline: its node i on nodes[i], stages on as many devices as they have, in order.

    A stage's worker is that of its first device.
    """
    device = [0] * template.num_nodes
    stages: list[Stage] = []
    for stage in template.stages:
        worker = WorkerId(nodes[stage.node] * devices_per_node + device[stage.node])
        device[stage.node] += stage.num_devices
        stages.append(
            Stage(
                worker=worker,
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                num_devices=stage.num_devices,
            )
        )
    return Pipeline(stages=tuple(stages))


@lru_cache(maxsize=1 << 13)
def _placed_from(template: _Same, first: int, devices_per_node: int) -> Pipeline:
    """Returns the cached pipeline of the one template on the nodes from `first` on."""
    (one,) = template.templates
    return place(one, [NodeId(first + number) for number in range(one.num_nodes)], devices_per_node)


def contiguous_routes(
    pipelines: Sequence[Pipeline], counts: Sequence[int], num_layers: int, generation: int
) -> tuple[Route, ...]:
    """Returns one route a pipeline; each takes the next `counts[i]` microbatches."""
    routes: list[Route] = []
    first = 0
    layers = tuple(range(num_layers))
    for pipeline, count in zip(pipelines, counts, strict=True):
        routes.append(
            Route(
                hops=pipeline.stages,
                microbatches=tuple(range(first, first + count)),
                born=generation,
                counted=layers,
            )
        )
        first += count
    return tuple(routes)


def plan_of(
    pipelines: Sequence[Pipeline],
    shares: Sequence[int],
    profile: ModelProfile,
    settings: PlannerSettings,
    generation: int,
) -> Plan:
    """Returns the plan of whole pipelines, each with its share of the microbatches."""
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


def plan_of_templates(profile: ModelProfile, templates: Sequence[Template], settings: PlannerSettings) -> Plan:
    """Returns the plan of a pipeline of each of these templates, on nodes 0, 1, ... as fast as the profile says.

    Raises:
        Undistributable: too few microbatches.
    """
    same = {id(template): _Same([template]) for template in templates}
    firsts = itertools.accumulate([template.num_nodes for template in templates], initial=0)
    pipelines = [
        _placed_from(same[id(template)], first, settings.devices_per_node)
        for template, first in zip(templates, firsts, strict=False)
    ]
    times = step_times_of(templates, settings.num_microbatches)
    return plan_of(pipelines, shares_of(times, settings), profile, settings, generation=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A template on its nodes.

    Attributes:
        template: the pipeline's template.
        nodes: the template's node i is nodes[i].
        times: seconds of its step with 1, 2, ... microbatches.
    """

    template: Template
    nodes: tuple[NodeId, ...]
    times: Times


def instances(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    nodes: Sequence[NodeId],
    speeds: NodeSpeeds,
    zones: Zones | None = None,
    number: int | None = None,
) -> list[Instance]:
    """Returns the pipelines that make the shortest step on these nodes, largest first; nodes that no sum of sizes uses
    are left out. Where a number is given there are so many, if the nodes are equally fast.

    Where speeds differ, fast nodes go together, and slow ones; see `planaria.planner.instantiation.speed_groups`. Of
    nodes equally fast, those of one zone go together, as far as replicas are spread over the zones then; see
    `planaria.planner.placement.zones`.

    Raises:
        PlanError: too few nodes or microbatches; a speed that is none.
    """
    found = _instances(profile, templates, settings, nodes, speeds, zones or {}, number)
    return _over_zones(found, nodes, speeds, zones, profile.num_layers) if zones and differ(zones, nodes) else found


def _instances(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    nodes: Sequence[NodeId],
    speeds: NodeSpeeds,
    zones: Zones,
    number: int | None,
) -> list[Instance]:
    check_speeds(speeds)
    ordered = sorted(set(nodes), key=lambda node: (-speeds.get(node, 1.0), zone_of(zones, node), node))
    ordered = ordered[: settings.usable(len(ordered))]
    different = {speeds.get(node, 1.0) for node in ordered}
    if len(different) > 1:
        return [
            Instance(template=template, nodes=group, times=times)
            for template, group, times in group_nodes(profile, templates, settings, ordered, speeds)
        ]
    check_replicas(len(ordered), templates[0].num_nodes, settings.fault_tolerance)
    check_batch(settings.fault_tolerance + 1, settings.num_microbatches)
    times = step_times_of(templates, settings.num_microbatches)
    if different != {1.0}:
        even = [[*different] * template.num_nodes for template in templates]
        times = [
            slowed(time, TemplateSlowdown(t, profile).on_parts(s))
            for time, t, s in zip(times, templates, even, strict=True)
        ]
    counts = quickest_of_all(templates, len(ordered), settings) if settings.is_oobleck and number is None else None
    if counts is None:
        sizes = [template.num_nodes for template in templates]
        least, most = (settings.fault_tolerance + 1, settings.most_pipelines) if number is None else (number, number)
        counts = fewest_seconds(sizes, times, len(ordered), least, settings.num_microbatches, most=most)
    result: list[Instance] = []
    for template, time, count in reversed(list(zip(templates, times, counts, strict=True))):
        for _ in range(count):
            group, ordered = ordered[: template.num_nodes], ordered[template.num_nodes :]
            result.append(Instance(template=template, nodes=tuple(group), times=time))
    return result


def _over_zones(
    found: Sequence[Instance], nodes: Sequence[NodeId], speeds: NodeSpeeds, zones: Zones, num_layers: int
) -> list[Instance]:
    """Returns the same pipelines with nodes of equal speed exchanged where they are in the wrong zone."""
    used = [node for instance in found for node in instance.nodes]
    idle = sorted(set(nodes).difference(used))
    speed = {node: speeds.get(node, 1.0) for node in nodes}
    parts = [stages for one in found for stages in map(one.template.stages_of, range(one.template.num_nodes))]
    roles = [
        Role(first_layer=stages[0].first_layer, end_layer=stages[-1].end_layer, kind=speed[node])
        for stages, node in zip(parts, used, strict=True)
    ]
    wanted = zones_of_roles(roles, used, [(node, speed[node]) for node in idle], zones, [{}] * num_layers)
    stays = [zone_of(zones, node) == zone for node, zone in zip(used, wanted, strict=True)]
    free = sorted([*idle, *(node for node, does in zip(used, stays, strict=True) if not does)], reverse=True)
    pools: dict[tuple[str, float], list[NodeId]] = {}
    for node in free:
        pools.setdefault((zone_of(zones, node), speed[node]), []).append(node)
    placed = iter(
        [node if does else pools[zone, speed[node]].pop() for node, does, zone in zip(used, stays, wanted, strict=True)]
    )
    return [replace(one, nodes=tuple(next(placed) for _ in one.nodes)) for one in found]


def initial_plan(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    nodes: Sequence[NodeId],
    generation: int,
    *,
    speeds: NodeSpeeds | None = None,
    zones: Zones | None = None,
    number: int | None = None,
) -> Plan:
    """Returns a job's first plan: the best instantiation.

    Args:
        profile: costs and groups.
        templates: the job's templates, fewest nodes first.
        settings: what the job asks of its plans.
        nodes: live ones; taken in ascending order, largest pipelines first.
        generation: the new plan's generation.
        speeds: of nodes that compute slower or faster than the profile says.
        zones: where the nodes are.
        number: of pipelines, see `instances`.

    Raises:
        PlanError: too few nodes or microbatches.
    """
    chosen = instances(profile, templates, settings, nodes, speeds or {}, zones, number)
    pipelines = [place(instance.template, instance.nodes, settings.devices_per_node) for instance in chosen]
    shares = shares_of([instance.times for instance in chosen], settings)
    return plan_of(pipelines, shares, profile, settings, generation)
