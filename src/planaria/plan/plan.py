"""The Plan: placement, routes, owners and transfers of one generation.

This module owns the one object that every policy produces and everything else (worker, estimator, simulator,
picture) consumes. A plan has no "my rank" in it, calls nothing and is frozen; a worker's program is a pure
function of (plan, worker), see `planaria.plan.program`.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, cast

import msgspec

from planaria.plan.groups import Group as Group
from planaria.plan.groups import groups_by_layers, kept_groups, layers_held, workers_by_group
from planaria.plan.ledger import mask_of
from planaria.plan.pipeline import Form as Form
from planaria.plan.pipeline import NodeId as NodeId
from planaria.plan.pipeline import Pipeline as Pipeline
from planaria.plan.pipeline import Stage as Stage
from planaria.plan.pipeline import WorkerId as WorkerId
from planaria.plan.pipeline import exchanged, first_sharing
from planaria.plan.pipeline import runs_of as runs_of
from planaria.plan.schedule_kind import ScheduleKind as ScheduleKind


class PlanError(ValueError):
    """A plan that cannot be made, or that breaks an invariant."""


class Redundancy(enum.StrEnum):
    """Redundant compute of workers for the layers that they shadow (Bamboo, section 5): forwards (FRC) and
    backwards (BRC), each in every step (eager) or only once their owner is lost (lazy)."""

    EAGER_LAZY = "eager-lazy"
    """Shadows compute forwards only: the paper's choice."""
    LAZY_LAZY = "lazy-lazy"
    EAGER_EAGER = "eager-eager"

    @property
    def runs_forwards(self) -> bool:
        return self is not Redundancy.LAZY_LAZY

    @property
    def runs_backwards(self) -> bool:
        return self is Redundancy.EAGER_EAGER


