"""A lower bound of a step over all ways of dealing microbatches out to owners of layers: how good rerouting can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Pipeline, Stage


def least_rerouted_s(
    profile: ModelProfile, pipelines: Sequence[Pipeline], num_microbatches: int, *, highest_speed: float = 1.0
) -> float:
    """Seconds that a step takes at least on these stages, whatever the routes and the orders of work.

    For each range of layers: the forward of what is below it, and all microbatches' compute on it, in equal parts on
    all workers that own any of it, on the most devices that one of them has. Where no stage begins or ends in the
    range, a microbatch is not cut there: the busiest has a whole number of them. Then the vote. Sums, messages and the
    optimizer count as nothing, so where these take long the bound is far off; and all workers as fast as the fastest.
    """
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    widest = max(stage.num_devices for stage in stages)
    times = [layer.on(widest) for layer in profile.layers]
    forward = [0.0, *accumulate(t.forward_s for t in times)]
    compute = [0.0, *accumulate(t.forward_s + t.backward_s for t in times)]
    cuts = sorted({0, profile.num_layers} | {cut for s in stages for cut in (s.first_layer, s.end_layer)})
    longest = 0.0
    for at, first in enumerate(cuts[:-1]):
        for end in cuts[at + 1 :]:
            owners = len(_owners(stages, first, end))
            if not owners:
                continue
            busiest = num_microbatches / owners
            if end == cuts[at + 1]:
                busiest = -(-num_microbatches // owners)
            longest = max(longest, forward[first] + busiest * (compute[end] - compute[first]))
    return longest / highest_speed + profile.step.vote_s


def _owners(stages: Sequence[Stage], first: int, end: int) -> set[int]:
    return {stage.worker for stage in stages if stage.first_layer < end and stage.end_layer > first}
