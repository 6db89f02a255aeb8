"""The search for candidates as far as they depend on nothing but the request; the forecast is applied later.

So they can be found long before they are asked for, see `AdaptivePolicy.precompute`.

A source is a function from a planner and a request to candidates, each a plan that could be run and what it costs to
come to it. It does not judge them, and knows nothing of the time to come. Pure.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.restore_time import Storage, restore_time
from planaria.plan.plan import Plan, PlanError, ScheduleKind
from planaria.plan.quantities import size
from planaria.plan.thresholds import STEPS_EQUAL, WORTH_A_STEP_BESIDE
from planaria.plan.validate import lacking
from planaria.planner.reroute.plans import shares
from planaria.policy.adaptive.new_pipelines import (
    leaner_pipelines,
    pipelines_of_fewer_replicas,
    pipelines_of_one_replica,
    searched_pipelines,
    template_pipelines,
)
from planaria.policy.adaptive.objective import next_loss_s
from planaria.policy.adaptive.other_policies import grids_of_checkpoint, rerouted, rerouted_anyway, without_samples
from planaria.policy.adaptive.rings import takeovers_and_rings
from planaria.policy.forecast import exposure
from planaria.policy.interface import Candidate, Pieces, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.redundancy import TAKEOVER
from planaria.policy.reroute import REROUTE, ReroutePolicy

Source = Callable[[Planner, ReplanRequest], Iterator[Candidate | None]]
"""Yields candidates worth an estimate, the likeliest first, with a name and an explanation; None wherever the work may
pause. Raises PlanError: there is none."""

SOURCES: tuple[Source, ...] = (
    rerouted,
    template_pipelines,
    searched_pipelines,
    leaner_pipelines,
    pipelines_of_fewer_replicas,
    takeovers_and_rings,
    grids_of_checkpoint,
    without_samples,
)
"""The sources of the adaptive policy's candidates; of equally good ones those of the first are preferred."""


AT_ONCE = {REROUTE: "rerouted", TAKEOVER: "taken over"}
"""Names of how plans are made for which no state moves: one step of the first that there is goes before a plan for
which some does."""

SPLIT = {ScheduleKind.ZERO_BUBBLE_H1: 1 - STEPS_EQUAL, ScheduleKind.ZERO_BUBBLE_H2: 1 - STEPS_EQUAL}
"""Schedules with split backwards, from what keeps fewer activations on, each with the part of the best step before it
that one must be shorter than."""


def found_in_pieces(planner: Planner, request: ReplanRequest) -> Pieces[list[Candidate]]:
    """Finds all candidates, in the order in which equally good ones are preferred.

    Raises:
        PlanError: there is none.
    """
    offered: list[Candidate] = []
    error: PlanError | None = None
    for source in SOURCES:
        found = _collected(source, planner, request)
        while True:
            try:
                candidate = next(found)
            except StopIteration:
                break
            except PlanError as refused:
                error = refused
                break
            if candidate is None:
                yield
            elif not any(_same(candidate, other) for other in offered):
                offered.append(candidate)
    if all(candidate.restores or candidate.dropped or _is_late(planner, candidate.plan) for candidate in offered):
        offered += _last_resorts(planner, request, offered)
        if not offered:
            assert error is not None, "a source that has no candidate says why"
            raise error
    known: list[Candidate] = []
    for candidate in told_apart(offered):
        yield
        known.append(completed(planner, candidate))
        yield
        split = with_split_backwards(planner, candidate)
        if split is not None:
            known.append(completed(planner, split))
    least_s = min(candidate.step_time_s for candidate in known)
    at_once = next((one for how in AT_ONCE for one in known if one.how == how and not one.plan.transfers), None)
    result: list[Candidate] = []
    for candidate in known:
        if at_once is not None and candidate.transfer_s and candidate.step_time_s <= WORTH_A_STEP_BESIDE * least_s:
            yield
            result += _beside(planner, at_once, candidate)
        result.append(candidate)
    return result


