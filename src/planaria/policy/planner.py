"""The planner that all policies of a job plan with: templates and estimates, made once and given to each.

It knows the job's costs and settings, and the nodes' speeds and zones as far as they are known. It chooses no plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from planaria.estimate.conditions import Conditions
from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.step_time import EstimateCache, StepEstimate, outline
from planaria.estimate.transfer_time import ALIKE, TransferTime, busy_s, transfer_time, wait_s
from planaria.plan.costs.model_profile import LinkCost, ModelProfile
from planaria.plan.costs.network import HostPair, Network
from planaria.plan.costs.pipeline_time import NodeSpeeds, Template
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, ScheduleKind, Transfer, WorkerId
from planaria.plan.quantities import size
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import OTHER_SET_CLEARLY, STATE_OF_FREE, STATE_OF_STEP
from planaria.planner.instantiation.instantiate import initial_plan, plan_of_templates
from planaria.planner.place_costs import as_places
from planaria.planner.placement.arrangements import arrangements
from planaria.planner.placement.warm_up import Room
from planaria.planner.placement.zones import Zones, replicas_by_zone
from planaria.planner.stage_devices import Devices, carried
from planaria.planner.templates.templates import fewest_nodes, make_templates

LEAN = ScheduleKind.ONE_F_ONE_B
"""The schedule that keeps fewest activations."""

MOST_SIZES = 4096
"""Sets of pipeline sizes of which a step's time is remembered."""

T = TypeVar("T")


