"""New pipelines as a source of candidates: from templates (Oobleck), and from a search beyond them (Odyssey).

Odyssey, section IV-A and algorithm 1: numbers of pipelines near that of now, nodes dealt out to them, microbatches and
layers split to suit. Its splits are even ones; here each size has the best split there is, of layers and microbatches.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planaria.plan.aftermath import Aftermath, Reconfiguration
from planaria.plan.batch import Times, distribute
from planaria.plan.instantiate import fewest_seconds, instantiate
from planaria.plan.plan import Plan, PlanError
from planaria.plan.reinstantiate import How
from planaria.plan.respeed import PROMISING
from planaria.plan.settings import PlannerSettings
from planaria.plan.speeds import Speeds, step_times
from planaria.plan.templates import Template, make_templates
from planaria.plan.zones import Zones
from planaria.policy.question import Question
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import FromPlanner, Offer
from planaria.policy.wording import shape

NEAR = 2
"""The best number of pipelines often differs from the one of now by less (Odyssey, section IV-A)."""

NEXT = 1
"""The quickest set by compute, however uneven, is looked for where the number of pipelines differs by no more."""

UNEVEN = 0.99
"""It is tried where it computes in so much less than even ones; and offered unless they take so much less for a step,
sums included. With split backwards, which are tried later, it may be the quicker one all the same."""

MOST_BUILT = 6
"""Shapes of which plans are made: the best in closed form, of each number of pipelines first. It knows no sums of
gradients, which take longer the more there are: the best by compute must not crowd out those with fewer pipelines."""


@dataclasses.dataclass(frozen=True, slots=True)
class Templates(FromPlanner[ReroutePolicy]):
    """As the policy `templates` makes them, and in all other ways of its templates that are worth an estimate."""

    name: str = "templates"

    def offers(self, question: Question) -> Iterator[Offer | None]:
        found = self.planner.reconfigurations(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        )
        for result in found:
            yield offer_of(self.planner, f"{self.name} ({result.how}, {shape(result.plan)})", result)
            yield None


class Searched:
    """Any number of pipelines near that of now, of any sizes that fit, whether or not there is a template of the job's.

    Args:
        planner: estimates.
        sizes: a pipeline of each number of nodes that fits.
    """

    name = "search"

    def __init__(self, planner: ReroutePolicy, sizes: Sequence[Template] | None = None) -> None:
        self._planner = planner
        self._sizes = _every_size(planner) if sizes is None else sizes

    @property
    def sizes(self) -> Sequence[Template]:
        """A pipeline of each number of nodes that fits."""
        return self._sizes

    def at_speeds(self, speeds: Speeds) -> Searched:
        return Searched(self._planner.with_speeds(speeds), self._sizes)

    def stretched(self, stretch: float) -> Searched:
        return Searched(self._planner.with_stretch(stretch), self._sizes)

    def in_zones(self, zones: Zones) -> Searched:
        return Searched(self._planner.with_zones(zones), self._sizes)

    def offers(self, question: Question) -> Iterator[Offer | None]:
        change = self._planner.change(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        )
        left = Aftermath(dataclasses.replace(change, templates=self._sizes))
        settings = change.settings
        known = {template.num_nodes: step_times(template, settings.num_microbatches) for template in self._sizes}
        now = sum(1 for size in left.alive if size)
        fewest = max(settings.fault_tolerance + 1, now - NEAR)
        shapes = {
            tuple(sorted(sizes, reverse=True))
            for number in range(fewest, min(now + NEAR, settings.num_microbatches) + 1)
            for sizes in _partitions(left, number)
            if all(size in known for size in sizes)
        }
        shapes |= {sizes for sizes in _instantiations(self._sizes, left.num_live, settings) if len(sizes) <= now + NEAR}
        seconds = {sizes: _seconds(sizes, known, settings.num_microbatches) for sizes in shapes}
        order = sorted(shapes, key=lambda sizes: (seconds[sizes], sizes))
        yield None
        chosen = _best_of_each_number(order)
        least_s = math.inf
        for number in range(max(fewest, now - NEXT), min(now + NEXT, settings.num_microbatches) + 1):
            uneven = _quickest(known, left.num_live, number, settings.num_microbatches)
            yield None
            if uneven is not None and uneven not in seconds:
                seconds[uneven] = _seconds(uneven, known, settings.num_microbatches)
                if seconds[uneven] <= UNEVEN * min((seconds[s] for s in shapes if len(s) == number), default=math.inf):
                    chosen.append(uneven)
        for sizes in chosen:
            if seconds[sizes] > PROMISING * seconds[order[0]]:
                continue
            result = left.build(left.fitted(Counter(sizes)), How.INSTANTIATE)
            if self._planner.fits(result.plan):
                offer = offer_of(self._planner, f"{self.name} ({shape(result.plan)})", result)
                step_s = offer.proposal.step_time_s
                if sizes in shapes or UNEVEN * step_s <= least_s:
                    least_s = min(least_s, step_s)
                    yield offer
            yield None


def _every_size(planner: ReroutePolicy) -> tuple[Template, ...]:
    """The job's templates; and smaller ones, where the user wants no pipeline so small, but it is known to fit."""
    settings, own = planner.settings, planner.templates
    if not (settings.memory_bytes and settings.min_nodes > 1):
        return own
    share = settings.microbatches_per_pipeline
    wider = dataclasses.replace(settings, min_nodes=0, microbatch_range=settings.microbatch_range or (share, share))
    try:
        made = make_templates(planner.profile, wider, [template.num_nodes for template in own])
    except PlanError:
        return own
    sizes = {template.num_nodes: template for template in (*made, *own)}
    return tuple(sizes[size] for size in sorted(sizes))


