"""How long a pipeline takes for a step: its template, its stages' chain of events, and nodes of other speeds.

A chain is simulated event by event, in topological order and without a queue, with the same model as
`planaria.estimate.step_time`, for one pipeline on its own and without the sums of gradients: a stage computes one thing
at a time; with overlap a message occupies only its link, and those of one sender to one receiver go one after another;
without overlap a message occupies its sender. Round t of a step is the backward of microbatch t on all stages from the
last to the first, after the forward that precedes it on each stage, from the first to the last. Later stages run fewer
forwards ahead, so whatever an operation waits for is in an earlier round or earlier in its own.

A stage on a node of speed s takes 1 / s of its compute time and as long as ever for its messages. A pipeline's time is
its template's, plus what its path (every stage once) and, for each further microbatch, its period (the busiest stage)
become longer. Within a pipeline the slowest node takes the part of the template that asks least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Kernel, Numbers, Work, numba_is_loaded
from planaria.plan.costs.byte_counts import message_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import NodeId, PlanError, ScheduleKind
from planaria.plan.thresholds import INTERPRETED_EVENTS_PER_S

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]
"""Seconds of a pipeline's step with 1, 2, ... microbatches; not falling."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Costs of a pipeline's stages, in layer order.

    Attributes:
        forward_s: of each stage, for one microbatch.
        backward_s: seconds of each stage's whole backward.
        link_s: of each boundary between stages, one message either way.
        schedule: order of forwards and backwards.
        overlap: whether messages travel beside the sender's compute.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    link_s: tuple[float, ...]
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    overlap: bool = True

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        forward, backward, link = np.array(self.forward_s), np.array(self.backward_s), np.array(self.link_s)
        return charged(forward[None, :], backward[None, :], link[None, :], overlap=self.overlap)

    def time_s(self, num_microbatches: int) -> float:
        """Seconds from the first forward to the last backward of so many microbatches; 0 for none."""
        if num_microbatches <= 0:
            return 0.0
        return float(times_s(*self._arrays, num_microbatches, self.schedule)[0])


def charged(forward_s: Floats, backward_s: Floats, link_s: Floats, *, overlap: bool) -> tuple[Floats, Floats, Floats]:
    """Returns the chains (one a row) with messages charged to links (overlap) or to their senders' compute.

    A sender that waits for its message is one whose compute is longer by it, and whose messages take no time.
    """
    if overlap:
        return forward_s, backward_s, link_s
    forward_s, backward_s = forward_s.copy(), backward_s.copy()
    forward_s[:, :-1] += link_s
    backward_s[:, 1:] += link_s
    return forward_s, backward_s, np.zeros_like(link_s)


@dataclass(frozen=True, slots=True)
class Before:
    """Least delays before chains that are the last stages of pipelines; arrays of one number a chain.

    Attributes:
        fill_s: between two microbatches that arrive at the chain.
        drain_s: between two that leave the pipeline after the chain.
        loop_s: from a backward's end at the chain to the arrival of the forward that waits for it.
        lead: forwards that the stage before the chain runs ahead.
    """

    fill_s: Floats
    drain_s: Floats
    loop_s: Floats
    lead: int


def times_s(
    forward_s: Floats,
    backward_s: Floats,
    link_s: Floats,
    num_microbatches: int,
    schedule: ScheduleKind,
    work: Work | None = None,
    before: Before | None = None,
) -> Floats:
    """Returns the seconds of many chains with equally many stages, one a row.

    Args:
        forward_s: chains x stages.
        backward_s: chains x stages.
        link_s: chains x (stages - 1).
        num_microbatches: of one step, at least 1.
        schedule: order of forwards and backwards.
        work: that this is part of; None: too little to load numba for.
        before: what comes before their first stages; None: nothing.
    """
    chains, stages = forward_s.shape
    ahead = _ahead(schedule, stages, num_microbatches)
    nothing = np.zeros(chains)
    before = before or Before(nothing, nothing, nothing, num_microbatches)
    if work is not None:
        work.add(2.0 * chains * stages * num_microbatches / INTERPRETED_EVENTS_PER_S)
    times, clocks, left = np.empty(chains), np.empty((3, stages)), np.empty(num_microbatches)
    arrived = np.empty((stages + 1) * num_microbatches)
    links = np.concatenate([link_s, nothing[:, None]], axis=1)  # of the last stage: nobody waits for its message
    STEP_TIMES.form(compiled=numba_is_loaded() if work is None else work.compiled)(
        forward_s, backward_s, links, ahead, num_microbatches, before.fill_s, before.drain_s, before.loop_s,
        before.lead, times, clocks, arrived, left,
    )  # fmt: skip
    return times


