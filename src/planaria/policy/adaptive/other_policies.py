"""The policies of rerouting, morph and drop as sources of candidates.

Rerouting (ReCycle): what is left goes on, and no state moves but to nodes that came.

Morph (Varuna): the last checkpoint, on the best grids of the nodes that are left. Only where checkpoints are written
beside training, and the last one stays until the next is whole. What reading one takes, and how many steps are trained
again, depends on when it happens: that is judged with the forecast.

Drop: whole pipelines go on, and the broken ones' samples are left out. Only where the job allows it. The nodes of whole
pipelines have the part of the batch that they had when the job began with all of its nodes: the answer depends on who
is left, and not on what was done about the losses before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from planaria.plan.plan import Pipeline, Plan
from planaria.plan.quantities import count
from planaria.plan.thresholds import GRIDS_CLOSE, MOST_GRIDS
from planaria.planner.dropped_samples import Pool
from planaria.planner.instantiation.grids import grids
from planaria.planner.instantiation.grids import shape as grid_shape
from planaria.planner.instantiation.microbatch_shares import distribute
from planaria.planner.reconfigure.rebalance_layers import pipeline_times
from planaria.policy.drop import DROP, on_whole_pipelines, reason_for
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.morph import MORPH, quickest_depths
from planaria.policy.planner import Planner
from planaria.policy.reroute import REROUTE, ReroutePolicy
from planaria.policy.sentences import shape


def rerouted(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields detours around nodes that are gone, and nodes that came in the places of the lost."""
    found = yield from ReroutePolicy(planner).on_what_is_left(request)
    if found is not None:
        yield _rerouting(planner, found)


def rerouted_anyway(planner: Planner, request: ReplanRequest) -> Iterator[Candidate]:
    """Yields the candidate of what is left going on, where nothing else is possible."""
    found = ReroutePolicy(planner).as_it_is(request)
    if found is not None:
        yield _rerouting(planner, found)


def _rerouting(planner: Planner, found: Candidate) -> Candidate:
    def explain(asked: ReplanRequest, plan: Plan) -> str:
        return ReroutePolicy(planner).reason(asked, found, plan)

    return dataclasses.replace(found, name=REROUTE, explain=explain)


def grids_of_checkpoint(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields grids with f + 1 rows or more, their state as of the last checkpoint."""
    settings = planner.settings
    if not settings.may_restore:
        return
    nodes = request.complete_nodes
    depths = quickest_depths(planner.templates, len(nodes), settings, MOST_GRIDS)
    made = list(grids(planner.profile, depths, settings, nodes, request.generation, speeds=planner.speeds))
    yield None
    made.sort(key=lambda grid: grid.step_time_s)
    for grid in made:
        if grid.step_time_s > GRIDS_CLOSE * made[0].step_time_s:
            break
        if planner.fits(grid.plan):
            yield dataclasses.replace(
                Candidate.of(planner, grid.plan, MORPH),
                name=f"{MORPH} (grid {grid_shape(grid.plan)})",
                explain=_back_to_checkpoint,
                restores=True,
            )
        yield None


def _back_to_checkpoint(asked: ReplanRequest, plan: Plan) -> str:
    depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
    idle = len(asked.complete_nodes) - len(plan.nodes)
    rest = f" ({count(idle, 'node')} idle)" if idle else ""
    return (
        f"Back to the last checkpoint on a grid of {count(len(plan.pipelines), 'pipeline')} of "
        f"{count(depth, 'node')}{rest}. What was trained since is trained again."
    )


def without_samples(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields one plan, where some pipeline is broken and some is whole."""
    settings = planner.settings
    if not settings.may_drop:
        return

    def given(plan: Plan, pipelines: Sequence[Pipeline]) -> Mapping[int, Pool]:
        return _share_of_nodes(planner, plan, pipelines)

    base = msgspec.structs.replace(
        request.plan, redundancy=None, schedule=settings.schedule, spare_in_flight=0, layer_units=()
    )
    found = on_whole_pipelines(planner, dataclasses.replace(request, plan=base), given)
    yield None
    if found is None or not found.dropped:
        return
    moved_bytes = found.transfer_bytes

    def explain(asked: ReplanRequest, plan: Plan) -> str:
        return reason_for(planner, asked, plan, moved_bytes)

    name = f"{DROP} ({shape(found.plan)}, {found.plan.num_counted} of {settings.num_microbatches})"
    yield dataclasses.replace(found, name=name, explain=explain)


def _share_of_nodes(planner: Planner, plan: Plan, pipelines: Sequence[Pipeline]) -> Mapping[int, Pool]:
    """Returns the microbatches of each whole pipeline, by its number: as many as their nodes had of the job's."""
    settings = planner.settings
    whole = [at for at, pipeline in enumerate(pipelines) if pipeline.is_whole(plan.num_layers)]
    nodes = {plan.node_of(worker) for at in whole for worker in pipelines[at].workers}
    number = max(len(whole), settings.num_microbatches * len(nodes) // settings.num_nodes)
    if not whole or number >= settings.num_microbatches:
        return {}
    times = [
        pipeline_times(pipelines[at], planner.profile, planner.speeds or {}, plan.devices_per_node, number)
        for at in whole
    ]
    given: dict[int, Pool] = {}
    first = 0
    for at, share in zip(whole, distribute(times, number), strict=True):
        given[at] = tuple(range(first, first + share))
        first += share
    return given
