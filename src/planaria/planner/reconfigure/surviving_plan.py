"""The surviving plan: what is left of a plan after nodes were lost or came, and the plans that can be made of it.

The ways to choose among them are in `planaria.planner.reconfigure.reconfigure`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import (
    NodeSpeeds,
    Template,
    TemplateSlowdown,
    Times,
    check_speeds,
    slowed,
    step_times,
    step_times_of,
)
from planaria.plan.errors import TooFewNodes
from planaria.plan.plan import Form, NodeId, Pipeline, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import (
    instances,
    instantiate,
    instantiate_beside,
    place,
    plan_of,
)
from planaria.planner.instantiation.microbatch_shares import Undistributable, shares_of
from planaria.planner.placement.placement import assign
from planaria.planner.placement.senders import Holders, Sources
from planaria.planner.placement.transfers import moved
from planaria.planner.placement.zones import Zones
from planaria.planner.reconfigure.pipeline_sizes import How, Situation
from planaria.planner.reconfigure.rebalance_layers import pipeline_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change from which a new plan is made.

    Attributes:
        profile: costs and groups.
        templates: made at job start, fewest nodes first.
        settings: what the job asks of its plans.
        plan: in force; its pipelines may be broken.
        lost: nodes that are gone.
        leaving: live nodes that the plan must do without; they still send what they hold.
        joined: nodes that came. They may also be named by `holders` alone, as workers that hold nothing.
        holders: the live workers, and the groups that each holds an up-to-date replica of. Of a node of the plan, at
            least those that drive its stages.
        generation: of the new plan.
        speeds: of nodes that compute slower or faster than the profile says.
        zones: where the nodes are.
    """

    profile: ModelProfile
    templates: Sequence[Template]
    settings: PlannerSettings
    plan: Plan
    lost: Collection[NodeId]
    holders: Holders
    generation: int
    leaving: Collection[NodeId] = ()
    joined: Collection[NodeId] = ()
    speeds: NodeSpeeds = field(default_factory=dict)
    zones: Zones = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """A plan after a change of nodes.

    Attributes:
        plan: the plan.
        how: how its pipelines were made.
        transfer_bytes: parameters and optimizer state that move before its first step.
        rebuilt: numbers, in the new plan, of the pipelines that did not stay exactly as they were.
        step_time_s: of the slowest pipeline, by its template's time; without sums between pipelines.
        transfer_s: of the transfers at the busiest sender or receiver.
    """

    plan: Plan
    how: How
    transfer_bytes: int
    rebuilt: tuple[int, ...]
    step_time_s: float
    transfer_s: float


