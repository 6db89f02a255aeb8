"""All sets of pipelines that use every node, and the one that Oobleck would take (sections 4.2.1 and 4.2.2).

For jobs whose plans are to be the paper's. `instantiate` finds a set whose step is as short as can be, and sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from planaria.plan.costs.pipeline_time import Template, step_times_of
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import MOST_ENUMERATED
from planaria.planner.instantiation.microbatch_shares import shares_of


def quickest_of_all(templates: Sequence[Template], num_nodes: int, settings: PlannerSettings) -> tuple[int, ...] | None:
    """Returns how many pipelines of each template make the shortest step, with the batch shared by the job's objective.

    Args:
        templates: the job's templates, fewest nodes first.
        num_nodes: all of which are used.
        settings: what the job asks of its plans.

    Returns:
        The number of pipelines of each template; of equally fast sets the first of `sets_of`. None where no set uses
        all nodes, or more than `MOST_ENUMERATED` do: then they are too many to try.
    """
    sizes = [template.num_nodes for template in templates]
    found = list(
        islice(sets_of(sizes, num_nodes, settings.fault_tolerance + 1, settings.most_pipelines), MOST_ENUMERATED + 1)
    )
    if not 0 < len(found) <= MOST_ENUMERATED:
        return None
    times = step_times_of(templates, settings.num_microbatches)

    def seconds(counts: Sequence[int]) -> float:
        own = [time for time, count in zip(times, counts, strict=True) for _ in range(count)]
        return max(float(time[share - 1]) for time, share in zip(own, shares_of(own, settings), strict=True))

    return min(found, key=seconds)


def sets_of(sizes: Sequence[int], num_nodes: int, least: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yields how many pipelines of each size use the nodes exactly: every set of `least` to `most` pipelines.

    Args:
        sizes: nodes of each template, ascending.
        num_nodes: to be used.
        least: pipelines, at least.
        most: pipelines, at most.
    """
    *smaller, largest = sizes
    if not smaller:
        count, left = divmod(num_nodes, largest)
        if not left and least <= count <= most:
            yield (count,)
        return
    for count in range(min(num_nodes // largest, most), -1, -1):
        left = num_nodes - count * largest
        if left > (most - count) * smaller[-1]:
            return  # fewer of the largest need even more of the others
        for counts in sets_of(smaller, left, least - count, most - count):
            yield (*counts, count)
