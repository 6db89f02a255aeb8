"""Takeover: shadows go on in the place of lost workers, in the middle of a step or for the steps after it.

Source: Bamboo, sections 5.1 and 5.2. In the middle of a step nothing that survives is done again: every microbatch
keeps its route, its birth and its name, with the shadow where the lost worker was. What the shadow has run of the lost
layers stays done, what their neighbours sent they send again, and only what nobody has is computed. No state moves.

The shadow's program is that of the merged stage, and so obeys the paper's four rules: messages come before what they
are for and after what they are of, none goes between the lost worker and its shadow, those with the lost worker's
successor are a group's first, and a backward that can run goes before later forwards, because backwards of earlier
microbatches come first in every order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from planaria.plan.ledger import Ledger, mask_of
from planaria.plan.plan import Pipeline, Plan, Route, Stage, WorkerId
from planaria.planner.finish_step.salvage import LayerHolders, with_other_owners


def taken_over(plan: Plan, live: Collection[WorkerId], holders: LayerHolders) -> tuple[Pipeline | None, ...]:
    """Returns each pipeline with shadows in the place of lost workers; None where one has no live shadow.

    Pipelines of one stage have no shadows: each is taken over, or not, as a whole (`in_the_ring`).

    Args:
        plan: the plan in force.
        live: the live workers.
        holders: the layers that each of them holds.
    """
    return tuple(_taken_over(plan, pipeline, live, holders) for pipeline in plan.pipelines)


def _taken_over(plan: Plan, pipeline: Pipeline, live: Collection[WorkerId], holders: LayerHolders) -> Pipeline | None:
    stages: list[Stage] = []
    for stage in pipeline.stages:
        worker: WorkerId | None = stage.worker
        if stage.worker not in live:
            worker = _shadow_of(plan, pipeline, stage, live)
        if worker is None or not set(stage.layers) <= set(holders.get(worker, ())):
            return None
        stages.append(msgspec.structs.replace(stage, worker=worker))
    return Pipeline(stages=tuple(stages)) if pipeline.is_whole(plan.num_layers) else None


def _shadow_of(plan: Plan, pipeline: Pipeline, stage: Stage, live: Collection[WorkerId]) -> WorkerId | None:
    members = set(pipeline.workers)
    held: dict[WorkerId, set[int]] = {}
    for shadow in plan.shadows:
        if shadow.worker in members and shadow.worker in live and shadow.num_devices == stage.num_devices:
            held.setdefault(shadow.worker, set()).update(shadow.layers)
    return next((worker for worker in sorted(held) if held[worker].issuperset(stage.layers)), None)


def filled(pipeline: Pipeline, held: LayerHolders, num_layers: int) -> Pipeline:
    """Returns a pipeline that lost workers, with members in their places that hold what they had: whichever holds most
    of what is lacking from there on, of equals the one before it. Unchanged where some of it has no holder, or where
    two of its workers own a layer.

    It knows nothing of who was lost, so what a takeover makes of a pipeline within a step, and what it makes of it
    after the step, are one and the same.
    """
    if pipeline.is_whole(num_layers):
        return pipeline
    owner_of = {layer: stage for stage in pipeline.stages for layer in stage.layers}
    if len(owner_of) < sum(len(stage.layers) for stage in pipeline.stages):
        return pipeline
    stages = list(pipeline.stages)
    layer = 0
    before: Stage = pipeline.stages[-1]
    while layer < num_layers:
        if (stage := owner_of.get(layer)) is not None:
            before, layer = stage, stage.end_layer
            continue
        gap_end = next((end for end in range(layer, num_layers) if end in owner_of), num_layers)
        reached = {
            stage: next((end for end in range(layer, gap_end) if end not in held.get(stage.worker, ())), gap_end)
            for stage in pipeline.stages
        }
        best = max(pipeline.stages, key=lambda stage: (reached[stage], stage == before, -stage.worker))
        if reached[best] == layer:
            return pipeline
        stages.append(
            Stage(
                worker=best.worker,
                first_layer=layer,
                end_layer=reached[best],
                num_devices=max(stage.num_devices for stage in pipeline.stages if stage.worker == best.worker),
            )
        )
        layer = reached[best]
    return Pipeline(stages=tuple(sorted(stages, key=lambda stage: stage.first_layer)))


def in_the_ring(plan: Plan, live: Collection[WorkerId]) -> dict[Pipeline, WorkerId]:
    """Returns, for lost pipelines of one stage, the worker before each in the ring of such pipelines, where that lives.

    It owns every layer, so it can run the others' microbatches as well as its own (Bamboo, appendix B).
    """
    alone = (p for p in plan.pipelines if len(p.stages) == 1 and p.is_whole(plan.num_layers))
    whole = sorted(alone, key=lambda p: p.stages[0].worker)
    before = zip(whole, [*whole[-1:], *whole[:-1]], strict=True)
    return {
        pipeline: previous.stages[0].worker
        for pipeline, previous in before
        if pipeline.stages[0].worker not in live and previous.stages[0].worker in live
    }


def without_owned(plan: Plan, pipelines: Sequence[Pipeline], live: Collection[WorkerId]) -> tuple[Stage, ...]:
    """Returns the plan's shadows whose workers live and do not own their layers in these pipelines."""
    owned: dict[WorkerId, set[int]] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            owned.setdefault(stage.worker, set()).update(stage.layers)
    return tuple(
        shadow
        for shadow in plan.shadows
        if shadow.worker in live and owned.get(shadow.worker, set()).isdisjoint(shadow.layers)
    )


