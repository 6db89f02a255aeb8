"""The table of sources: what the adaptive policy chooses from. A policy more is a line more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from planaria.plan.plan import Plan
from planaria.plan.speeds import Speeds
from planaria.plan.zones import Zones
from planaria.policy.fewer import Fewer
from planaria.policy.going_back import GoingBack
from planaria.policy.leaving_out import LeavingOut
from planaria.policy.proposal import Policy
from planaria.policy.question import Question
from planaria.policy.rebuilding import Searched, Templates
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.rerouting import Rerouting
from planaria.policy.rings import Rings
from planaria.policy.source import Offer, Source
from planaria.policy.wording import count, size


@dataclasses.dataclass(frozen=True, slots=True)
class OfPolicy:
    """What a policy of another kind proposes, as its one offer."""

    policy: Policy
    name: str

    def at_speeds(self, speeds: Speeds) -> OfPolicy:
        return dataclasses.replace(self, policy=self.policy.with_speeds(speeds))

    def in_zones(self, zones: Zones) -> OfPolicy:
        return dataclasses.replace(self, policy=self.policy.with_zones(zones))

    def offers(self, question: Question) -> Iterator[Offer | None]:
        found = self.policy.reconfigure(
            question.plan, question.lost, question.holders, question.plan.generation, question.leaving
        )

        def explain(asked: Question, plan: Plan) -> str:
            moves = f"{size(found.transfer_bytes)} of state move" if found.transfer_bytes else "no state moves"
            return f"As under {self.name} ({found.how}): {count(len(plan.pipelines), 'pipeline')}; {moves}."

        yield Offer(name=f"{self.name} ({found.how})", proposal=found, explain=explain)


SOURCES: tuple[Callable[[ReroutePolicy], Source], ...] = (
    Rerouting,
    Templates,
    Searched,
    Fewer,
    Rings.of,
    GoingBack,
    LeavingOut.of,
)
"""Made once for a job; of equally good candidates those of the first are preferred. For a policy P that makes its plans
by itself: `lambda planner: OfPolicy(P(planner.profile, planner.settings), "p")`."""
