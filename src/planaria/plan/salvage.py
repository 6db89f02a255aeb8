"""Salvage: the plan that finishes a step after a loss within it, so that only what was lost runs again.

What an intact route has done or will do is not touched. The ledgers of halted workers say what else is in
live accumulators; the rest, and only the rest, gets new routes.
"""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from planaria.plan.costs import PipelineCost, StageCosts, pipeline_cost
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger, mask_of
from planaria.plan.plan import Pipeline, Plan, PlanError, Route, Stage, WorkerId, runs_of
from planaria.plan.profile import ModelProfile

LayerHolders = Mapping[WorkerId, Collection[int]]
"""For each live worker, the layers whose parameters it holds up to date."""


def to_halt(plan: Plan, live: Collection[WorkerId], unready: Collection[WorkerId] = ()) -> frozenset[WorkerId]:
    """The live workers that must stop and report their ledgers; everybody else goes on undisturbed.

    They are the survivors of pipelines that are not whole, and all that share a pipeline or a route, at any remove,
    with a worker that is lost or `unready` (has no state yet). A worker never has one route kept and another
    dropped, so what it accumulates is either reported or known from its routes.
    """
    circles: list[Sequence[WorkerId]] = [pipeline.workers for pipeline in plan.pipelines]
    circles += [
        [hop.worker for hop in route.hops] for route, way in zip(plan.routes, plan.ways, strict=True) if way < 0
    ]
    stopped = {worker for p in plan.pipelines if not p.is_whole(plan.num_layers) for worker in p.workers}
    stopped |= {worker for worker in plan.workers if worker not in live or worker in unready}
    while True:
        touched = {worker for circle in circles if not stopped.isdisjoint(circle) for worker in circle}
        if touched <= stopped:
            return frozenset(stopped & set(live))
        stopped |= touched


def finish_step(
    plan: Plan,
    live: Collection[WorkerId],
    halted: Collection[WorkerId],
    counted: Ledger,
    holders: LayerHolders,
    generation: int,
    profile: ModelProfile,
) -> Plan:
    """The plan under which the live workers finish the step that `plan` began.

    Args:
        plan: in force when the loss happened.
        live: workers that live.
        halted: live workers that stopped; at least `to_halt(plan, live)`.
        counted: what is in live accumulators and is no kept route's work: the union over live workers of the
            last ledger that each reported in this step, now or at an earlier loss.
        holders: the layers that each live worker holds.
        generation: of the new plan.
        profile: costs.

    Raises:
        NoReplica: a layer has no live holder.
        PlanError: a live worker shares a route with a lost or halted one, and is not halted itself.
    """
    going = set(live) - set(halted)
    goes_on = [going.issuperset(workers) for workers in _workers_of_routes(plan)]
    kept = tuple(route for route, goes in zip(plan.routes, goes_on, strict=True) if goes)
    _check_halted([route for route, goes in zip(plan.routes, goes_on, strict=True) if not goes], going)
    _check_holders(plan, live, holders)
    missing = _missing(plan, kept, counted)
    intact = _intact(plan, going, holders)
    if intact:
        new = _along_pipelines(plan, intact, kept, missing, generation, profile)
    else:
        new = _along_holders(
            plan, kept, missing, {w: holders[w] for w in sorted(live) if w in holders}, generation, profile
        )
    recounted = {layer for route in new for layer in route.counted}
    shadows = _shadows(plan, live, holders, intact) if intact else ()
    result = msgspec.structs.replace(
        plan,
        generation=generation,
        pipelines=_survivors(plan, live, holders, intact, shadows),
        routes=kept + new,
        shadows=shadows,
        transfers=(),
    )
    changed = with_other_owners(plan, result)
    epochs = tuple(
        epoch if number not in changed and recounted.isdisjoint(group.layers) else generation
        for number, (group, epoch) in enumerate(zip(plan.groups, plan.sync_epochs, strict=True))
    )
    return result.renewed(sync_epochs=epochs)


def with_other_owners(before: Plan, after: Plan) -> frozenset[int]:
    """The groups that other workers hold under the one plan than under the other."""
    if before.shadows or after.shadows or not (before.is_apart and after.is_apart):
        pairs = enumerate(zip(before.owners_of, after.owners_of, strict=True))
        return frozenset(group for group, (old, new) in pairs if old != new)
    # Who is in a pipeline that both plans have, holds the same.
    old, new = set(before.pipelines), set(after.pipelines)
    held = {(group, w) for pipeline in old - new for w in pipeline.owned for group in before.groups_of[w]}
    holds = {(group, w) for pipeline in new - old for w in pipeline.owned for group in after.groups_of[w]}
    return frozenset(group for group, _ in held ^ holds)


