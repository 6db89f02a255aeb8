"""Sets of templates from which a plan may be instantiated, beside all of them.

An instantiation weighs compute alone. The more pipelines there are, the longer their sums take, and the longer the less
alike they are cut: where that counts, fewer, larger and even pipelines are faster. Makes no plan, and estimates none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planaria.plan.settings import PlannerSettings
from planaria.plan.speeds import step_times
from planaria.plan.templates import Template

MOST_EVEN = 8
"""Even sets that are estimated: so many of the best by compute, and as many of the fewest pipelines; of
hundreds of nodes fewer, as estimates take longer there."""


def other_sets(
    templates: Sequence[Template], num_nodes: int, settings: PlannerSettings
) -> Iterator[Sequence[Template]]:
    """Those without the smallest, then those of even sizes."""
    yield from _without_smallest(templates)
    yield from even_sets(templates, num_nodes, settings)


def _without_smallest(templates: Sequence[Template]) -> Iterator[Sequence[Template]]:
    """All but the first, all but the first two, four, and so on."""
    smallest = 1
    while smallest < len(templates):
        yield templates[smallest:]
        smallest *= 2


def even_sets(templates: Sequence[Template], num_nodes: int, settings: PlannerSettings) -> list[Sequence[Template]]:
    """For each number of pipelines the one or two sizes that share the nodes out evenly: a few, see `MOST_EVEN`."""
    known = {template.num_nodes: template for template in templates}
    found: list[tuple[float, int, Sequence[Template]]] = []
    most = min(num_nodes // templates[0].num_nodes, settings.num_microbatches)
    for number in range(max(2, settings.fault_tolerance + 1), most + 1):
        size, larger = divmod(num_nodes, number)
        sizes = (size, size + 1) if larger else (size,)
        if all(one in known for one in sizes):
            share = -(-settings.num_microbatches // number)
            seconds = float(step_times(known[size], settings.num_microbatches)[share - 1])
            found.append((seconds, number, [known[one] for one in sizes]))
    limit = max(1, min(MOST_EVEN, 512 // num_nodes))
    quickest = sorted(found, key=lambda one: one[:2])[:limit]
    fewest = [one for one in found[:limit] if one not in quickest]
    return [templates for _, _, templates in (*quickest, *fewest)]
