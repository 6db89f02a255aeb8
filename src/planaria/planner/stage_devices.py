"""Stages on several devices: a plan whose workers are places of d devices, and the same plan by device.

Policies place stages. Where a stage is on d devices of a node, a policy counts those as one place: its plan has
devices_per_node / d places on a node. Every device of a stage is a worker that owns all of its layers, and the
microbatches of a route are dealt to the devices in turn: a microbatch stays with the same one of each stage's devices,
so that a pipeline of stages on d devices is d pipelines, its lanes. The unit of computation is the microbatch, whatever
d is, and so the bits are.

Devices may be lost alone. Then a place has fewer than d, and its microbatches are dealt to those: a route takes of each
stage the device whose turn it is. The first lane of a pipeline has all of its stages, and each further one those that
have a device left for it. A place that has none is carried by the nearest one of its node, whose devices run its stage
too. For the policy every place is there, and the node slower (`Devices.shares`).

Microbatches of a route that goes on stay with their devices.

Where they share each microbatch (`share_microbatches`), every one runs what routes have the first of them run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from planaria.plan.plan import Evaluation, NodeId, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.planner.placement.transfers import transfers

Held = Mapping[WorkerId, Collection[int]]
"""For workers, the groups or layers that each holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of nodes: how stages share them, and which are not there.

    Attributes:
        per_stage: d: so many neighbouring devices of a node are a place.
        per_node: on each node.
        lost: those that were lost alone; their nodes live.
        spreads_optimizer: see `Plan.spreads_optimizer`.
        share_microbatches: all devices of a stage compute each microbatch, where all are there: see
            `Plan.shares_microbatches`; else they take microbatches in turn.
    """

    per_stage: int
    per_node: int
    lost: frozenset[WorkerId] = frozenset()
    spreads_optimizer: bool = False
    share_microbatches: bool = False

    @property
    def are_plain(self) -> bool:
        """Whether places are devices, all there."""
        return self.per_stage == 1 and not self.lost

    def place(self, worker: WorkerId) -> WorkerId:
        """Returns the place of a device."""
        return WorkerId(worker // self.per_stage)

    def node_places(self, place: WorkerId) -> list[WorkerId]:
        """Returns the places of a place's node, ascending."""
        number = self.per_node // self.per_stage
        first = place - place % number
        return [WorkerId(other) for other in range(first, first + number)]

    def carried(self) -> list[WorkerId]:
        """Returns the places that have no device left, ascending."""
        return [place for place in sorted({self.place(worker) for worker in self.lost}) if not _left(place, self)]

    def running(self, place: WorkerId) -> tuple[WorkerId, ...]:
        """Returns the devices that run a place's stages, ascending."""
        return _devices_of(place, self)

    def node_of(self, place: WorkerId) -> NodeId:
        return NodeId(place * self.per_stage // self.per_node)

    def shares(self) -> dict[NodeId, float]:
        """Returns, of each node that lost devices alone, the part of its speed that its busiest place has left."""
        shares: dict[NodeId, float] = {}
        for place in sorted({self.place(worker) for worker in self.lost}):
            places = self.node_places(place)
            stages = Counter(_carrier(each, self) for each in places)
            left = [len(_left(each, self)) / self.per_stage / number for each, number in stages.items()]
            shares[self.node_of(place)] = min(part for part in left if part) if any(left) else 1.0
        return shares


def by_stage(plan: Plan, on: Devices | None = None) -> Plan:
    """Returns the plan with each stage's devices as one place, as a policy made it.

    Args:
        plan: by device.
        on: the devices that are there now: then what a place runs for others that have no device, or whose device has
            come back, is theirs, as the policy means it. None: it is that place's own.
    """
    devices = plan.devices_per_stage
    if devices > 1:
        evaluation = plan.evaluation
        plan = msgspec.structs.replace(
            plan,
            devices_per_node=plan.devices_per_node // devices,
            devices_per_stage=1,
            spreads_optimizer=False,
            shares_microbatches=False,
            pipelines=_pipelines_of_places(plan.pipelines, devices),
            routes=_joined(plan.routes, devices),
            shadows=tuple(dict.fromkeys(_places(plan.shadows, devices))),
            transfers=tuple(
                msgspec.structs.replace(move, source=_place(move.source, devices), target=_place(move.target, devices))
                for move in plan.transfers
                if _place(move.source, devices) != _place(move.target, devices)
            ),
            evaluation=evaluation
            and Evaluation(num_microbatches=evaluation.num_microbatches, routes=_joined(evaluation.routes, devices)),
        )
    return plan if on is None else _given_back(plan, on)


def by_device(
    plan: Plan, on: Devices, before: Plan | None = None, holders: Held | None = None, computing: Held | None = None
) -> Plan:
    """Returns the plan as the devices of its stages carry it out.

    Args:
        plan: its workers are places.
        on: the devices that are there.
        before: the plan in force, by device: what is under way stays in its lane.
        holders: the groups that each live device holds whole: one that lacks what another device of its stage has gets
            that; None: the devices of a stage hold the same, or nothing.
        computing: the groups of which each live device has the parameters at least, where that is known; None: those
            that it holds.
    """
    if on.are_plain:
        return plan
    whole = carried(plan, on, before)
    return whole.renewed(transfers=_transfers(plan, whole, on, holders or {}, computing or {}))


def carried(plan: Plan, on: Devices, before: Plan | None = None) -> Plan:
    """Returns the plan as `by_device` does, without what moves."""
    evaluation = plan.evaluation
    shares = on.share_microbatches and not on.lost
    if before is not None and (shares or before.shares_microbatches):
        before = None
    last = None if before is None else before.evaluation
    deal = _led if shares else _dealt
    return msgspec.structs.replace(
        plan,
        devices_per_node=on.per_node,
        devices_per_stage=on.per_stage,
        spreads_optimizer=on.spreads_optimizer,
        shares_microbatches=shares,
        pipelines=tuple(Pipeline(stages=stages) for p in plan.pipelines for stages in _lanes(p.stages, on)),
        routes=deal(plan.routes, on, () if before is None else before.routes),
        shadows=tuple(
            msgspec.structs.replace(shadow, worker=worker)
            for shadow in plan.shadows
            for worker in _devices_of(shadow.worker, on)
        ),
        transfers=(),
        evaluation=evaluation
        and Evaluation(
            num_microbatches=evaluation.num_microbatches,
            routes=deal(evaluation.routes, on, () if last is None else last.routes),
        ),
    )


def with_state(plan: Plan, holders: Held) -> Plan:
    """Returns the plan with moves to all workers that lack a group: a device that has come back takes the place again
    that others of its node ran. Raises NoReplica: nobody holds one."""
    coming = {(move.target, move.group) for move in plan.transfers}
    is_complete = all(
        group in holders.get(worker, ()) or (worker, group) in coming
        for worker, groups in plan.groups_of.items()
        for group in groups
    )
    return plan if is_complete else plan.renewed(transfers=transfers(plan, holders))


def places_held(holders: Held, on: Devices) -> dict[WorkerId, tuple[int, ...]]:
    """Returns what each place holds that has all of its devices, the lost ones aside: what any of them has, as another
    can get it there; a place without any, what its carrier holds."""
    held = _of_places(holders, on, on.carried())
    return {place: tuple(sorted(set().union(*each))) for place, each in held.items()}


def places_holding(holders: Held, on: Devices) -> dict[WorkerId, tuple[int, ...]]:
    """Returns what all devices of each place hold, of those that are all there, the lost ones aside."""
    held = _of_places(holders, on)
    return {place: tuple(sorted(set(each[0]).intersection(*each[1:]))) for place, each in held.items()}


def places_of(workers: Iterable[WorkerId], on: Devices) -> tuple[WorkerId, ...]:
    """Returns the places all of whose devices but the lost ones are among the workers, ascending."""
    return tuple(_of_places(dict.fromkeys(workers, ()), on))


def hold_alike(plan: Plan, holders: Held) -> bool:
    """Returns whether the devices of each place hold the same: those that the plan has, and those beside it that hold
    anything."""
    if plan.devices_per_stage == 1:
        return True
    held: dict[WorkerId, Collection[int]] = {}
    return all(
        held.setdefault(_place(worker, plan.devices_per_stage), groups) == groups
        for worker, groups in ((worker, frozenset(groups)) for worker, groups in holders.items())
        if groups or worker in plan.groups_of
    )


def has_every_device(plan: Plan, on: Devices) -> bool:
    """Returns whether the plan is for the devices that are there, and for all of them that its places have."""
    return set(plan.workers) == {w for place in by_stage(plan, on).workers for w in _devices_of(place, on)}


def is_carried_well(plan: Plan, places: Plan, on: Devices) -> bool:
    """Returns whether devices can run the stages of places without any beside their own: each is in one pipeline alone,
    and shadows nothing.

    Args:
        plan: by device.
        places: the same plan of places.
        on: the devices that are there.
    """
    if set(on.carried()).isdisjoint(places.workers):
        return True
    is_wide = any(pipeline.most_devices > 1 for pipeline in places.pipelines)
    return not plan.shadows and not is_wide and (plan.is_apart or not places.is_apart)


def _of_places(holders: Held, on: Devices, carried: Collection[WorkerId] = ()) -> dict[WorkerId, list[Collection[int]]]:
    """Returns what each device holds of the places that are all there, and of those that others carry."""
    held: dict[WorkerId, list[Collection[int]]] = {}
    for place in sorted({*map(on.place, holders), *carried}):
        devices = _devices_of(place, on)
        if devices and all(worker in holders for worker in devices):
            held[place] = [holders[worker] for worker in devices]
    return held


def _place(worker: WorkerId, devices: int) -> WorkerId:
    return WorkerId(worker // devices)


def _left(place: WorkerId, on: Devices) -> tuple[WorkerId, ...]:
    """Returns the devices that a place has left, ascending."""
    devices = on.per_stage
    return tuple(WorkerId(w) for w in range(place * devices, (place + 1) * devices) if w not in on.lost)


@lru_cache(maxsize=1 << 12)
def _carrier(place: WorkerId, on: Devices) -> WorkerId:
    """Returns the place itself, or the nearest one of its node that has a device, where it has none."""
    nearest = sorted(on.node_places(place), key=lambda other: (abs(other - place), other))
    return next((other for other in nearest if _left(other, on)), place)


@lru_cache(maxsize=1 << 12)
def _devices_of(place: WorkerId, on: Devices) -> tuple[WorkerId, ...]:
    """Returns the devices that run a place's stages, ascending."""
    return _left(_carrier(place, on), on)


@lru_cache(maxsize=1 << 12)
def _places(stages: tuple[Stage, ...], devices: int) -> tuple[Stage, ...]:
    return tuple(msgspec.structs.replace(stage, worker=_place(stage.worker, devices)) for stage in stages)


@lru_cache(maxsize=1 << 12)
def _lanes(stages: tuple[Stage, ...], on: Devices) -> tuple[tuple[Stage, ...], ...]:
    """Returns the same stages on the first device of each place, on the second, and so on, as far as there is one."""
    devices = [_devices_of(stage.worker, on) for stage in stages]
    return tuple(
        tuple(
            msgspec.structs.replace(stage, worker=own[lane])
            for stage, own in zip(stages, devices, strict=True)
            if lane < len(own)
        )
        for lane in range(max(map(len, devices), default=0))
    )


@lru_cache(maxsize=1 << 14)
def _in_turn(hops: tuple[Stage, ...], on: Devices, turn: int) -> tuple[Stage, ...]:
    """Returns the hops on that device of each place whose turn it is."""
    devices = [_devices_of(hop.worker, on) for hop in hops]
    return tuple(
        msgspec.structs.replace(hop, worker=own[turn % len(own)]) for hop, own in zip(hops, devices, strict=True)
    )


@lru_cache(maxsize=1 << 12)
def _period(hops: tuple[Stage, ...], on: Devices) -> int:
    """Returns after how many turns all hops are on the same devices again."""
    return math.lcm(*(len(_devices_of(hop.worker, on)) for hop in hops))


def _pipelines_of_places(pipelines: Sequence[Pipeline], devices: int) -> tuple[Pipeline, ...]:
    """Returns pipelines of places, of lanes: those that have a place in common are one."""
    joined: dict[int, dict[Stage, None]] = {}
    where: dict[WorkerId, int] = {}
    for number, pipeline in enumerate(pipelines):
        stages = dict.fromkeys(_places(pipeline.stages, devices))
        for known in sorted({where[stage.worker] for stage in stages if stage.worker in where}):
            stages = joined.pop(known) | stages
        joined[number] = stages
        where.update((stage.worker, number) for stage in stages)
    return tuple(
        Pipeline(stages=tuple(sorted(stages, key=lambda stage: stage.first_layer))) for stages in joined.values()
    )


def _given_back(plan: Plan, on: Devices) -> Plan:
    """Returns a plan of places in which those that run several stages run one, and the others are of the places of
    their node that run none."""
    taken, moved = set(plan.workers), dict[Stage, Stage]()
    for pipeline in plan.pipelines:
        if len(pipeline.owned) == len(pipeline.stages):
            continue
        for worker in pipeline.owned:
            stages = [stage for stage in pipeline.stages if stage.worker == worker]
            free = (place for place in on.node_places(worker) if place not in taken)
            nearest = sorted(free, key=lambda place: (_carrier(place, on) != worker, abs(place - worker), place))
            places = sorted([worker, *nearest[: len(stages) - 1]])
            taken.update(places)
            moved.update(
                (stage, msgspec.structs.replace(stage, worker=place))
                for stage, place in zip(stages, places, strict=False)
            )
    if not moved:
        return plan

    def given(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(moved.get(stage, stage) for stage in stages)

    return msgspec.structs.replace(
        plan,
        pipelines=tuple(Pipeline(stages=given(pipeline.stages)) for pipeline in plan.pipelines),
        routes=tuple(msgspec.structs.replace(route, hops=given(route.hops)) for route in plan.routes),
    )


def _joined(routes: Sequence[Route], devices: int) -> tuple[Route, ...]:
    """Returns routes of lanes with those that differ in their lane alone as one."""
    numbers: dict[Route, list[int]] = {}
    for route in routes:
        alike = msgspec.structs.replace(route, hops=_places(route.hops, devices), microbatches=())
        numbers.setdefault(alike, []).extend(route.microbatches)
    return tuple(msgspec.structs.replace(route, microbatches=tuple(sorted(own))) for route, own in numbers.items())


def _led(routes: Sequence[Route], on: Devices, before: Sequence[Route]) -> tuple[Route, ...]:
    """Returns each route on the first device of each place, with which the others run it."""
    return tuple(msgspec.structs.replace(route, hops=_in_turn(route.hops, on, 0)) for route in routes)


def _dealt(routes: Sequence[Route], on: Devices, before: Sequence[Route]) -> tuple[Route, ...]:
    """Returns each route as one for each set of devices that has microbatches of it."""
    hops_of = {(route.born, m): route.hops for route in before for m in route.microbatches}
    turns: dict[WorkerId, int] = {}
    dealt: list[Route] = []
    for route in routes:
        first = route.hops[0].worker
        shares: dict[tuple[Stage, ...], list[int]] = {}
        for microbatch in route.microbatches:
            hops = hops_of.get((route.born, microbatch))
            if hops is None:
                turns[first] = turn = turns.get(first, -1) + 1
                hops = _in_turn(route.hops, on, turn % _period(route.hops, on))
            elif _places(hops, on.per_stage) != route.hops:  # others go on in the place of a stage that was lost
                hops = _in_turn(route.hops, on, hops[0].worker % on.per_stage)
            shares.setdefault(hops, []).append(microbatch)
        for hops, own in sorted(shares.items(), key=lambda share: [hop.worker for hop in share[0]]):
            dealt.append(msgspec.structs.replace(route, hops=hops, microbatches=tuple(own)))
    return tuple(dealt)


def _transfers(plan: Plan, whole: Plan, on: Devices, holders: Held, computing: Held) -> tuple[Transfer, ...]:
    """Returns what each device of the whole plan gets. What comes to its place comes to one of the devices, another for
    each group (its keeper, if there is one), and the others get it from that one, so that it passes between nodes
    once."""
    coming: dict[tuple[WorkerId, int], list[Transfer]] = {}
    for move in plan.transfers:
        given = coming.setdefault((_carrier(move.target, on), move.group), [])
        if not given or given[0].target == move.target:
            given.append(move)
    moves: list[Transfer] = []
    for worker, groups in whole.groups_of.items():
        place, lane = on.place(worker), worker % on.per_stage
        left = _left(place, on)
        for group in groups:
            if group in holders.get(worker, ()):
                continue
            first, given = left[group % len(left)], coming.get((place, group), [])
            if whole.spreads_optimizer:
                first = next(device for device in left if group in whole.kept_of[device])
                if group not in whole.kept_of[worker]:
                    if given or (holders and group not in computing.get(worker, ())):
                        moves.append(Transfer(group=group, source=first, target=worker, with_optimizer=False))
                    continue
            if given and worker == first:
                for move in given:
                    source = _sender(_devices_of(move.source, on), lane, group, on, holders)
                    moves.append(msgspec.structs.replace(move, source=source, target=worker))
            elif given:
                moves.append(Transfer(group=group, source=first, target=worker))
            elif holders:
                source = _sender(left, lane, group, on, holders)
                if group in holders.get(source, ()):
                    moves.append(Transfer(group=group, source=source, target=worker))
    return tuple(moves)


def _sender(able: Sequence[WorkerId], lane: int, group: int, on: Devices, holders: Held) -> WorkerId:
    """Returns which of a place's devices sends a group to a lane: its own, if that holds it or nobody is known to."""
    workers = sorted(able, key=lambda worker: (worker % on.per_stage != lane, worker))
    return next((worker for worker in workers if group in holders.get(worker, ())), workers[0])