def _workers_of_routes(plan: Plan) -> Iterator[Sequence[WorkerId]]:
    """Of each route, those on its way."""
    for route, way in zip(plan.routes, plan.ways, strict=True):
        yield plan.pipelines[way].workers if way >= 0 else [hop.worker for hop in route.hops]


def _check_halted(dropped: Sequence[Route], going: Collection[WorkerId]) -> None:
    loose = sorted({hop.worker for route in dropped for hop in route.hops}.intersection(going))
    if loose:
        raise PlanError(
            f"Workers {loose} share a route with a lost or halted worker and have not been halted: what they "
            "accumulate is unknown. Halt what to_halt(plan, live) names, and plan again."
        )


def _check_holders(plan: Plan, live: Collection[WorkerId], holders: LayerHolders) -> None:
    distinct = {id(layers): layers for worker in live for layers in (holders.get(worker, ()),)}
    held = {layer for layers in distinct.values() for layer in layers}
    for layer in range(plan.num_layers):
        if layer not in held:
            group = next((g for g, group in enumerate(plan.groups) if layer in group.layers), -1)
            raise NoReplica(group, (layer,))


def _missing(plan: Plan, kept: Sequence[Route], counted: Ledger) -> dict[tuple[int, ...], list[int]]:
    """For each set of layers, the microbatches that are missing from exactly those; what is left out stays so."""
    present = list(counted.bits())
    together: dict[tuple[int, ...], int] = {}
    for route in kept:
        together[route.counted] = together.get(route.counted, 0) | mask_of(route.microbatches)
    for own, mask in together.items():
        for layer in own:
            present[layer] |= mask
    missing: dict[tuple[int, ...], list[int]] = {}
    everywhere = mask_of(plan.dropped)  # what is left out is looked for nowhere
    everywhere |= functools.reduce(operator.and_, present)
    left = ((1 << plan.num_microbatches) - 1) & ~everywhere
    while left:
        microbatch = (left & -left).bit_length() - 1
        left &= left - 1
        layers = tuple(layer for layer in range(plan.num_layers) if not present[layer] >> microbatch & 1)
        missing.setdefault(layers, []).append(microbatch)
    return dict(sorted(missing.items()))


def _intact(plan: Plan, going: Collection[WorkerId], holders: LayerHolders) -> tuple[Pipeline, ...]:
    return tuple(
        pipeline
        for pipeline in plan.pipelines
        if pipeline.is_whole(plan.num_layers)
        and all(worker in going for worker in pipeline.workers)
        and all(_holds(holders.get(worker, ()), layers) for worker, layers in pipeline.owned.items())
    )


def _holds(held: Collection[int], layers: tuple[int, ...]) -> bool:
    return held == layers or set(layers).issubset(held)


def _along_pipelines(
    plan: Plan,
    intact: Sequence[Pipeline],
    kept: Sequence[Route],
    missing: Mapping[tuple[int, ...], Sequence[int]],
    generation: int,
    profile: ModelProfile,
) -> tuple[Route, ...]:
    """New routes over whole pipelines: each microbatch goes to the pipeline that would end first with it."""
    cost_of = {
        cut: pipeline_cost(profile, [(first, end) for first, end, _ in cut])
        for cut in dict.fromkeys(pipeline.cut for pipeline in intact)
    }
    costs: list[PipelineCost] = [cost_of[pipeline.cut] for pipeline in intact]
    loads = [0] * len(intact)
    at_of_stages = {id(pipeline.stages): at for at, pipeline in enumerate(intact)}
    at_of: dict[WorkerId, int] = {}
    for route in kept:
        along = at_of_stages.get(id(route.hops))
        if along is not None:
            loads[along] += len(route.microbatches)
            continue
        at_of = at_of or {worker: at for at, pipeline in enumerate(intact) for worker in pipeline.workers}
        passed = {at_of.get(hop.worker, -1) for hop in route.hops}
        at = passed.pop()
        if not passed and at >= 0:
            loads[at] += len(route.microbatches)
    ends = [(cost.time_s(load + 1), at) for at, (cost, load) in enumerate(zip(costs, loads, strict=True))]
    heapq.heapify(ends)
    routes: list[Route] = []
    for layers, microbatches in missing.items():
        dealt: list[list[int]] = [[] for _ in intact]
        for microbatch in microbatches:
            _, at = ends[0]
            loads[at] += 1
            heapq.heapreplace(ends, (costs[at].time_s(loads[at] + 1), at))
            dealt[at].append(microbatch)
        routes.extend(
            Route(hops=pipeline.stages, microbatches=tuple(given), born=generation, counted=layers)
            for pipeline, given in zip(intact, dealt, strict=True)
            if given
        )
    return tuple(routes)