def resume(
    plan: Plan,
    live: Collection[WorkerId],
    halted: Collection[WorkerId],
    counted: Ledger,
    holders: LayerHolders,
    generation: int,
) -> Plan | None:
    """Returns the plan under which shadows go on with the step in progress; None where that is not possible.

    It is not where a lost worker's shadow is lost too, or was not yet one; nor where something has to be made good that
    belongs to no microbatch under way: then whoever is left begins that anew (`planaria.planner.finish_step.salvage`).

    Args:
        plan: in force when the loss happened.
        live: the live workers.
        halted: live workers that stopped; see `planaria.planner.finish_step.salvage.finish_step`.
        counted: what is in live accumulators and is no kept route's work.
        holders: the layers that each live worker holds.
        generation: of the new plan.
    """
    if plan.redundancy is None or any(
        not _holds_its_own(plan, worker, holders) for worker in plan.workers if worker in live
    ):
        return None
    going = set(live) - set(halted)
    kept = tuple(r for r in plan.routes if all(hop.worker in going for hop in r.hops))
    pipelines, place_of = _pipelines(plan, live, holders)
    resumed = _resumed(plan, [route for route in plan.routes if route not in kept], place_of, live, counted)
    if resumed is None or not pipelines or not _is_complete(plan, (*kept, *resumed), counted):
        return None
    new = msgspec.structs.replace(
        plan,
        generation=generation,
        pipelines=pipelines,
        routes=kept + resumed,
        shadows=without_owned(plan, pipelines, live),
        transfers=(),
    )
    recounted = {layer for route in resumed for layer in route.counted}
    changed = with_other_owners(plan, new)
    epochs = tuple(
        epoch if number not in changed and recounted.isdisjoint(group.layers) else generation
        for number, (group, epoch) in enumerate(zip(plan.groups, plan.sync_epochs, strict=True))
    )
    return new.renewed(sync_epochs=epochs)


def _holds_its_own(plan: Plan, worker: WorkerId, holders: LayerHolders) -> bool:
    """Returns whether the worker holds all of its state: what it owns and what it shadows."""
    held = set(holders.get(worker, ()))
    return held.issuperset(plan.layers_run_by.get(worker, ()))


_Places = dict[tuple[WorkerId, int], WorkerId]
"""For each lost worker and layer that it owned, the worker that has the layer now."""


def _pipelines(plan: Plan, live: Collection[WorkerId], holders: LayerHolders) -> tuple[tuple[Pipeline, ...], _Places]:
    """Returns the pipelines that go on, with takeovers; the stages left of other pipelines keep what they own."""
    place_of: _Places = {}
    result: list[Pipeline] = []
    for pipeline, whole in zip(plan.pipelines, taken_over(plan, live, holders), strict=True):
        if whole is None:
            left = tuple(stage for stage in pipeline.stages if stage.worker in live)
            if left:
                result.append(Pipeline(stages=left))
            continue
        result.append(whole)
        for before, after in zip(pipeline.stages, whole.stages, strict=True):
            if before.worker != after.worker:
                place_of.update({(before.worker, layer): after.worker for layer in before.layers})
    for pipeline, worker in in_the_ring(plan, live).items():
        lost = pipeline.stages[0]
        place_of.update({(lost.worker, layer): worker for layer in lost.layers})
    return tuple(result), place_of


def _resumed(
    plan: Plan, routes: Sequence[Route], place_of: _Places, live: Collection[WorkerId], counted: Ledger
) -> tuple[Route, ...] | None:
    """Returns the resumed routes, each for microbatches that miss the same layers; None where one cannot go on."""
    bits = counted.bits()
    result: list[Route] = []
    for route in routes:
        hops: list[Stage] = []
        for hop in route.hops:
            workers = (
                {place_of.get((hop.worker, layer)) for layer in hop.layers} if hop.worker not in live else {hop.worker}
            )
            worker = workers.pop()
            if worker is None or workers:
                return None
            hops.append(msgspec.structs.replace(hop, worker=worker))
        missing: dict[tuple[int, ...], list[int]] = {}
        for microbatch in route.microbatches:
            layers = tuple(layer for layer in route.counted if not bits[layer] >> microbatch & 1)
            if layers:
                missing.setdefault(layers, []).append(microbatch)
        before = plan.num_layers if route.reached is None else route.reached
        result += [
            Route(
                hops=tuple(hops),
                microbatches=tuple(given),
                born=route.born,
                counted=layers,
                reached=min({*route.counted} - {*layers} | {before}),
            )
            for layers, given in sorted(missing.items())
        ]
    return tuple(result)


def _is_complete(plan: Plan, routes: Sequence[Route], counted: Ledger) -> bool:
    """Returns whether nothing is missing beside the routes' work."""
    present = list(counted.bits())
    for route in routes:
        mask = mask_of(route.microbatches)
        for layer in route.counted:
            present[layer] |= mask
    everything = (1 << plan.num_microbatches) - 1
    return all(everything & ~mask == 0 for mask in present)
