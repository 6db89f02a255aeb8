"""Morph as a source of candidates (Varuna): the last checkpoint, on the best grids of the nodes that are left.

Only where checkpoints are written beside training, and the last one stays until the next is whole. What reading one
takes, and how many steps are trained again, depends on when it happens: that is judged with the outlook.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from planaria.plan.grid import grids, shape
from planaria.plan.plan import Plan
from planaria.policy.first_plan import quickest_depths
from planaria.policy.morph import CLOSE, MORPH
from planaria.policy.question import Question
from planaria.policy.redundancy import complete_nodes
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import FromPlanner, Offer
from planaria.policy.wording import count

MOST_GRIDS = 2
"""The quickest in closed form are estimated."""


@dataclasses.dataclass(frozen=True, slots=True)
class GoingBack(FromPlanner[ReroutePolicy]):
    """Grids with f + 1 rows or more, their state as of the last checkpoint."""

    name: str = MORPH

    def offers(self, question: Question) -> Iterator[Offer | None]:
        planner, settings = self.planner, self.planner.settings
        if not settings.may_restore:
            return
        nodes = complete_nodes(question.plan, question.holders, {*question.lost, *question.leaving})
        depths = quickest_depths(planner.templates, len(nodes), settings, MOST_GRIDS)
        generation = question.plan.generation
        made = list(grids(planner.profile, depths, settings, nodes, generation, speeds=planner.speeds))
        yield None
        made.sort(key=lambda grid: grid.step_time_s)
        for grid in made:
            if grid.step_time_s > CLOSE * made[0].step_time_s:
                break
            if planner.fits(grid.plan):
                proposal = dataclasses.replace(planner.estimated(grid.plan), how=MORPH, restores=True)
                yield Offer(name=f"{self.name} (grid {shape(grid.plan)})", proposal=proposal, explain=_explained)
            yield None


def _explained(asked: Question, plan: Plan) -> str:
    nodes = complete_nodes(asked.plan, asked.holders, {*asked.lost, *asked.leaving})
    depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
    idle = len(nodes) - len(plan.nodes)
    rest = f" ({count(idle, 'node')} idle)" if idle else ""
    return (
        f"Back to the last checkpoint, on a grid of {count(len(plan.pipelines), 'pipeline')} of "
        f"{count(depth, 'node')}{rest}; what was trained since is trained again."
    )
