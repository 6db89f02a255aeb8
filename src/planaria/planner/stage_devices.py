"""Stages on several devices: a plan whose workers are places of d devices, and the same plan by device.

Policies place stages. Where a stage is on d devices of a node, a policy counts those as one place: its plan has
devices_per_node / d places on a node. Every device of a stage is a worker that owns all of its layers, and the
microbatches of a route are dealt to the devices in turn: a microbatch stays with the same one of each stage's devices,
so that a pipeline of stages on d devices is d pipelines, its lanes. The unit of computation is the microbatch, whatever
d is, and so the bits are.

Microbatches of a route that goes on stay in their lanes. All devices of a stage are on one node and lost together, so
what one of them has of a step counts as the stage's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from planaria.plan.plan import Evaluation, Pipeline, Plan, Route, Stage, Transfer, WorkerId

Held = Mapping[WorkerId, Collection[int]]
"""For workers, the groups or layers that each holds."""


def by_stage(plan: Plan) -> Plan:
    """Returns the plan with each stage's devices as one place, as a policy made it."""
    devices = plan.devices_per_stage
    evaluation = plan.evaluation
    return msgspec.structs.replace(
        plan,
        devices_per_node=plan.devices_per_node // devices,
        devices_per_stage=1,
        pipelines=tuple(
            Pipeline(stages=_places(pipeline.stages, devices))
            for pipeline in plan.pipelines
            if pipeline.stages[0].worker % devices == 0
        ),
        routes=_joined(plan.routes, devices),
        shadows=_places(tuple(shadow for shadow in plan.shadows if shadow.worker % devices == 0), devices),
        transfers=tuple(
            msgspec.structs.replace(move, source=_place(move.source, devices), target=_place(move.target, devices))
            for move in plan.transfers
            if _place(move.source, devices) != _place(move.target, devices)
        ),
        evaluation=evaluation
        and Evaluation(num_microbatches=evaluation.num_microbatches, routes=_joined(evaluation.routes, devices)),
    )


def by_device(plan: Plan, devices: int, before: Plan | None = None, holders: Held | None = None) -> Plan:
    """Returns the plan as the devices of its stages carry it out.

    Args:
        plan: its workers are places of `devices` devices each.
        devices: of a stage.
        before: the plan in force, by device: what is under way stays in its lane.
        holders: the groups that each live device holds: one that lacks what another device of its stage has gets that;
            None: all devices of a stage hold the same, or nothing.
    """
    evaluation, last = plan.evaluation, None if before is None else before.evaluation
    whole = msgspec.structs.replace(
        plan,
        devices_per_node=plan.devices_per_node * devices,
        devices_per_stage=devices,
        pipelines=tuple(
            Pipeline(stages=stages) for pipeline in plan.pipelines for stages in _lanes(pipeline.stages, devices)
        ),
        routes=_dealt(plan.routes, devices, () if before is None else before.routes),
        shadows=tuple(stage for stages in zip(*_lanes(plan.shadows, devices), strict=True) for stage in stages),
        transfers=(),
        evaluation=evaluation
        and Evaluation(
            num_microbatches=evaluation.num_microbatches,
            routes=_dealt(evaluation.routes, devices, () if last is None else last.routes),
        ),
    )
    return whole.renewed(transfers=_transfers(plan, whole, holders or {}))


def places_held(holders: Held, devices: int) -> dict[WorkerId, tuple[int, ...]]:
    """Returns what each place holds that has all of its devices: what any of them has, as another can get it there."""
    held = _of_places(holders, devices)
    return {place: tuple(sorted(set().union(*each))) for place, each in held.items()}


def places_holding(holders: Held, devices: int) -> dict[WorkerId, tuple[int, ...]]:
    """Returns what all devices of each place hold, of those that are all there."""
    held = _of_places(holders, devices)
    return {place: tuple(sorted(set(each[0]).intersection(*each[1:]))) for place, each in held.items()}


def places_of(workers: Iterable[WorkerId], devices: int) -> tuple[WorkerId, ...]:
    """Returns the places all of whose devices are among the workers, ascending."""
    return tuple(_of_places(dict.fromkeys(workers, ()), devices))