class Route(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """Which worker runs which layer range, for some microbatches that travel together.

    Attributes:
        hops: stages in layer order that cover every layer once.
        microbatches: ascending numbers of the microbatches that take it.
        born: generation in which the route was made. Messages between its workers bear it, so a route kept by
            a later plan goes on undisturbed, and what a dropped route left under way is refused.
        counted: layers whose gradients are accumulated; the others are only passed through, because what they
            give for these microbatches is already in somebody's accumulator.
        reached: a worker on the way was lost within the step, and its shadow goes on in its place: what was done under
            the same `born` stays done. The lowest layer that is in somebody's accumulator already, or the number of
            layers; a hop of which that says that all is done only sends again what it sent. None: nobody was lost.
    """

    hops: tuple[Stage, ...]
    microbatches: tuple[int, ...]
    born: int
    counted: tuple[int, ...]
    reached: int | None = None

    @property
    def key(self) -> tuple[tuple[int, int, int], ...]:
        """Identity of the route's hops, whichever microbatches take it."""
        return tuple((hop.worker, hop.first_layer, hop.end_layer) for hop in self.hops)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """A pass of forwards over samples that are not trained on, before the step that the plan is for.

    Attributes:
        num_microbatches: how many microbatches are evaluated.
        routes: of each of them; only the last layer counts, whose loss is all that is wanted.
    """

    num_microbatches: int
    routes: tuple[Route, ...]


class Transfer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Transfer of one group's state (parameters and optimizer) from `source` to `target` before the plan's first step.

    Attributes:
        group: the number of the group that moves.
        source: a worker that holds a replica.
        target: a worker that will.
        part: first byte and end of the group's parameters that go, with the state of the same ones; None: the whole
            group. The parts of a group that go to one target come from different sources and are the whole together.
        with_optimizer: the optimizer's state goes along; else the target leaves that to another device of its stage.
    """

    group: int
    source: WorkerId
    target: WorkerId
    part: tuple[int, int] | None = None
    with_optimizer: bool = True

    def moved_bytes(self, group: Group) -> int:
        """Returns the bytes of the group's state that the transfer moves."""
        if self.part is None:
            return group.moved_bytes if self.with_optimizer else group.size_bytes
        return group.moved_bytes * (self.part[1] - self.part[0]) // group.size_bytes


def counted_together(routes: Iterable[Route]) -> dict[tuple[int, ...], int]:
    """Returns, for each set of layers that routes count together, the mask of their microbatches."""
    masks: dict[int, int] = {}
    named: dict[int, tuple[int, ...]] = {}
    for route in routes:
        name = id(route.counted)
        masks[name] = masks.get(name, 0) | mask_of(route.microbatches)
        named[name] = route.counted
    together: dict[tuple[int, ...], int] = {}
    for name, layers in named.items():
        together[layers] = together.get(layers, 0) | masks[name]
    return together


_PLACEMENT = (
    "workers",
    "devices_of",
    "nodes",
    "layers_of",
    "layers_run_by",
    "groups_of",
    "owners_of",
    "num_owners",
    "is_apart",
    "examples",
    "stage_mates",
)
"""Names of the properties that depend only on who owns and shadows which layers."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """Everything that a generation of the job does, for every worker.

    Attributes:
        generation: number of this plan; a later plan has a higher one.
        num_layers: layers of the model.
        num_microbatches: microbatches in one step (the global batch over the microbatch size).
        devices_per_node: devices, so workers, on a node.
        groups: the model's parameter groups; a group's number is its place here.
        pipelines: who owns which layers. A plan that finishes a step after a loss also has broken pipelines here:
            their survivors own layers, and accumulators, and a route may pass through them.
        routes: every microbatch's route.
        shadows: replicas beside the pipelines' own: their workers take part in the layers' sums and in the optimizer's
            step, so what they hold is up to date, and no route passes through them. A node that joins is a shadow
            for a step before it gets microbatches.
        sync_epochs: for each group, the generation in which its set of contributions last changed. Sums of an older
            epoch are void.
        transfers: state that moves before the first step of the plan.
        redundancy: shadows compute, and each worker keeps what it sends until the step's end, so a shadow can go on
            in the middle of a step where its worker was lost (`planaria.plan.program.redundant_compute`); None: they
            only hold state.
        schedule: order of forwards and backwards.
        spare_in_flight: microbatches that a worker whose routes cross may keep beyond what the schedule keeps: one that
            carries others' work waits for more of them.
        layer_units: of each layer, how long its forward, its input's and its weights' gradients take, in one unit for
            all: the orders of workers whose routes cross go by them. None: all alike.
        dropped: microbatches that the plan leaves out of the step, ascending: no route has them and no layer counts
            them; what a worker has accumulated of them is void. Only a policy that may drop samples leaves any out.
        evaluation: what the plan's workers do instead of the step; None: they do the step. Another plan follows for the
            step itself, which has the same placement and routes if nothing comes between.
        devices_per_stage: d: each stage is on d neighbouring devices of a node. Workers d n to d n + d - 1 own the same
            layers; each runs some of the stage's microbatches. Those of them that were lost alone are not in the plan.
        spreads_optimizer: of each group, one device of a stage keeps the optimizer's state, and makes the parameters.
        shares_microbatches: every device of a stage runs each of its microbatches, for a part of the layers' shards;
            routes name the first device of each stage, which alone tells losses and has what is counted in its ledger.
    """

    generation: int
    num_layers: int
    num_microbatches: int
    devices_per_node: int
    groups: tuple[Group, ...]
    pipelines: tuple[Pipeline, ...]
    routes: tuple[Route, ...]
    sync_epochs: tuple[int, ...]
    shadows: tuple[Stage, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    redundancy: Redundancy | None = None
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    spare_in_flight: int = 0
    layer_units: tuple[tuple[int, int, int], ...] = ()
    dropped: tuple[int, ...] = ()
    evaluation: Evaluation | None = None
    devices_per_stage: int = 1
    spreads_optimizer: bool = False
    shares_microbatches: bool = False

    @property
    def num_counted(self) -> int:
        """Microbatches of a step that count: all but those that the plan leaves out."""
        return self.num_microbatches - len(self.dropped)

    @property
    def shadows_compute(self) -> bool:
        """Whether shadows compute something in every step, and not only once their owner is lost."""
        return self.redundancy is not None and self.redundancy.runs_forwards

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        """Every worker that owns or shadows layers, ascending."""
        if not self.shadows:
            return tuple(self.layers_of)
        return tuple(sorted({*self.layers_of, *(shadow.worker for shadow in self.shadows)}))

    @cached_property
    def devices_of(self) -> dict[WorkerId, int]:
        """How many devices each worker drives: those of its widest stage, owned or shadowed."""
        if not self.shadows and all(pipeline.most_devices == 1 for pipeline in self.pipelines):
            return dict.fromkeys(self.layers_of, 1)
        devices: dict[WorkerId, int] = {}
        for pipeline in self.pipelines:
            devices.update(pipeline.devices_of)
        if not self.is_apart or self.shadows:
            for stage in (*self.stages(), *self.shadows):
                devices[stage.worker] = max(devices.get(stage.worker, 0), stage.num_devices)
        return devices

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        per_node = self.devices_per_node
        if per_node == 1:
            return cast("tuple[NodeId, ...]", self.workers)
        return tuple(sorted({NodeId(worker // per_node) for worker in self.workers}))

    @property
    def moved_bytes(self) -> int:
        """Bytes of state that its transfers move."""
        return sum(move.moved_bytes(self.groups[move.group]) for move in self.transfers)

    @cached_property
    def is_apart(self) -> bool:
        """Whether no worker owns layers in two pipelines."""
        return sum(len(pipeline.owned) for pipeline in self.pipelines) == len(self.layers_of)

    @cached_property
    def examples(self) -> tuple[tuple[Pipeline, int], ...]:
        """One pipeline of each form, with the number of pipelines of that form."""
        forms = [pipeline.form(self.devices_per_node) for pipeline in self.pipelines]
        counts, one_of = Counter(forms), dict(zip(forms, self.pipelines, strict=True))
        return tuple((pipeline, counts[form]) for form, pipeline in one_of.items())

    @cached_property
    def layers_of(self) -> dict[WorkerId, tuple[int, ...]]:
        """The layers that each worker owns, ascending."""
        owned: dict[WorkerId, tuple[int, ...]] = {}
        num_owned = 0
        for pipeline in self.pipelines:
            owned.update(pipeline.owned)
            num_owned += len(pipeline.owned)
        if num_owned != len(owned):
            together: dict[WorkerId, set[int]] = {}
            for stage in self.stages():
                together.setdefault(stage.worker, set()).update(stage.layers)
            owned = {worker: tuple(sorted(layers)) for worker, layers in together.items()}
        order = sorted(owned)
        if order == list(owned):
            return owned
        return dict(zip(order, map(owned.__getitem__, order), strict=True))

    @cached_property
    def layers_run_by(self) -> dict[WorkerId, tuple[int, ...]]:
        """The layers that each worker must be able to run: those that it owns and, if shadows compute, shadows."""
        if self.redundancy is None:
            return self.layers_of
        runs = {worker: set(layers) for worker, layers in self.layers_of.items()}
        for shadow in self.shadows:
            runs.setdefault(shadow.worker, set()).update(shadow.layers)
        return {worker: tuple(sorted(layers)) for worker, layers in sorted(runs.items())}

    @cached_property
    def groups_of(self) -> dict[WorkerId, tuple[int, ...]]:
        """The groups that each worker holds a replica of, as owner or shadow, ascending."""
        groups_of = groups_by_layers(self.groups, self.num_layers)
        if not self.shadows:
            return dict(zip(self.layers_of, map(groups_of.__getitem__, self.layers_of.values()), strict=True))
        held = dict(self.layers_of)
        for stage in self.shadows:
            held[stage.worker] = tuple(sorted({*held.get(stage.worker, ()), *stage.layers}))
        return {worker: groups_of[layers] for worker, layers in sorted(held.items())}

    @cached_property
    def kept_of(self) -> dict[WorkerId, tuple[int, ...]]:
        """The groups that each worker holds whole, with the optimizer's state, ascending."""
        if not self.spreads_optimizer or not self.stage_mates:
            return self.groups_of
        held = self.groups_of
        dealt = [zip(own, kept_groups(self.groups, held[own[0]], len(own)), strict=True) for own in self.stage_mates]
        return dict(pair for pairs in dealt for pair in pairs)

    @cached_property
    def owners_of(self) -> tuple[tuple[WorkerId, ...], ...]:
        """For each group, the workers that hold a replica of it, ascending."""
        return workers_by_group(len(self.groups), self.groups_of)

    @cached_property
    def keepers_of(self) -> tuple[tuple[WorkerId, ...], ...]:
        """For each group, the owners that keep it whole, ascending: they alone need its summed gradient."""
        return self.owners_of if self.kept_of is self.groups_of else workers_by_group(len(self.groups), self.kept_of)

    @cached_property
    def num_owners(self) -> tuple[int, ...]:
        """For each group, how many workers hold a replica of it."""
        counts = [0] * len(self.groups)
        alike: Iterable[tuple[tuple[int, ...], int]]
        if self.is_apart and not self.shadows:
            groups_of = groups_by_layers(self.groups, self.num_layers)
            alike = ((groups_of[layers], count) for one, count in self.examples for layers in one.owned.values())
        else:
            alike = Counter(self.groups_of.values()).items()
        for groups, count in alike:
            for group in groups:
                counts[group] += count
        return tuple(counts)

    @cached_property
    def pipeline_of_route(self) -> tuple[int, ...]:
        """For each route, the number of the pipeline all of whose stages are its hops, in order; -1: it is none's."""
        at_of = {id(pipeline.stages): at for at, pipeline in enumerate(self.pipelines)}
        found = [at_of.get(id(route.hops), -1) for route in self.routes]
        if -1 in found:  # a plan that was read, or a route that crosses pipelines
            equal = {pipeline.stages: at for at, pipeline in enumerate(self.pipelines)}
            found = [equal.get(r.hops, -1) if at < 0 else at for r, at in zip(self.routes, found, strict=True)]
        return tuple(found)

    def renewed(self, **changes: Any) -> Plan:
        """Returns a plan with the same placement and other generations, routes or transfers; cached placement is kept.

        Args:
            changes: fields, but for pipelines, shadows, groups and redundancy.
        """
        new = msgspec.structs.replace(self, **changes)
        known = self.__dict__
        new.__dict__.update({name: known[name] for name in _PLACEMENT if name in known})
        return new

    @cached_property
    def of_step(self) -> Plan:
        """The plan as it does the step, without an evaluation before it."""
        return self if self.evaluation is None else self.renewed(evaluation=None)

    @cached_property
    def of_pass(self) -> Plan:
        """The plan with the routes and microbatches that its workers are at: an evaluation's in place of the step's."""
        if self.evaluation is None:
            return self
        return self.renewed(
            routes=self.evaluation.routes, num_microbatches=self.evaluation.num_microbatches, dropped=()
        )

    @property
    def counting_layers(self) -> range:
        """Layers for which a pass counts each microbatch: all; of an evaluation the last, which has the loss."""
        return range(0 if self.evaluation is None else self.num_layers - 1, self.num_layers)

    def evaluating(self, num_microbatches: int) -> Plan:
        """Returns the plan that first evaluates so many microbatches, dealt out over the step's routes as the step's
        own microbatches are, in turn."""
        hops_of = {m: route.hops for route in self.routes for m in route.microbatches}
        turns = [hops_of[m] for m in sorted(hops_of)]
        dealt: dict[tuple[Stage, ...], list[int]] = {}
        for microbatch in range(num_microbatches):
            dealt.setdefault(turns[microbatch % len(turns)], []).append(microbatch)
        routes = tuple(
            Route(hops=hops, microbatches=tuple(own), born=self.generation, counted=(self.num_layers - 1,))
            for hops, own in dealt.items()
        )
        return self.renewed(evaluation=Evaluation(num_microbatches=num_microbatches, routes=routes))

    def following(self, before: Plan) -> Plan:
        """Returns this plan, with what is cached about the owners of layers taken over from `before` where pipelines
        are the same."""
        known = before.__dict__
        owned = known.get("layers_of")
        if owned is None or before.shadows or self.shadows or before.groups != self.groups or not before.is_apart:
            return self
        there, here = set(map(id, before.pipelines)), set(map(id, self.pipelines))
        old = [pipeline for pipeline in before.pipelines if id(pipeline) not in here]
        new = [pipeline for pipeline in self.pipelines if id(pipeline) not in there]
        groups_of = groups_by_layers(self.groups, self.num_layers)
        found: dict[str, dict[WorkerId, Any]] = {
            "layers_of": exchanged(owned, old, [pipeline.owned for pipeline in new]),
            "groups_of": exchanged(
                before.groups_of, old, [{w: groups_of[ls] for w, ls in pipeline.owned.items()} for pipeline in new]
            ),
        }
        if sum(len(pipeline.owned) for pipeline in self.pipelines) == len(found["layers_of"]):
            counts = list(before.num_owners)
            for pipelines, change in ((old, -1), (new, 1)):
                for layers in (layers for pipeline in pipelines for layers in pipeline.owned.values()):
                    for group in groups_of[layers]:
                        counts[group] += change
            self.__dict__.update(found, is_apart=True, num_owners=tuple(counts))
        return self

    @cached_property
    def work(self) -> dict[tuple[int, ...], int]:
        """For each set of layers that routes count together, the mask of their microbatches."""
        return counted_together(self.routes)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (hex) over the canonical JSON: the same plan has the same hash on every machine."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def layers_held(self, groups: Collection[int]) -> tuple[int, ...]:
        """Returns the layers whose every parameter group is among `groups`."""
        return layers_held(self.groups, self.num_layers, tuple(groups))

    def stages(self) -> Iterator[Stage]:
        for pipeline in self.pipelines:
            yield from pipeline.stages

    @cached_property
    def stage_mates(self) -> tuple[tuple[WorkerId, ...], ...]:
        """Workers that share stages, together; empty where each stage is on one device."""
        if self.devices_per_stage == 1:
            return ()
        mates: dict[int, list[WorkerId]] = {}
        for worker in self.workers:
            mates.setdefault(worker // self.devices_per_stage, []).append(worker)
        return tuple(map(tuple, mates.values()))

    @property
    def num_sharing(self) -> int:
        """Number of devices that compute each microbatch at a stage together."""
        return self.devices_per_stage if self.shares_microbatches else 1

    def first_of(self, worker: WorkerId) -> WorkerId:
        """Returns the worker that routes name for what a worker runs: itself, or the first device of its stage."""
        return first_sharing(worker, self.num_sharing)

    def node_of(self, worker: WorkerId) -> NodeId:
        return NodeId(worker // self.devices_per_node)
