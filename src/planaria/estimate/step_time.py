"""The time of a step: an event simulation of the workers' programs, gradient sums, vote and apply included.

A worker computes one thing at a time. Messages of one sender to one receiver go one after another; beside its compute,
unless the conditions say that nothing overlaps.

Sums are as `planaria.protocol.worker.sums` has them. Once every owner's gradients of a group are whole, each owner
reads its slice of the others', and then their totals, one group after another (of those that are whole, the lowest
round first), beside its compute. What it adds is done after its last compute. When all sums of all workers are done,
the votes are in; the commit comes `vote_s` later, and each worker applies the optimizer to what it owns.

What the simulation does not know: switches shared by several links, and compute slowed by communication.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planaria.estimate.conditions import AS_PROFILED, Conditions
from planaria.estimate.cores import least_step_s, on_shared_cores
from planaria.estimate.durations import Durations
from planaria.estimate.gradient_sums import summed
from planaria.estimate.outline import (
    EstimateCache as EstimateCache,
)
from planaria.estimate.outline import (
    Shape as Shape,
)
from planaria.estimate.outline import (
    StepEstimate as StepEstimate,
)
from planaria.estimate.outline import (
    outline_of_pipelines,
    remember,
)
from planaria.estimate.simulation.simulation import PipelineRun, ProgramTimes, is_whole, run_orders, run_programs
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, Route, WorkerId
from planaria.plan.program.instructions import COMPUTING, Instruction, Op, Program
from planaria.plan.program.programs import programs
from planaria.plan.program.routes import PipelineRoutes, sorted_routes
from planaria.plan.sums.rounds import colour

Span = tuple[Instruction, float, float]
"""An instruction, and the seconds from the step's beginning at which it starts and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The times of all that happens in one step.

    Attributes:
        step_time_s: from the beginning to the end of the last worker's apply.
        spans: for each worker, its instructions in program order. A send's span is its time on the link, a
            receive's the wait for the message, a sync's from the first read to the end of the sum (or of the last
            read where sums cost nothing), a vote's the wait for the commit; sends and syncs overlap with compute.
    """

    step_time_s: float
    spans: Mapping[WorkerId, tuple[Span, ...]]

    @property
    def compute_s(self) -> dict[WorkerId, float]:
        """Seconds of each worker's forwards and backwards."""
        return {
            worker: sum(end - start for instruction, start, end in spans if instruction.op in COMPUTING)
            for worker, spans in self.spans.items()
        }

    @property
    def longest_instruction_s(self) -> float:
        """Seconds of the longest forward, backward, sum or optimizer's step."""
        counted = (*COMPUTING, Op.SYNC, Op.APPLY)
        spans = (span for worker in self.spans.values() for span in worker if span[0].op in counted)
        return max((end - start for _, start, end in spans), default=0.0)


def step_time_s(plan: Plan, profile: ModelProfile, conditions: Conditions = AS_PROFILED) -> float:
    """Returns the estimated seconds of a step under the plan: `simulate(...).step_time_s`, without the timeline.

    Raises:
        PlanError: a stage has more or fewer devices than the profile has times for.
    """
    return outline(plan, profile, conditions).step_time_s


def outline(
    plan: Plan, profile: ModelProfile, conditions: Conditions = AS_PROFILED, known: EstimateCache | None = None
) -> StepEstimate:
    """Returns what `simulate` says of a step, without the timeline.

    Pipelines that differ in nothing but their workers' and microbatches' numbers are run once.

    Args:
        plan: whose step it is.
        profile: what layers and links cost.
        conditions: what is assumed of machines beside the profile.
        known: pipelines that were run before, with the same profile and conditions; those run now are added.

    Raises:
        PlanError: a stage has more or fewer devices than the profile has times for.
    """
    durations = Durations(plan, profile, conditions)
    known = EstimateCache() if known is None else known
    found = outline_of_pipelines(plan, durations, conditions, known)
    if found is None:
        found = _outline_of_paths(plan, durations, conditions, known)
    if plan.shares_microbatches:  # routes name the first device of a stage, and the others compute as long
        compute_s = {worker: found.compute_s.get(plan.first_of(worker), 0.0) for worker in plan.workers}
        found = replace(found, compute_s=compute_s)
    if conditions.num_cores is not None or conditions.stretch != 1.0:
        found = on_shared_cores(found, plan, durations, conditions)
    return _with_audits(found, plan, profile, conditions) if conditions.audit else found


def _with_audits(found: StepEstimate, plan: Plan, profile: ModelProfile, conditions: Conditions) -> StepEstimate:
    """Returns the estimate of a step with its audits: each is one instruction, of a forward and a backward."""
    more_s = audit_s(plan, profile, found.compute_s, conditions)
    longest_s = max((each.one_s for each in _auditors(plan, profile, found.compute_s)), default=0.0)
    return replace(
        found,
        step_time_s=found.step_time_s + more_s * conditions.stretch,
        longest_instruction_s=max(found.longest_instruction_s, longest_s * conditions.stretch),
    )


