"""Step times of sets of pipelines by the planner's templates: what published systems are given to run on.

All systems of a comparison get the same templates (with the paper's own objective) and the same times of a step, so
that what differs is what they do with them. Compute is multiplied by one factor for each model, which brings one cell
of the paper's table to the paper's figure: its machines reach less of their peak than our presets assume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Template, Times, step_times
from planaria.plan.plan import PlanError
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import fewest_seconds
from planaria.planner.instantiation.microbatch_shares import Distribution, distribute, least_variance
from planaria.planner.templates.templates import make_templates


@dataclass(frozen=True)
class Grids:
    """Templates of a model on a cluster, and what sets of them take.

    Attributes:
        profile: costs.
        settings: the planner's; `fault_tolerance` is f.
        factor: of all times of forwards and backwards.
    """

    profile: ModelProfile
    settings: PlannerSettings
    factor: float = 1.0

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        return make_templates(self.profile, self.settings)

    @cached_property
    def times(self) -> dict[int, Times]:
        """By number of nodes: seconds of a step of 1, 2, ... microbatches."""
        return {t.num_nodes: step_times(t, self.settings.num_microbatches) for t in self.templates}

    @cached_property
    def periods_s(self) -> dict[int, float]:
        """By number of nodes: seconds of one more microbatch in a full pipeline."""
        return {t.num_nodes: t.cost.period_s for t in self.templates}

    @property
    def sizes(self) -> list[int]:
        return sorted(self.times)

    @property
    def samples(self) -> int:
        """In a step."""
        return self.settings.num_microbatches * self.profile.microbatch_size

    def with_factor(self, factor: float) -> Grids:
        """The same templates, other times."""
        other = Grids(self.profile, self.settings, factor)
        for name in ("templates", "times", "periods_s", "fullest_bytes"):
            other.__dict__[name] = getattr(self, name)
        return other

    def step_s(self, pipelines: Sequence[int], *, literal: bool = False) -> float:
        """Of pipelines of these numbers of nodes, the batch being distributed; sums and optimizer included.

        Args:
            pipelines: number of nodes of each.
            literal: by Oobleck's Eq. 6 as it stands, with T_i the latency of one microbatch; else as well as can be.

        Raises:
            PlanError: fewer microbatches than pipelines.
        """
        times = [self.times[size] for size in pipelines]
        number = self.settings.num_microbatches
        if literal:
            shares = least_variance([float(time[0]) for time in times], number)
        else:
            shares = distribute(times, number, Distribution.MINMAX)
        slowest_s = max(float(time[share - 1]) for time, share in zip(times, shares, strict=True))
        return self.factor * slowest_s + self.beside_s(len(pipelines), min(pipelines))

    def beside_s(self, count: int, smallest: int) -> float:
        """Of a step, what is neither forward nor backward: the sums over so many pipelines by a ring, as NCCL has them,
        and the optimizer; of the fullest stage of the smallest pipeline."""
        size_bytes = self.fullest_bytes[smallest]
        link = self.profile.links.between_nodes
        ring_s = 2 * (count - 1) * (link.latency_s + size_bytes / count / link.bandwidth_bytes_per_s)
        return ring_s + size_bytes * self.profile.step.apply_s_per_byte

    @cached_property
    def fullest_bytes(self) -> dict[int, int]:
        """By number of nodes: bytes of parameters of the fullest stage."""
        sizes = [layer.parameter_bytes for layer in self.profile.layers]
        return {
            template.num_nodes: max(sum(sizes[s.first_layer : s.end_layer]) for s in template.stages)
            for template in self.templates
        }

    def best(self, num_nodes: int) -> list[int]:
        """The set of pipelines that is fastest on so many nodes, largest first (Oobleck, section 4.2).

        Raises:
            PlanError: f + 1 pipelines do not fit.
        """
        least = self.settings.fault_tolerance + 1
        if num_nodes < least * self.sizes[0]:
            raise PlanError(f"{num_nodes} nodes are too few for {least} pipelines of {self.sizes[0]}.")
        times = [self.times[size] for size in self.sizes]
        counts = fewest_seconds(self.sizes, times, num_nodes, least, self.settings.num_microbatches)
        return [size for size, count in zip(self.sizes, counts, strict=True) for _ in range(count)][::-1]

    def symmetric(self, num_nodes: int) -> tuple[int, int, float] | None:
        """The fastest grid of equal pipelines: how many, of how many nodes, and the step's seconds (Varuna).

        None where no pipeline fits.
        """
        number = self.settings.num_microbatches
        found = []
        for size in self.sizes:
            for count in range(1, num_nodes // size + 1):
                share = -(-number // count)
                if count <= number:
                    found.append((float(self.times[size][share - 1]), count * size, count, size))
        if not found:
            return None
        _, _, count, size = min(found)
        return count, size, self.step_s([size] * count)


def state_bytes(profile: ModelProfile) -> int:
    """Parameters and optimizer state of the model: what a checkpoint has."""
    return sum(group.moved_bytes for group in profile.groups)