@lru_cache(maxsize=1024)
def _ahead(schedule: ScheduleKind, stages: int, num_microbatches: int) -> Ints:
    """Returns how many forwards each stage runs ahead."""
    return np.array([schedule.forwards_ahead(stages - 1 - s, num_microbatches) for s in range(stages)], dtype=np.int64)


def _step_times(
    forward_s: Numbers, backward_s: Numbers, link_s: Numbers, ahead: Numbers, num: int, fill_s: Numbers,
    drain_s: Numbers, loop_s: Numbers, lead: int, times: Numbers, clocks: Numbers, arrived: Numbers, left: Numbers,
) -> None:  # fmt: skip
    """Simulates the chains' events and writes the step times to `times`.

    `clocks`: until when a stage, its messages down and those up are busy; `arrived`: of each stage, when its
    microbatches' inputs came; `left`: when their last backwards ended.
    """
    clock, down, up, stages = clocks[0], clocks[1], clocks[2], len(ahead)
    for c in range(len(times)):
        forwards, backwards, links = forward_s[c], backward_s[c], link_s[c]
        for i in range(num):
            arrived[i] = i * fill_s[c]
        for s in range(stages):
            now, sent = 0.0, 0.0
            for at in range(s * num, s * num + ahead[s]):
                come = arrived[at]
                now = (come if come > now else now) + forwards[s]
                sent = (now if now > sent else sent) + links[s]
                arrived[at + num] = sent
            clock[s], down[s], up[s] = now, sent, 0.0
        last = 0.0
        for t in range(num):
            i = t + ahead[0]
            if i < num and i > lead:
                come = left[i - 1 - lead] + loop_s[c]
                arrived[i] = come if come > arrived[i] else arrived[i]
            for s in range(stages):
                if t + ahead[s] < num:
                    at = s * num + t + ahead[s]
                    come, now, sent = arrived[at], clock[s], down[s]
                    now = (come if come > now else now) + forwards[s]
                    sent = (now if now > sent else sent) + links[s]
                    clock[s], down[s], arrived[at + num] = now, sent, sent
            come = 0.0
            for s in range(stages - 1, -1, -1):
                now, sent = clock[s], up[s]
                now = (come if come > now else now) + backwards[s]
                come = (now if now > sent else sent) + links[s - 1]
                clock[s], up[s] = now, come
            left[t] = clock[0]
            end = clock[0] + (num - 1 - t) * drain_s[c]
            last = end if end > last else last
        times[c] = last