class SurvivingPlan:
    """What is left of the plan of a change, and the plans that can be made of it."""

    def __init__(self, change: Change) -> None:
        """Raises TooFewNodes: fewer than (f + 1) n0 nodes are left. PlanError: a speed that is none."""
        check_speeds(change.speeds)
        self._change = change
        plan, per_node = change.plan, change.plan.devices_per_node
        gone = set(change.lost)
        self._holders = _without(change.holders, gone, per_node)
        gone |= set(change.leaving)
        self._held = _without(self._holders, gone, per_node)
        for node in sorted(set(change.joined) - gone):
            for device in range(per_node):
                self._held.setdefault(WorkerId(node * per_node + device), ())
        self._live = _live_nodes(plan, self._held)
        replicas = change.settings.fault_tolerance + 1
        needed = replicas * change.templates[0].num_nodes
        if len(self._live) < needed:
            raise TooFewNodes(needed, len(self._live), replicas)
        self._nodes = _nodes_of_pipelines(plan, self._live)
        self._by_size = {template.num_nodes: template for template in change.templates}
        self.alive = [len(nodes) for nodes in self._nodes]
        fitting = _Fitting(self._by_size, per_node)
        self.intact = [fitting.is_intact(plan.pipelines[at], nodes) for at, nodes in enumerate(self._nodes)]
        self.situation = Situation(
            before=[len(pipeline.nodes(per_node)) for pipeline in plan.pipelines],
            alive=self.alive,
            num_spares=max(0, self.num_usable - sum(self.alive)),
            sizes=[template.num_nodes for template in change.templates],
            num_replicas=replicas,
            most=change.settings.most_pipelines,
        )
        self._paces: dict[int, TemplateSlowdown] = {}
        self._step_times: dict[int, Times] = {}

    @cached_property
    def _sources(self) -> Sources:
        return Sources(self._holders, self._change.plan.devices_per_node, len(self._change.profile.groups))

    @property
    def num_usable(self) -> int:
        """Number of nodes that pipelines can be made of."""
        return self._change.settings.usable(len(self._live))

    @property
    def speeds_differ(self) -> bool:
        return bool(self._change.speeds) and len({self._speed(node) for node in self._live}) > 1

    def instantiated(self, kept: Sequence[int]) -> list[int] | None:
        """Returns the sizes of the best instantiation around the intact pipelines `kept`; None where that leaves too
        few replicas, or the batch does not allow for it."""
        change, sizes = self._change, self.situation.sizes
        nodes = self.num_usable - sum(self.alive[at] for at in kept)
        if kept and (nodes < 0 or len(kept) > change.settings.most_pipelines):
            return None
        counts = [0] * len(sizes)
        if nodes or not kept:
            beside = [self._by_size[self.alive[at]] for at in kept]
            try:
                if not change.speeds and (kept or not change.settings.is_oobleck):
                    counts = list(instantiate_beside(change.templates, nodes, change.settings, beside))
                else:
                    times = [self._times(one, change.plan.pipelines[at]) for one, at in zip(beside, kept, strict=True)]
                    counts = list(instantiate(change.templates, nodes, change.settings, kept=times))
            except Undistributable:
                if kept:
                    return None
                raise
        if sum(counts) + len(kept) <= change.settings.fault_tolerance:
            return None
        for at in kept:
            counts[sizes.index(self.alive[at])] += 1
        return self.fitted(dict(zip(sizes, counts, strict=True)))

    def fitted(self, counts: Mapping[int, int]) -> list[int]:
        """Returns sizes for so many pipelines of each: intact ones of a wanted size stay, the others are made anew."""
        wanted = Counter({size: count for size, count in counts.items() if count})
        sizes = [0] * len(self.alive)
        for at, size in enumerate(self.alive):
            if self.intact[at] and wanted[size] > 0:
                sizes[at] = size
                wanted[size] -= 1
        rest = sorted(wanted.elements(), reverse=True)
        for at, size in enumerate(sizes):
            if not size and rest:
                sizes[at] = rest.pop(0)
        return sizes + rest

    def step_s(self, sizes: Sequence[int]) -> float:
        """Returns the step's seconds with pipelines of these sizes (0: none), on nodes as fast as the profile says; see
        `Reconfiguration.step_time_s`. Raises Undistributable: the batch does not allow for it."""
        settings = self._change.settings
        times = step_times_of([self._by_size[size] for size in sizes if size], settings.num_microbatches)
        shares = shares_of(times, settings)
        return max(float(time[share - 1]) for time, share in zip(times, shares, strict=True))

    def build(self, sizes: Sequence[int], how: How) -> Reconfiguration:
        """Returns the plan with pipelines of these sizes, in order (0: none)."""
        change = self._change
        kept = {at for at, intact in enumerate(self.intact) if intact and sizes[at] == self.alive[at]}
        staying = set[NodeId]().union(*(self._nodes[at] for at in kept))
        made_anew = [at for at, size in enumerate(sizes) if size and at not in kept]
        anew = assign(
            [self._by_size[sizes[at]] for at in made_anew],
            [node for node in self._live if node not in staying],
            change.plan.devices_per_node,
            change.profile.groups,
            self._holders,
            change.zones,
            [change.plan.pipelines[at] for at in sorted(kept)],
            self._sources,
        )
        built = dict(zip(made_anew, anew, strict=True)) | {at: change.plan.pipelines[at] for at in kept}
        order = sorted(built)
        times = [self._times(self._by_size[sizes[at]], built[at]) for at in order]
        return self._planned([built[at] for at in order], times, how)

    def build_by_speed(self) -> Reconfiguration:
        """Returns the plan with the best grouping of nodes by speed, wherever their state is."""
        change = self._change
        chosen = instances(change.profile, change.templates, change.settings, self._live, change.speeds, change.zones)
        pipelines = [place(one.template, one.nodes, change.settings.devices_per_node) for one in chosen]
        return self._planned(pipelines, [one.times for one in chosen], How.INSTANTIATE)

    def build_from(self, pipelines: Sequence[Pipeline]) -> Reconfiguration | None:
        """Returns the plan with exactly these pipelines, whatever templates say; None where they cannot be: too few,
        not whole, on nodes that are gone, or more than there are microbatches."""
        change = self._change
        live = set(self._live)
        if not change.settings.fault_tolerance < len(pipelines) <= change.settings.most_pipelines:
            return None
        for pipeline in pipelines:
            nodes = {change.plan.node_of(worker) for worker in pipeline.workers}
            if not (pipeline.is_whole(change.profile.num_layers) and nodes <= live):
                return None
        times = [
            pipeline_times(
                pipeline,
                change.profile,
                change.speeds,
                change.plan.devices_per_node,
                change.settings.num_microbatches,
            )
            for pipeline in pipelines
        ]
        return self._planned(pipelines, times, How.INSTANTIATE)

    def _planned(self, pipelines: Sequence[Pipeline], times: Sequence[Times], how: How) -> Reconfiguration:
        change, profile = self._change, self._change.profile
        shares = shares_of(times, change.settings)
        new = plan_of(pipelines, shares, profile, change.settings, change.generation)
        new = moved(new.following(change.plan), self._holders, change.leaving, change.plan.devices_of, self._sources)
        before = set(change.plan.pipelines)
        return Reconfiguration(
            plan=new,
            how=how,
            transfer_bytes=new.moved_bytes,
            rebuilt=tuple(at for at, pipeline in enumerate(pipelines) if pipeline not in before),
            step_time_s=max(float(time[share - 1]) for time, share in zip(times, shares, strict=True)),
            transfer_s=_transfer_s(new, profile),
        )

    def _times(self, template: Template, pipeline: Pipeline) -> Times:
        """Returns the step times of a template's pipeline on its nodes."""
        times = self._step_times.get(template.num_nodes)
        if times is None:
            times = self._step_times[template.num_nodes] = step_times(template, self._change.settings.num_microbatches)
        if not self._change.speeds:
            return times
        node_of = {s.node: p for s, p in zip(template.stages, pipeline.stages, strict=True)}
        speeds = [self._speed(self._change.plan.node_of(node_of[part].worker)) for part in range(template.num_nodes)]
        if set(speeds) == {1.0}:
            return times
        if template.num_nodes not in self._paces:
            self._paces[template.num_nodes] = TemplateSlowdown(template, self._change.profile)
        return slowed(times, self._paces[template.num_nodes].on_parts(speeds))

    def _speed(self, node: NodeId) -> float:
        return self._change.speeds.get(node, 1.0)


