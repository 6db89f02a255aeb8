"""New pipelines of fewer replicas than f + 1 as a source of candidates: where too few nodes are left for a full plan.

Rerouting moves nothing, so some layer may soon have its last replica. As many replicas as the nodes are enough for may
be worth their state's way. Such a plan is degraded, and left like any other that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from planaria.plan.aftermath import Reconfiguration
from planaria.plan.plan import Plan, PlanError
from planaria.policy.question import Question
from planaria.policy.rebuilding import offer_of
from planaria.policy.redundancy import complete_nodes
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import FromPlanner, Offer
from planaria.policy.wording import count, shape


@dataclasses.dataclass(frozen=True, slots=True)
class Fewer(FromPlanner[ReroutePolicy]):
    """As the policy `templates` makes them for the highest f that the nodes are enough for, if that is above 0."""

    name: str = "templates"

    def offers(self, question: Question) -> Iterator[Offer | None]:
        wanted = self.planner.settings.fault_tolerance + 1
        live = complete_nodes(question.plan, question.holders, {*question.lost, *question.leaving})
        most = len(live) // self.planner.templates[0].num_nodes
        if most >= wanted:
            return
        for replicas in range(most, 1, -1):
            try:
                yield from self._of(replicas, question)
            except PlanError:
                continue
            return

    def _of(self, replicas: int, question: Question) -> Iterator[Offer | None]:
        planner = self.planner.with_fault_tolerance(replicas - 1)
        for result in planner.reconfigurations(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        ):
            if planner.fits(result.plan):
                yield self._offer(replicas, result)
            yield None

    def _offer(self, replicas: int, result: Reconfiguration) -> Offer:
        """With what it lacks in its reason."""
        name = f"{self.name} ({result.how}, {shape(result.plan)}, {count(replicas, 'replica')})"
        offer = offer_of(self.planner, name, result)
        wanted = self.planner.settings.fault_tolerance + 1

        def explain(asked: Question, plan: Plan) -> str:
            return f"{offer.explain(asked, plan)} Degraded: layers have {count(replicas, 'replica')} of {wanted}."

        return dataclasses.replace(offer, explain=explain)
