"""Reruns: routes for the microbatches that a loss within a step took out of live accumulators.

Over whole pipelines; over whoever holds the layers, where no pipeline is whole; or over all owners, survivors of broken
pipelines too, who take part of them along (`planaria.planner.reroute.routes`). Which of these is quickest is for the
policy to find out.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import msgspec

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.stage_costs import PipelineCost, StageCosts, pipeline_cost, stage_costs
from planaria.plan.plan import Form, Pipeline, Plan, Route, Stage, WorkerId, runs_of
from planaria.planner.reroute.routes import Detours, Freedom, Hops

Missing = Mapping[tuple[int, ...], Sequence[int]]
"""For each set of layers, the microbatches that are missing from exactly those."""

LayersOf = Mapping[WorkerId, Sequence[int]]


def along_pipelines(
    intact: Sequence[Pipeline], kept: Sequence[Route], missing: Missing, generation: int, profile: ModelProfile
) -> tuple[Route, ...]:
    """Returns new routes over whole pipelines: each microbatch goes to the pipeline that would end first with it."""
    costs = [_cost_of(profile, pipeline.form(1)) for pipeline in intact]
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


@lru_cache(maxsize=1 << 12)
def _cost_of(profile: ModelProfile, form: Form) -> PipelineCost:
    """Returns the cost of a pipeline, each stage taken to be one device on a node of its own."""
    return pipeline_cost(profile, [(first, end) for first, end, *_ in form.stages])


def along_holders(
    holders: LayersOf,
    devices: Mapping[WorkerId, int],
    kept: Sequence[Route],
    missing: Missing,
    generation: int,
    profile: ModelProfile,
) -> tuple[Route, ...]:
    """Returns new routes over any workers that hold the layers, where no pipeline is whole."""
    costs = stage_costs(profile)
    loads = dict.fromkeys(holders, 0.0)
    for route in kept:
        for hop in route.hops:
            loads[hop.worker] += len(route.microbatches) * costs.compute_s(hop.first_layer, hop.end_layer)
    peers_of = _peers(holders, devices, loads)
    each_once = list({id(peers): peers for of_worker in peers_of.values() for peers in of_worker}.values())
    taken: dict[tuple[tuple[int, ...], tuple[Stage, ...]], list[int]] = {}
    onward = _onward(each_once, costs, profile.num_layers)
    for layers, microbatches in missing.items():
        for microbatch in microbatches:
            hops = _hops_over(onward, profile.num_layers)
            for hop in hops:
                load = loads[hop.worker]
                loads[hop.worker] += costs.compute_s(hop.first_layer, hop.end_layer)
                for peers in peers_of[hop.worker]:
                    peers.move(hop.worker, load, loads[hop.worker])
            taken.setdefault((layers, hops), []).append(microbatch)
    return _routes(taken, generation)


def along_owners(
    pipelines: Sequence[Pipeline],
    busy_s: Mapping[WorkerId, float],
    missing: Missing,
    generation: int,
    profile: ModelProfile,
    *,
    freedom: Freedom,
    head: float,
    speeds: Mapping[WorkerId, float],
) -> tuple[tuple[Route, ...], float]:
    """Returns new routes over all workers that own layers in these pipelines, and the busiest worker's seconds.

    Args:
        pipelines: which own every layer together.
        busy_s: seconds for which workers have other work.
        missing: the microbatches that run again.
        generation: of the new plan.
        profile: what layers and links cost.
        freedom: which routes are taken.
        head: see `Detours.deal`.
        speeds: of workers that compute slower or faster than the profile says.

    Raises:
        PlanError: some layer has no owner.
    """
    taken: dict[tuple[tuple[int, ...], Hops], list[int]] = {}
    loads = dict(busy_s)
    for layers, microbatches in missing.items():
        detours = Detours(pipelines, _Counting(profile, layers), profile.num_layers, freedom, speeds)
        deal = detours.deal(len(microbatches), head, loads)
        loads |= deal.loads_s
        dealt = iter(microbatches)
        for hops in (hops for of_pipeline in deal.hops for hops in of_pipeline):
            taken.setdefault((layers, hops), []).append(next(dealt))
    return _routes(taken, generation), max(loads.values(), default=0.0)


def in_whole_microbatches(plan: Plan, profile: ModelProfile) -> Plan:
    """Returns a plan to estimate in place of a large one that finishes a step: each pipeline has one route, of as many
    microbatches as its own come to where one that counts in some layers alone is part of one.

    After losses nearly every pipeline runs something else again, and to estimate a step takes as long as it has
    pipelines that differ. In this plan few do. A plan whose pipelines are not all by themselves stays as it is.
    """
    if -1 in plan.pipeline_of_route or plan.shadows or plan.redundancy is not None or not plan.is_apart:
        return plan
    work = dict.fromkeys(plan.pipeline_of_route, 0.0)
    for at, route in zip(plan.pipeline_of_route, plan.routes, strict=True):
        work[at] += len(route.microbatches) * _share(profile, route.counted)
    alike = (
        Route(
            hops=plan.pipelines[at].stages,
            microbatches=tuple(range(math.ceil(round(whole, 6)))),
            born=plan.generation,
            counted=tuple(range(plan.num_layers)),
        )
        for at, whole in sorted(work.items())
    )
    return plan.renewed(routes=tuple(alike))


@lru_cache(maxsize=1 << 12)
def _share(profile: ModelProfile, counted: tuple[int, ...]) -> float:
    """Returns the compute of a microbatch of which only some layers count, beside that of a whole one."""
    devices = profile.device_counts[0]
    every = stage_costs(profile).compute_s(0, profile.num_layers, devices)
    return _Counting(profile, counted).compute_s(0, profile.num_layers, devices) / every


def _routes(taken: Mapping[tuple[tuple[int, ...], Hops], Sequence[int]], generation: int) -> tuple[Route, ...]:
    return tuple(
        Route(hops=hops, microbatches=tuple(microbatches), born=generation, counted=layers)
        for (layers, hops), microbatches in taken.items()
    )


class _Counting(StageCosts):
    """Costs of a microbatch of which only some layers count: it runs forward everywhere, and backward to the lowest."""

    def __init__(self, profile: ModelProfile, counted: Sequence[int]) -> None:
        super().__init__(profile)
        low, count = counted[0], set(counted)
        self._counting = {
            devices: tuple(
                accumulate(
                    (
                        times.forward_s
                        + (times.backward_input_s if layer >= low else 0.0)
                        + (times.backward_weight_s if layer in count else 0.0)
                        for layer, times in enumerate(cost.on(devices) for cost in profile.layers)
                    ),
                    initial=0.0,
                )
            )
            for devices in profile.device_counts
        }

    def compute_s(self, first: int, end: int, num_devices: int = 1) -> float:
        """Returns the seconds of forward and needed backward, of one microbatch through layers [first, end)."""
        compute = self._counting[num_devices]
        return compute[end] - compute[first]


_Choices = Sequence[tuple[int, float, float]]
"""Hops to choose from: the end layer, seconds of compute, and of messages to and fro at the end."""


class _Peers:
    """Workers that hold one run of layers, by their loads: few are looked at, however many there are."""

    def __init__(self, run: Stage, workers: Sequence[WorkerId], loads: Mapping[WorkerId, float]) -> None:
        self.run = run
        self._of_load: dict[float, list[WorkerId]] = {}
        for worker in workers:
            self._of_load.setdefault(loads[worker], []).append(worker)
        for equal in self._of_load.values():
            equal.sort()
        self._loads = sorted(self._of_load)

    def move(self, worker: WorkerId, load: float, new_load: float) -> None:
        """Notes that a worker has more to do."""
        equal = self._of_load[load]
        del equal[bisect_left(equal, worker)]
        if not equal:
            del self._of_load[load], self._loads[bisect_left(self._loads, load)]
        if new_load not in self._of_load:
            self._of_load[new_load] = []
            insort(self._loads, new_load)
        insort(self._of_load[new_load], worker)

    def best(self, busiest: float, compute_s: float, but: WorkerId | None) -> tuple[float, WorkerId] | None:
        """Returns the load of the busiest on a route that goes on here, the least there is, and who is then chosen.

        Among several that make it no greater, it is the one with the lowest number.
        """
        found: tuple[float, WorkerId] | None = None
        for own in self._loads:
            load = max(busiest, own + compute_s)
            if found is not None and load > found[0]:
                break
            equal = self._of_load[own]
            worker = equal[0] if equal[0] != but else equal[1] if len(equal) > 1 else None
            if worker is not None and (found is None or worker < found[1]):
                found = load, worker
        return found


_Onward = Mapping[int, Sequence[tuple[_Peers, _Choices]]]
"""For each place where a holder's run begins or ends: who can go on from there, with hops to choose from."""


