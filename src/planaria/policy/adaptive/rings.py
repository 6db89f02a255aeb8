"""Redundancy as a source of candidates (Bamboo): shadows in the places of the lost, and new rings.

A plan whose shadows compute goes on with them where workers are gone, and no state moves; pipelines of one depth, in
which each worker shadows its successor, are made anew. Both are plans of `planaria.policy.redundancy`; the depth of a
new ring is chosen here, in closed form, because one plan more is to be simulated for a request, and not one for every
depth. Templates have no room set apart for shadows, so whether a ring fits is asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from operator import itemgetter

from planaria.plan.costs.pipeline_time import Template, step_times
from planaria.plan.plan import NodeId, Plan, WorkerId, runs_of
from planaria.plan.thresholds import FORWARD_SHARE
from planaria.plan.validate import lacking
from planaria.planner.finish_step.shadow_takeover import filled
from planaria.planner.reroute.plans import left_over
from planaria.planner.rings import left_in_place
from planaria.planner.templates.templates import of_shape
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.redundancy import (
    REDUNDANCY,
    TAKEOVER,
    first_rings,
    happened,
    least_pipelines,
    made,
    made_again,
    on_pipelines,
    rings,
)
from planaria.policy.sentences import shape

RING = "ring"
"""The name of pipelines of one depth."""


def takeovers_and_rings(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields takeovers and rings that keep f + 1 replicas from their first step on, or, of a job with shadows, once
    state has come."""
    planner = planner.with_settings(shadows=True)
    most_lost, has_shadows = planner.settings.fault_tolerance, request.plan.redundancy is not None
    for plan, how in _plans(planner, request):
        if plan is None or lacking(plan, most_lost, arrived=has_shadows) or not planner.fits(plan):
            yield None
            continue
        yield None
        yield _candidate(planner, plan, how)
        yield None


def first_ring(planner: Planner, nodes: Sequence[NodeId], generation: int) -> Candidate | None:
    """Returns a ring for a job to begin with, of the depth that is quickest in closed form; None where none fits."""
    planner = planner.with_settings(shadows=True)
    shapes = _all_shapes(planner, len(nodes))
    if not shapes:
        return None
    _, template, number = min(shapes, key=itemgetter(0))
    plan = first_rings(planner, template, number, sorted(nodes), generation)
    if lacking(plan, planner.settings.fault_tolerance) or not planner.fits(plan):
        return None
    reason = f"{made(plan, len(nodes))}."
    return dataclasses.replace(Candidate.of(planner, plan, REDUNDANCY, reason), name=_called(RING, plan))


def _plans(planner: Planner, request: ReplanRequest) -> Iterator[tuple[Plan | None, str]]:
    if request.plan.redundancy is not None:
        yield _taken_over(planner, request), TAKEOVER
    for template, number in _shapes(planner, request.plan, request.complete_nodes):
        yield rings(planner, request, template, number), REDUNDANCY


def _taken_over(planner: Planner, request: ReplanRequest) -> Plan | None:
    """Returns the plan in which every worker goes on with what it holds; None where some stage has no worker."""
    plan, holders = request.plan, request.holders
    held = {worker: plan.layers_held(groups) for worker, groups in holders.items()}
    left = left_over(plan, holders, request.absent)
    pipelines = [filled(pipeline, held, plan.num_layers) for pipeline in left]
    if not 0 < len(pipelines) <= plan.num_microbatches or not all(p.is_whole(plan.num_layers) for p in pipelines):
        return None
    owned: dict[WorkerId, set[int]] = {}
    devices: dict[WorkerId, int] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            owned.setdefault(stage.worker, set()).update(stage.layers)
            devices[stage.worker] = max(devices.get(stage.worker, 0), stage.num_devices)
    shadows = [run for worker in owned for run in runs_of(worker, set(held[worker]) - owned[worker], devices[worker])]
    return on_pipelines(planner, pipelines, tuple(shadows), request.generation)


def _shapes(planner: Planner, plan: Plan, live: Sequence[NodeId]) -> list[tuple[Template, int]]:
    """Returns templates and numbers of pipelines: those of the ring in force, if there is one, and the quickest."""
    if plan.devices_per_node != planner.settings.devices_per_node:
        return []
    found = _all_shapes(planner, len(live))
    if not found:
        return []
    quickest = min(found, key=itemgetter(0))
    shapes = [quickest[1:]]
    if plan.redundancy is not None:
        kept = max(found, key=lambda one: (_num_in_place(plan, one[1], live), -one[0]))
        if kept[1] is not quickest[1] and _num_in_place(plan, kept[1], live):
            shapes.insert(0, kept[1:])
    return shapes


def _all_shapes(planner: Planner, num_nodes: int) -> list[tuple[float, Template, int]]:
    """Returns seconds of a step, template and number of pipelines of all that keep f + 1 replicas."""
    settings = planner.settings
    found: list[tuple[float, Template, int]] = []
    for template in of_shape(planner.templates, num_nodes, settings):
        number = min(num_nodes // template.num_nodes, settings.most_pipelines)
        if number < least_pipelines(planner, template.num_nodes):
            continue
        times = step_times(template, settings.num_microbatches)
        share = -(-settings.num_microbatches // number)
        found.append((float(times[share - 1]) + _shadows_s(planner, template, share), template, number))
    return found


def _shadows_s(planner: Planner, template: Template, share: int) -> float:
    """Returns by how much a pipeline's step is longer than its template's, if no bubble holds what shadows compute."""
    kind, times = planner.settings.redundancy, step_times(template, planner.settings.num_microbatches)
    period_s = float(times[1] - times[0]) if len(times) > 1 else 0.0
    work = FORWARD_SHARE * kind.runs_forwards + (1 - FORWARD_SHARE) * kind.runs_backwards
    return max(0, share - template.num_nodes) * work * period_s


def _candidate(planner: Planner, plan: Plan, how: str) -> Candidate:
    moved = plan.moved_bytes

    def explain(asked: ReplanRequest, plan: Plan) -> str:
        live = asked.complete_nodes
        return happened(asked.plan, plan, live) if how == TAKEOVER else made_again(asked.plan, plan, live, moved)

    found = Candidate.of(planner, plan, how, transfer_bytes=moved)
    return dataclasses.replace(found, name=_called(TAKEOVER if how == TAKEOVER else RING, plan), explain=explain)


def _called(kind: str, plan: Plan) -> str:
    return f"{REDUNDANCY} ({kind}, {shape(plan)})"


def _num_in_place(plan: Plan, template: Template, live: Sequence[NodeId]) -> int:
    """Returns how many nodes are where a ring of that template has them."""
    return sum(node is not None for ring in left_in_place(plan, template, live) for node in ring)
