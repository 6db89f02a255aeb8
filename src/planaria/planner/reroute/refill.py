"""Refilling: where in pipelines with gaps a node that came may go.

It takes a lost node's place, or one like another's. Which place is best is the policy's to find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import NodeId, Pipeline, Stage, WorkerId

Part = tuple[int, int, int, int]
"""First device of the node, number of devices, and the layers from one to another that it has there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one node takes.

    Attributes:
        pipeline: number of the pipeline that it joins; one more than there are: the first of a new one.
        parts: of the pipeline, on the node's devices.
    """

    pipeline: int
    parts: tuple[Part, ...]

    def stages(self, node: NodeId, devices_per_node: int) -> tuple[Stage, ...]:
        """On that node."""
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
    """All that a node may take, gaps first: a gap as a whole, or what another node has and a pipeline lacks."""
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
    """The pipelines with the node in that place."""
    stages = place.stages(node, devices_per_node)
    result = list(pipelines)
    if place.pipeline == len(result):
        return (*result, Pipeline(stages=stages))
    before = result[place.pipeline]
    together = sorted((*before.stages, *stages), key=lambda stage: (stage.first_layer, stage.worker))
    result[place.pipeline] = msgspec.structs.replace(before, stages=tuple(together))
    return tuple(result)


def _shapes(pipelines: Sequence[Pipeline], devices_per_node: int) -> list[tuple[Part, ...]]:
    """What the nodes have, each once, in layer order."""
    by_node: dict[tuple[int, int], list[Part]] = {}
    for at, pipeline in enumerate(pipelines):
        for stage in pipeline.stages:
            node, device = divmod(stage.worker, devices_per_node)
            by_node.setdefault((at, node), []).append((device, stage.num_devices, stage.first_layer, stage.end_layer))
    return sorted({tuple(parts) for parts in by_node.values()}, key=lambda parts: (parts[0][2], parts))


def _gaps(missing: Sequence[int], costs: StageCosts, devices_per_node: int) -> Iterator[tuple[Part, ...]]:
    """Each gap as one node's, in as many stages as the node has devices, cut where they are evenest."""
    runs: list[tuple[int, int]] = []
    for layer in missing:
        runs.append((runs.pop()[0] if runs and runs[-1][1] == layer else layer, layer + 1))
    for first, end in runs:
        parts = min(devices_per_node, end - first)
        if parts < devices_per_node and devices_per_node > 1:
            continue  # a device would have nothing
        yield tuple((device, 1, low, high) for device, (low, high) in enumerate(_cut(first, end, parts, costs)))


def _cut(first: int, end: int, parts: int, costs: StageCosts) -> list[tuple[int, int]]:
    """A range in so many, each as near its share of the rest's compute as can be."""
    ranges = []
    for left in range(parts, 1, -1):
        share = costs.compute_s(first, end) / left
        cut = min(range(first + 1, end - left + 2), key=lambda c: (abs(costs.compute_s(first, c) - share), c))
        ranges.append((first, cut))
        first = cut
    return [*ranges, (first, end)]