def _peers(
    holders: LayersOf, devices: Mapping[WorkerId, int], loads: Mapping[WorkerId, float]
) -> dict[WorkerId, list[_Peers]]:
    """Returns the holders of each run of layers together, by worker."""
    of_run: dict[Stage, list[WorkerId]] = {}
    for worker, layers in holders.items():
        for run in runs_of(worker, layers, devices.get(worker, 1)):
            of_run.setdefault(msgspec.structs.replace(run, worker=0), []).append(worker)
    of_worker: dict[WorkerId, list[_Peers]] = {}
    for run, workers in of_run.items():
        peers = _Peers(run, workers, loads)
        for worker in workers:
            of_worker.setdefault(worker, []).append(peers)
    return of_worker


def _onward(all_peers: Sequence[_Peers], costs: StageCosts, num_layers: int) -> _Onward:
    runs = [peers.run for peers in all_peers]
    cuts = sorted({run.first_layer for run in runs} | {run.end_layer for run in runs} | {0, num_layers})
    return {
        start: [
            (
                peers,
                [
                    (end, costs.compute_s(start, end), 2 * costs.link_s(end))
                    for end in cuts
                    if start < end <= peers.run.end_layer
                ],
            )
            for peers in all_peers
            if peers.run.first_layer <= start < peers.run.end_layer
        ]
        for start in cuts[:-1]
    }


def _hops_over(onward: _Onward, num_layers: int) -> tuple[Stage, ...]:
    """Returns hops over all layers, by dynamic programming over the places where some holder's run begins or ends.

    Least first: the load of the busiest worker on the route plus the messages' time; then the fewest hops; then the
    workers' numbers.
    """
    best: dict[int, tuple[tuple[float, int, list[WorkerId]], float, float, tuple[Stage, ...]]] = {
        0: ((0.0, 0, []), 0.0, 0.0, ())
    }
    for start, choices in onward.items():
        if start not in best:
            continue
        (_, number, workers), busiest, messages, hops = best[start]
        for peers, own in choices:
            for end, compute_s, message_s in own:
                chosen = peers.best(busiest, compute_s, workers[-1] if workers else None)
                if chosen is None:
                    break
                load, worker = chosen
                rank = load + (messages + message_s), number + 1, [*workers, worker]
                if end not in best or rank < best[end][0]:
                    hop = msgspec.structs.replace(peers.run, worker=worker, first_layer=start, end_layer=end)
                    best[end] = rank, load, messages + message_s, (*hops, hop)
    return best[num_layers][3]