def _along_holders(
    plan: Plan,
    kept: Sequence[Route],
    missing: Mapping[tuple[int, ...], Sequence[int]],
    holders: LayerHolders,
    generation: int,
    profile: ModelProfile,
) -> tuple[Route, ...]:
    """New routes over whoever holds the layers, where no pipeline is whole."""
    costs = StageCosts(profile)
    devices = plan.devices_of
    runs = [run for worker, layers in holders.items() for run in runs_of(worker, layers, devices.get(worker, 1))]
    loads = dict.fromkeys(holders, 0.0)
    for route in kept:
        for hop in route.hops:
            loads[hop.worker] += len(route.microbatches) * costs.compute_s(hop.first_layer, hop.end_layer)
    ways: dict[tuple[tuple[int, ...], tuple[Stage, ...]], list[int]] = {}
    for layers, microbatches in missing.items():
        for microbatch in microbatches:
            hops = _way(runs, loads, costs, plan.num_layers)
            for hop in hops:
                loads[hop.worker] += costs.compute_s(hop.first_layer, hop.end_layer)
            ways.setdefault((layers, hops), []).append(microbatch)
    return tuple(
        Route(hops=hops, microbatches=tuple(microbatches), born=generation, counted=layers)
        for (layers, hops), microbatches in ways.items()
    )


def _way(
    runs: Sequence[Stage], loads: Mapping[WorkerId, float], costs: StageCosts, num_layers: int
) -> tuple[Stage, ...]:
    """Hops over all layers, by dynamic programming over the places where some holder's run begins or ends.

    Least first: the load of the busiest worker on the way plus the messages' time; then the fewest hops.
    """
    cuts = sorted({run.first_layer for run in runs} | {run.end_layer for run in runs} | {0, num_layers})
    best: dict[int, tuple[float, float, tuple[Stage, ...]]] = {0: (0.0, 0.0, ())}
    for start in cuts[:-1]:
        if start not in best:
            continue
        busiest, messages, hops = best[start]
        for run in runs:
            if not run.first_layer <= start < run.end_layer or (hops and hops[-1].worker == run.worker):
                continue
            for end in cuts:
                if not start < end <= run.end_layer:
                    continue
                load = max(busiest, loads[run.worker] + costs.compute_s(start, end))
                way = (load, messages + 2 * costs.link_s(end), (*hops, _hop(run, start, end)))
                if end not in best or _rank(way) < _rank(best[end]):
                    best[end] = way
    return best[num_layers][2]


def _rank(way: tuple[float, float, tuple[Stage, ...]]) -> tuple[float, int, tuple[WorkerId, ...]]:
    return way[0] + way[1], len(way[2]), tuple(hop.worker for hop in way[2])


def _hop(run: Stage, first: int, end: int) -> Stage:
    return Stage(worker=run.worker, first_layer=first, end_layer=end, num_devices=run.num_devices)


def _shadows(
    plan: Plan, live: Collection[WorkerId], holders: LayerHolders, intact: Sequence[Pipeline]
) -> tuple[Stage, ...]:
    """The shadows that live and have all of their state; survivors of a broken pipeline own what they hold instead."""
    if not plan.shadows:
        return ()
    whole = {worker for pipeline in intact for worker in pipeline.workers}
    broken = {stage.worker for stage in plan.stages()} - whole
    return tuple(
        shadow
        for shadow in plan.shadows
        if shadow.worker in live
        and shadow.worker not in broken
        and set(shadow.layers) <= set(holders.get(shadow.worker, ()))
    )


def _survivors(
    plan: Plan,
    live: Collection[WorkerId],
    holders: LayerHolders,
    intact: Sequence[Pipeline],
    shadows: Sequence[Stage],
) -> tuple[Pipeline, ...]:
    """The live stages: intact pipelines as they are; of the others, runs of the layers that are held.

    Without a shadow's own place in the plan, what it holds counts as any other worker's.
    """
    devices = plan.devices_of
    placed: set[WorkerId] = {worker for pipeline in intact for worker in pipeline.workers}
    placed |= {shadow.worker for shadow in shadows} - plan.layers_of.keys()
    pipelines: list[Pipeline] = []
    stay = set(intact)
    for pipeline in plan.pipelines:
        if pipeline in stay:
            pipelines.append(pipeline)
            continue
        left = sorted(set(pipeline.workers).intersection(live) - placed)
        placed |= set(left)
        stages = [run for worker in left for run in runs_of(worker, holders.get(worker, ()), devices.get(worker, 1))]
        if stages:
            stages.sort(key=lambda stage: (stage.first_layer, stage.worker))
            pipelines.append(Pipeline(stages=tuple(stages)))
    for worker in sorted(set(live) - placed):
        stages = runs_of(worker, holders.get(worker, ()), devices.get(worker, 1))
        if stages:
            pipelines.append(Pipeline(stages=tuple(stages)))
    return tuple(pipelines)