def _partitions(left: Aftermath, number: int) -> Iterator[list[int]]:
    """All live nodes in so many pipelines: as evenly as can be; and likewise around intact ones, the largest first."""
    intact = sorted((left.alive[at] for at, is_intact in enumerate(left.intact) if is_intact), reverse=True)
    for num_kept in range(min(len(intact), number) + 1):
        kept, others = intact[:num_kept], number - num_kept
        nodes = left.num_live - sum(kept)
        if others == 0:
            if not nodes:
                yield kept
        elif nodes >= others:
            size, larger = divmod(nodes, others)
            yield kept + [size + 1] * larger + [size] * (others - larger)


def _instantiations(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings
) -> Iterator[tuple[int, ...]]:
    """What a job of so many nodes would begin with: the best sets of all sizes, without the smallest, and so on."""
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
    """The set of so many pipelines that computes quickest; None where none of these sizes uses all nodes."""
    sizes = sorted(known)
    if number * sizes[0] > num_nodes:
        return None
    counts = fewest_seconds(sizes, [known[s] for s in sizes], num_nodes, number, num_microbatches, most=number)
    shape = [size for size, count in zip(sizes, counts, strict=True) for _ in range(count)]
    return tuple(sorted(shape, reverse=True)) if sum(shape) == num_nodes else None


def _best_of_each_number(order: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The first of each number of pipelines, in the order given; then the second of each, and so on."""
    taken: Counter[int] = Counter()
    places = []
    for at, sizes in enumerate(order):
        places.append((taken[len(sizes)], at))
        taken[len(sizes)] += 1
    return [order[at] for _, at in sorted(places)[:MOST_BUILT]]


def _seconds(sizes: Sequence[int], known: dict[int, Times], num_microbatches: int) -> float:
    """Of a step, without sums between pipelines."""
    times = [known[size] for size in sizes]
    return max(float(time[share - 1]) for time, share in zip(times, distribute(times, num_microbatches), strict=True))


def offer_of(planner: ReroutePolicy, name: str, result: Reconfiguration) -> Offer:
    """With its estimate."""

    def explain(asked: Question, plan: Plan) -> str:
        before = set(asked.plan.pipelines)
        rebuilt = tuple(at for at, pipeline in enumerate(plan.pipelines) if pipeline not in before)
        return planner.reason_of(asked.plan, asked.lost, dataclasses.replace(result, plan=plan, rebuilt=rebuilt))

    return Offer(name=name, proposal=planner.reconfigured(result.plan, (), result), explain=explain)
