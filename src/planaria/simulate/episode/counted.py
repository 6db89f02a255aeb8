"""The microbatches that workers have counted within a step, as far as anybody asks: they are not simulated one by one.

Those who are halted tell what they would have counted by then; of all others it is known when the step is over.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from planaria.plan.ledger import mask_of
from planaria.plan.plan import Plan, Route, WorkerId


class Counted:
    """Counted microbatches of the step in progress."""

    def __init__(self) -> None:
        self._kept: dict[WorkerId, list[int]] = {}
        """Counts of halted workers: for each layer a mask of microbatches."""
        self._work: tuple[Plan, dict[WorkerId, list[tuple[Route, list[int]]]]] | None = None
        """Work of some workers under a plan: see `_work_of`."""

    def clear(self) -> None:
        """Clears the counts: the step is over, or begins anew."""
        self._kept.clear()

    def by_all(self, plan: Plan) -> list[int]:
        """Returns for each layer what accumulators hold at the end: what was kept from before, and the routes' work."""
        bits = [0] * plan.num_layers
        for own in self._kept.values():
            for layer, mask in enumerate(own):
                bits[layer] |= mask
        for layers, mask in plan.work.items():
            for layer in layers:
                bits[layer] |= mask
        left_out = mask_of(plan.dropped)
        return [mask & ~left_out for mask in bits]

    def by(self, worker: WorkerId, plan: Plan, share: float, others: Collection[WorkerId]) -> list[int]:
        """Returns for each layer what the worker's accumulators hold when it is halted.

        Args:
            worker: the one that is halted.
            plan: the plan in force.
            share: of the step that has passed.
            others: that are halted with it, and will be asked about next.
        """
        own = self._kept.setdefault(worker, [0] * plan.num_layers)
        for route, layers in self._work_of(worker, plan, others):
            mask = mask_of(route.microbatches[: int(share * len(route.microbatches))])
            for layer in layers:
                own[layer] |= mask
        return own

    def _work_of(self, worker: WorkerId, plan: Plan, others: Collection[WorkerId]) -> list[tuple[Route, list[int]]]:
        """Returns the routes that lead over the worker, with the layers that it counts of each."""
        if self._work is None or self._work[0] is not plan or worker not in self._work[1]:
            halted = {worker, *others}
            work: dict[WorkerId, list[tuple[Route, list[int]]]] = {one: [] for one in halted}
            for at, route in zip(plan.pipeline_of_route, plan.routes, strict=True):
                if at >= 0 and halted.isdisjoint(plan.pipelines[at].workers):
                    continue
                counted = set(route.counted)
                for hop in route.hops:
                    if hop.worker in halted:
                        work[hop.worker].append((route, [layer for layer in hop.layers if layer in counted]))
            self._work = plan, work
        return self._work[1][worker]


@lru_cache(maxsize=4)
def losses_of(mask: int, size: int) -> dict[int, float]:
    """Returns a vote's losses of the microbatches below `size` in a bit mask; shared, so not to be changed."""
    members = range(size)
    if mask == (1 << size) - 1:
        return dict.fromkeys(members, 1.0)
    return {number: 1.0 for number in members if mask >> number & 1}
