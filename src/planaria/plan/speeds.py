"""Nodes of different speed: what a template's step takes where a node computes slower or faster than the profile says.

The model: a stage on a node of speed s takes 1 / s of its compute time and as long as ever for its messages. A
pipeline's time is its template's, plus what its path (every stage once) and, for each further microbatch, its period
(the busiest stage) become longer. Within a pipeline the slowest node takes the part of the template that asks least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from planaria.plan.batch import Times
from planaria.plan.plan import NodeId, PlanError
from planaria.plan.profile import ModelProfile
from planaria.plan.templates import Template

Floats = npt.NDArray[np.float64]

Speeds = Mapping[NodeId, float]
"""Compute speed of nodes as a multiple of the profile's; 1 where a node is not named. 0.5: half as fast."""


def check_speeds(speeds: Speeds) -> None:
    """Raise unless every speed is a positive number.

    Raises:
        PlanError: one is not.
    """
    for node, speed in sorted(speeds.items()):
        if not (math.isfinite(speed) and speed > 0):
            raise PlanError(
                f"Node {node} has speed {speed}; it must be a positive number (1: as fast as the profile says)."
            )


def step_times(template: Template, num_microbatches: int) -> Times:
    """Seconds of the template's step with 1, 2, ... `num_microbatches` microbatches, on nodes of speed 1.

    At once where they are its cost's line, which is told from four of them; else one by one.
    """
    line = template.cost
    some = (1, 2, (num_microbatches + 1) // 2, num_microbatches)
    if all(template.time_s(number) == line.time_s(number) for number in some):
        return line.path_s + np.arange(num_microbatches, dtype=np.float64) * line.period_s
    return np.array([template.time_s(number) for number in range(1, num_microbatches + 1)])


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What other speeds add to a template's times; arrays where it is asked for many sets of nodes at once.

    Attributes:
        path_s: to the time of the first microbatch.
        period_s: to each further one.
    """

    path_s: Floats
    period_s: Floats


class Pace:
    """How a template's time depends on the speeds of its nodes.

    Attributes:
        parts: the template's nodes, the one whose busiest stage computes longest first (then most in all, then the
            lowest): the order in which they get the fastest nodes.
    """

    def __init__(self, template: Template, profile: ModelProfile) -> None:
        """Args: template: made for the profile. profile: compute and message times."""
        sums = {
            d: tuple(accumulate((t.forward_s + t.backward_s for t in (c.on(d) for c in profile.layers)), initial=0.0))
            for d in {stage.num_devices for stage in template.stages}
        }
        stages = template.stages
        self._compute = np.array(
            [sums[s.num_devices][s.end_layer] - sums[s.num_devices][s.first_layer] for s in stages]
        )
        self._messages = np.zeros(len(stages))
        for at in range(1, len(stages)):
            link = profile.links.of(same_node=stages[at].node == stages[at - 1].node)
            size = profile.layers[stages[at].first_layer - 1].output_bytes
            self._messages[at - 1 : at + 1] += link.time_s(size)
        node_of = np.array([stage.node for stage in stages])
        busiest = [float(self._compute[node_of == node].max()) for node in range(template.num_nodes)]
        in_all = [float(self._compute[node_of == node].sum()) for node in range(template.num_nodes)]
        self.parts = tuple(sorted(range(template.num_nodes), key=lambda node: (-busiest[node], -in_all[node], node)))
        self._node_of = node_of
        self._rank_of = np.argsort(np.array(self.parts))[node_of]

    def on_parts(self, speeds: Sequence[float]) -> Slowdown:
        """Where the template's node i has speed speeds[i]."""
        return self._slowdown([np.array(speeds[node]) for node in self._node_of])

    def on_runs(self, speeds: Floats, num_nodes: int) -> Slowdown:
        """For each run of `num_nodes` neighbours in `speeds` (descending), dealt out along `parts`."""
        count = len(speeds) - num_nodes + 1
        return self._slowdown([speeds[rank : rank + count] for rank in self._rank_of])

    def _slowdown(self, speeds: Sequence[Floats]) -> Slowdown:
        """Args: speeds: of each stage's node, in stage order."""
        path = np.zeros_like(speeds[0])
        period = np.zeros_like(speeds[0])
        for compute, messages, speed in zip(self._compute, self._messages, speeds, strict=True):
            path = path + compute / speed
            period = np.maximum(period, compute / speed + messages)
        return Slowdown(path - self._compute.sum(), period - (self._compute + self._messages).max())


def slowed(times: Times, slowdown: Slowdown) -> Times:
    """A template's times (see `step_times`) on nodes of other speeds."""
    period = float(slowdown.period_s)
    if len(times) > 1:
        period = max(period, -float(np.diff(times).min()))  # Times do not fall, however fast the nodes are.
    return times + float(slowdown.path_s) + np.arange(len(times)) * period
