"""Rerouting as a source of candidates (ReCycle): what is left goes on, and no state moves but to nodes that came."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from planaria.plan.plan import Plan
from planaria.policy.proposal import Proposal
from planaria.policy.question import Question
from planaria.policy.reroute import REROUTE, ReroutePolicy
from planaria.policy.source import FromPlanner, Offer


@dataclasses.dataclass(frozen=True, slots=True)
class Rerouting(FromPlanner[ReroutePolicy]):
    """Detours around those who are gone, and nodes that came in the places of the lost; see `ReroutePolicy`."""

    name: str = REROUTE

    def offers(self, question: Question) -> Iterator[Offer | None]:
        found = yield from self.planner.on_what_is_left_in_pieces(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        )
        if found is not None:
            yield self._offer(found)

    def last_resort(self, question: Question) -> Offer | None:
        """Where nothing else is possible."""
        found = self.planner.as_it_is(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        )
        return None if found is None else self._offer(found)

    def _offer(self, proposal: Proposal) -> Offer:
        def explain(asked: Question, plan: Plan) -> str:
            return self.planner.reason(asked.plan, {*asked.lost, *asked.leaving}, proposal, plan)

        return Offer(name=self.name, proposal=proposal, explain=explain)
