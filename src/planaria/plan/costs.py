"""What a range of layers costs as a stage, and what a chain of stages costs as a pipeline: closed forms.

The event simulation in `planaria.estimate.step_time` is the finer answer; these are the formulas that
searches use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from planaria.plan.profile import ModelProfile


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
        """Seconds for `num_microbatches` microbatches (0 for none)."""
        return self.path_s + (num_microbatches - 1) * self.period_s if num_microbatches > 0 else 0.0


class StageCosts:
    """Costs of every contiguous range of a model's layers, from prefix sums."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile
        self._compute = tuple(
            accumulate((t.forward_s + t.backward_s for t in (c.on(1) for c in profile.layers)), initial=0.0)
        )
        self._activations = tuple(accumulate((c.activation_bytes for c in profile.layers), initial=0))
        own = [0] * profile.num_layers
        self._tied: list[tuple[tuple[int, ...], int]] = []
        for group, state_bytes in zip(profile.groups, profile.group_state_bytes, strict=True):
            if len(group.layers) == 1:
                own[group.layers[0]] += state_bytes
            else:
                self._tied.append((group.layers, state_bytes))
        self._own = tuple(accumulate(own, initial=0))

    def compute_s(self, first: int, end: int) -> float:
        """Forward and backward of one microbatch through layers [first, end)."""
        return self._compute[end] - self._compute[first]

    def link_s(self, boundary: int) -> float:
        """One message over the boundary before layer `boundary`; 0 at the model's two ends."""
        if boundary <= 0 or boundary >= self._profile.num_layers:
            return 0.0
        return self._profile.links.between_nodes.time_s(self._profile.layers[boundary - 1].output_bytes)

    def period_s(self, first: int, end: int) -> float:
        """Period that the stage [first, end) imposes on its pipeline.

        In 1F1B the k stages of any stretch form a cycle of k microbatches that holds their compute and two
        messages over each link between them; charging each link once to either side bounds all these cycles
        at once.
        """
        return self.compute_s(first, end) + self.link_s(first) + self.link_s(end)

    def state_bytes(self, first: int, end: int) -> int:
        """Bytes of the state that a worker with layers [first, end) holds; a tied group counts once."""
        tied = sum(size for layers, size in self._tied if any(first <= layer < end for layer in layers))
        return self._own[end] - self._own[first] + tied

    def memory_bytes(self, first: int, end: int, in_flight: int) -> int:
        """Bytes on the device of a stage that keeps the activations of `in_flight` microbatches."""
        return self.state_bytes(first, end) + in_flight * (self._activations[end] - self._activations[first])


def pipeline_cost(profile: ModelProfile, ranges: Iterable[tuple[int, int]]) -> PipelineCost:
    """Cost of a pipeline whose stages run these layer ranges, in order.

    In the manner of Oobleck's T1 + T2 + T3 (section 4.1.2), for any number of microbatches and with messages in path
    and period. Exact for even stages. For uneven ones an upper bound, up to some 16% high, where the warm-up hides part
    of the path (given one ratio of backward to forward for all layers; where ratios differ it can be some percent low).
    """
    costs = StageCosts(profile)
    stages: Sequence[tuple[int, int]] = tuple(ranges)
    path = sum(costs.compute_s(*stage) for stage in stages)
    path += sum(2 * costs.link_s(right[0]) for _, right in pairwise(stages))
    return PipelineCost(period_s=max(costs.period_s(*stage) for stage in stages), path_s=path)