def _transfer_s(plan: Plan, profile: ModelProfile) -> float:
    """Returns the seconds of the transfers at the worker that sends or receives longest."""
    sending: defaultdict[WorkerId, float] = defaultdict(float)
    receiving: defaultdict[WorkerId, float] = defaultdict(float)
    for move in plan.transfers:
        link = profile.links.of(same_node=plan.node_of(move.source) == plan.node_of(move.target))
        seconds = link.time_s(move.moved_bytes(profile.groups[move.group]))
        sending[move.source] += seconds
        receiving[move.target] += seconds
    return max([*sending.values(), *receiving.values()], default=0.0)


def _live_nodes(plan: Plan, held: Holders) -> list[NodeId]:
    """Returns the live nodes, ascending: a node of the plan whose driving workers all live, or another one whose
    workers all do."""
    if plan.devices_per_node == 1:
        return [NodeId(worker) for worker in sorted(held)]
    workers: dict[NodeId, set[WorkerId]] = {}
    for worker in held:
        workers.setdefault(plan.node_of(worker), set()).add(worker)
    driving: dict[NodeId, set[WorkerId]] = {}
    for worker in plan.workers:
        driving.setdefault(plan.node_of(worker), set()).add(worker)
    return sorted(
        node
        for node, live in workers.items()
        if (driving[node] <= live if node in driving else len(live) == plan.devices_per_node)
    )


def _nodes_of_pipelines(plan: Plan, live: Collection[NodeId]) -> list[list[NodeId]]:
    """Returns each pipeline's live nodes; a node counts for the first pipeline that it is in."""
    left = set(live)
    result: list[list[NodeId]] = []
    for pipeline in plan.pipelines:
        nodes = left.intersection(pipeline.nodes(plan.devices_per_node))
        left -= nodes
        result.append(sorted(nodes))
    return result


def _without(holders: Holders, nodes: Collection[NodeId], devices_per_node: int) -> dict[WorkerId, Collection[int]]:
    """Returns the holders that are on none of these nodes."""
    gone = {WorkerId(node * devices_per_node + device) for node in nodes for device in range(devices_per_node)}
    if gone.isdisjoint(holders):
        return dict(holders)
    return {worker: groups for worker, groups in holders.items() if worker not in gone}


class _Fitting:
    """Checks whether pipelines are cut as their nodes' templates say: a plan that finishes a step may have others."""

    def __init__(self, by_size: Mapping[int, Template], devices_per_node: int) -> None:
        self._by_size = by_size
        self._per_node = devices_per_node
        self._known: dict[Form, bool] = {}

    def is_intact(self, pipeline: Pipeline, nodes: Sequence[NodeId]) -> bool:
        """Returns whether the pipeline is cut as its template says and no node is lost."""
        if len(pipeline.nodes(self._per_node)) != len(nodes) or len(nodes) not in self._by_size:
            return False
        form = pipeline.form(self._per_node)
        found = self._known.get(form)
        if found is None:
            found = self._known[form] = self._is_cut_so(form, self._by_size[len(nodes)])
        return found

    def _is_cut_so(self, form: Form, template: Template) -> bool:
        parts = template.stages
        cut = [(part.first_layer, part.end_layer, part.num_devices) for part in parts]
        if cut != [stage[:3] for stage in form.stages]:
            return False
        return (
            len({(stage[3], part.node) for stage, part in zip(form.stages, parts, strict=True)}) == template.num_nodes
        )