def _collected(source: Source, planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    yield from source(planner, request)


def _last_resorts(planner: Planner, request: ReplanRequest, offered: Sequence[Candidate]) -> list[Candidate]:
    """Returns candidates for when nothing else is left: what is left as it is, and new pipelines of one replica."""
    found = list(rerouted_anyway(planner, request))
    for candidate in pipelines_of_one_replica(planner, request):
        if not any(_same(candidate, other) for other in (*offered, *found)):
            found.append(candidate)
    return found


def _same(one: Candidate, other: Candidate) -> bool:
    a, b = one.plan, other.plan
    return (
        (a.pipelines, a.routes, a.redundancy) == (b.pipelines, b.routes, b.redundancy)
        and (a.redundancy is None or a.shadows == b.shadows)
        and one.restores == other.restores
    )


def _is_late(planner: Planner, plan: Plan) -> bool:
    """Returns whether a plan has f + 1 replicas of all layers only when its shadows have their state."""
    most_lost = planner.settings.fault_tolerance
    if plan.redundancy is None or lacking(plan, most_lost, arrived=True):
        return False
    return bool(lacking(plan, most_lost))


def completed(planner: Planner, candidate: Candidate) -> Candidate:
    """Returns the candidate with all that is weighed of it."""
    plan, most_lost = candidate.plan, planner.settings.fault_tolerance
    moved = planner.transfer_time(plan)
    is_degraded = bool(lacking(plan, most_lost, arrived=plan.redundancy is not None))
    return dataclasses.replace(
        candidate,
        transfer_s=moved.time_s,
        wait_s=planner.wait_s(plan, moved.come_s),
        is_degraded=is_degraded,
        is_late=_is_late(planner, plan),
        memory_bytes=fullest_device_bytes(plan, planner.profile, planner.settings.audit),
        restored=restore_time(plan, Storage()) if candidate.restores else None,
        loss_s=next_loss_s(plan, planner.profile, candidate.step_time_s),
        exposure=exposure(
            ((plan.node_of(w), groups) for w, groups in plan.groups_of.items()), len(plan.groups), planner.zones
        ),
    )


def with_split_backwards(planner: Planner, candidate: Candidate) -> Candidate | None:
    """Returns the same plan with split backwards, where its steps are shorter and the memory allows for it: what plans
    may use, or else what the profile says that a device has. Of schedules that split them, one that keeps more only
    where it is clearly quicker.
    """
    best = candidate
    if best.plan.schedule is ScheduleKind.ZERO_BUBBLE_H2:
        return None
    limit = planner.settings.memory_bytes or planner.profile.device.memory_bytes
    for kind, most in SPLIT.items():
        if kind is candidate.plan.schedule:
            continue
        split = Candidate.of(planner, msgspec.structs.replace(candidate.plan, schedule=kind), candidate.how)
        if split.step_time_s >= most * best.step_time_s:
            continue
        if limit and fullest_device_bytes(split.plan, planner.profile, planner.settings.audit) > limit:
            break
        best = dataclasses.replace(
            best,
            plan=split.plan,
            step_time_s=split.step_time_s,
            longest_s=split.longest_s,
            compute_s=split.compute_s,
        )
    if best is candidate:
        return None
    return dataclasses.replace(best, name=f"{candidate.name}, {best.plan.schedule.value}")


def _beside(planner: Planner, first: Candidate, target: Candidate) -> Iterator[Candidate]:
    """Yields the target with a step rerouted or taken over before it, beside which its state moves, where that
    can be."""
    step = ReroutePolicy(planner).warm_up(first.plan, target, target.plan.generation)
    if step is None or not {move.source for move in target.plan.transfers} <= set(step.plan.workers):
        return
    degraded = " It is degraded until then." if step.is_degraded else ""
    how = AT_ONCE[first.how]
    reason = f"The lost nodes' work is {how} for one step, beside which state moves.{degraded}"
    yield dataclasses.replace(
        target,
        name=f"one step {how}, then {target.name}",
        beside=dataclasses.replace(step, reason=reason),
    )


# Names for people: two candidates that differ are not called the same


def _microbatches(candidate: Candidate) -> str:
    return f"microbatches {'+'.join(map(str, shares(candidate.plan)))}"


def _layers(candidate: Candidate) -> str:
    return f"layers {'+'.join(map(_cut, _pipelines(candidate.plan)))}"


def _moved(candidate: Candidate) -> str:
    return f"{size(candidate.transfer_bytes)} move"


def _pipelines(plan: Plan) -> list[list[int]]:
    return [[len(stage.layers) for stage in pipeline.stages] for pipeline in plan.pipelines]


def _cut(stages: Sequence[int]) -> str:
    return "-".join(map(str, stages))


DETAILS: tuple[Callable[[Candidate], str], ...] = (_microbatches, _layers, _moved)
"""Details that tell plans of one name apart, what people see at a glance first."""


def told_apart(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates in order; those of one name with a detail in which they differ, else with a number."""
    named = list(candidates)
    for detail in DETAILS:
        for places in _of_one_name(named):
            details = [detail(named[at]) for at in places]
            if len(set(details)) > 1:
                for at, what in zip(places, details, strict=True):
                    named[at] = _with(named[at], what)
    for places in _of_one_name(named):
        for number, at in enumerate(places[1:], 2):
            named[at] = _with(named[at], f"no. {number}")
    return named


def _of_one_name(candidates: Sequence[Candidate]) -> list[list[int]]:
    """Returns the places of candidates that share a name with others."""
    times = Counter(candidate.name for candidate in candidates)
    return [
        [at for at, candidate in enumerate(candidates) if candidate.name == name]
        for name, number in times.items()
        if number > 1
    ]


def _with(candidate: Candidate, detail: str) -> Candidate:
    name = candidate.name
    return dataclasses.replace(
        candidate, name=f"{name[:-1]}, {detail})" if name.endswith(")") else f"{name} ({detail})"
    )
