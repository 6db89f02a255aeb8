"""The outline of a step: its estimate, found from the kinds of pipelines that a plan has, not from every one of them.

Where every route keeps to a pipeline, nobody shadows, and all nodes are alike, the times of a pipeline depend on its
form and on how many microbatches it carries: pipelines that have these in common are run once, and so are their sums.
Gives the very numbers that `planaria.estimate.step_time` finds from the workers' programs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from planaria.estimate.conditions import Conditions
from planaria.estimate.durations import Durations
from planaria.estimate.gradient_sums import summed
from planaria.estimate.simulation.simulation import PipelineRun, is_whole, run_orders
from planaria.estimate.simulation.times import JointTimes
from planaria.plan.plan import Form, Pipeline, Plan, Route, ScheduleKind, WorkerId
from planaria.plan.program.routes import travellers
from planaria.plan.sums.rounds import colour


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """The estimate of a step: what a `Timeline` comes to, in seconds.

    Attributes:
        step_time_s: from the beginning to the end of the last worker's apply.
        longest_instruction_s: of the longest forward, backward, sum or optimizer's step.
        compute_s: of each worker's forwards and backwards.
    """

    step_time_s: float
    longest_instruction_s: float
    compute_s: Mapping[WorkerId, float]


_Key = TypeVar("_Key")

Shape = Hashable
"""The form of a pipeline: all that its times depend on, beside profile and conditions."""


class EstimateCache(dict[Shape, JointTimes]):
    """A cache of pipelines that were run before.

    Attributes:
        whole: steps that were, by what they depend on: seconds of the step, and of its longest instruction.
        runs: of pipelines of a form, under a schedule.
        endings: of plans whose pipelines are of these forms: the rounds of sums, and the longest optimizer's step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole: dict[Hashable, tuple[float, float]] = {}
        self.runs: dict[tuple[ScheduleKind, Form], PipelineRun] = {}
        self.endings: dict[Hashable, tuple[Sequence[int], float]] = {}


MOST_KNOWN = 4096
MOST_RUNS = 128


def remember(known: EstimateCache) -> None:
    """Keeps only the latest of what is remembered."""
    _keep_latest(known, MOST_KNOWN)
    _keep_latest(known.whole, MOST_KNOWN)
    _keep_latest(known.endings, MOST_KNOWN)
    _keep_latest(known.runs, MOST_RUNS)


def _keep_latest(found: dict[_Key, Any], most: int) -> None:
    while len(found) > most:
        del found[next(iter(found))]


def outline_of_pipelines(
    plan: Plan, durations: Durations, conditions: Conditions, known: EstimateCache
) -> StepEstimate | None:
    """Returns a step's estimate; None where it depends on more than the kinds of pipelines.

    Args:
        plan: whose step it is.
        durations: what each instruction of the plan takes.
        conditions: what is assumed of machines beside the profile.
        known: pipelines that were run before, with the same profile and conditions; those run now are added.
    """
    if plan.shadows or plan.redundancy is not None:
        return None
    if conditions.node_speeds or conditions.late_s or conditions.network is not None:
        return None
    if -1 in plan.pipeline_of_route or not plan.is_apart or not durations.is_spread:
        return None
    routes_of: dict[int, list[Route]] = {}
    for at, route in zip(plan.pipeline_of_route, plan.routes, strict=True):
        routes_of.setdefault(at, []).append(route)
    kinds: dict[Shape, _Kind] = {}
    per_node = plan.devices_per_node
    for at, routes in routes_of.items():
        pipeline = plan.pipelines[at]
        form = pipeline.form(per_node)
        shape = plan.schedule, form, *shape_of(routes)
        kind = kinds.get(shape)
        if kind is None:
            if len(pipeline.owned) != len(pipeline.stages):
                return None
            flow = known.get(shape)
            if flow is None:
                flow = known[shape] = _run(plan, pipeline, routes, durations, conditions, known)
            kind = kinds[shape] = flow, form, []
        kind[2].append(pipeline)
    idle: dict[Form, Pipeline] = {}
    if len(routes_of) < len(plan.pipelines):
        resting = [pipeline for at, pipeline in enumerate(plan.pipelines) if at not in routes_of]
        idle = {pipeline.form(per_node): pipeline for pipeline in resting}
    # Who owns what follows from the forms, but for how many do.
    what = (plan.groups, per_node, frozenset(kinds), frozenset(idle), durations.num_counting)
    found = known.whole.get(what)
    if found is None:
        forms = plan.groups, per_node, frozenset([form for _, form, _ in kinds.values()]).union(idle)
        ending = known.endings.get(forms)
        if ending is None:
            ending = known.endings[forms] = colour(plan), _longest_apply_s(plan, durations)
        found = _found(plan, durations, conditions, list(kinds.values()), list(idle.values()), ending)
        known.whole[what] = found
    step_s, longest_s = found
    remember(known)
    return StepEstimate(
        step_time_s=step_s,
        longest_instruction_s=longest_s,
        compute_s=_Compute(plan, [(flow, alike) for flow, _, alike in kinds.values()]),
    )


