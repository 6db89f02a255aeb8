"""New pipelines of fewer replicas than f + 1 as a source of candidates: where too few nodes are left for a full plan.

Rerouting moves nothing, so some layer may soon have its last replica. As many replicas as the nodes are enough for may
be worth their state's way. Such a plan is degraded, and left like any other that is.
"""

from __future__ import annotations

import contextlib
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
        for replicas, planner in self._planners(question):
            if replicas == 1:
                return  # rerouting keeps one as well
            try:
                yield from self._of(replicas, planner, question)
            except PlanError:
                continue
            return

    def last_resort(self, question: Question) -> Iterator[Offer]:
        """Of one replica, where nothing can be rerouted on what is left."""
        for replicas, planner in self._planners(question):
            if replicas == 1:
                with contextlib.suppress(PlanError):
                    yield from (offer for offer in self._of(replicas, planner, question) if offer is not None)

    def _planners(self, question: Question) -> Iterator[tuple[int, ReroutePolicy]]:
        live = complete_nodes(question.plan, question.holders, {*question.lost, *question.leaving})
        return fewer_replicas(self.planner, len(live))

    def _of(self, replicas: int, planner: ReroutePolicy, question: Question) -> Iterator[Offer | None]:
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
            return f"{offer.explain(asked, plan)} {degraded(replicas, wanted)}"

        return dataclasses.replace(offer, explain=explain)


def fewer_replicas(planner: ReroutePolicy, num_nodes: int) -> Iterator[tuple[int, ReroutePolicy]]:
    """As many replicas as so many nodes are enough for, then one less each, and who plans for so many; nothing where
    they are enough for f + 1."""
    most = num_nodes // planner.templates[0].num_nodes
    if most <= planner.settings.fault_tolerance:
        for replicas in range(most, 0, -1):
            yield replicas, planner.with_fault_tolerance(replicas - 1)


def degraded(replicas: int, wanted: int) -> str:
    """What such a plan lacks, as a sentence."""
    return f"Degraded: layers have {count(replicas, 'replica')} of {wanted}."
