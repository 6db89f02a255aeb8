"""What a range of layers costs as a stage, and what a chain of stages costs as a pipeline: closed forms.

The event simulation in `planaria.estimate.step_time` is the finer answer; these are the formulas that
searches use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from planaria.plan.costs.byte_counts import held_bytes, message_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCost:
    """Time of a 1F1B pipeline as a line: the path of one microbatch, then one period for each further one.

    Attributes:
        period_s: between two microbatches in the steady phase, set by the busiest stage.
        path_s: forward and backward of one microbatch through all stages, messages included.
    """

    period_s: float
    path_s: float

    def time_s(self, num_microbatches: int) -> float:
        """Returns the seconds for `num_microbatches` microbatches (0 for none)."""
        return self.path_s + (num_microbatches - 1) * self.period_s if num_microbatches > 0 else 0.0

    def times_s(self, num_microbatches: int) -> npt.NDArray[np.float64]:
        """Returns the seconds for 1, 2, ... `num_microbatches` microbatches."""
        return self.path_s + np.arange(num_microbatches, dtype=np.float64) * self.period_s


class StageCosts:
    """Costs of every contiguous range of a model's layers, from prefix sums.

    A stage of d devices has the times of the profile for d, and 1/d of the bytes on each device.
    """

    def __init__(self, profile: ModelProfile, schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B) -> None:
        self._profile = profile
        # What is freed and allocated in turn leaves holes; GPipe's forwards find the heap as it was a step before.
        self._heap = 1.0 if schedule is ScheduleKind.GPIPE else 1.0 + profile.device.allocator_overhead
        self._compute = {
            d: tuple(accumulate((t.forward_s + t.backward_s for t in (c.on(d) for c in profile.layers)), initial=0.0))
            for d in profile.device_counts
        }
        self._activations = tuple(accumulate((c.activation_bytes for c in profile.layers), initial=0))
        own = [layer.constant_bytes for layer in profile.layers]
        self._tied: list[tuple[tuple[int, ...], int]] = []
        for group in profile.groups:
            state_bytes = sum(held_bytes(profile, group))
            if len(group.layers) == 1:
                own[group.layers[0]] += state_bytes
            else:
                self._tied.append((group.layers, state_bytes))
        self._own = tuple(accumulate(own, initial=0))

    def compute_s(self, first: int, end: int, num_devices: int = 1) -> float:
        """Returns the seconds of forward and backward of one microbatch through layers [first, end)."""
        compute = self._compute[num_devices]
        return compute[end] - compute[first]

    def forward_s(self, first: int, end: int, num_devices: int = 1) -> float:
        """Returns the forward seconds of a microbatch through layers [first, end), added up as events are."""
        return sum(layer.on(num_devices).forward_s for layer in self._profile.layers[first:end])

    def backward_s(self, first: int, end: int, num_devices: int = 1) -> float:
        """Returns the backward seconds, added up like the forward's."""
        return sum(layer.on(num_devices).backward_s for layer in self._profile.layers[first:end])

    def link_s(self, boundary: int, *, same_node: bool = False) -> float:
        """Returns the seconds of one message over the boundary before layer `boundary`; 0 at the model's two ends."""
        if boundary <= 0 or boundary >= self._profile.num_layers:
            return 0.0
        link = self._profile.links.of(same_node=same_node)
        return link.time_s(message_bytes(self._profile, boundary))

    def period_s(self, first: int, end: int) -> float:
        """Returns the period that the stage [first, end) on one device imposes on its pipeline, between nodes.

        In 1F1B the k stages of any stretch form a cycle of k microbatches that holds their compute and two
        messages over each link between them; charging each link once to either side bounds all these cycles
        at once.
        """
        return self.compute_s(first, end) + self.link_s(first) + self.link_s(end)

    def state_bytes(self, first: int, end: int) -> int:
        """Returns the bytes of the state, frozen parameters and copies of weights of a stage [first, end).

        A tied group counts once.
        """
        tied = sum(size for layers, size in self._tied if any(first <= layer < end for layer in layers))
        return self._own[end] - self._own[first] + tied

    def kept_bytes(self, first: int) -> tuple[int, ...]:
        """Returns, for each end above `first`, the bytes that stage [first, end) keeps until a microbatch's backward.

        Never falling with the end, so that a search may stop at the first that does not fit.
        """
        kept: list[int] = []
        for end in range(first + 1, self._profile.num_layers + 1):
            top = self._profile.layers[end - 1]
            size = self._activations[end] - self._activations[first]
            if end < self._profile.num_layers and top.activation_bytes != top.recompute_activation_bytes:
                size += top.output_bytes  # stays with the graph; where the forward is recomputed there is none
            kept.append(max(round(size * self._heap), kept[-1] if kept else 0))
        return tuple(kept)

    def memory_bytes(self, first: int, end: int, in_flight: int, num_devices: int = 1) -> int:
        """Returns the bytes on each device of a stage that keeps `in_flight` microbatches.

        The process, and an equal share of state, activations and the largest layer's workspace (Odyssey, Eq. 14, for
        stages of several devices): what `planaria.estimate.memory` says of a whole plan, in closed form.
        """
        workspace = max((layer.workspace_bytes for layer in self._profile.layers[first:end]), default=0)
        spread = self.state_bytes(first, end) + in_flight * self.kept_bytes(first)[end - first - 1] + workspace
        return self._profile.device.process_bytes + -(-spread // num_devices)


@lru_cache(maxsize=16)
def stage_costs(profile: ModelProfile) -> StageCosts:
    """Returns the stage costs of a profile under 1F1B, cached."""
    return StageCosts(profile)


def pipeline_cost(
    profile: ModelProfile,
    ranges: Iterable[tuple[int, int]],
    devices: Iterable[tuple[int, int]] | None = None,
) -> PipelineCost:
    """Returns the cost of a pipeline whose stages run these layer ranges, in order.

    In the manner of Oobleck's T1 + T2 + T3 (section 4.1.2), for any number of microbatches and with messages in path
    and period. Exact for even stages. For uneven ones an upper bound, up to some 16% high, where the warm-up hides part
    of the path (given one ratio of backward to forward for all layers; where ratios differ it can be some percent low).

    Args:
        profile: the model's costs.
        ranges: of layers, in order.
        devices: for each stage its node and its number of devices; None: one device, every stage on another node.
    """
    costs = stage_costs(profile)
    stages: Sequence[tuple[int, int]] = tuple(ranges)
    where = tuple(devices) if devices is not None else tuple((place, 1) for place in range(len(stages)))
    links = [
        costs.link_s(right[0], same_node=a[0] == b[0])
        for (_, right), (a, b) in zip(pairwise(stages), pairwise(where), strict=True)
    ]
    computes = [costs.compute_s(*stage, d) for stage, (_, d) in zip(stages, where, strict=True)]
    periods = [c + left + right for c, left, right in zip(computes, [0.0, *links], [*links, 0.0], strict=True)]
    return PipelineCost(period_s=max(periods), path_s=sum(computes) + 2 * sum(links))