STEP_TIMES = Kernel(_step_times, writes=(9,))


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateStage:
    """A stage of a template; `node` counts from 0 within the template."""

    first_layer: int
    end_layer: int
    node: int
    num_devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pipeline shape for `num_nodes` nodes.

    Attributes:
        num_nodes: nodes that it takes.
        stages: in layer order; the stages of a node are neighbours and use all its devices.
        step_time_s: simulated, for the share of microbatches that templates are shaped for
            (`PlannerSettings.microbatches_per_pipeline`; of a range its most). With whole backwards: where they are
            split, a step is shorter.
        cost: its time for any number of microbatches, as a line.
        chain: its stages' times, for the simulated step time of any number of microbatches; None: not known.
        objective_s: what was minimised: the step time (of a range, at the number of microbatches where it is furthest
            from its bound), or Oobleck's T1 + T2 + T3.
        lower_bound_s: no mapping onto as many nodes has a smaller objective; 0: not known.
    """

    num_nodes: int
    stages: tuple[TemplateStage, ...]
    step_time_s: float
    cost: PipelineCost
    chain: Chain | None = None
    objective_s: float = 0.0
    lower_bound_s: float = 0.0

    @property
    def gap(self) -> float:
        """How far the template can be from the best, as a share of the bound: 0 where it is the best for certain."""
        return self.objective_s / self.lower_bound_s - 1 if self.lower_bound_s else float("inf")

    def time_s(self, num_microbatches: int) -> float:
        return self.cost.time_s(num_microbatches)

    def stages_of(self, node: int) -> tuple[TemplateStage, ...]:
        """Returns the stages on the template's node `node`."""
        return tuple(stage for stage in self.stages if stage.node == node)


NodeSpeeds = Mapping[NodeId, float]
"""Compute speed of nodes as a multiple of the profile's; 1 where a node is not named. 0.5: half as fast."""


def check_speeds(speeds: NodeSpeeds) -> None:
    """Raises an error unless every speed is a positive number.

    Raises:
        PlanError: one is not.
    """
    for node, speed in sorted(speeds.items()):
        if not (math.isfinite(speed) and speed > 0):
            raise PlanError(
                f"Node {node} has speed {speed}; it must be a positive number (1: as fast as the profile says)."
            )


def step_times(template: Template, num_microbatches: int) -> Times:
    """Returns the seconds of the template's step with 1, 2, ... `num_microbatches` microbatches at speed 1.

    At once where they are its cost's line, which is told from four of them; else one by one.
    """
    line = template.cost
    some = (1, 2, (num_microbatches + 1) // 2, num_microbatches)
    if all(template.time_s(number) == line.time_s(number) for number in some):
        return line.times_s(num_microbatches)
    return np.array([template.time_s(number) for number in range(1, num_microbatches + 1)])


def step_times_of(templates: Sequence[Template], num_microbatches: int) -> list[Times]:
    """Returns `step_times` of each template; of hundreds of pipelines most are of a few, and those share one array."""
    distinct = {id(template): template for template in templates}
    known = {key: step_times(template, num_microbatches) for key, template in distinct.items()}
    return [known[id(template)] for template in templates]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Time that other speeds add to a template's times; arrays where it is asked for many sets of nodes at once.

    Attributes:
        path_s: to the time of the first microbatch.
        period_s: to each further one.
    """

    path_s: Floats
    period_s: Floats


class TemplateSlowdown:
    """Dependence of a template's time on the speeds of its nodes.

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
            self._messages[at - 1 : at + 1] += link.time_s(message_bytes(profile, stages[at].first_layer))
        node_of = np.array([stage.node for stage in stages])
        busiest = [float(self._compute[node_of == node].max()) for node in range(template.num_nodes)]
        in_all = [float(self._compute[node_of == node].sum()) for node in range(template.num_nodes)]
        self.parts = tuple(sorted(range(template.num_nodes), key=lambda node: (-busiest[node], -in_all[node], node)))
        self._node_of = node_of
        self._rank_of = np.argsort(np.array(self.parts))[node_of]

    def on_parts(self, speeds: Sequence[float]) -> Slowdown:
        """Returns the slowdown with the template's node i at speed speeds[i]."""
        return self._slowdown([np.array(speeds[node]) for node in self._node_of])

    def on_runs(self, speeds: Floats, num_nodes: int) -> Slowdown:
        """Returns the slowdown for each run of `num_nodes` neighbours in `speeds` (descending), along `parts`."""
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
    """Returns a template's times (see `step_times`) on nodes of other speeds."""
    period = float(slowdown.period_s)
    if len(times) > 1:
        period = max(period, -float(np.diff(times).min()))  # Times do not fall, however fast the nodes are.
    return times + PipelineCost(path_s=float(slowdown.path_s), period_s=period).times_s(len(times))