def _of_places(holders: Held, devices: int) -> dict[WorkerId, list[Collection[int]]]:
    held: dict[WorkerId, list[Collection[int]]] = {}
    for worker in sorted(holders):
        held.setdefault(_place(worker, devices), []).append(holders[worker])
    return {place: each for place, each in held.items() if len(each) == devices}


def _place(worker: WorkerId, devices: int) -> WorkerId:
    return WorkerId(worker // devices)


@lru_cache(maxsize=1 << 12)
def _places(stages: tuple[Stage, ...], devices: int) -> tuple[Stage, ...]:
    return tuple(msgspec.structs.replace(stage, worker=_place(stage.worker, devices)) for stage in stages)


@lru_cache(maxsize=1 << 12)
def _lanes(stages: tuple[Stage, ...], devices: int) -> tuple[tuple[Stage, ...], ...]:
    """Returns the same stages on the first device of each place, on the second, and so on."""
    return tuple(
        tuple(msgspec.structs.replace(stage, worker=WorkerId(stage.worker * devices + device)) for stage in stages)
        for device in range(devices)
    )


def _joined(routes: Sequence[Route], devices: int) -> tuple[Route, ...]:
    """Returns routes of lanes with those that differ in their lane alone as one."""
    numbers: dict[Route, list[int]] = {}
    for route in routes:
        alike = msgspec.structs.replace(route, hops=_places(route.hops, devices), microbatches=())
        numbers.setdefault(alike, []).extend(route.microbatches)
    return tuple(msgspec.structs.replace(route, microbatches=tuple(sorted(own))) for route, own in numbers.items())


def _dealt(routes: Sequence[Route], devices: int, before: Sequence[Route]) -> tuple[Route, ...]:
    """Returns each route as one for each lane that has microbatches of it."""
    lane_of = {(route.born, m): route.hops[0].worker % devices for route in before for m in route.microbatches}
    turns: dict[WorkerId, int] = {}
    dealt: list[Route] = []
    for route in routes:
        first = route.hops[0].worker
        lanes: list[list[int]] = [[] for _ in range(devices)]
        for microbatch in route.microbatches:
            lane = lane_of.get((route.born, microbatch))
            if lane is None:
                turns[first] = turn = turns.get(first, -1) + 1
                lane = turn % devices
            lanes[lane].append(microbatch)
        for hops, own in zip(_lanes(route.hops, devices), lanes, strict=True):
            if own:
                dealt.append(msgspec.structs.replace(route, hops=hops, microbatches=tuple(own)))
    return tuple(dealt)


def _transfers(plan: Plan, whole: Plan, holders: Held) -> tuple[Transfer, ...]:
    """Returns what each device of the whole plan gets. What comes to its place comes to one of the devices, another for
    each group, and the others get it from that one, so that it passes between nodes once."""
    devices = whole.devices_per_stage
    coming: dict[tuple[WorkerId, int], list[Transfer]] = {}
    for move in plan.transfers:
        coming.setdefault((move.target, move.group), []).append(move)
    moves: list[Transfer] = []
    for worker, groups in whole.groups_of.items():
        place, lane = divmod(worker, devices)
        for group in groups:
            if group in holders.get(worker, ()):
                continue
            first, given = group % devices, coming.get((WorkerId(place), group), [])
            if given and lane == first:
                for move in given:
                    source = _sender(move.source, first, group, devices, holders)
                    moves.append(msgspec.structs.replace(move, source=source, target=worker))
            elif given:
                moves.append(Transfer(group=group, source=WorkerId(place * devices + first), target=worker))
            elif holders:
                source = _sender(WorkerId(place), lane, group, devices, holders)
                if group in holders.get(source, ()):
                    moves.append(Transfer(group=group, source=source, target=worker))
    return tuple(moves)


def _sender(place: WorkerId, lane: int, group: int, devices: int, holders: Held) -> WorkerId:
    """Returns the place's device that sends a group to a lane: its own, if that holds it or nobody is known to."""
    lanes = sorted(range(devices), key=lambda other: (other != lane, other))
    workers = [WorkerId(place * devices + other) for other in lanes]
    return next((worker for worker in workers if group in holders.get(worker, ())), workers[0])
