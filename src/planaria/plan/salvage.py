"""Salvage: the plan that finishes a step after a loss within it, so that only what was lost runs again.

What an intact route has done or will do is not touched. The ledgers of halted workers say what else is in
live accumulators; the rest, and only the rest, gets new routes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence

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
    circles = [set(pipeline.workers) for pipeline in plan.pipelines]
    circles += [{hop.worker for hop in route.hops} for route in plan.routes]
    stopped = {stage.worker for p in plan.pipelines if not p.is_whole(plan.num_layers) for stage in p.stages}
    stopped |= {worker for worker in plan.workers if worker not in live or worker in unready}
    while True:
        touched = {worker for circle in circles if not circle.isdisjoint(stopped) for worker in circle}
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
    kept = tuple(r for r in plan.routes if all(hop.worker in going for hop in r.hops))
    _check_halted(plan, kept, going)
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
    epochs = tuple(
        epoch if before == after and recounted.isdisjoint(group.layers) else generation
        for group, epoch, before, after in zip(
            plan.groups, plan.sync_epochs, plan.owners_of, result.owners_of, strict=True
        )
    )
    return msgspec.structs.replace(result, sync_epochs=epochs)


def _check_halted(plan: Plan, kept: Sequence[Route], going: Collection[WorkerId]) -> None:
    dropped = [route for route in plan.routes if route not in kept]
    loose = sorted({hop.worker for route in dropped for hop in route.hops}.intersection(going))
    if loose:
        raise PlanError(
            f"Workers {loose} share a route with a lost or halted worker and have not been halted: what they "
            "accumulate is unknown. Halt what to_halt(plan, live) names, and plan again."
        )


def _check_holders(plan: Plan, live: Collection[WorkerId], holders: LayerHolders) -> None:
    held = {layer for worker in live for layer in holders.get(worker, ())}
    for layer in range(plan.num_layers):
        if layer not in held:
            group = next((g for g, group in enumerate(plan.groups) if layer in group.layers), -1)
            raise NoReplica(group, (layer,))


def _missing(plan: Plan, kept: Sequence[Route], counted: Ledger) -> dict[tuple[int, ...], list[int]]:
    """For each set of layers, the microbatches that are missing from exactly those; what is left out stays so."""
    present = list(counted.bits())
    for route in kept:
        mask = mask_of(route.microbatches)
        for layer in route.counted:
            present[layer] |= mask
    missing: dict[tuple[int, ...], list[int]] = {}
    everywhere = mask_of(plan.dropped)  # what is left out is looked for nowhere
    everywhere |= functools.reduce(operator.and_, present)
    for microbatch in range(plan.num_microbatches):
        if everywhere >> microbatch & 1:
            continue
        layers = tuple(layer for layer in range(plan.num_layers) if not present[layer] >> microbatch & 1)
        missing.setdefault(layers, []).append(microbatch)
    return dict(sorted(missing.items()))


def _intact(plan: Plan, going: Collection[WorkerId], holders: LayerHolders) -> tuple[Pipeline, ...]:
    return tuple(
        pipeline
        for pipeline in plan.pipelines
        if pipeline.is_whole(plan.num_layers)
        and all(s.worker in going and set(s.layers) <= set(holders.get(s.worker, ())) for s in pipeline.stages)
    )


def _along_pipelines(
    plan: Plan,
    intact: Sequence[Pipeline],
    kept: Sequence[Route],
    missing: Mapping[tuple[int, ...], Sequence[int]],
    generation: int,
    profile: ModelProfile,
) -> tuple[Route, ...]:
    """New routes over whole pipelines: each microbatch goes to the pipeline that would end first with it."""
    cuts = [tuple((s.first_layer, s.end_layer) for s in pipeline.stages) for pipeline in intact]
    cost_of = {cut: pipeline_cost(profile, cut) for cut in dict.fromkeys(cuts)}
    costs: list[PipelineCost] = [cost_of[cut] for cut in cuts]
    at_of = {worker: at for at, pipeline in enumerate(intact) for worker in pipeline.workers}
    loads = [0] * len(intact)
    for route in kept:
        passed = {at_of.get(hop.worker, -1) for hop in route.hops}
        at = passed.pop()
        if not passed and at >= 0:
            loads[at] += len(route.microbatches)
    routes: list[Route] = []
    for layers, microbatches in missing.items():
        dealt: list[list[int]] = [[] for _ in intact]
        for microbatch in microbatches:
            at = min(range(len(intact)), key=lambda i: (costs[i].time_s(loads[i] + 1), i))
            loads[at] += 1
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
    placed |= {shadow.worker for shadow in shadows} - {stage.worker for stage in plan.stages()}
    pipelines: list[Pipeline] = []
    for pipeline in plan.pipelines:
        if pipeline in intact:
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
