"""Reconfiguration: the plan for the steps after nodes were lost or came, with as little moved as can be.

Source: Oobleck, section 5. Takes effect between two steps; within a step, see `planaria.plan.salvage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from planaria.plan.errors import NoReplica as NoReplica
from planaria.plan.errors import TooFewNodes as TooFewNodes
from planaria.plan.instantiate import contiguous_routes, distribute, instantiate
from planaria.plan.placement import Holders, assign, transfers
from planaria.plan.plan import NodeId, Pipeline, Plan, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.reinstantiate import How as How
from planaria.plan.reinstantiate import reinstantiate
from planaria.plan.settings import PlannerSettings
from planaria.plan.templates import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """A plan after a change of nodes.

    Attributes:
        plan: the plan.
        how: how its pipelines were made.
        transfer_bytes: parameters and optimizer state that move before its first step.
        rebuilt: numbers, in the new plan, of the pipelines that did not stay exactly as they were.
    """

    plan: Plan
    how: How
    transfer_bytes: int
    rebuilt: tuple[int, ...]


def reconfigure(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    plan: Plan,
    lost: Collection[NodeId],
    holders: Holders,
    generation: int,
    leaving: Collection[NodeId] = (),
) -> Reconfiguration:
    """A plan for the live nodes: whole pipelines, at least f + 1, every microbatch once, every node used.

    Args:
        profile: costs and groups.
        templates: made at job start.
        settings: of the job.
        plan: in force; its pipelines may be broken.
        lost: nodes that are gone.
        holders: every live worker, and the groups it holds an up-to-date replica of (none, for a node that
            came).
        generation: of the new plan.
        leaving: live nodes that the plan must do without; they still send what they hold.

    Raises:
        TooFewNodes: fewer than (f + 1) n0 nodes are left.
        NoReplica: a group has no live holder.
        PlanError: fewer microbatches than pipelines needed.
    """
    sources = {worker: groups for worker, groups in holders.items() if plan.node_of(worker) not in set(lost)}
    held = {worker: groups for worker, groups in sources.items() if plan.node_of(worker) not in set(leaving)}
    live = _live_nodes(plan, held)
    replicas = settings.fault_tolerance + 1
    if len(live) < replicas * templates[0].num_nodes:
        raise TooFewNodes(replicas * templates[0].num_nodes, len(live), replicas)
    nodes = _nodes_of_pipelines(plan, live)
    intact = [_is_intact(plan, at, nodes[at], templates) for at in range(len(plan.pipelines))]
    spares = len(live) - sum(map(len, nodes))
    found = reinstantiate([len(n) for n in nodes], spares, [t.num_nodes for t in templates], replicas)
    if found is None:
        counts = instantiate(templates, len(live), settings)
        found = _fit([len(n) for n in nodes], intact, templates, counts), How.INSTANTIATE
    sizes, how = found
    pipelines, rebuilt = _build(plan, sizes, nodes, intact, live, templates, held)
    by_size = {template.num_nodes: template for template in templates}
    chosen = [by_size[size] for size in sizes if size]
    shares = distribute([template.time_s for template in chosen], settings.num_microbatches)
    new = Plan(
        generation=generation,
        num_layers=profile.num_layers,
        num_microbatches=settings.num_microbatches,
        devices_per_node=settings.devices_per_node,
        groups=profile.groups,
        pipelines=pipelines,
        routes=contiguous_routes(pipelines, shares, profile.num_layers, generation),
        sync_epochs=(generation,) * len(profile.groups),
        schedule=settings.schedule,
    )
    moves = transfers(new, sources)
    new = msgspec.structs.replace(new, transfers=moves)
    moved = sum(profile.groups[move.group].moved_bytes for move in moves)
    return Reconfiguration(plan=new, how=how, transfer_bytes=moved, rebuilt=rebuilt)


def _live_nodes(plan: Plan, held: Holders) -> list[NodeId]:
    """A node lives and dies as one: only nodes all of whose workers are live count."""
    workers = Counter(plan.node_of(worker) for worker in held)
    return sorted(node for node, count in workers.items() if count == plan.devices_per_node)


def _nodes_of_pipelines(plan: Plan, live: Collection[NodeId]) -> list[list[NodeId]]:
    """Each pipeline's live nodes; a node counts for the first pipeline that it is in."""
    seen: set[NodeId] = set()
    result: list[list[NodeId]] = []
    for pipeline in plan.pipelines:
        nodes = {plan.node_of(worker) for worker in pipeline.workers}.intersection(live) - seen
        seen |= nodes
        result.append(sorted(nodes))
    return result


def _is_intact(plan: Plan, at: int, nodes: Sequence[NodeId], templates: Sequence[Template]) -> bool:
    """Nobody is lost, and it is cut as its template says: a plan that finishes a step may have others."""
    pipeline, per_node = plan.pipelines[at], plan.devices_per_node
    workers = {WorkerId(node * per_node + device) for node in nodes for device in range(per_node)}
    cut = [(stage.first_layer, stage.end_layer) for stage in pipeline.stages]
    return workers == set(pipeline.workers) and any(
        template.num_nodes == len(nodes) and cut == [(stage.first_layer, stage.end_layer) for stage in template.stages]
        for template in templates
    )


def _fit(
    alive: Sequence[int], intact: Sequence[bool], templates: Sequence[Template], counts: Sequence[int]
) -> list[int]:
    """Sizes for a full instantiation: intact pipelines of a wanted size stay, the others are made anew."""
    wanted = Counter({t.num_nodes: count for t, count in zip(templates, counts, strict=True) if count})
    sizes = [0] * len(alive)
    for at, size in enumerate(alive):
        if intact[at] and wanted[size] > 0:
            sizes[at] = size
            wanted[size] -= 1
    rest = sorted(wanted.elements(), reverse=True)
    for at, size in enumerate(sizes):
        if not size and rest:
            sizes[at] = rest.pop(0)
    return sizes + rest


def _build(
    plan: Plan,
    sizes: Sequence[int],
    nodes: Sequence[Sequence[NodeId]],
    intact: Sequence[bool],
    live: Sequence[NodeId],
    templates: Sequence[Template],
    held: Holders,
) -> tuple[tuple[Pipeline, ...], tuple[int, ...]]:
    """The pipelines of these sizes, in order, and the numbers of those that are not what they were."""
    by_size = {template.num_nodes: template for template in templates}
    kept = {at for at in range(len(nodes)) if intact[at] and sizes[at] == len(nodes[at])}
    staying = {node for at in kept for node in nodes[at]}
    made_anew = [at for at, size in enumerate(sizes) if size and at not in kept]
    anew = assign(
        [by_size[sizes[at]] for at in made_anew],
        [node for node in live if node not in staying],
        plan.devices_per_node,
        plan.groups,
        held,
    )
    built = dict(zip(made_anew, anew, strict=True)) | {at: plan.pipelines[at] for at in kept}
    order = sorted(built)
    return tuple(built[at] for at in order), tuple(i for i, at in enumerate(order) if at not in kept)
