"""Dropping: plans that leave the microbatches of broken pipelines out of the step, and make whole pipelines of parts.

The survivors of a broken pipeline keep their place and their state: they own layers, take part in the sums and in the
optimizer's step, and run no microbatch. So they are replicas as good as any, of which, and of nodes that come, whole
pipelines are made again without a byte moved between survivors.

Source: sample dropping is what Bamboo (section 3, after Elastic Horovod and others) compares itself with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Times
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.ledger import Ledger, mask_of
from planaria.plan.plan import Pipeline, Plan, Route, Stage, WorkerId, runs_of
from planaria.planner.finish_step.salvage import LayerHolders, finish_step
from planaria.planner.instantiation.microbatch_shares import distribute

Pool = tuple[int, ...]
"""Microbatches that nobody runs, ascending."""


# Within a step


def left_out(plan: Plan, live: Collection[WorkerId], halted: Collection[WorkerId]) -> Pool | None:
    """Returns the microbatches that a step does without after a loss: those of routes with a lost or halted worker.

    None where the step cannot be finished like that: nothing would be left of it; or its routes do not account for all
    that counts (an earlier loss was salvaged in another way), so that an accumulator has more than one fate.
    """
    whole = sum(len(route.microbatches) for route in plan.routes if len(route.counted) == plan.num_layers)
    if whole != plan.num_counted:
        return None
    going = set(live) - set(halted)
    lost = {
        m for route in plan.routes if not all(hop.worker in going for hop in route.hops) for m in route.microbatches
    }
    dropped = tuple(sorted(lost.union(plan.dropped)))
    return dropped if len(dropped) < plan.num_microbatches else None


def finish_without(
    plan: Plan,
    dropped: Pool,
    live: Collection[WorkerId],
    halted: Collection[WorkerId],
    counted: Ledger,
    holders: LayerHolders,
    generation: int,
    profile: ModelProfile,
) -> Plan:
    """Returns the plan that finishes the step without these microbatches; nothing runs again. See `finish_step`.

    Sums begin anew: what was sent of an accumulator may have had some of them.
    """
    without = msgspec.structs.replace(plan, dropped=dropped)
    kept = counted.without(mask_of(dropped))
    new = finish_step(without, live, halted, kept, holders, generation, profile)
    if dropped == plan.dropped:
        return new
    return msgspec.structs.replace(new, sync_epochs=(generation,) * len(plan.groups))


# Between steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The stages left of pipelines, with whole pipelines made of the parts of broken ones.

    Attributes:
        pipelines: whole and broken ones.
        shadows: layers that a worker has beside those that it runs in a combined pipeline: replicas that stay.
    """

    pipelines: tuple[Pipeline, ...]
    shadows: tuple[Stage, ...] = ()


def combined(pipelines: Sequence[Pipeline], profile: ModelProfile) -> Parts:
    """Combines parts of broken pipelines into whole ones, taking the best each time as long as there is one.

    A worker runs all of what it owns, or a part of it. The best pipeline has the fastest slowest stage, then the fewest
    stages. What no whole pipeline takes stays broken where it was.
    """
    num_layers, costs = profile.num_layers, StageCosts(profile)
    whole = [pipeline for pipeline in pipelines if pipeline.is_whole(num_layers)]
    broken = [pipeline for pipeline in pipelines if not pipeline.is_whole(num_layers)]
    made: list[Pipeline] = []
    shadows: list[Stage] = []
    while len(broken) > 1:
        stages = sorted(
            (stage for pipeline in broken for stage in pipeline.stages), key=lambda s: (s.first_layer, s.worker)
        )
        chain = _chain(stages, costs, num_layers)
        if chain is None:
            break
        made.append(Pipeline(stages=chain))
        taken = {stage.worker for stage in chain}
        for worker in sorted(taken):
            runs = {layer for stage in chain if stage.worker == worker for layer in stage.layers}
            has = {layer for stage in stages if stage.worker == worker for layer in stage.layers}
            devices = max(stage.num_devices for stage in stages if stage.worker == worker)
            shadows += runs_of(worker, has - runs, devices)
        rest = [tuple(stage for stage in pipeline.stages if stage.worker not in taken) for pipeline in broken]
        broken = [Pipeline(stages=stages) for stages in rest if stages]
    return Parts(pipelines=(*whole, *made, *broken), shadows=tuple(shadows))