def audit_s(plan: Plan, profile: ModelProfile, compute_s: Mapping[WorkerId, float], conditions: Conditions) -> float:
    """Returns the seconds that audits add to a step, as expected.

    Where cores are shared, they do all of it. Else which are run is drawn, and all wait for the worker that is done
    last: a stage has time to spare until the last backward has gone down to the first.

    Args:
        plan: whose step it is.
        profile: what layers cost.
        compute_s: of each worker's forwards and backwards.
        conditions: which share is audited, and how many cores there are.
    """
    auditors = Counter(_auditors(plan, profile, compute_s))
    turns = plan.num_counted / max(1, len(plan.pipelines))
    if conditions.num_cores is not None:
        all_s = turns * sum(count * each.one_s for each, count in auditors.items())
        return conditions.audit * all_s / conditions.num_cores
    return _last_s(math.ceil(turns), conditions.audit, frozenset(auditors.items()))


class _Auditor(NamedTuple):
    """A worker as an auditor.

    Attributes:
        one_s: seconds of one audit, of a microbatch in its layers.
        spare_s: seconds at the end of a step in which it has nothing else to do.
    """

    one_s: float
    spare_s: float


def _auditors(plan: Plan, profile: ModelProfile, compute_s: Mapping[WorkerId, float]) -> Iterator[_Auditor]:
    """Yields the workers that own layers, as auditors. What several devices, each of a pipeline of its own, compute
    together one of them runs alone."""
    alone, backward = _parts(profile, plan.num_sharing)
    for pipeline in plan.pipelines:
        microbatches = max(1, plan.num_counted) * plan.num_sharing / len(plan.pipelines)
        spare_s = 0.0
        for stage in pipeline.stages:
            busy_s = compute_s.get(stage.worker, 0.0) / microbatches
            yield _Auditor(alone * busy_s, spare_s)
            spare_s += backward * busy_s


@lru_cache(maxsize=16)
def _parts(profile: ModelProfile, sharing: int) -> tuple[float, float]:
    """Returns how many times as long as one of so many devices that share a microbatch a device takes for all of it,
    and which part of that the backward is."""
    times = [(layer.on(1), layer.shared_by(sharing)) for layer in profile.layers]
    whole_s = sum(alone.forward_s + alone.backward_s for alone, _ in times)
    shared_s = sum(shared.forward_s + shared.backward_s for _, shared in times)
    return whole_s / (shared_s or 1.0), sum(alone.backward_s for alone, _ in times) / (whole_s or 1.0)


@lru_cache(maxsize=1024)
def _last_s(turns: int, share: float, auditors: frozenset[tuple[_Auditor, int]]) -> float:
    """Returns by how much the last of the auditors is later, as expected, where each turn is drawn with this chance."""
    at_most = np.cumsum([_chance(number, turns, share) for number in range(turns + 1)])
    ends_s = np.unique([max(0.0, n * each.one_s - each.spare_s) for each, _ in auditors for n in range(turns + 1)])
    all_done = np.ones(len(ends_s))
    for each, count in auditors:
        drawn = np.floor((ends_s + each.spare_s) / max(each.one_s, 1e-12) + 1e-9).astype(int)
        all_done *= at_most[np.minimum(drawn, turns)] ** count
    return float(np.sum((1.0 - all_done[:-1]) * np.diff(ends_s)))


def _chance(number: int, turns: int, share: float) -> float:
    """Returns the chance that so many of the turns are drawn."""
    if share >= 1.0:
        return float(number == turns)
    ways = math.lgamma(turns + 1) - math.lgamma(number + 1) - math.lgamma(turns - number + 1)
    return math.exp(ways + number * math.log(share) + (turns - number) * math.log1p(-share))


