"""Sources: where candidates come from. One module or policy a source; `planaria.policy.sources` has the table.

A source answers a question with offers, each a plan that could be run and what it costs to come to it. It does not
judge them, and knows nothing of the time to come. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

from planaria.plan.plan import Plan
from planaria.plan.speeds import Speeds
from planaria.plan.zones import Zones
from planaria.policy.proposal import Proposal
from planaria.policy.question import Question
from planaria.policy.templates import TemplatesPolicy

Planner = TypeVar("Planner", bound=TemplatesPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A plan that could be run.

    Attributes:
        name: of the candidate, for people.
        proposal: the plan and what a step of it takes. Its reason is made later, for the question as it was asked.
        explain: the reason, of the question as it was asked and the plan in its terms.
    """

    name: str
    proposal: Proposal
    explain: Callable[[Question, Plan], str]


class Source(Protocol):
    """Of offers."""

    @property
    def name(self) -> str:
        """For people."""

    def at_speeds(self, speeds: Speeds) -> Source:
        """The same, for nodes that compute so fast."""

    def stretched(self, stretch: float) -> Source:
        """The same, where everything takes so many times longer."""

    def in_zones(self, zones: Zones) -> Source:
        """The same, for nodes in these zones."""

    def offers(self, question: Question) -> Iterator[Offer | None]:
        """All that are worth an estimate, the likeliest first; None wherever the work may pause.

        Raises:
            PlanError: there is none.
        """


@dataclass(frozen=True, slots=True)
class FromPlanner(Generic[Planner]):
    """What sources have in common whose plans a policy makes.

    Attributes:
        planner: that policy, for the nodes' speeds and zones.
    """

    planner: Planner

    def at_speeds(self, speeds: Speeds) -> Self:
        return replace(self, planner=self.planner.with_speeds(speeds))

    def stretched(self, stretch: float) -> Self:
        return replace(self, planner=self.planner.with_stretch(stretch))

    def in_zones(self, zones: Zones) -> Self:
        return replace(self, planner=self.planner.with_zones(zones))
