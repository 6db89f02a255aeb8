"""New pipelines whose schedule keeps fewer activations, as a source of candidates: where too few nodes are left for the
job's own schedule.

A schedule that keeps more activations needs deeper pipelines where memory is short: GPT-3 6.7B takes 6 devices of 80 GB
under GPipe, and two under 1F1B. Who would wait for nodes under it may go on under another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Self

from planaria.plan.plan import PlanError, ScheduleKind
from planaria.plan.templates import fewest_nodes
from planaria.policy.question import Question
from planaria.policy.rebuilding import offer_of
from planaria.policy.redundancy import complete_nodes
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import FromPlanner, Offer
from planaria.policy.wording import shape

LEAN = ScheduleKind.ONE_F_ONE_B
"""Of the schedules, that which keeps fewest activations."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leaner(FromPlanner[ReroutePolicy]):
    """As the policy `templates` makes them under that schedule.

    Attributes:
        needed: nodes that f + 1 of the smallest pipelines of the job's schedule take; 0: the other one needs as many.
        name: see `Source`.
    """

    needed: int = 0
    name: str = "templates"

    @classmethod
    def of(cls, planner: ReroutePolicy) -> Self:
        smallest = planner.templates[0].num_nodes
        lean = _lean(planner, smallest)
        if lean is None:
            return cls(planner)
        return cls(lean, needed=(planner.settings.fault_tolerance + 1) * smallest)

    def offers(self, question: Question) -> Iterator[Offer | None]:
        live = complete_nodes(question.plan, question.holders, {*question.lost, *question.leaving})
        if len(live) >= self.needed:
            return
        found = self.planner.reconfigurations(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        )
        for result in found:
            yield offer_of(self.planner, f"{self.name} ({result.how}, {shape(result.plan)}), {LEAN.value}", result)
            yield None


def _lean(planner: ReroutePolicy, smallest: int) -> ReroutePolicy | None:
    """None where its pipelines are no smaller."""
    settings = dataclasses.replace(planner.settings, schedule=LEAN)
    if planner.settings.schedule is LEAN or not settings.memory_bytes:
        return None
    try:
        if fewest_nodes(planner.profile, settings) >= smallest:
            return None
        return ReroutePolicy(planner.profile, settings)
    except PlanError:
        return None
