"""Grids: symmetric data x pipeline parallel plans, all pipelines with as many nodes and the same stages.

Source: Varuna (Athlur et al., EuroSys 2022) as Oobleck, section 2.2, and Odyssey, section IV-A ("symmetric"), describe
it: nodes that do not fill a row of the grid stay idle. Here is only what a grid is; which one is taken, and where its
state comes from, is a policy's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import (
    NodeSpeeds,
    Template,
    TemplateSlowdown,
    Times,
    check_speeds,
    slowed,
    step_times,
)
from planaria.plan.plan import NodeId, Pipeline, Plan
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import place, plan_of
from planaria.planner.instantiation.microbatch_shares import shares_of
from planaria.planner.placement.placement import Holders, assign


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A symmetric data x pipeline parallel plan of one depth.

    Attributes:
        plan: the grid, without transfers.
        step_time_s: of the slowest pipeline, by its template's time; without sums between pipelines.
    """

    plan: Plan
    step_time_s: float


def grids(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    nodes: Sequence[NodeId],
    generation: int,
    *,
    speeds: NodeSpeeds | None = None,
    holders: Holders | None = None,
) -> Iterator[Grid]:
    """Yields, for each depth with a template, the widest grid of these nodes: as many pipelines as they make.

    Where the microbatches do not divide, some pipelines run one more; where nodes differ in speed, the slowest stay
    idle, fast ones go together, and shares follow their speeds.

    Args:
        profile: costs and groups.
        templates: one for each depth, fewest nodes first.
        settings: of the job; f is not asked for.
        nodes: the live nodes.
        generation: the new plans' generation.
        speeds: of nodes that compute slower or faster than the profile says.
        holders: who holds what, where state is to stay in its place; only for nodes of one speed.

    Raises:
        PlanError: a speed that is none.
    """
    speeds = speeds or {}
    check_speeds(speeds)
    ordered = sorted(set(nodes), key=lambda node: (-speeds.get(node, 1.0), node))
    differ = len({speeds.get(node, 1.0) for node in ordered}) > 1
    for template in templates:
        width = min(len(ordered) // template.num_nodes, settings.most_pipelines)
        if not width:
            continue
        if differ:
            pipelines = _by_speed(profile, template, width, settings, ordered)
        else:
            pipelines = assign(
                [template] * width, ordered, settings.devices_per_node, profile.groups, dict(holders or {})
            )
        yield _grid(profile, template, pipelines, settings, generation, speeds)


def is_grid(plan: Plan) -> bool:
    """Returns whether all pipelines of the plan are whole and cut alike."""
    cuts = {tuple((s.first_layer, s.end_layer, s.num_devices) for s in p.stages) for p in plan.pipelines}
    return len(cuts) == 1 and all(pipeline.is_whole(plan.num_layers) for pipeline in plan.pipelines)


def shape(plan: Plan) -> str:
    """Returns a grid's shape as text: number of pipelines x nodes of each."""
    depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
    return f"{len(plan.pipelines)} x {depth}"


def _by_speed(
    profile: ModelProfile, template: Template, width: int, settings: PlannerSettings, ordered: Sequence[NodeId]
) -> list[Pipeline]:
    """Returns pipelines on nodes of like speed each, with the busiest part of the template on the fastest of them."""
    depth, parts = template.num_nodes, TemplateSlowdown(template, profile).parts
    pipelines = []
    for row in range(width):
        placed = dict(zip(parts, ordered[row * depth : (row + 1) * depth], strict=True))
        pipelines.append(place(template, [placed[part] for part in range(depth)], settings.devices_per_node))
    return pipelines


def _grid(
    profile: ModelProfile,
    template: Template,
    pipelines: Sequence[Pipeline],
    settings: PlannerSettings,
    generation: int,
    speeds: NodeSpeeds,
) -> Grid:
    times = [_times(profile, template, pipeline, settings, speeds) for pipeline in pipelines]
    shares = shares_of(times, settings)
    plan = plan_of(pipelines, shares, profile, settings, generation)
    slowest_s = max(float(time[share - 1]) for time, share in zip(times, shares, strict=True))
    return Grid(plan=plan, step_time_s=slowest_s)


def _times(
    profile: ModelProfile, template: Template, pipeline: Pipeline, settings: PlannerSettings, speeds: NodeSpeeds
) -> Times:
    times = step_times(template, settings.num_microbatches)
    node_of = {
        part.node: NodeId(stage.worker // settings.devices_per_node)
        for part, stage in zip(template.stages, pipeline.stages, strict=True)
    }
    own = [speeds.get(node_of[part], 1.0) for part in range(template.num_nodes)]
    return times if set(own) == {1.0} else slowed(times, TemplateSlowdown(template, profile).on_parts(own))
