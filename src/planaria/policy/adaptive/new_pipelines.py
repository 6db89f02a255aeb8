"""New pipelines as sources of candidates: from templates (Oobleck), from a search beyond them (Odyssey), and of fewer
replicas or activations where too few nodes are left.

Odyssey, section IV-A and algorithm 1: numbers of pipelines near that of now, nodes dealt out to them, microbatches and
layers split to suit. Its splits are even ones; here each size has the best split there is, of layers and microbatches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planaria.plan.costs.pipeline_time import Template, Times, step_times
from planaria.plan.plan import Plan, PlanError
from planaria.plan.quantities import count
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import MOST_BUILT, NEAR_NUMBERS, NEXT_NUMBERS, PROMISING, UNEVEN_CLEARLY
from planaria.planner.instantiation.instantiate import fewest_seconds, instantiate
from planaria.planner.instantiation.microbatch_shares import distribute
from planaria.planner.reconfigure.pipeline_sizes import How
from planaria.planner.reconfigure.surviving_plan import Reconfiguration, SurvivingPlan
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.planner import LEAN, Planner
from planaria.policy.sentences import shape
from planaria.policy.templates import TemplatesPolicy, reason_of


def template_pipelines(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields the pipelines of the policy `templates`, and all others of its templates that are worth an estimate."""
    for result in TemplatesPolicy(planner).reconfigurations(request):
        yield _candidate(planner, f"templates ({result.how}, {shape(result.plan)})", result)
        yield None