def shape_of(routes: Sequence[Route]) -> tuple[Shape, ...]:
    """Returns all that times and memory of a pipeline with these routes depend on: of generations, their order."""
    if len(routes) == 1:
        (route,) = routes
        return (0, route.counted, len(route.microbatches), route.reached)
    borns = [route.born for route in routes]
    distinct = sorted(set(borns))
    turns = list(map(distinct.index, borns))
    own = [(turn, r.counted, len(r.microbatches), r.reached) for turn, r in zip(turns, routes, strict=True)]
    if len(distinct) == len(borns):
        return tuple(own)
    return (*own, tuple([at for _, _, at in travellers(routes)]))


def _run(
    plan: Plan,
    pipeline: Pipeline,
    routes: list[Route],
    durations: Durations,
    conditions: Conditions,
    known: EstimateCache,
) -> JointTimes:
    if is_whole(plan, routes):
        kind = plan.schedule, pipeline.form(plan.devices_per_node)
        if kind not in known.runs:
            known.runs[kind] = PipelineRun(plan, pipeline.stages, durations, overlap=conditions.overlap)
        return known.runs[kind].times(routes)
    alone = msgspec.structs.replace(plan, pipelines=(pipeline,), routes=tuple(routes), transfers=())
    return run_orders(alone, pipeline.workers, durations, overlap=conditions.overlap)


class _Compute(Mapping[WorkerId, float]):
    """Seconds of each worker's compute, found on demand: most plans need none."""

    def __init__(self, plan: Plan, kinds: Sequence[tuple[JointTimes, Sequence[Pipeline]]]) -> None:
        self._plan = plan
        self._kinds = kinds

    @cached_property
    def _seconds(self) -> dict[WorkerId, float]:
        seconds = dict.fromkeys(self._plan.workers, 0.0)
        for flow, alike in self._kinds:
            for pipeline in alike:
                seconds.update(zip(pipeline.workers, flow.compute_s, strict=True))
        return seconds

    def __getitem__(self, worker: WorkerId) -> float:
        return self._seconds[worker]

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._plan.workers)

    def __len__(self) -> int:
        return len(self._plan.workers)


_Kind = tuple[JointTimes, Form, list[Pipeline]]
"""A kind of pipeline: what it does by itself, its form, and the pipelines that are of it."""


def _longest_apply_s(plan: Plan, durations: Durations) -> float:
    """Returns the seconds of the longest optimizer's step of a plan whose pipelines are apart."""
    own = {(devices, plan.groups_of[w]) for one, _ in plan.examples for w, devices in one.devices_of.items()}
    return max(durations.apply_of_s(devices, groups, groups) for devices, groups in own)


def _found(
    plan: Plan,
    durations: Durations,
    conditions: Conditions,
    kinds: Sequence[_Kind],
    idle: list[Pipeline],
    ending: tuple[Sequence[int], float],
) -> tuple[float, float]:
    """Returns seconds of the step and of its longest instruction, from what every kind of pipeline does by itself."""
    whole = [0.0] * len(plan.groups)
    longest_s = 0.0
    ends: dict[tuple[tuple[int, ...], int, float], float] = {}
    """Latest end of compute by set of groups, devices, and time from which on it reads. The later that is, the later is
    all that follows, so earlier ones need not be looked at."""
    for flow, form, _ in kinds:
        longest_s = max(longest_s, flow.longest_s)
        for group, due_s in flow.due_s.items():
            if due_s > whole[group]:
                whole[group] = due_s
        for (groups, end_s), stage in zip(flow.ends_s, form.stages, strict=True):
            owner = groups, stage[2], 0.0 if conditions.overlap else end_s
            if end_s >= ends.get(owner, 0.0):
                ends[owner] = end_s
    for pipeline in idle:
        for worker, devices in pipeline.devices_of.items():
            ends.setdefault((plan.groups_of[worker], devices, 0.0), 0.0)
    rounds, applies_s = ending
    voted_s = 0.0
    for (groups, devices, reads_from), end_s in ends.items():
        times = durations.spread_sums(devices, groups)
        end, spans = summed(groups, whole, rounds, times, reads_from=reads_from, sums_from=end_s)
        voted_s = max(voted_s, end)
        for start, until in spans:
            if until - start > longest_s:
                longest_s = until - start
    return voted_s + durations.vote_s + applies_s, max(longest_s, applies_s)