@dataclass(eq=False)
class _Shared:
    """Results that all planners of the same templates share.

    Attributes:
        made: templates and planners that were made, by what they are.
        pipelines: that were estimated before, by network and whether devices share microbatches: most of a plan's are
            as in the one before.
        sizes_s: seconds of a step of so many microbatches, with pipelines of these sizes.
    """

    made: dict[object, Any] = field(default_factory=dict)
    pipelines: dict[object, EstimateCache] = field(default_factory=dict)
    sizes_s: dict[tuple[float, ...], float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Planner:
    """The planner of one job.

    Attributes:
        profile: what layers and links cost.
        settings: what the job asks of its plans.
        speeds: of nodes; None: all are as profiled.
        zones: of nodes, as far as they are known.
        stretch: everything takes so many times longer than the profile says.
        lost_devices: of nodes that live: their other devices go on without them.
        of_devices: of a planner of stages' places on nodes that lost devices, the planner by device, which knows what
            the devices that are left take.
        hosts: of nodes, where links between hosts were measured.
        far_pairs: of hosts, whose links are far off their class.
        conditions: of estimates, which follow from these.
    """

    profile: ModelProfile
    settings: PlannerSettings
    speeds: NodeSpeeds | None = field(default=None, kw_only=True)
    zones: Zones = field(default_factory=dict, kw_only=True)
    stretch: float = field(default=1.0, kw_only=True)
    lost_devices: frozenset[WorkerId] = field(default=frozenset(), kw_only=True)
    of_devices: Planner | None = field(default=None, kw_only=True)
    hosts: Mapping[NodeId, str] = field(default_factory=dict, kw_only=True)
    far_pairs: Mapping[HostPair, LinkCost] = field(default_factory=dict, kw_only=True)
    conditions: Conditions = field(init=False)
    _shared: _Shared = field(default_factory=_Shared, kw_only=True)

    def __post_init__(self) -> None:
        """Checks the speeds. Raises PlanError: a speed that is none."""
        network = Network(zones=self.zones, hosts=self.hosts, pairs=self.far_pairs)
        conditions = Conditions(
            num_cores=self.settings.num_cores,
            audit=self.settings.audit,
            node_speeds=self.speeds or {},
            stretch=self.stretch,
            network=None if network.is_even(self.profile.links) else network,
        )
        object.__setattr__(self, "conditions", conditions)

    # The same planner for other nodes

    def with_speeds(self, speeds: NodeSpeeds) -> Planner:
        """Returns the planner for nodes that compute so fast; all others are as fast as the profile says.

        Raises:
            PlanError: a speed that is none.
        """
        return dataclasses.replace(self, speeds=dict(speeds))

    def is_like(self, other: Planner) -> bool:
        """Returns whether nodes and links are as the other planner knows them, zones aside."""
        return (self.speeds, self.stretch, self.lost_devices, self.profile, self.hosts, self.far_pairs) == (
            other.speeds,
            other.stretch,
            other.lost_devices,
            other.profile,
            other.hosts,
            other.far_pairs,
        )

    def with_stretch(self, stretch: float) -> Planner:
        """Returns the planner where everything takes so many times longer than the profile says."""
        return dataclasses.replace(self, stretch=stretch)

    def with_zones(self, zones: Zones) -> Planner:
        """Returns the planner for nodes in these zones, over which a plan's replicas are spread as far as can be."""
        return dataclasses.replace(self, zones=dict(zones))

    def with_lost_devices(self, lost: frozenset[WorkerId]) -> Planner:
        """Returns the planner for nodes that lost these devices alone."""
        return dataclasses.replace(self, lost_devices=lost)

    def with_links(
        self, profile: ModelProfile, hosts: Mapping[NodeId, str], far_pairs: Mapping[HostPair, LinkCost]
    ) -> Planner:
        """Returns the planner for links as they were measured: the profile has their classes."""
        shared = self._shared if profile == self.profile else _Shared()
        return dataclasses.replace(self, profile=profile, hosts=hosts, far_pairs=far_pairs, _shared=shared)

    def with_settings(self, **changes: Any) -> Planner:
        """Returns a planner of other settings with the same templates."""
        return dataclasses.replace(self.prepared(), settings=dataclasses.replace(self.settings, **changes))

    def variant(self, **changes: Any) -> Planner:
        """Returns a planner of other settings with templates of its own, made once, for the same nodes."""
        settings = dataclasses.replace(self.settings, **changes)
        if settings == self.settings:
            return self
        return self._for_same_nodes(self._once(settings, lambda: Planner(self.profile, settings)))

    def of_stages(self, devices: int) -> Planner:
        """Returns the planner of stages on so many devices each, for the same nodes."""
        return self.variant(devices_per_stage=devices)

    def of_places(self) -> Planner:
        """Returns the planner of stages' places, made once, for the same nodes: one of d devices computes a microbatch
        in a d-th of the time, as d are under way at a time. A node with fewer devices is slower; what a step takes is
        estimated of the devices that it has.

        Raises:
            PlanError: the profile has no times of one device.
        """
        places = self
        if self.settings.devices_per_stage > 1:
            places = self._for_same_nodes(
                self._once("places", lambda: Planner(*as_places(self.profile, self.settings)))
            )
        if not self.lost_devices:
            return places
        speeds = dict(self.speeds or {})
        slower = {node: speeds.get(node, 1.0) * share for node, share in self.devices.shares().items()}
        return dataclasses.replace(places, speeds=speeds | slower, of_devices=self)

    @property
    def devices(self) -> Devices:
        """The devices of the nodes, without those that were lost."""
        settings = self.settings
        return Devices(
            per_stage=settings.devices_per_stage,
            per_node=settings.devices_per_node,
            lost=self.lost_devices,
            spreads_optimizer=settings.spreads_optimizer,
            share_microbatches=settings.share_microbatches,
        )

    def _for_same_nodes(self, made: Planner) -> Planner:
        return dataclasses.replace(
            made,
            speeds=self.speeds,
            zones=self.zones,
            stretch=self.stretch,
            lost_devices=self.lost_devices,
            of_devices=self.of_devices,
            hosts=self.hosts,
            far_pairs=self.far_pairs,
        )

    # Templates

    def prepared(self) -> Planner:
        """Returns the planner itself, its templates made.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        self._once("templates", self._make_templates)
        return self

    @property
    def templates(self) -> tuple[Template, ...]:
        """A template for every number of nodes that a pipeline may have. Made when they are first asked for.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        return self._once("templates", self._make_templates)

    @property
    def sizes(self) -> tuple[Template, ...]:
        """The templates; and smaller ones, where the user wants no pipeline so small, but it is known to fit."""
        return self._once("sizes", self._make_sizes)

    @property
    def lean(self) -> Planner | None:
        """The planner under the schedule that keeps fewest activations; None where its pipelines are no smaller.

        A schedule that keeps more needs deeper pipelines where memory is short: GPT-3 6.7B takes 6 devices of 80 GB
        under GPipe, and two under 1F1B.
        """
        return self.variant(schedule=LEAN) if self._once("lean", self._is_leaner) else None

    def instantiated(
        self, templates: Sequence[Template], nodes: Sequence[NodeId], generation: int, number: int | None = None
    ) -> Plan:
        """Returns the first plan of these templates alone, by compute; of so many pipelines, where that is given.

        Raises:
            PlanError: too few nodes or microbatches.
        """
        return initial_plan(
            self.profile,
            templates,
            self.settings,
            nodes,
            generation,
            speeds=self.speeds,
            zones=self.zones,
            number=number,
        )

    def arranged(self, plan: Plan) -> Plan:
        """Returns a first plan, its nodes exchanged where that makes steps shorter (see `arrangements`): clearly, where
        more layers have all their replicas in one zone then."""
        best, least_s = plan, 0.0
        for pipelines in self.arrangements(plan):
            least_s = least_s or self.step_s(plan)
            stages = {one.stages: other.stages for one, other in zip(plan.pipelines, pipelines, strict=True)}
            routes = tuple(msgspec.structs.replace(route, hops=stages[route.hops]) for route in plan.routes)
            found = msgspec.structs.replace(plan, pipelines=pipelines, routes=routes)
            seconds = self.step_s(found)
            is_riskier = self._num_in_one_zone(found) > self._num_in_one_zone(best)
            if seconds < (OTHER_SET_CLEARLY if is_riskier else 1.0) * least_s:
                best, least_s = found, seconds
        return best

    def _num_in_one_zone(self, plan: Plan) -> int:
        held = replicas_by_zone(plan.pipelines, plan.num_layers, self.zones, plan.devices_per_node)
        return sum(len(zones) == 1 for zones in held)

    @property
    def may_arrange(self) -> bool:
        """Whether nodes differ in their links alone."""
        return self.conditions.network is not None and not self.conditions.node_speeds

    def arrangements(self, plan: Plan) -> Iterator[tuple[Pipeline, ...]]:
        """Yields the plan's pipelines with other nodes of a zone, or of a host where no zones are known, going
        together; nothing where links or nodes are alike."""
        if not self.may_arrange:
            return
        places = self.zones if len(set(self.zones.values())) > 1 else self.hosts
        for pipelines in arrangements(plan.pipelines, places, plan.devices_per_node):
            if pipelines != plan.pipelines:
                yield pipelines

    # Estimates

    def estimate(self, plan: Plan) -> StepEstimate:
        """Returns what a step under the plan is thought to take."""
        if self.of_devices is None:
            return outline(plan, self.profile, self.conditions, self._known(plan))
        devices = self.of_devices.devices
        step = self.of_devices.estimate(carried(plan, devices))
        by_place = {place: max(step.compute_s.get(w, 0.0) for w in devices.running(place)) for place in plan.workers}
        return dataclasses.replace(step, compute_s=by_place)

    def step_s(self, plan: Plan) -> float:
        """Returns the estimated seconds of a step under the plan."""
        return self.estimate(plan).step_time_s

    def wait_s(self, plan: Plan, come_s: Mapping[WorkerId, float]) -> float:
        """Returns the seconds by which the plan's first step is longer, as these workers have their state so late."""
        return wait_s(plan, self.profile, come_s, self.conditions, self._known(plan))

    def transfer_time(self, plan: Plan) -> TransferTime:
        """Returns the predicted time of the plan's transfers."""
        return transfer_time(plan, self.profile.links, self.conditions.network)

    def room_beside(self, plan: Plan) -> Room:
        """Returns the room that a step of the plan leaves on links for its transfers."""
        links, network = self.profile.links, self.conditions.network or ALIKE
        nodes = {plan.node_of(worker) for move in plan.transfers for worker in (move.source, move.target)}
        step_s = self.step_s(plan)
        busy = busy_s(plan, self.profile, nodes, self.conditions)

        def seconds(node: NodeId) -> float:
            if node not in busy:  # seldom: another holder is asked for a part
                busy.update(busy_s(plan, self.profile, set(plan.nodes) - busy.keys(), self.conditions))
            return max(STATE_OF_FREE * (step_s - busy[node]), STATE_OF_STEP * step_s)

        def link_s(move: Transfer) -> float:
            link = network.link(links, plan.node_of(move.source), plan.node_of(move.target))
            return link.time_s(move.moved_bytes(plan.groups[move.group]))

        return Room(seconds=seconds, link_s=link_s)

    def _known(self, plan: Plan) -> EstimateCache:
        network = self.conditions.network
        alike = None if network is None else network.key, plan.shares_microbatches
        return self._shared.pipelines.setdefault(alike, EstimateCache())

    def as_profiled(self, plan: Plan, compute_s: Mapping[WorkerId, float]) -> Mapping[WorkerId, float]:
        """Returns seconds of each worker's compute, on a node as fast as the profile says."""
        if not self.conditions.node_speeds:
            return compute_s
        speed = self.conditions.speed
        return {worker: seconds * speed(plan.node_of(worker)) for worker, seconds in compute_s.items()}

    def fits(self, plan: Plan) -> bool:
        """Returns whether no device has to hold more than it may."""
        limit = self.settings.memory_bytes
        return not limit or fullest_device_bytes(plan, self.profile, self.settings.audit) <= limit

    def seconds_of_sizes(self, templates: Sequence[Template]) -> Callable[[Sequence[int]], float] | None:
        """Returns what gives the estimated seconds of a step with pipelines of so many nodes (0: none), made from these
        templates, on nodes as fast as the profile says; None where it takes more to know them.

        A step's time follows from the forms and shares of a plan's pipelines, and of pipelines made from templates
        these follow from their sizes. So a set of templates none of whose sizes are fast enough need not be made a plan
        of.
        """
        if self.conditions.network is not None:
            return None  # it counts which nodes they are
        if self.settings.devices_per_node > 1:
            return None  # a pipeline that stays may be on other devices of its nodes than its template's
        by_size = {template.num_nodes: template for template in templates}
        return lambda sizes: self.templates_s([by_size[size] for size in sizes if size])

    def templates_s(self, templates: Sequence[Template]) -> float:
        """Returns the estimated seconds of a step with a pipeline of each of these templates of the job, on nodes as
        fast as the profile says, between which links are alike.

        Raises:
            Undistributable: too few microbatches.
        """
        known = self._shared.sizes_s
        key = self.stretch, self.settings.num_microbatches, *[template.num_nodes for template in templates]
        found = known.get(key)
        if found is None:
            while len(known) >= MOST_SIZES:
                del known[next(iter(known))]
            plan = plan_of_templates(self.profile, templates, self.settings)
            alike = dataclasses.replace(self.conditions, node_speeds={}, network=None)
            cache = self._shared.pipelines.setdefault((None, False), EstimateCache())
            found = known[key] = outline(plan, self.profile, alike, cache).step_time_s
        return found

    # What is made once

    def _once(self, what: object, make: Callable[[], T]) -> T:
        made = self._shared.made
        if what not in made:
            made[what] = make()
        found: T = made[what]
        return found

    def _make_templates(self) -> tuple[Template, ...]:
        if not self.settings.devices_per_stage:
            return self._templates_of_fewest_devices()
        if self.settings.devices_per_stage > 1:
            return self.of_places().templates
        templates = make_templates(self.profile, self.settings)
        if not templates:
            raise PlanError(
                f"No split onto {self.settings.min_nodes} nodes or more fits devices of "
                f"{size(self.settings.memory_bytes)}. Set a lower resilience.min_nodes_per_pipeline, or use devices "
                "with more memory."
            )
        return tuple(templates)

    def _templates_of_fewest_devices(self) -> tuple[Template, ...]:
        """Returns the templates of stages on as few devices as there are any for."""
        refused: PlanError | None = None
        for devices in self.settings.stage_choices:
            try:
                return self.of_stages(devices).templates
            except PlanError as error:
                refused = refused or error
        assert refused is not None, "a stage is on one device, if on no more"
        raise refused

    def _make_sizes(self) -> tuple[Template, ...]:
        settings, own = self.settings, self.templates
        if not (settings.memory_bytes and settings.min_nodes > 1):
            return own
        share = settings.microbatches_per_pipeline
        wider = dataclasses.replace(settings, min_nodes=0, microbatch_range=settings.microbatch_range or (share, share))
        try:
            made = make_templates(self.profile, wider, [template.num_nodes for template in own])
        except PlanError:
            return own
        sizes = {template.num_nodes: template for template in (*made, *own)}
        return tuple(sizes[size] for size in sorted(sizes))

    def _is_leaner(self) -> bool:
        settings = dataclasses.replace(self.settings, schedule=LEAN)
        if self.settings.schedule is LEAN or not settings.memory_bytes:
            return False
        try:
            if fewest_nodes(self.profile, settings) >= self.templates[0].num_nodes:
                return False
            return bool(self.variant(schedule=LEAN).templates)
        except PlanError:
            return False
