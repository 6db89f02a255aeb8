"""Stages on several devices: a plan whose workers are places of d devices, and the same plan by device.

Policies place stages. Where a stage is on d devices of a node, a policy counts those as one place: its plan has
devices_per_node / d places on a node. Every device of a stage is a worker that owns all of its layers, and the
microbatches of a route are dealt to the devices in turn: a microbatch stays with the same one of each stage's devices,
so that a pipeline of stages on d devices is d pipelines, its lanes. The unit of computation is the microbatch, whatever
d is, and so the bits are.

Devices may be lost alone. Then a place has fewer than d, and its microbatches are dealt to those: a route takes of each
stage the device whose turn it is. The first lane of a pipeline has all of its stages, and each further one those that
have a device left for it. For the policy the place is there, and its node slower (`device_shares`).

Microbatches of a route that goes on stay with their devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from planaria.plan.plan import Evaluation, NodeId, Pipeline, Plan, Route, Stage, Transfer, WorkerId

Held = Mapping[WorkerId, Collection[int]]
"""For workers, the groups or layers that each holds."""

Lost = frozenset[WorkerId]
"""Devices that were lost alone: their nodes live, and every place has another device."""

NOBODY: Lost = frozenset()


def by_stage(plan: Plan) -> Plan:
    """Returns the plan with each stage's devices as one place, as a policy made it."""
    devices = plan.devices_per_stage
    evaluation = plan.evaluation
    return msgspec.structs.replace(
        plan,
        devices_per_node=plan.devices_per_node // devices,
        devices_per_stage=1,
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


def by_device(
    plan: Plan, devices: int, before: Plan | None = None, holders: Held | None = None, lost: Lost = NOBODY
) -> Plan:
    """Returns the plan as the devices of its stages carry it out.

    Args:
        plan: its workers are places of `devices` devices each.
        devices: of a stage.
        before: the plan in force, by device: what is under way stays in its lane.
        holders: the groups that each live device holds: one that lacks what another device of its stage has gets that;
            None: all devices of a stage hold the same, or nothing.
        lost: devices that the plan does without.
    """
    evaluation, last = plan.evaluation, None if before is None else before.evaluation
    whole = msgspec.structs.replace(
        plan,
        devices_per_node=plan.devices_per_node * devices,
        devices_per_stage=devices,
        pipelines=tuple(
            Pipeline(stages=stages) for pipeline in plan.pipelines for stages in _lanes(pipeline.stages, devices, lost)
        ),
        routes=_dealt(plan.routes, devices, () if before is None else before.routes, lost),
        shadows=tuple(
            msgspec.structs.replace(shadow, worker=worker)
            for shadow in plan.shadows
            for worker in _devices_of(shadow.worker, devices, lost)
        ),
        transfers=(),
        evaluation=evaluation
        and Evaluation(
            num_microbatches=evaluation.num_microbatches,
            routes=_dealt(evaluation.routes, devices, () if last is None else last.routes, lost),
        ),
    )
    return whole.renewed(transfers=_transfers(plan, whole, holders or {}, lost))


def places_held(holders: Held, devices: int, lost: Lost = NOBODY) -> dict[WorkerId, tuple[int, ...]]:
    """Returns what each place holds that has all of its devices, the lost ones aside: what any of them has, as another
    can get it there."""
    held = _of_places(holders, devices, lost)
    return {place: tuple(sorted(set().union(*each))) for place, each in held.items()}


def places_holding(holders: Held, devices: int, lost: Lost = NOBODY) -> dict[WorkerId, tuple[int, ...]]:
    """Returns what all devices of each place hold, of those that are all there, the lost ones aside."""
    held = _of_places(holders, devices, lost)
    return {place: tuple(sorted(set(each[0]).intersection(*each[1:]))) for place, each in held.items()}


def places_of(workers: Iterable[WorkerId], devices: int, lost: Lost = NOBODY) -> tuple[WorkerId, ...]:
    """Returns the places all of whose devices but the lost ones are among the workers, ascending."""
    return tuple(_of_places(dict.fromkeys(workers, ()), devices, lost))


def has_every_device(plan: Plan, lost: Lost) -> bool:
    """Returns whether the plan has all devices of its places but the lost ones."""
    devices = plan.devices_per_stage
    places = {_place(worker, devices) for worker in plan.workers}
    return set(plan.workers) == {worker for place in places for worker in _devices_of(place, devices, lost)}


def device_shares(lost: Lost, devices: int, devices_per_node: int) -> dict[NodeId, float]:
    """Returns, of each node that lost devices alone, which part of its devices the place has that is left fewest."""
    shares: dict[NodeId, float] = {}
    for place in sorted({_place(worker, devices) for worker in lost}):
        node = NodeId(place * devices // devices_per_node)
        shares[node] = min(shares.get(node, 1.0), len(_devices_of(place, devices, lost)) / devices)
    return shares


def _of_places(holders: Held, devices: int, lost: Lost) -> dict[WorkerId, list[Collection[int]]]:
    held: dict[WorkerId, list[Collection[int]]] = {}
    for worker in sorted(holders):
        held.setdefault(_place(worker, devices), []).append(holders[worker])
    return {place: each for place, each in held.items() if len(each) == len(_devices_of(place, devices, lost))}


def _place(worker: WorkerId, devices: int) -> WorkerId:
    return WorkerId(worker // devices)


@lru_cache(maxsize=1 << 12)
def _devices_of(place: WorkerId, devices: int, lost: Lost) -> tuple[WorkerId, ...]:
    """Returns the devices that a place has left, ascending."""
    return tuple(WorkerId(w) for w in range(place * devices, (place + 1) * devices) if w not in lost)


@lru_cache(maxsize=1 << 12)
def _places(stages: tuple[Stage, ...], devices: int) -> tuple[Stage, ...]:
    return tuple(msgspec.structs.replace(stage, worker=_place(stage.worker, devices)) for stage in stages)


@lru_cache(maxsize=1 << 12)
def _lanes(stages: tuple[Stage, ...], devices: int, lost: Lost) -> tuple[tuple[Stage, ...], ...]:
    """Returns the same stages on the first device of each place, on the second, and so on, as far as there is one."""
    most = max((len(_devices_of(stage.worker, devices, lost)) for stage in stages), default=0)
    return tuple(
        tuple(
            msgspec.structs.replace(stage, worker=left[lane])
            for stage in stages
            if lane < len(left := _devices_of(stage.worker, devices, lost))
        )
        for lane in range(most)
    )


@lru_cache(maxsize=1 << 14)
def _in_turn(hops: tuple[Stage, ...], devices: int, lost: Lost, turn: int) -> tuple[Stage, ...]:
    """Returns the hops on that device of each place whose turn it is."""
    return tuple(
        msgspec.structs.replace(hop, worker=left[turn % len(left)])
        for hop in hops
        for left in (_devices_of(hop.worker, devices, lost),)
    )


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


def _joined(routes: Sequence[Route], devices: int) -> tuple[Route, ...]:
    """Returns routes of lanes with those that differ in their lane alone as one."""
    numbers: dict[Route, list[int]] = {}
    for route in routes:
        alike = msgspec.structs.replace(route, hops=_places(route.hops, devices), microbatches=())
        numbers.setdefault(alike, []).extend(route.microbatches)
    return tuple(msgspec.structs.replace(route, microbatches=tuple(sorted(own))) for route, own in numbers.items())


def _dealt(routes: Sequence[Route], devices: int, before: Sequence[Route], lost: Lost) -> tuple[Route, ...]:
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
                hops = _in_turn(route.hops, devices, lost, turn % _period(route.hops, devices, lost))
            elif _places(hops, devices) != route.hops:  # others go on in the place of a stage that was lost
                hops = _in_turn(route.hops, devices, lost, hops[0].worker % devices)
            shares.setdefault(hops, []).append(microbatch)
        for hops, own in sorted(shares.items(), key=lambda share: [hop.worker for hop in share[0]]):
            dealt.append(msgspec.structs.replace(route, hops=hops, microbatches=tuple(own)))
    return tuple(dealt)


@lru_cache(maxsize=1 << 12)
def _period(hops: tuple[Stage, ...], devices: int, lost: Lost) -> int:
    """Returns after how many turns all hops are on the same devices again."""
    return math.lcm(*(len(_devices_of(hop.worker, devices, lost)) for hop in hops))


def _transfers(plan: Plan, whole: Plan, holders: Held, lost: Lost) -> tuple[Transfer, ...]:
    """Returns what each device of the whole plan gets. What comes to its place comes to one of the devices, another for
    each group, and the others get it from that one, so that it passes between nodes once."""
    devices = whole.devices_per_stage
    coming: dict[tuple[WorkerId, int], list[Transfer]] = {}
    for move in plan.transfers:
        coming.setdefault((move.target, move.group), []).append(move)
    moves: list[Transfer] = []
    for worker, groups in whole.groups_of.items():
        place = _place(worker, devices)
        left = _devices_of(place, devices, lost)
        for group in groups:
            if group in holders.get(worker, ()):
                continue
            first, given = left[group % len(left)], coming.get((place, group), [])
            if given and worker == first:
                for move in given:
                    senders = _devices_of(move.source, devices, lost)
                    source = _sender(senders, worker % devices, group, devices, holders)
                    moves.append(msgspec.structs.replace(move, source=source, target=worker))
            elif given:
                moves.append(Transfer(group=group, source=first, target=worker))
            elif holders:
                source = _sender(left, worker % devices, group, devices, holders)
                if group in holders.get(source, ()):
                    moves.append(Transfer(group=group, source=source, target=worker))
    return tuple(moves)


def _sender(able: Sequence[WorkerId], lane: int, group: int, devices: int, holders: Held) -> WorkerId:
    """Returns which of a place's devices sends a group to a lane: its own, if that holds it or nobody is known to."""
    workers = sorted(able, key=lambda worker: (worker % devices != lane, worker))
    return next((worker for worker in workers if group in holders.get(worker, ())), workers[0])
