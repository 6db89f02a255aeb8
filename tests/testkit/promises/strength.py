"""Strength: how many replicas a plan keeps on live nodes, what its users were told of it, and whether that is true.

Under `templates` every step begins with f + 1 whole pipelines. Under the others a plan may keep fewer
replicas of some layer, but only if it says so, at the moment at which it is taken; f itself is never lowered. Under
`redundancy` shadows are replicas too, and no plan has fewer.
"""

from __future__ import annotations

from collections.abc import Collection

from planaria.job.registry import PolicyName
from planaria.plan.plan import Plan
from planaria.plan.validate import lacking
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.journal import JournalPlan
from planaria.protocol.messages.records import Note, PlanTaken
from tests.testkit.schedules.setup import Setup

MAY_BE_DEGRADED = (PolicyName.REROUTE, PolicyName.MORPH, PolicyName.DROP, PolicyName.ADAPTIVE)
PLACING = ("start", "reconfigure", "restore")
"""Purposes of plans that say how strong they are. The others go on with a placement, or finish a step."""


class Strength:
    """The strength of the placements of one run.

    Args:
        setup: the job.
        policies: that are in force at one time or another.

    Attributes:
        is_degraded: the user was told that the placement in force has fewer than f + 1 replicas of some layer; None: a
            journal lost its end, and nobody knows.
        ever_degraded: he was told so of some placement.
    """

    def __init__(self, setup: Setup, policies: frozenset[PolicyName]) -> None:
        self.is_degraded: bool | None = False
        self.ever_degraded = False
        self._setup = setup
        self._may_be_degraded = not policies.isdisjoint(MAY_BE_DEGRADED)
        self._must_go_on = policies <= set(MAY_BE_DEGRADED)
        self._has_shadows = PolicyName.REDUNDANCY in policies
        self._may_drop = PolicyName.DROP in policies

    def planned(self, entry: JournalPlan) -> str | None:
        """Returns what is wrong with what is told of a plan's strength when it is taken."""
        purposes = [record.purpose for record in entry.records if isinstance(record, PlanTaken)]
        says = any(isinstance(record, Note) and "plan is degraded" in record.text for record in entry.records)
        if purposes and purposes[0] == "warm up":
            self.is_degraded = says or self.is_degraded
            self.ever_degraded |= says
            return None
        if not purposes or purposes[0] not in PLACING:
            return None
        self.is_degraded = says
        self.ever_degraded |= says
        plan = entry.message.plan
        short = lacking(plan, self._setup.fault_tolerance, arrived=plan.redundancy is not None)
        if says and not self._may_be_degraded:
            return f"plan {plan.generation} is degraded under {self._setup.policy}"
        if says != bool(short):
            return f"plan {plan.generation} lacks replicas of {short}, and says {'that' if says else 'nothing'}"
        return None

    def begun(self, plan: Plan, live: Collection[int], step: int) -> str | None:
        """Returns what is wrong with a step's being begun under a plan."""
        setup = self._setup
        if self._may_be_degraded or self._has_shadows:
            fewest = min(len({plan.node_of(w) for w in owners} & set(live)) for owners in plan.owners_of)
            if fewest > setup.fault_tolerance or self.is_degraded or (self.is_degraded is None and fewest):
                return None
            return f"step {step} is begun with {fewest} of {setup.fault_tolerance + 1} replicas, and nobody was told"
        replicas, nodes = _whole_pipelines(plan, live)
        if replicas <= setup.fault_tolerance:
            return f"step {step} is begun with {replicas} of {setup.fault_tolerance + 1} replicas"
        if nodes < setup.needed_nodes:
            return f"step {step} is begun with {nodes} of {setup.needed_nodes} nodes"
        return None

    def exhausted(self, machine: Coordinator, reason: str) -> str | None:
        """Returns why a job that does not go on could: rerouting needs one live owner of each layer, and no more;
        dropping samples one whole pipeline; morph nodes enough for one row of a grid."""
        if not self._must_go_on or "no replica" in reason:
            return None
        if machine.shortages.bound_bytes is not None:
            return None
        plan, live = machine.plan, set(machine.state.nodes)
        owned = {layer for stage in plan.stages() if plan.node_of(stage.worker) in live for layer in stage.layers}
        if len(owned) < plan.num_layers:
            return None
        if self._may_drop and not _whole_pipelines(plan, live)[0]:
            return None
        return f"the job does not go on, and live workers own every layer: {reason}"


def _whole_pipelines(plan: Plan, live: Collection[int]) -> tuple[int, int]:
    """Returns how many pipelines on live nodes of their own cover every layer, and how many live nodes the plan has."""
    taken: set[int] = set()
    number = 0
    for pipeline in plan.pipelines:
        nodes = {plan.node_of(worker) for worker in pipeline.workers}
        if pipeline.is_whole(plan.num_layers) and nodes <= set(live) and taken.isdisjoint(nodes):
            taken |= nodes
            number += 1
    return number, len(taken)
