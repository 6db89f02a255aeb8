"""Salvage: the plan that finishes a step after a loss within it, so that only what was lost runs again.

What an intact route has done or will do is not touched. The ledgers of halted workers say what else is in
live accumulators; the rest, and only the rest, gets new routes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger, mask_of, members_of
from planaria.plan.plan import Pipeline, Plan, PlanError, Route, Stage, WorkerId, counted_together, runs_of
from planaria.planner.finish_step.rerun_routes import Missing, along_holders, along_pipelines
from planaria.planner.placement.senders import unheld

LayerHolders = Mapping[WorkerId, Collection[int]]
"""For each live worker, the layers whose parameters it holds up to date."""


def to_halt(plan: Plan, live: Collection[WorkerId], unready: Collection[WorkerId] = ()) -> frozenset[WorkerId]:
    """Returns the live workers that must stop and report their ledgers; all others go on undisturbed.

    They are the survivors of pipelines that are not whole, where a route passes through one of them or a mate of its
    stage, and all that share a pipeline, a route or a stage, at any remove, with a worker that is lost or `unready`
    (has no state yet). A worker never has one route kept and another dropped, so what it accumulates is either reported
    or known from its routes. Survivors without work have been halted before, and have counted nothing since.
    """
    circles: list[Sequence[WorkerId]] = [pipeline.workers for pipeline in plan.pipelines]
    circles += plan.stage_mates
    circles += [
        [hop.worker for hop in route.hops]
        for route, at in zip(plan.routes, plan.pipeline_of_route, strict=True)
        if at < 0
    ]
    at_work = {hop.worker for route in plan.routes for hop in route.hops}
    at_work.update(*(mates for mates in plan.stage_mates if not at_work.isdisjoint(mates)))
    stopped = {
        worker
        for pipeline in plan.pipelines
        if not pipeline.is_whole(plan.num_layers) and not at_work.isdisjoint(pipeline.workers)
        for worker in pipeline.workers
    }
    workers = set(plan.workers)
    stopped |= workers.difference(live) | workers.intersection(unready)
    while True:
        touched = {worker for circle in circles if not stopped.isdisjoint(circle) for worker in circle}
        if touched <= stopped:
            return frozenset([worker for worker in stopped if worker in live])
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
    """Returns the plan under which the live workers finish the step that `plan` began, in the usual way.

    For others see `left_undone`; all have the same placement, and count the same.

    Args:
        plan: in force when the loss happened.
        live: the live workers.
        halted: live workers that stopped; at least `to_halt(plan, live)`.
        counted: what is in live accumulators and is no kept route's work: the union over live workers of the
            last ledger that each reported in this step, now or at an earlier loss.
        holders: the layers that each live worker holds.
        generation: of the new plan.
        profile: what layers and links cost.

    Raises:
        NoReplica: a layer has no live holder.
        PlanError: a live worker shares a route with a lost or halted one, and is not halted itself.
    """
    undone = left_undone(plan, live, halted, counted, holders, generation)
    return undone.finished_by(undone.usual(profile))


def finish_evaluation(
    plan: Plan,
    live: Collection[WorkerId],
    halted: Collection[WorkerId],
    counted: Ledger,
    holders: LayerHolders,
    generation: int,
    profile: ModelProfile,
) -> Plan:
    """Returns the plan under which the live workers finish the evaluation that `plan` began, in the usual way.

    Arguments and errors as in `finish_step`. Of the step's own routes it keeps those that are left: another placement
    follows before that.
    """
    assert plan.evaluation is not None
    rest = finish_step(plan.of_pass, live, halted, counted, holders, generation, profile)
    owned = {worker: set(layers) for worker, layers in rest.layers_of.items()}
    left = (r for r in plan.routes if all(owned.get(hop.worker, set()).issuperset(hop.layers) for hop in r.hops))
    return rest.renewed(
        routes=tuple(left),
        num_microbatches=plan.num_microbatches,
        dropped=plan.dropped,
        evaluation=msgspec.structs.replace(plan.evaluation, routes=rest.routes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """Work that a loss left undone in the step in progress, and the workers that are left to do it.

    Attributes:
        plan: in force when the loss happened.
        generation: of the plan that finishes the step.
        kept: routes that go on.
        missing: what has to run again.
        intact: whole pipelines of which all workers go on; where all were halted, those of which all live.
        pipelines: what is left of all, the intact ones as they are.
        shadows: those that live and have all of their state.
        live: the live workers.
        holders: the layers that each of them holds.
    """

    plan: Plan
    generation: int
    kept: tuple[Route, ...]
    missing: Missing
    intact: tuple[Pipeline, ...]
    pipelines: tuple[Pipeline, ...]
    shadows: tuple[Stage, ...]
    live: Collection[WorkerId]
    holders: LayerHolders

    def usual(self, profile: ModelProfile) -> tuple[Route, ...]:
        """Returns routes for what is missing: over whole pipelines, or else over any holders of the layers."""
        if self.intact:
            return along_pipelines(self.intact, self.kept, self.missing, self.generation, profile)
        holders = {worker: sorted(self.holders[worker]) for worker in sorted(self.live) if worker in self.holders}
        return along_holders(holders, self.plan.devices_of, self.kept, self.missing, self.generation, profile)

    def finished_by(self, new: tuple[Route, ...]) -> Plan:
        """Returns the plan that finishes the step, with these routes for what is missing."""
        plan, generation = self.plan, self.generation
        recounted = {layer for route in new for layer in route.counted}
        result = msgspec.structs.replace(
            plan,
            generation=generation,
            pipelines=self.pipelines,
            routes=self.kept + new,
            shadows=self.shadows,
            transfers=(),
        ).following(plan)
        changed = with_other_owners(plan, result)
        epochs = tuple(
            epoch if number not in changed and recounted.isdisjoint(group.layers) else generation
            for number, (group, epoch) in enumerate(zip(plan.groups, plan.sync_epochs, strict=True))
        )
        return result.renewed(sync_epochs=epochs)


def left_undone(
    plan: Plan,
    live: Collection[WorkerId],
    halted: Collection[WorkerId],
    counted: Ledger,
    holders: LayerHolders,
    generation: int,
) -> Undone:
    """Returns what is left to be done of a step; arguments and errors as in `finish_step`."""
    going = set(live) - set(halted)
    goes_on = [going.issuperset(workers) for workers in _workers_of_routes(plan)]
    kept = tuple(route for route, goes in zip(plan.routes, goes_on, strict=True) if goes)
    _check_halted([route for route, goes in zip(plan.routes, goes_on, strict=True) if not goes], going)
    _check_holders(plan, live, holders)
    staying = _untouched(plan, going, holders)
    intact = tuple(pipeline for pipeline in staying if pipeline.is_whole(plan.num_layers))
    if plan.devices_per_stage == 1:  # else the devices of a stage would not all own the same
        if not intact:
            intact = tuple(p for p in _untouched(plan, set(live), holders) if p.is_whole(plan.num_layers))
        staying = intact
    shadows = _shadows(plan, live, holders, staying) if staying else ()
    return Undone(
        plan=plan,
        generation=generation,
        kept=kept,
        missing=_missing(plan, kept, counted),
        intact=intact,
        pipelines=_survivors(plan, live, holders, staying, shadows),
        shadows=shadows,
        live=live,
        holders=holders,
    )


def with_other_owners(before: Plan, after: Plan) -> frozenset[int]:
    """Returns the groups that are held, or kept whole, by other workers under one plan than under the other."""
    if before.shadows or after.shadows or before.spreads_optimizer or not (before.is_apart and after.is_apart):
        then = zip(before.owners_of, before.keepers_of, strict=True)
        now = zip(after.owners_of, after.keepers_of, strict=True)
        return frozenset(group for group, (old, new) in enumerate(zip(then, now, strict=True)) if old != new)
    # Who is in a pipeline that both plans have, holds the same.
    old, new = set(before.pipelines), set(after.pipelines)
    held = {(group, w) for pipeline in old - new for w in pipeline.owned for group in before.groups_of[w]}
    holds = {(group, w) for pipeline in new - old for w in pipeline.owned for group in after.groups_of[w]}
    return frozenset(group for group, _ in held ^ holds)


def _workers_of_routes(plan: Plan) -> Iterator[Sequence[WorkerId]]:
    """Yields the workers of each route."""
    for route, at in zip(plan.routes, plan.pipeline_of_route, strict=True):
        yield plan.pipelines[at].workers if at >= 0 else [hop.worker for hop in route.hops]


def _check_halted(dropped: Sequence[Route], going: Collection[WorkerId]) -> None:
    loose = sorted({hop.worker for route in dropped for hop in route.hops}.intersection(going))
    if loose:
        raise PlanError(
            f"Workers {loose} share a route with a lost or halted worker and have not been halted: what they "
            "accumulate is unknown. Halt what to_halt(plan, live) names, and plan again."
        )


def _check_holders(plan: Plan, live: Collection[WorkerId], holders: LayerHolders) -> None:
    for layer in unheld(range(plan.num_layers), (holders[worker] for worker in live if worker in holders)):
        group = next((g for g, group in enumerate(plan.groups) if layer in group.layers), -1)
        raise NoReplica(group, (layer,))


def _missing(plan: Plan, kept: Sequence[Route], counted: Ledger) -> dict[tuple[int, ...], list[int]]:
    """Returns, for each set of layers, the microbatches missing from exactly those; dropped ones are not missing."""
    present = list(counted.bits())
    for own, mask in counted_together(kept).items():
        for layer in own:
            present[layer] |= mask
    for layer in range(plan.counting_layers.start):
        present[layer] = (1 << plan.num_microbatches) - 1  # of an evaluation, nothing but the loss is wanted
    everywhere = mask_of(plan.dropped)  # what is left out is looked for nowhere
    everywhere |= functools.reduce(operator.and_, present)
    classes: dict[tuple[int, ...], int] = {(): ((1 << plan.num_microbatches) - 1) & ~everywhere}
    for layer, mask in enumerate(present):
        split = {layers: own & mask for layers, own in classes.items()}
        split |= {(*layers, layer): own & ~mask for layers, own in classes.items()}
        classes = {layers: own for layers, own in split.items() if own}
    return {layers: members_of(own) for layers, own in sorted(classes.items())}


def _untouched(plan: Plan, going: set[WorkerId], holders: LayerHolders) -> tuple[Pipeline, ...]:
    """Returns the pipelines, whole or not, of which all workers go on and have their state."""
    return tuple(
        pipeline
        for pipeline in plan.pipelines
        if going.issuperset(pipeline.workers)
        and (
            pipeline.owned.items() <= holders.items()
            or all(_holds(holders.get(worker, ()), layers) for worker, layers in pipeline.owned.items())
        )
    )


def _holds(held: Collection[int], layers: tuple[int, ...]) -> bool:
    return held == layers or set(layers).issubset(held)


def _shadows(
    plan: Plan, live: Collection[WorkerId], holders: LayerHolders, staying: Sequence[Pipeline]
) -> tuple[Stage, ...]:
    """Returns the live shadows with all of their state; survivors of a broken pipeline own what they hold instead."""
    if not plan.shadows:
        return ()
    broken = {stage.worker for stage in plan.stages()} - {w for pipeline in staying for w in pipeline.workers}
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
    staying: Sequence[Pipeline],
    shadows: Sequence[Stage],
) -> tuple[Pipeline, ...]:
    """Returns the live stages: staying pipelines as they are; of the others, runs of the layers that are held.

    Without a shadow's own place in the plan, what it holds counts as any other worker's.
    """
    devices = plan.devices_of
    placed: set[WorkerId] = set().union(*(pipeline.workers for pipeline in staying))
    placed |= {shadow.worker for shadow in shadows} - plan.layers_of.keys()
    pipelines: list[Pipeline] = []
    stay = set(staying)
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