def _chain(stages: Sequence[Stage], costs: StageCosts, num_layers: int) -> tuple[Stage, ...] | None:
    """Returns parts of these stages that cover every layer once, by dynamic programming over the places where one
    begins or ends; no worker comes twice. (The chain need not be the best: it is good, and always the same.)"""
    cuts = sorted({0, num_layers, *(cut for s in stages for cut in (s.first_layer, s.end_layer))})
    best: dict[int, tuple[tuple[float, int, tuple[WorkerId, ...]], tuple[Stage, ...]]] = {0: ((0.0, 0, ()), ())}
    for start in cuts[:-1]:
        if start not in best:
            continue
        (slowest, number, workers), hops = best[start]
        for stage in stages:
            if not stage.first_layer <= start < stage.end_layer or stage.worker in workers:
                continue
            for end in cuts:
                if not start < end <= stage.end_layer:
                    continue
                seconds = max(slowest, costs.compute_s(start, end, stage.num_devices))
                key = (seconds, number + 1, (*workers, stage.worker))
                if end not in best or key < best[end][0]:
                    hop = Stage(worker=stage.worker, first_layer=start, end_layer=end, num_devices=stage.num_devices)
                    best[end] = (key, (*hops, hop))
    found = best.get(num_layers)
    return None if found is None else found[1]


def kept_shares(plan: Plan, pipelines: Sequence[Pipeline]) -> dict[int, Pool]:
    """Returns, for each whole pipeline that the plan has too, its number here and the microbatches it goes on with."""
    own: dict[tuple[Stage, ...], set[int]] = {}
    for route in plan.routes:
        if len(route.counted) == plan.num_layers:
            own.setdefault(route.hops, set()).update(route.microbatches)
    return {at: tuple(sorted(own[pipeline.stages])) for at, pipeline in enumerate(pipelines) if pipeline.stages in own}


def shares(
    kept: Mapping[int, Pool], times: Mapping[int, Times], num_microbatches: int, num_before: int
) -> dict[int, Pool]:
    """Returns the microbatches of each whole pipeline: a kept one keeps its own, a new one takes of those nobody has.

    As many as do not make the step longer, one at least; where every pipeline is new, as large a share of the batch as
    they are of the pipelines that there were.

    Args:
        kept: of the pipelines that go on as they were.
        times: of every whole pipeline, seconds of its step with 1, 2, ... microbatches.
        num_microbatches: microbatches in a step.
        num_before: pipelines of the plan in force, whole or not.
    """
    taken = {microbatch for own in kept.values() for microbatch in own}
    pool = [microbatch for microbatch in range(num_microbatches) if microbatch not in taken]
    new = [at for at in sorted(times) if at not in kept]
    result = dict(kept)
    if not new:
        return result
    if kept:
        longest_s = max(float(times[at][len(own) - 1]) for at, own in kept.items())
        counts = [max(1, int((times[at] <= longest_s * (1 + 1e-9)).sum())) for at in new]
    else:
        number = -(-num_microbatches * len(new) // max(num_before, len(new)))
        counts = list(distribute([times[at] for at in new], number))
    for at, count in zip(new, counts, strict=True):
        given, pool = pool[:count], pool[count:]
        if given:
            result[at] = tuple(given)
    return result


def suspended(base: Plan, parts: Parts, given: Mapping[int, Pool], generation: int) -> Plan:
    """Returns the plan in which these pipelines run these microbatches, and the rest is left out.

    Args:
        base: in force; the model and the schedule are as there.
        parts: the pipelines, whole and broken.
        given: microbatches of the whole ones, by their number.
        generation: of the new plan.
    """
    counted = {microbatch for own in given.values() for microbatch in own}
    every_layer = tuple(range(base.num_layers))
    return msgspec.structs.replace(
        base,
        generation=generation,
        pipelines=parts.pipelines,
        routes=tuple(
            Route(hops=parts.pipelines[at].stages, microbatches=own, born=generation, counted=every_layer)
            for at, own in sorted(given.items())
        ),
        sync_epochs=(generation,) * len(base.groups),
        shadows=parts.shadows,
        transfers=(),
        dropped=tuple(m for m in range(base.num_microbatches) if m not in counted),
    )
