"""Rebalancing: a pipeline's layers assigned anew over its own stages, so that a slow node gets fewer of them.

Templates are made for nodes of one speed. Where one node of a pipeline is slower, everybody else of it waits for that
node; the cut that suits the speeds makes its busiest stage (the period) as short as can be, stage order and devices
as they are. The result is no template's pipeline, so the next change of nodes may make it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from planaria.plan.costs.byte_counts import message_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Floats, NodeSpeeds, Times
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import NodeId, Pipeline, Stage


def recut(pipeline: Pipeline, profile: ModelProfile, speeds: NodeSpeeds, devices_per_node: int) -> Pipeline:
    """Returns the pipeline with the cut of the shortest period, each stage with a layer at least; of equal ones, that
    with the earliest boundaries.

    Args:
        pipeline: a whole pipeline.
        profile: compute and message times.
        speeds: node -> its speed, as a part of the others'.
        devices_per_node: the devices, and so workers, of each node.
    """
    stages, layers = pipeline.stages, profile.num_layers
    least = np.full(layers + 1, np.inf)
    least[0] = 0.0
    begins: list[Sequence[int]] = []
    for at, stage in enumerate(stages):
        periods = _periods(pipeline, at, profile, _speed(stage, speeds, devices_per_node), devices_per_node)
        slowest = np.maximum(least[:, None], periods)
        begins.append([int(begin) for begin in slowest.argmin(axis=0)])
        least = slowest.min(axis=0)
    ends = [layers]
    for begin in reversed(begins):
        ends.append(begin[ends[-1]])
    ends.reverse()
    return Pipeline(
        stages=tuple(
            Stage(worker=stage.worker, first_layer=first, end_layer=end, num_devices=stage.num_devices)
            for stage, (first, end) in zip(stages, pairwise(ends), strict=True)
        )
    )


def pipeline_times(
    pipeline: Pipeline, profile: ModelProfile, speeds: NodeSpeeds, devices_per_node: int, num_microbatches: int
) -> Times:
    """Returns the seconds of the pipeline's step with 1, 2, ... `num_microbatches` microbatches, as a line: its path,
    and a period for each further one (see `planaria.plan.costs.stage_costs.PipelineCost`)."""
    path = period = 0.0
    for at, stage in enumerate(pipeline.stages):
        seconds = sum(
            cost.on(stage.num_devices).forward_s + cost.on(stage.num_devices).backward_s
            for cost in profile.layers[stage.first_layer : stage.end_layer]
        ) / _speed(stage, speeds, devices_per_node)
        messages = sum(
            _message_s(pipeline, side, boundary, profile, devices_per_node)
            for side, boundary in ((at - 1, stage.first_layer), (at, stage.end_layer))
        )
        path += seconds + messages
        period = max(period, seconds + messages)
    return PipelineCost(path_s=path, period_s=period).times_s(num_microbatches)


def _periods(pipeline: Pipeline, at: int, profile: ModelProfile, speed: float, devices_per_node: int) -> Floats:
    """Returns the period of stage `at` with layers [first, end); infinite where it would have none."""
    num_devices, layers = pipeline.stages[at].num_devices, profile.num_layers
    costs = [cost.on(num_devices).forward_s + cost.on(num_devices).backward_s for cost in profile.layers]
    sums = np.concatenate([[0.0], np.cumsum(costs)]) / speed
    before, after = (
        np.array([_message_s(pipeline, side, boundary, profile, devices_per_node) for boundary in range(layers + 1)])
        for side in (at - 1, at)
    )
    periods: Floats = sums[None, :] - sums[:, None] + before[:, None] + after[None, :]
    periods[np.tril_indices(layers + 1)] = np.inf
    return periods


def _message_s(pipeline: Pipeline, side: int, boundary: int, profile: ModelProfile, devices_per_node: int) -> float:
    """Returns the seconds of a message between the stages `side` and the next; 0 at the pipeline's two ends."""
    if not (0 <= side < len(pipeline.stages) - 1 and 0 < boundary < profile.num_layers):
        return 0.0
    left, right = (pipeline.stages[place].worker // devices_per_node for place in (side, side + 1))
    return profile.links.of(same_node=left == right).time_s(message_bytes(profile, boundary))


def _speed(stage: Stage, speeds: NodeSpeeds, devices_per_node: int) -> float:
    return speeds.get(NodeId(stage.worker // devices_per_node), 1.0)