def _outline_of_paths(plan: Plan, durations: Durations, conditions: Conditions, known: EstimateCache) -> StepEstimate:
    """Returns the outline on machines that share nothing, whatever it depends on."""
    shapes = [(_shape(plan, durations, path), path) for path in sorted_routes(plan).pipelines]
    new = {shape: path for shape, path in shapes if shape not in known}
    regular = {hop.worker for _, path in shapes for hop in path.hops}
    for shape, path in new.items():
        if is_whole(plan, path.routes):
            known[shape] = PipelineRun(plan, path.hops, durations, overlap=conditions.overlap).times(path.routes)
        else:
            known[shape] = run_orders(plan, [hop.worker for hop in path.hops], durations, overlap=conditions.overlap)
    ends_s, compute_s = dict(durations.late_s), dict.fromkeys(plan.workers, 0.0)
    longest_s = 0.0
    whole = [0.0] * len(plan.groups)
    told = [(shape, [hop.worker for hop in path.hops]) for shape, path in shapes]
    crossing = [route for route in plan.routes if route.hops[0].worker not in regular]
    if crossing:
        crossed = sorted({hop.worker for route in crossing for hop in route.hops})
        shape = _crossing(plan, durations, crossing, crossed)
        if shape not in known:
            known[shape] = run_orders(plan, crossed, durations, overlap=conditions.overlap)
        told.append((shape, crossed))
    for shape, workers in told:
        for worker, part in zip(workers, known[shape].parts, strict=True):
            ends_s[worker], compute_s[worker] = part.end_s, part.compute_s
    for alike in {shape: known[shape] for shape, _ in told}.values():
        longest_s = max(longest_s, alike.longest_s)
        for group, due in alike.due_s.items():
            whole[group] = max(whole[group], due)
    for worker, late_s in durations.late_s.items():
        for group in plan.groups_of[worker] if late_s else ():
            whole[group] = max(whole[group], late_s)
    remember(known)
    finish = _Finish(plan, durations, ends_s, whole, conditions)
    longest_s = max([longest_s, finish.longest_apply_s, *(end - start for start, end in finish.sums.values())])
    return StepEstimate(
        step_time_s=finish.step_time_s, longest_instruction_s=longest_s, compute_s=dict(sorted(compute_s.items()))
    )


def way_down_s(plan: Plan, route: Route, profile: ModelProfile) -> float:
    """Returns seconds from the beginning of a route's first forward until its last worker can begin."""
    durations = Durations(plan, profile, AS_PROFILED)
    seconds = 0.0
    for hop, following in pairwise(route.hops):
        forward = Instruction(op=Op.FORWARD, first_layer=hop.first_layer, end_layer=hop.end_layer)
        seconds += durations.compute_s(hop.worker, forward)
        seconds += durations.message_s(hop.worker, following.worker, hop.end_layer)
    return seconds


def _whole(plan: Plan, due_s: Mapping[tuple[WorkerId, int], float]) -> list[float]:
    """Returns when each group's gradients are whole at all of these owners."""
    whole = [0.0] * len(plan.groups)
    for (_, group), due in due_s.items():
        whole[group] = max(whole[group], due)
    return whole


def simulate(plan: Plan, profile: ModelProfile, conditions: Conditions = AS_PROFILED) -> Timeline:
    """Runs every worker's program in virtual time.

    Raises:
        PlanError: a stage has more or fewer devices than the profile has times for.
        AssertionError: a program waits for a message that nobody sends (an invariant of schedules is broken).
    """
    durations = Durations(plan, profile, conditions)
    all_programs = programs(plan)
    times = run_programs(all_programs, durations, overlap=conditions.overlap)
    finish = _Finish(plan, durations, times.ends_s, _whole(plan, times.due_s), conditions)
    spans = {
        worker: tuple(_spans(worker, program, durations, times, finish, overlap=conditions.overlap))
        for worker, program in all_programs.items()
    }
    step_s = max(finish.step_time_s, least_step_s(plan, durations, times.compute_s, conditions))
    return Timeline(step_time_s=step_s, spans=spans)


def end_s(plan: Plan, programs: Mapping[WorkerId, Program], durations: Durations, conditions: Conditions) -> float:
    """Returns when the step ends if the workers run these programs, parts of the plan's, from now on.

    Raises:
        AssertionError: a program waits for a message that none of them sends.
    """
    times = run_programs(programs, durations, overlap=conditions.overlap)
    finish = _Finish(plan, durations, times.ends_s, _whole(plan, times.due_s), conditions)
    return max(finish.step_time_s, least_step_s(plan, durations, times.compute_s, conditions))


def _shape(plan: Plan, durations: Durations, path: PipelineRoutes) -> Shape:
    """Returns the key of a pipeline's times. Of generations, only their order counts."""
    turn_of = {born: turn for turn, born in enumerate(sorted({route.born for route in path.routes}))}
    routes = tuple(
        (turn_of[route.born], route.counted, len(route.microbatches), route.reached) for route in path.routes
    )
    shadowed = tuple((route.counted, len(route.microbatches), route.reached) for route in path.shadowed_routes)
    return (
        plan.schedule,
        tuple((hop.first_layer, hop.end_layer) for hop in path.hops),
        tuple(
            (durations.devices[w], durations.speeds[w], durations.late_s[w]) for w in (hop.worker for hop in path.hops)
        ),
        tuple(durations.link(left.worker, right.worker) for left, right in pairwise(path.hops)),
        tuple(plan.groups_of[hop.worker] for hop in path.hops),
        routes,
        (plan.redundancy, tuple(worker is not None for worker in path.redundant_workers), shadowed),
        tuple(at for _, _, at in path.travellers) if len(routes) > 1 else (),
    )


