"""Precomputed decisions: answers to losses that have not happened, prepared while nothing else is to be done.

For every node of the plan in force the policy is asked what it would do without it, then whether it would leave the
plan by itself, and at last about nodes that may be lost together, one short piece at a time; nothing follows from that
but that the same answer comes sooner. It owns whose turn it is, and when there is time: after a commit or a plan there
is as long as a step takes until votes come in, and near their time nothing is begun. Where it is certain that another
plan is to be made after the step, the question for it is the first, and there is time for it until it is asked. Never
does it decide, or keep anybody waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from planaria.plan.plan import NodeId, Plan
from planaria.planner.placement.zones import Zones
from planaria.policy.interface import Policy, ReplanRequest
from planaria.protocol.step.retained_replicas import Holders
from planaria.protocol.thresholds import BEFORE_VOTES, MOST_ASKED, MOST_PAIRED


class Precomputed:
    """Precomputed decisions of one run.

    Attributes:
        longest_s: of the pieces so far, in seconds of the driver's clock.
        answered: of the plan in force, nodes for whose loss the answer is there.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.answered: list[NodeId] = []
        self._of: tuple[object, ...] = ()
        self._ahead: list[tuple[NodeId, ...]] = []
        """Losses yet to be asked about, each beside the nodes already gone; an empty one is for the replan trigger."""
        self._next_at_once: bool | None = None
        """As given to `look`; if certain, the question about the gone nodes alone comes before all others."""
        self._piece: Iterator[None] | None = None
        self._turn: tuple[NodeId, ...] = ()

    def took(self, seconds: float) -> None:
        """Records how long the last piece took."""
        self.longest_s = max(self.longest_s, seconds)

    def has_time(self, now: float, began: float, step_s: float) -> bool:
        """Returns whether a piece would be done well before votes are expected."""
        return now + 1.5 * self.longest_s < began + BEFORE_VOTES * step_s

    @property
    def hurries(self) -> bool:
        """Whether the next answer will surely be asked for after the step."""
        return self._next_at_once is not None

    def look(
        self,
        policy: Policy,
        plan: Plan,
        num_live: int,
        gone: frozenset[NodeId],
        zones: Zones | None = None,
        *,
        next_at_once: bool | None = None,
    ) -> bool:
        """Keeps the work if the situation is unchanged, else begins anew; returns whether anything is left to do.

        Args:
            policy: for the nodes' speeds as they are known by now.
            plan: the plan in force.
            num_live: workers.
            gone: nodes that the next plan does without whatever happens.
            zones: node -> its zone.
            next_at_once: another plan is sure to be asked for after this step, and is for the next one at once, or gets
                its state beside that; None: it is not sure.
        """
        of = (policy, plan.generation, num_live, gone, next_at_once)
        if of != self._of:
            self._of, self._piece, self._turn = of, None, ()
            self._next_at_once = next_at_once
            self.answered = []
            nodes = sorted({plan.node_of(stage.worker) for stage in plan.stages()} - gone)
            self._ahead = [(node,) for node in nodes]
            if not gone:
                self._ahead += [(), *_pairs(plan, nodes, zones or {})[: max(0, MOST_ASKED - len(nodes) - 1)]]
        return self.hurries or self._piece is not None or bool(self._ahead)

    def think(self, policy: Policy, plan: Plan, holders: Holders, gone: frozenset[NodeId]) -> None:
        """Does one piece of the precomputation.

        Arguments as `look`, which has been asked; `holders`: of each group, when a step under the plan is committed.
        """
        if self._piece is None:
            lost = self._turn = () if self.hurries else self._ahead.pop(0)
            left = {worker: groups for worker, groups in holders.items() if plan.node_of(worker) not in lost}
            at_once = bool(lost) if self._next_at_once is None else self._next_at_once
            self._piece = policy.precompute(
                ReplanRequest(plan=plan, lost=sorted({*gone, *lost}) if at_once else (), holders=left), at_once=at_once
            )
        try:
            next(self._piece)
        except StopIteration:
            if len(self._turn) == 1:
                self.answered += self._turn
            self._piece = self._next_at_once = None


def _pairs(plan: Plan, nodes: list[NodeId], zones: Zones) -> list[tuple[NodeId, ...]]:
    """Returns nodes that may be lost together: of one zone, of one pipeline, or with the same layers. Without zones,
    one pair of those in equal places of equal pipelines stands for all.
    """
    if len(nodes) > MOST_PAIRED:
        return []
    places: dict[object, set[NodeId]] = {}
    for node in nodes:
        if zone := zones.get(node):
            places.setdefault(zone, set()).add(node)
    shape_of: dict[NodeId, list[object]] = {}
    for at, pipeline in enumerate(plan.pipelines):
        cuts = tuple((stage.first_layer, stage.end_layer) for stage in pipeline.stages)
        for stage, cut in zip(pipeline.stages, cuts, strict=True):
            node = plan.node_of(stage.worker)
            places.setdefault(at, set()).add(node)
            shape_of.setdefault(node, []).append((cuts, cut))
    for stage in plan.stages():
        places.setdefault((stage.first_layer, stage.end_layer), set()).add(plan.node_of(stage.worker))
    allowed = set(nodes)
    pairs: dict[object, tuple[NodeId, ...]] = {}
    for place, members in places.items():
        for one, other in combinations(sorted(members & allowed), 2):
            alike = isinstance(place, int), sorted([shape_of[one], shape_of[other]], key=repr)
            pairs.setdefault((one, other) if zones else repr(alike), (one, other))
    return list(pairs.values())
