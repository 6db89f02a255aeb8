"""Rerouting: the plan that runs every microbatch on what is left of a plan, without moving any state (ReCycle).

This module says what is left, and makes plans of assignments. Which of them is fastest is the policy's to find out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import NodeId, Pipeline, Plan, Route, ScheduleKind, Stage, WorkerId, runs_of
from planaria.plan.quantities import ranges
from planaria.planner.placement.senders import Holders
from planaria.planner.reroute.routes import Hops, MicrobatchAssignment


def left_over(plan: Plan, holders: Holders, absent: Collection[NodeId]) -> tuple[Pipeline, ...]:
    """Returns what is left of pipelines: the stages whose workers live, as far as they hold their state.

    Args:
        plan: the plan in force.
        holders: the groups that each live worker holds up to date.
        absent: nodes that are lost, or that the next plan must do without.
    """
    gone = set(absent)
    result: list[Pipeline] = []
    for pipeline in plan.pipelines:
        stages: list[Stage] = []
        for stage in pipeline.stages:
            if plan.node_of(stage.worker) in gone or stage.worker not in holders:
                continue
            held = set(plan.layers_held(holders[stage.worker])) if _lacks(plan, stage, holders) else stage.layers
            stages += runs_of(stage.worker, [layer for layer in stage.layers if layer in held], stage.num_devices)
        if stages:
            result.append(Pipeline(stages=tuple(sorted(stages, key=lambda s: (s.first_layer, s.worker)))))
    return tuple(result)


def as_placed(plan: Plan, holders: Holders, absent: Collection[NodeId]) -> tuple[Pipeline, ...]:
    """Returns what is left of each pipeline, whether or not its state is in place yet; layers that none of it has go to
    the worker that holds most of them.

    Arguments as `left_over`. Where someone is left, and every group has a holder, every layer has an owner; else there
    is nothing.
    """
    gone = set(absent)
    live = {worker: set(groups) for worker, groups in sorted(holders.items()) if plan.node_of(worker) not in gone}
    held = {group for groups in live.values() for group in groups}
    kept = [[stage for stage in pipeline.stages if stage.worker in live] for pipeline in plan.pipelines]
    owned = {layer for stages in kept for stage in stages for layer in stage.layers}
    extra: dict[WorkerId, list[int]] = {}
    for layer in sorted(set(range(plan.num_layers)) - owned):
        groups = {number for number, group in enumerate(plan.groups) if layer in group.layers}
        if not live or not groups.issubset(held):  # a layer that is frozen has no groups
            return ()
        owner = max(live, key=lambda worker: (len(groups & live[worker]), -worker))
        extra.setdefault(owner, []).append(layer)
    pipeline_of = {stage.worker: stages for stages in kept for stage in stages}
    for worker, layers in extra.items():
        if worker not in pipeline_of:
            kept.append([])
        stages = pipeline_of.get(worker, kept[-1])
        stages += runs_of(worker, layers, plan.devices_of.get(worker, 1))
    return tuple(
        Pipeline(stages=tuple(sorted(stages, key=lambda stage: (stage.first_layer, stage.worker))))
        for stages in kept
        if stages
    )


def _lacks(plan: Plan, stage: Stage, holders: Holders) -> bool:
    return not set(plan.groups_of.get(stage.worker, ())) <= set(holders[stage.worker])


def rerouted(
    profile: ModelProfile,
    pipelines: Sequence[Pipeline],
    assignment: MicrobatchAssignment,
    *,
    devices_per_node: int,
    generation: int,
    schedule: ScheduleKind,
    spare_in_flight: int = 0,
) -> Plan:
    """Returns the plan in which each pipeline's microbatches take the hops that they are assigned to."""
    taken: dict[Hops, list[int]] = {}
    number = 0
    for of_pipeline in assignment.hops:
        for hops in of_pipeline:
            taken.setdefault(hops, []).append(number)
            number += 1
    every_layer = tuple(range(profile.num_layers))
    return Plan(
        generation=generation,
        num_layers=profile.num_layers,
        num_microbatches=number,
        devices_per_node=devices_per_node,
        groups=profile.groups,
        pipelines=tuple(pipelines),
        routes=tuple(
            Route(hops=hops, microbatches=tuple(microbatches), born=generation, counted=every_layer)
            for hops, microbatches in taken.items()
        ),
        sync_epochs=(generation,) * len(profile.groups),
        schedule=schedule,
        spare_in_flight=spare_in_flight,
        layer_units=layer_units(profile),
    )


def layer_units(profile: ModelProfile) -> tuple[tuple[int, int, int], ...]:
    """Returns each layer's times on the profile's fewest devices, in thousandths of the longest."""
    times = [layer.times[0] for layer in profile.layers]
    longest = max(max(t.forward_s, t.backward_input_s, t.backward_weight_s) for t in times)
    if longest <= 0:
        return ()
    scale = 1000 / longest
    return tuple(
        (round(scale * t.forward_s), round(scale * t.backward_input_s), round(scale * t.backward_weight_s))
        for t in times
    )


