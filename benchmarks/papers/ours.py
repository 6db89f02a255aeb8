"""This project's policies in its simulation, on the same times of layers and traces as the published systems.

Bytes are each one's own: published systems have those of mixed precision, ours what its workers hold and send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import LayerCost, ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.simulate.baselines import IDEAL
from planaria.simulate.experiment import Experiment
from planaria.simulate.results import RunResult
from planaria.simulate.timings import Timings
from planaria.simulate.traces.trace import Trace

KEEP_SAMPLES = (PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE)
"""Policies that are run here."""

OWN, PUBLISHED = "exact", "mixed"
"""Numerics of this project's policies, and of published systems."""

__all__ = ["IDEAL", "KEEP_SAMPLES", "OWN", "PUBLISHED", "Ours", "scaled"]


def scaled(profile: ModelProfile, factor: float) -> ModelProfile:
    """Every forward and backward takes `factor` times as long."""

    def slower(layer: LayerCost) -> LayerCost:
        times = tuple(
            msgspec.structs.replace(
                time,
                forward_s=factor * time.forward_s,
                backward_input_s=factor * time.backward_input_s,
                backward_weight_s=factor * time.backward_weight_s,
            )
            for time in layer.times
        )
        return msgspec.structs.replace(layer, times=times)

    return msgspec.structs.replace(profile, layers=tuple(slower(layer) for layer in profile.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Means over traces of one policy.

    Attributes:
        results: of each trace.
    """

    results: Sequence[RunResult]

    @classmethod
    def run(
        cls,
        policy: str,
        profile: ModelProfile,
        settings: PlannerSettings,
        traces: Iterable[Trace],
        *,
        samples: float | None = None,
        start_s: float = 30.0,
        mean_time_between_failures_s: float = 10_800.0,
        wants_timeline: bool = False,
    ) -> Ours:
        """`start_s`: from a node's arrival until it has joined; detection and the rest as measured on this project."""
        experiment = Experiment(
            profile=profile,
            settings=settings,
            samples=samples,
            mean_time_between_failures_s=mean_time_between_failures_s,
            timings=Timings(start_s=start_s),
            wants_timeline=wants_timeline,
        )
        return cls(results=experiment.run(policy, traces))

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return fmean(result.samples_per_s for result in self.results)

    @property
    def effective(self) -> float:
        """The share of the time in which steps were trained that count."""
        return fmean(result.effective for result in self.results)

    @property
    def fatal(self) -> float:
        return fmean(result.fatal for result in self.results)

    @property
    def nodes(self) -> float:
        return fmean(result.mean_nodes for result in self.results)

    @property
    def cost(self) -> float:
        """Dollars an hour."""
        return fmean(result.cost_per_hour for result in self.results)

    @property
    def value(self) -> float:
        return self.throughput / self.cost