def searched_pipelines(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields any number of pipelines near the present one, of any sizes that fit, with or without a template of the
    job."""
    left, settings = SurvivingPlan(request.change(planner, planner.sizes)), planner.settings
    known = {template.num_nodes: step_times(template, settings.num_microbatches) for template in planner.sizes}
    now = sum(1 for size in left.alive if size)
    fewest = max(settings.fault_tolerance + 1, now - NEAR_NUMBERS)
    shapes = {
        tuple(sorted(sizes, reverse=True))
        for number in range(fewest, min(now + NEAR_NUMBERS, settings.most_pipelines) + 1)
        for sizes in _partitions(left, number)
        if all(size in known for size in sizes)
    }
    shapes |= {
        sizes for sizes in _instantiations(planner.sizes, left.num_usable, settings) if len(sizes) <= now + NEAR_NUMBERS
    }
    seconds = {sizes: _seconds(sizes, known, settings.num_microbatches) for sizes in shapes}
    order = sorted(shapes, key=lambda sizes: (seconds[sizes], sizes))
    yield None
    chosen = _best_of_each_number(order)
    least_s = math.inf
    for number in range(max(fewest, now - NEXT_NUMBERS), min(now + NEXT_NUMBERS, settings.most_pipelines) + 1):
        uneven = _quickest(known, left.num_usable, number, settings.num_microbatches)
        yield None
        if uneven is not None and uneven not in seconds:
            seconds[uneven] = _seconds(uneven, known, settings.num_microbatches)
            if seconds[uneven] <= UNEVEN_CLEARLY * min(
                (seconds[s] for s in shapes if len(s) == number), default=math.inf
            ):
                chosen.append(uneven)
    for sizes in chosen:
        if seconds[sizes] > PROMISING * seconds[order[0]]:
            continue
        result = left.build(left.fitted(Counter(sizes)), How.INSTANTIATE)
        if planner.fits(result.plan):
            candidate = _candidate(planner, f"search ({shape(result.plan)})", result)
            if sizes in shapes or UNEVEN_CLEARLY * candidate.step_time_s <= least_s:
                least_s = min(least_s, candidate.step_time_s)
                yield candidate
        yield None


def leaner_pipelines(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields what templates make under a schedule that keeps fewer activations, where fewer nodes are left than f + 1
    of the smallest pipelines of the job's schedule take."""
    lean = planner.lean
    if lean is None or enough_nodes(planner, len(request.complete_nodes)):
        return
    for result in TemplatesPolicy(lean).reconfigurations(request):
        yield _candidate(lean, f"templates ({result.how}, {shape(result.plan)}), {LEAN.value}", result)
        yield None


def enough_nodes(planner: Planner, num_nodes: int) -> bool:
    """Returns whether so many nodes are enough for f + 1 of the smallest pipelines."""
    return num_nodes >= (planner.settings.fault_tolerance + 1) * planner.templates[0].num_nodes


def pipelines_of_fewer_replicas(planner: Planner, request: ReplanRequest) -> Iterator[Candidate | None]:
    """Yields what templates make for the highest f that the nodes are enough for, if that is above 0.

    Rerouting moves nothing, so some layer may soon have its last replica. As many replicas as the nodes are enough for
    may be worth their state's way. Such a plan is degraded, and left like any other that is.
    """
    for replicas, fewer in fewer_replicas(planner, len(request.complete_nodes)):
        if replicas == 1:
            return  # rerouting keeps one as well
        try:
            yield from _of_replicas(planner, fewer, replicas, request)
        except PlanError:
            continue
        return


def pipelines_of_one_replica(planner: Planner, request: ReplanRequest) -> Iterator[Candidate]:
    """Yields pipelines of one replica, where nothing can be rerouted on what is left."""
    for replicas, fewer in fewer_replicas(planner, len(request.complete_nodes)):
        if replicas == 1:
            with contextlib.suppress(PlanError):
                yield from (found for found in _of_replicas(planner, fewer, replicas, request) if found is not None)


def fewer_replicas(planner: Planner, num_nodes: int) -> Iterator[tuple[int, Planner]]:
    """Yields (replicas, planner), from the most that fit down to one; nothing where the nodes are enough for f + 1."""
    most = num_nodes // planner.templates[0].num_nodes
    if most <= planner.settings.fault_tolerance:
        for replicas in range(most, 0, -1):
            yield replicas, planner.with_settings(fault_tolerance=replicas - 1)


def _of_replicas(planner: Planner, fewer: Planner, replicas: int, request: ReplanRequest) -> Iterator[Candidate | None]:
    lacks = degraded(replicas, planner.settings.fault_tolerance + 1)
    for result in TemplatesPolicy(fewer).reconfigurations(request):
        if fewer.fits(result.plan):
            name = f"templates ({result.how}, {shape(result.plan)}, {count(replicas, 'replica')})"
            yield _candidate(planner, name, result, f" {lacks}")
        yield None


def degraded(replicas: int, wanted: int) -> str:
    """Returns what a plan of fewer replicas lacks, as a sentence."""
    return f"Degraded: layers have {count(replicas, 'replica')} of {wanted}."


def _candidate(planner: Planner, name: str, result: Reconfiguration, more: str = "") -> Candidate:
    """Returns the candidate of a reconfiguration, with its estimate. Its explanation ends with `more`."""

    def explain(asked: ReplanRequest, plan: Plan) -> str:
        before = set(asked.plan.pipelines)
        rebuilt = tuple(at for at, pipeline in enumerate(plan.pipelines) if pipeline not in before)
        told = dataclasses.replace(result, plan=plan, rebuilt=rebuilt)
        return f"{reason_of(planner, asked.plan, asked.lost, told)}{more}"

    found = Candidate.of(
        planner,
        result.plan,
        result.how.value,
        transfer_bytes=result.transfer_bytes,
        transfer_s=result.transfer_s,
    )
    return dataclasses.replace(found, name=name, explain=explain)


# Sizes of pipelines


def _partitions(left: SurvivingPlan, number: int) -> Iterator[list[int]]:
    """Yields all live nodes in so many pipelines, as evenly as can be: at first all anew, then around intact ones, the
    largest first."""
    intact = sorted((left.alive[at] for at, is_intact in enumerate(left.intact) if is_intact), reverse=True)
    for num_kept in range(min(len(intact), number) + 1):
        kept, others = intact[:num_kept], number - num_kept
        nodes = left.num_usable - sum(kept)
        if others == 0:
            if not nodes:
                yield kept
        elif nodes >= others:
            size, larger = divmod(nodes, others)
            yield kept + [size + 1] * larger + [size] * (others - larger)


def _instantiations(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings
) -> Iterator[tuple[int, ...]]:
    """Yields what a job of so many nodes would begin with: the best set of all sizes, then without the
    smallest ones."""
    smallest = 0
    while smallest < len(templates):
        larger = templates[smallest:]
        try:
            counts = instantiate(larger, num_nodes, settings)
        except PlanError:
            return  # too few nodes for f + 1 pipelines of that size
        sizes = [t.num_nodes for t, count in zip(larger, counts, strict=True) for _ in range(count)]
        if sum(sizes) == num_nodes:
            yield tuple(sorted(sizes, reverse=True))
        smallest = max(1, 2 * smallest)


def _quickest(known: Mapping[int, Times], num_nodes: int, number: int, num_microbatches: int) -> tuple[int, ...] | None:
    """Returns the set of so many pipelines that computes quickest; None where none of these sizes uses all nodes."""
    sizes = sorted(known)
    if number * sizes[0] > num_nodes:
        return None
    counts = fewest_seconds(sizes, [known[s] for s in sizes], num_nodes, number, num_microbatches, most=number)
    shape = [size for size, count in zip(sizes, counts, strict=True) for _ in range(count)]
    return tuple(sorted(shape, reverse=True)) if sum(shape) == num_nodes else None


def _best_of_each_number(order: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns the first of each number of pipelines, in the order given; then the second of each, and so on."""
    taken: Counter[int] = Counter()
    places = []
    for at, sizes in enumerate(order):
        places.append((taken[len(sizes)], at))
        taken[len(sizes)] += 1
    return [order[at] for _, at in sorted(places)[:MOST_BUILT]]


def _seconds(sizes: Sequence[int], known: dict[int, Times], num_microbatches: int) -> float:
    """Returns the seconds of a step with pipelines of these sizes, without sums between them."""
    times = [known[size] for size in sizes]
    return max(float(time[share - 1]) for time, share in zip(times, distribute(times, num_microbatches), strict=True))