def homes(plan: Plan) -> tuple[int, ...]:
    """Returns, for each route, the pipeline that it is counted with: the one that has most of its layers."""
    pipeline_of: dict[WorkerId, int] = {}
    result = []
    for route, at in zip(plan.routes, plan.pipeline_of_route, strict=True):
        if at >= 0 and plan.is_apart:
            result.append(at)
            continue
        pipeline_of = pipeline_of or {
            stage.worker: at for at, pipeline in enumerate(plan.pipelines) for stage in pipeline.stages
        }
        length: dict[int, int] = {}
        for hop in route.hops:
            at = pipeline_of[hop.worker]
            length[at] = length.get(at, 0) + len(hop.layers)
        result.append(min(length, key=lambda at: (-length[at], at)))
    return tuple(result)


def shares(plan: Plan) -> tuple[int, ...]:
    """Returns how many microbatches are counted with each pipeline."""
    counts = [0] * len(plan.pipelines)
    for route, home in zip(plan.routes, homes(plan), strict=True):
        counts[home] += len(route.microbatches)
    return tuple(counts)


def carriers(plan: Plan) -> dict[WorkerId, int]:
    """Returns the workers that run microbatches of another pipeline than their own, and how many each."""
    pipeline_of = {stage.worker: at for at, pipeline in enumerate(plan.pipelines) for stage in pipeline.stages}
    carried: dict[WorkerId, int] = {}
    for route, home in zip(plan.routes, homes(plan), strict=True):
        for worker in {hop.worker for hop in route.hops if pipeline_of[hop.worker] != home}:
            carried[worker] = carried.get(worker, 0) + len(route.microbatches)
    return dict(sorted(carried.items()))


Part = tuple[int, int, int, int]
"""A stage on a node: its first device there, number of devices, first layer and end layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place for one node: what it takes of a pipeline.

    Attributes:
        pipeline: number of the pipeline that it joins; one more than there are: the first of a new one.
        parts: of the pipeline, on the node's devices.
    """

    pipeline: int
    parts: tuple[Part, ...]

    def stages(self, node: NodeId, devices_per_node: int) -> tuple[Stage, ...]:
        """Returns the stages of the place on that node."""
        return tuple(
            Stage(
                worker=WorkerId(node * devices_per_node + device),
                first_layer=first,
                end_layer=end,
                num_devices=num_devices,
            )
            for device, num_devices, first, end in self.parts
        )


def places(pipelines: Sequence[Pipeline], profile: ModelProfile, devices_per_node: int) -> Iterator[Place]:
    """Yields all places that a node may take, gaps first: a whole gap, or what a node has and a pipeline lacks."""
    shapes, num_layers = _shapes(pipelines, devices_per_node), profile.num_layers
    costs = StageCosts(profile) if 1 in profile.device_counts else None
    seen: set[Place] = set()
    for at in range(len(pipelines) + 1):
        stages = pipelines[at].stages if at < len(pipelines) else ()
        owned = {layer for stage in stages for layer in stage.layers}
        missing = [layer for layer in range(num_layers) if layer not in owned]
        gaps = () if costs is None else _gaps(missing, costs, devices_per_node)
        for parts in (*gaps, *shapes):
            place = Place(pipeline=at, parts=parts)
            lacked = all(owned.isdisjoint(range(first, end)) for _, _, first, end in parts)
            if lacked and place not in seen:
                seen.add(place)
                yield place


def with_place(
    pipelines: Sequence[Pipeline], place: Place, node: NodeId, devices_per_node: int
) -> tuple[Pipeline, ...]:
    """Returns the pipelines with the node in that place."""
    stages = place.stages(node, devices_per_node)
    result = list(pipelines)
    if place.pipeline == len(result):
        return (*result, Pipeline(stages=stages))
    before = result[place.pipeline]
    together = sorted((*before.stages, *stages), key=lambda stage: (stage.first_layer, stage.worker))
    result[place.pipeline] = msgspec.structs.replace(before, stages=tuple(together))
    return tuple(result)


def _shapes(pipelines: Sequence[Pipeline], devices_per_node: int) -> list[tuple[Part, ...]]:
    """Returns the parts that nodes have, each combination once, in layer order."""
    by_node: dict[tuple[int, int], list[Part]] = {}
    for at, pipeline in enumerate(pipelines):
        for stage in pipeline.stages:
            node, device = divmod(stage.worker, devices_per_node)
            by_node.setdefault((at, node), []).append((device, stage.num_devices, stage.first_layer, stage.end_layer))
    return sorted({tuple(parts) for parts in by_node.values()}, key=lambda parts: (parts[0][2], parts))


def _gaps(missing: Sequence[int], costs: StageCosts, devices_per_node: int) -> Iterator[tuple[Part, ...]]:
    """Yields each gap as one node's parts, in as many stages as the node has devices, cut where they are evenest."""
    for first, end in ranges(missing):
        parts = min(devices_per_node, end - first)
        if parts < devices_per_node and devices_per_node > 1:
            continue  # a device would have nothing
        yield tuple((device, 1, low, high) for device, (low, high) in enumerate(_cut(first, end, parts, costs)))


def _cut(first: int, end: int, parts: int, costs: StageCosts) -> list[tuple[int, int]]:
    """Returns a range cut into so many parts, each as near its share of the rest's compute as can be."""
    ranges = []
    for left in range(parts, 1, -1):
        share = costs.compute_s(first, end) / left
        cut = min(range(first + 1, end - left + 2), key=lambda c: (abs(costs.compute_s(first, c) - share), c))
        ranges.append((first, cut))
        first = cut
    return [*ranges, (first, end)]
