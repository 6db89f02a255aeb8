"""The plan chosen against the fastest of all that were tried for real: `wire.py plans`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import fidelity
from figures import Figures, note
from hosts import Cluster, Farm, cluster, started
from wire_cases import JOB, NUM_LAYERS, Size, hosts

from planaria.protocol.messages.records import PlanTaken

Ends = tuple[tuple[int, ...], ...]
"""Of each pipeline the ends of its stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of one plan.

    Attributes:
        ends: the plan.
        step_s: median seconds of its steps.
        estimated_s: what the plan was thought to take before the first of them.
    """

    ends: Ends
    step_s: float
    estimated_s: float


Tried = dict[Ends, list[Run]]


def plans(figures: Figures, size: Size) -> None:
    """Every cut of every set of pipelines of 3 and 4 nodes, each alone, one after the other; then the chosen one and
    the quickest ones again, in turns: of many noisy figures the least is too small."""
    for gbits, nodes in itertools.product(size.gbits, size.nodes):
        free = ['train.numerics="exact"', "train.global_batch=8", *fidelity.f_n0(0, 1)]
        title = f"wire.plans.{nodes}-nodes.{gbits:g}-Gbit/s"
        with hosts(nodes, gbits) as made:
            found = alone(cluster(made, "chosen", JOB, *free), size)
            chosen = found.ends
            tried = {chosen: [found]}

            def again(plan: Ends, made: Farm = made, free: Sequence[str] = free, tried: Tried = tried) -> None:
                tried.setdefault(plan, []).append(alone(cluster(made, "tried", JOB, *free, plan=plan), size))

            for plan in all_plans(nodes, size.cuts):
                if plan != chosen:
                    again(plan)
            quickest = sorted(tried, key=lambda plan: median_s(tried, plan))[: size.rivals]
            for _, plan in itertools.product(range(size.turns), dict.fromkeys([chosen, *quickest])):
                again(plan)
        for plan in sorted(tried, key=lambda plan: median_s(tried, plan)):
            estimates = statistics.median(run.estimated_s for run in tried[plan])
            note(f"{title}: {plan} {median_s(tried, plan) * 1e3:.0f} ms, estimated {estimates * 1e3:.0f} ms")
        best = min({chosen, *quickest}, key=lambda plan: median_s(tried, plan))
        note(f"{title}: chosen {chosen}; best {best}")
        ratio = median_s(tried, chosen) / median_s(tried, best)
        figures.add(f"{title}.chosen-over-best", ratio, "ratio", goal="<= 1.05", samples=len(tried))


def median_s(tried: Tried, plan: Ends) -> float:
    """Seconds of a step under the plan, over all runs of it."""
    return statistics.median(run.step_s for run in tried[plan])


def all_plans(nodes: int, most: int) -> Iterator[Ends]:
    """Pipelines of one size are cut alike."""
    for sizes in partitions(nodes, nodes):
        cuts = {
            count: [(*cut, NUM_LAYERS) for cut in itertools.combinations(range(1, NUM_LAYERS), count - 1)]
            for count in set(sizes)
        }
        choices = [dict(zip(cuts, choice, strict=True)) for choice in itertools.product(*cuts.values())]
        choices.sort(key=lambda cut: max(b - a for ends in cut.values() for a, b in itertools.pairwise((0, *ends))))
        for cut in choices[: most or None]:
            yield tuple(cut[count] for count in sizes)


def partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Numbers of nodes of pipelines, largest first."""
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


def alone(side: Cluster, size: Size) -> Run:
    """A run of its own."""
    with started(side):
        side.steps(3)
        seconds = statistics.median(side.steps(2 * size.steps))
        taken = next(record for record, _ in side.records if isinstance(record, PlanTaken))
        ends = tuple(tuple(end for _, _, end in stages) for stages in taken.pipelines)
        return Run(ends=ends, step_s=seconds, estimated_s=taken.estimated_step_s)
