"""Sample dropping as a source of candidates: whole pipelines go on, and the broken ones' samples are left out.

Only where the job allows it. The nodes of whole pipelines have the part of the batch that they had when the job began
with all of its nodes: the answer depends on who is left, and not on what was done about the losses before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from planaria.plan.batch import distribute
from planaria.plan.dropping import Pool
from planaria.plan.plan import Pipeline, Plan
from planaria.plan.recut import pipeline_times
from planaria.policy.drop import DROP, DropPolicy
from planaria.policy.question import Question
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import FromPlanner, Offer
from planaria.policy.wording import shape


class _Shares(DropPolicy):
    """As the policy, of plans whose shares nobody knows any more."""

    def _given(self, plan: Plan, pipelines: Sequence[Pipeline]) -> Mapping[int, Pool]:
        settings = self._settings
        whole = [at for at, pipeline in enumerate(pipelines) if pipeline.is_whole(plan.num_layers)]
        nodes = {plan.node_of(worker) for at in whole for worker in pipelines[at].workers}
        number = max(len(whole), settings.num_microbatches * len(nodes) // settings.num_nodes)
        if not whole or number >= settings.num_microbatches:
            return {}
        times = [
            pipeline_times(pipelines[at], self._profile, self._speeds or {}, plan.devices_per_node, number)
            for at in whole
        ]
        given: dict[int, Pool] = {}
        first = 0
        for at, share in zip(whole, distribute(times, number), strict=True):
            given[at] = tuple(range(first, first + share))
            first += share
        return given


@dataclasses.dataclass(frozen=True, slots=True)
class LeavingOut(FromPlanner[DropPolicy]):
    """One plan, where some pipeline is broken and some is whole."""

    name: str = DROP

    @classmethod
    def of(cls, planner: ReroutePolicy) -> LeavingOut:
        """Of the planner's job."""
        return cls(_Shares.like(planner))

    def offers(self, question: Question) -> Iterator[Offer | None]:
        settings = self.planner.settings
        if not settings.may_drop:
            return
        base = msgspec.structs.replace(
            question.plan, redundancy=None, schedule=settings.schedule, spare_in_flight=0, layer_units=()
        )
        found = self.planner.on_whole_pipelines(
            base, question.lost, question.holders, base.generation, question.leaving
        )
        yield None
        if found is None or not found.plan.dropped:
            return

        def explain(asked: Question, plan: Plan) -> str:
            return self.planner.reason_for(asked.plan, plan, {*asked.lost, *asked.leaving}, found.transfer_bytes)

        counted = found.plan.num_counted
        name = f"{self.name} ({shape(found.plan)}, {counted} of {settings.num_microbatches})"
        yield Offer(name=name, proposal=found, explain=explain)
