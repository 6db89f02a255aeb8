"""Shapes: what a step takes with pipelines of given sizes, before it is found out who gets what state.

A step's time follows from the forms and shares of a plan's pipelines (`planaria.estimate.outline`), and of pipelines
made from templates these follow from their sizes. So a set of templates none of whose sizes are fast enough need not be
made a plan of. Makes no plan that is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from planaria.plan.aftermath import Aftermath
from planaria.plan.plan import Plan
from planaria.plan.reconfigure import Change, searched
from planaria.plan.templates import Template

MOST = 4096
"""That are remembered."""


class Shapes:
    """Of one set of templates and its subsets, on nodes as fast as the profile says."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, ...], float] = {}
        """Of a step of so many microbatches, with pipelines of these sizes."""

    def may_take_less(
        self, change: Change, templates: Sequence[Template], seconds: float, step_s: Callable[[Plan], float]
    ) -> bool:
        """Whether a full search with these templates may give a plan whose step takes less than so many seconds; False:
        it does not.

        Args:
            change: after which a plan is made.
            templates: to make it from.
            seconds: see above.
            step_s: a step's, of any plan.

        Raises:
            PlanError: there is no such plan.
        """
        if change.plan.devices_per_node > 1:
            return True  # a pipeline that stays may be on other devices of its nodes than its template's
        left = Aftermath(dataclasses.replace(change, templates=templates))
        return any(self._step_s(left, sizes, step_s) < seconds for sizes in searched(left))

    def _step_s(self, left: Aftermath, sizes: Sequence[int], step_s: Callable[[Plan], float]) -> float:
        key = left.situation.most, *(size for size in sizes if size)
        found = self._seconds.get(key)
        if found is None:
            while len(self._seconds) >= MOST:
                del self._seconds[next(iter(self._seconds))]
            found = self._seconds[key] = step_s(left.shaped(sizes))
        return found
