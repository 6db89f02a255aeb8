"""Validation: the one function that every plan passes before it is taken, and that tests use."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Sequence

from planaria.plan.ledger import Ledger, mask_of
from planaria.plan.plan import Plan, PlanError, Route, WorkerId


def validate(
    plan: Plan,
    *,
    fault_tolerance: int | None = None,
    already: Ledger | None = None,
    dropped: Sequence[int] = (),
    arrived: bool = False,
) -> None:
    """Checks every invariant of a plan.

    Args:
        plan: the plan to check.
        fault_tolerance: f; given, every layer must have f + 1 replicas, on nodes of their own.
        already: what live accumulators hold beside the routes' work; default: nothing. Together with the
            routes it must count every microbatch exactly once for every layer. What it has of microbatches that
            the plan leaves out is void. Given for an evaluation, the plan finishes that, and its step is not looked at.
        dropped: the microbatches that the policy means to leave out. The plan must leave out exactly those.
        arrived: shadows are replicas though their state is under way, see `planaria.plan.validate`.

    Raises:
        PlanError: the first invariant found broken, with its values.
    """
    if plan.evaluation is not None:
        if already is None:
            validate(plan.of_step, fault_tolerance=fault_tolerance, dropped=dropped, arrived=arrived)
        plan, dropped, fault_tolerance = plan.of_pass, (), None
    _check_placement(plan)
    _check_stage_mates(plan)
    _check_order(plan)
    _check_dropped(plan, dropped)
    _check_groups(plan)
    _check_routes(plan)
    _check_travellers(plan)
    _check_counts(plan, already)
    _check_transfers(plan)
    if fault_tolerance is not None:
        _check_replicas(plan, fault_tolerance, arrived)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise PlanError(f"Invalid plan: {message}.")


def _check_placement(plan: Plan) -> None:
    _require(bool(plan.pipelines), "it has no pipeline")
    if not (all(pipeline.is_sound(plan.num_layers) for pipeline in plan.pipelines) and plan.is_apart):
        _check_stages(plan)
    for shadow in plan.shadows:
        where = f"shadow [{shadow.first_layer}, {shadow.end_layer}) of worker {shadow.worker}"
        inside = 0 <= shadow.first_layer < shadow.end_layer <= plan.num_layers
        _require(inside, f"{where} is no range of {plan.num_layers} layers")
        own = plan.layers_of.get(shadow.worker, ())
        _require(set(shadow.layers).isdisjoint(own), f"{where}: the worker owns some of it")
    if any(pipeline.most_devices > 1 for pipeline in plan.pipelines):
        _check_devices(plan)


def _check_stages(plan: Plan) -> None:
    """Checks each stage by itself, where not all are known to be in order."""
    home: dict[int, int] = {}
    for at, pipeline in enumerate(plan.pipelines):
        _require(bool(pipeline.stages), f"pipeline {at} has no stage")
        for stage in pipeline.stages:
            inside = 0 <= stage.first_layer < stage.end_layer <= plan.num_layers
            other = home.setdefault(stage.worker, at)
            if inside and other == at and stage.worker >= 0 and stage.num_devices >= 1:
                continue  # of thousands of stages, no sentence need be made
            where = f"stage [{stage.first_layer}, {stage.end_layer}) of pipeline {at}"
            _require(stage.worker >= 0, f"{where} has worker {stage.worker}")
            _require(stage.num_devices >= 1, f"{where} has {stage.num_devices} devices")
            _require(inside, f"{where} is no range of {plan.num_layers} layers")
            _require(other == at, f"worker {stage.worker} is in pipelines {other} and {at}")


def _check_devices(plan: Plan) -> None:
    """Checks that a stage's devices follow its worker's, on one node, and that no two workers share any."""
    driver: dict[int, WorkerId] = {}
    for stage in plan.stages():
        if stage.num_devices == 1 and driver.setdefault(stage.worker, stage.worker) == stage.worker:
            continue
        where = f"stage [{stage.first_layer}, {stage.end_layer}) of worker {stage.worker}"
        last = WorkerId(stage.worker + stage.num_devices - 1)
        _require(
            plan.node_of(last) == plan.node_of(stage.worker),
            f"{where} takes {stage.num_devices} devices, and its node has {plan.devices_per_node}, of which it is "
            f"number {stage.worker % plan.devices_per_node}",
        )
        for device in range(stage.worker, stage.worker + stage.num_devices):
            other = driver.setdefault(device, stage.worker)
            _require(other == stage.worker, f"{where} takes device {device}, which worker {other} drives")


def _check_stage_mates(plan: Plan) -> None:
    devices, own, held = plan.devices_per_stage, plan.layers_of, plan.groups_of
    _require(
        devices >= 1 and plan.devices_per_node % devices == 0,
        f"its stages are on {devices} devices each, and a node has {plan.devices_per_node}",
    )
    for mates in plan.stage_mates:
        first = mates[0]
        for mate in mates[1:]:
            _require(
                own.get(mate) == own.get(first) and held.get(mate) == held.get(first),
                f"worker {mate} does not hold what worker {first} does, with which it shares its stages",
            )
    if plan.shares_microbatches:
        _check_sharing(plan)


def _check_sharing(plan: Plan) -> None:
    """Checks that each stage that computes has all of its devices, and that routes name the first of them."""
    devices = plan.devices_per_stage
    _require(devices & (devices - 1) == 0 and devices > 1, f"{devices} devices cannot share a microbatch")
    named = {hop.worker for route in plan.routes for hop in route.hops}
    for worker in sorted(named):
        _require(plan.first_of(worker) == worker, f"a route names worker {worker}, which is not the first of its stage")
    for mates in plan.stage_mates:
        is_whole = len(mates) == devices or named.isdisjoint(mates)
        _require(is_whole, f"workers {mates} share microbatches, and their stage has {devices} devices")


def _check_order(plan: Plan) -> None:
    _require(plan.spare_in_flight >= 0, f"{plan.spare_in_flight} microbatches are to be kept beyond the schedule's")
    units = plan.layer_units
    _require(len(units) in (0, plan.num_layers), f"{len(units)} layers have units, of {plan.num_layers}")
    _require(all(min(layer) >= 0 for layer in units), "a layer takes less than no time")


def _check_dropped(plan: Plan, allowed: Sequence[int]) -> None:
    _require(
        plan.dropped == tuple(allowed),
        f"it leaves out microbatches {plan.dropped}, and the policy means to leave out {tuple(allowed)}",
    )
    if plan.dropped:
        _require(tuple(sorted(set(plan.dropped))) == plan.dropped, f"left out are {plan.dropped}: not ascending")
        known = plan.dropped[0] >= 0 and plan.dropped[-1] < plan.num_microbatches
        _require(known, f"left out are {plan.dropped}: a step has {plan.num_microbatches} microbatches")
        _require(plan.num_counted > 0, "it leaves out every microbatch")


def _check_groups(plan: Plan) -> None:
    _require(
        len(plan.sync_epochs) == len(plan.groups),
        f"{len(plan.sync_epochs)} sync epochs for {len(plan.groups)} groups",
    )
    if min(plan.num_owners, default=1) > 0 and max(plan.sync_epochs, default=0) <= plan.generation:
        return  # of dozens of groups, no sentence need be made
    for group, epoch in enumerate(plan.sync_epochs):
        _require(epoch <= plan.generation, f"group {group} has epoch {epoch} in generation {plan.generation}")
        _require(plan.num_owners[group] > 0, f"group {group} has no owner")


def _check_routes(plan: Plan) -> None:
    """Checks each route by itself; layers that many routes count alike are checked once."""
    sound = {id(route.counted): _is_ascending(route.counted, plan.num_layers) for route in _one_of_each(plan.routes)}
    for route, at in zip(plan.routes, plan.pipeline_of_route, strict=True):
        is_in_order = (
            at >= 0
            and sound[id(route.counted)]
            and route.reached is None
            and route.born <= plan.generation
            and plan.pipelines[at].is_whole(plan.num_layers)
            and _is_ascending(route.microbatches, plan.num_microbatches)
        )
        if not is_in_order:
            _check_route(plan, route)


def _one_of_each(routes: Sequence[Route]) -> Collection[Route]:
    """Returns one route for each object that says which layers are counted."""
    return {id(route.counted): route for route in routes}.values()


def _is_ascending(numbers: tuple[int, ...], end: int) -> bool:
    """Returns whether the numbers are not empty, ascending, at least 0 and below `end`."""
    if not numbers or numbers[0] < 0 or numbers[-1] >= end:
        return False
    first, last = numbers[0], numbers[-1]
    if last - first + 1 == len(numbers):
        return numbers == tuple(range(first, last + 1))
    return tuple(sorted(set(numbers))) == numbers


def _check_route(plan: Plan, route: Route) -> None:
    name = f"route of microbatches {route.microbatches} born in {route.born}"
    _require(route.born <= plan.generation, f"{name} is in generation {plan.generation}")
    _require(bool(route.microbatches), "a route has no microbatch")
    _require(tuple(sorted(set(route.microbatches))) == route.microbatches, f"{name}: not ascending")
    known = route.microbatches[0] >= 0 and route.microbatches[-1] < plan.num_microbatches
    _require(known, f"{name}: a step has {plan.num_microbatches} microbatches")
    _require(bool(route.counted), f"{name} counts no layer")
    _require(tuple(sorted(set(route.counted))) == route.counted, f"{name}: counted layers not ascending")
    reached = plan.num_layers if route.reached is None else route.reached
    _require(0 <= reached <= plan.num_layers, f"{name} reached layer {reached} of {plan.num_layers}")
    inside = route.counted[0] >= 0 and route.counted[-1] < plan.num_layers
    _require(inside, f"{name} counts layers {route.counted} of {plan.num_layers}")
    position = 0
    for hop in route.hops:
        follows = hop.first_layer == position < hop.end_layer
        _require(
            follows, "" if follows else f"{name}: hop [{hop.first_layer}, {hop.end_layer}) follows layer {position - 1}"
        )
        position = hop.end_layer
        owned = set(hop.layers) <= set(plan.layers_of.get(hop.worker, ()))
        _require(
            owned,
            "" if owned else f"{name}: worker {hop.worker} does not own all of [{hop.first_layer}, {hop.end_layer})",
        )
    _require(position == plan.num_layers, f"{name} ends at layer {position} of {plan.num_layers}")


def _check_travellers(plan: Plan) -> None:
    travelling = functools.reduce(operator.or_, plan.work.values(), 0)
    if travelling.bit_count() == _num_travelling(plan):
        return  # each once in all
    seen: dict[int, int] = {}
    for route in plan.routes:
        mask, before = mask_of(route.microbatches), seen.get(route.born, 0)
        twice = before & mask
        _require(not twice, f"microbatch {twice.bit_length() - 1} has two routes born in {route.born}")
        seen[route.born] = before | mask


def _check_counts(plan: Plan, already: Ledger | None) -> None:
    bits = list((already or Ledger.empty(plan.num_layers)).bits())
    _require(len(bits) == plan.num_layers, f"the ledger has {len(bits)} layers, the plan {plan.num_layers}")
    left_out = mask_of(plan.dropped)
    bits = [mask & ~left_out for mask in bits]
    if not _count_together(plan, bits):
        for route in plan.routes:
            mask = mask_of(route.microbatches)
            for layer in route.counted:
                twice = bits[layer] & mask
                _require(not twice, f"microbatch {twice.bit_length() - 1} is counted twice for layer {layer}")
                bits[layer] |= mask
    everything = ((1 << plan.num_microbatches) - 1) & ~left_out
    for layer in plan.counting_layers:
        mask = bits[layer]
        if mask == everything:
            continue
        extra = mask & left_out
        _require(not extra, f"microbatch {extra.bit_length() - 1} is left out and counted for layer {layer}")
        missing = everything & ~mask
        _require(not missing, f"microbatch {missing.bit_length() - 1} is not counted for layer {layer}")


def _num_travelling(plan: Plan) -> int:
    return sum([len(route.microbatches) for route in plan.routes])


def _count_together(plan: Plan, bits: list[int]) -> bool:
    """Adds what all routes count to `bits`; where something is counted twice, adds nothing and returns False."""
    if sum(map(int.bit_count, plan.work.values())) < _num_travelling(plan):
        return False
    added = list(bits)
    for counted, mask in plan.work.items():
        for layer in counted:
            if added[layer] & mask:
                return False
            added[layer] |= mask
    bits[:] = added
    return True


def _check_transfers(plan: Plan) -> None:
    parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    seen: set[tuple[int, int, int]] = set()
    for move in plan.transfers:
        name = f"transfer of group {move.group} from worker {move.source} to {move.target}"
        _require(0 <= move.group < len(plan.groups), f"{name}: the plan has {len(plan.groups)} groups")
        _require(move.source != move.target, f"{name} goes nowhere")
        _require(move.group in plan.groups_of.get(move.target, ()), f"{name}: the target does not own it")
        _require((move.group, move.source, move.target) not in seen, f"{name} is there twice")
        keeps = move.group in plan.kept_of[move.target]
        _require(move.with_optimizer == keeps, f"{name}: the target {'keeps' if keeps else 'does not keep'} it whole")
        seen.add((move.group, move.source, move.target))
        part = move.part or (0, plan.groups[move.group].size_bytes)
        parts.setdefault((move.group, move.target), []).append(part)
    for (group, target), given in parts.items():
        position = 0
        for first, end in sorted(given):
            where = f"bytes [{first}, {end}) of group {group} for worker {target}"
            _require(first == position, f"{where} follow byte {position - 1}")
            _require(first < end or len(given) == 1, f"{where} are none")
            position = end
        size = plan.groups[group].size_bytes
        _require(position == size, f"worker {target} gets {position} of {size} bytes of group {group}")


def _check_replicas(plan: Plan, fault_tolerance: int, arrived: bool) -> None:
    for layer, replicas in lacking(plan, fault_tolerance, arrived=arrived).items():
        needs = f"fault_tolerance = {fault_tolerance} needs {fault_tolerance + 1}"
        _require(
            False, f"layer {layer} has {replicas} replica{'s' if replicas != 1 else ''} on different nodes; {needs}"
        )


def num_replicas(plan: Plan, *, arrived: bool = False) -> tuple[int, ...]:
    """Returns, for each parameter group, the number of nodes that hold it.

    Args:
        plan: whose owners count, whether or not their state is under way.
        arrived: so do shadows, as of a ring that is to last; else one whose state is under way does not hold it yet, as
            in a step beside which it moves.
    """
    if not plan.shadows and plan.devices_per_node == 1:
        return plan.num_owners
    coming = set() if arrived else {(move.group, move.target) for move in plan.transfers}
    nodes = []
    for number, (group, owners) in enumerate(zip(plan.groups, plan.owners_of, strict=True)):
        layers = set(group.layers)
        nodes.append(
            {
                plan.node_of(worker)
                for worker in owners
                if (number, worker) not in coming or not layers.isdisjoint(plan.layers_of.get(worker, ()))
            }
        )
    return tuple(map(len, nodes))


def lacking(plan: Plan, fault_tolerance: int, *, arrived: bool = False) -> dict[int, int]:
    """Returns the layers with a group of fewer than f + 1 replicas, ascending, and how many that one has.

    A plan with any is *degraded*: f losses may take the last replica of a layer.

    Args:
        plan: whose replicas they are.
        fault_tolerance: f: how many nodes may be lost at once.
        arrived: see `num_replicas`.
    """
    found: dict[int, int] = {}
    for group, count in zip(plan.groups, num_replicas(plan, arrived=arrived), strict=True):
        if count <= fault_tolerance:
            for layer in group.layers:
                found[layer] = min(count, found.get(layer, count))
    return dict(sorted(found.items()))