def _crossing(plan: Plan, durations: Durations, routes: Sequence[Route], workers: Sequence[WorkerId]) -> Shape:
    """Returns all that the times of crossing routes depend on. Of generations, only their order counts."""
    turn_of = {born: turn for turn, born in enumerate(sorted({route.born for route in routes}))}
    return (
        plan.schedule,
        plan.spare_in_flight,
        plan.layer_units,
        plan.devices_per_node,
        durations.network_key,
        tuple((turn_of[r.born], r.hops, r.microbatches, r.counted, r.reached) for r in routes),
        tuple((w, durations.devices[w], durations.speeds[w]) for w in workers),
        # Nobody counts what a worker holds beside; it is whole when that begins.
        tuple((durations.late_s[w], plan.groups_of[w]) for w in workers if durations.late_s[w]),
    )


class _Finish:
    """The end of a step: sums, vote and apply.

    Attributes:
        sums: start and end of each group's sum at each of its owners, but for those that are like another one.
        voted_s: when each worker's sums were all done.
        committed_s: when the commit was at the workers.
        applied_s: when each worker had applied it.
        longest_apply_s: what that takes the worker with most to apply.
        step_time_s: when all workers had applied it.
    """

    def __init__(
        self,
        plan: Plan,
        durations: Durations,
        ends_s: Mapping[WorkerId, float],
        whole: Sequence[float],
        conditions: Conditions,
    ) -> None:
        self._durations = durations
        self._rounds = colour(plan)
        self.sums: dict[tuple[WorkerId, int], tuple[float, float]] = {}
        self.voted_s: dict[WorkerId, float] = {}
        alike: dict[object, WorkerId] = {}
        self._like: dict[WorkerId, WorkerId] = {}
        for worker, groups in plan.groups_of.items():
            end = ends_s[worker]
            like = worker
            if durations.is_spread:
                owned = plan.layers_of.get(worker, ())
                own = groups, owned, end, durations.devices[worker], durations.speeds[worker]
                like = alike.setdefault(own, worker)
            if like == worker:
                self.voted_s[worker] = self._sum(worker, groups, whole, 0.0 if conditions.overlap else end, end)
            else:
                self.voted_s[worker] = self.voted_s[like]
                self._like[worker] = like
        applies = {worker: durations.apply_s(worker) for worker in plan.workers}
        self.committed_s = max(self.voted_s.values()) + durations.vote_s
        self.applied_s = {worker: self.committed_s + seconds for worker, seconds in applies.items()}
        self.longest_apply_s = max(applies.values())
        self.step_time_s = max(self.applied_s.values())

    def sum_of(self, worker: WorkerId, group: int) -> tuple[float, float]:
        """Returns start and end of the group's sum at the worker."""
        return self.sums[self._like.get(worker, worker), group]

    def _sum(
        self, worker: WorkerId, groups: Sequence[int], whole: Sequence[float], reads_from: float, sums_from: float
    ) -> float:
        """Adds one worker's sums; returns the end of the last."""
        durations = self._durations
        end, spans = summed(
            groups,
            whole,
            self._rounds,
            [durations.sum_times(worker, group) for group in groups],
            reads_from=reads_from,
            sums_from=sums_from,
        )
        self.sums.update({(worker, group): span for group, span in zip(groups, spans, strict=True)})
        return end


def _spans(
    worker: WorkerId, program: Program, durations: Durations, times: ProgramTimes, finish: _Finish, *, overlap: bool
) -> Sequence[Span]:
    clock = 0.0
    free_s: dict[WorkerId, float] = defaultdict(float)
    spans: list[Span] = []
    for instruction in program:
        start = end = clock
        match instruction.op:
            case (
                Op.FORWARD
                | Op.BACKWARD
                | Op.BACKWARD_INPUT
                | Op.BACKWARD_WEIGHT
                | Op.SHADOW_FORWARD
                | Op.SHADOW_BACKWARD
            ):
                end = clock = start + durations.compute_s(worker, instruction)
            case Op.SEND_ACTIVATION | Op.SEND_GRADIENT:
                assert instruction.peer is not None
                start, end = (
                    max(clock, free_s.get(instruction.peer, 0.0)),
                    times.arrival_s(instruction, instruction.peer),
                )
                free_s[instruction.peer] = end
                clock = clock if overlap else end
            case Op.RECV_ACTIVATION | Op.RECV_GRADIENT:
                end = clock = max(start, times.arrival_s(instruction, worker))
            case Op.SYNC:
                start, end = finish.sum_of(worker, instruction.group)
            case Op.VOTE:
                start, end = finish.voted_s[worker], finish.committed_s
            case Op.APPLY:
                start, end = finish.committed_s, finish.applied_s[worker]
            case Op.LOAD:
                pass
        spans.append((instruction, start, end))
    return spans
