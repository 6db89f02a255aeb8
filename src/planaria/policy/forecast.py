"""The forecast of failures: when the next loss is expected, what it costs, and which one takes a last replica.

Nodes go alone, or several at a time: of spot instances in bulks, from one zone (Bamboo, section 3). Values only, and
light to import: settings and records have them too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from planaria.estimate.restore_time import Storage
from planaria.plan.plan import NodeId
from planaria.plan.thresholds import CHANGE_S, MEAN_TIME_BETWEEN_FAILURES_S, RESTORE_S, USUAL_DECISION_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureForecast:
    """The forecast that a policy weighing plans against each other has of the time to come, at one decision.

    Attributes:
        time_to_failure_s: expected seconds to the next loss of a node.
        nodes_together: that a loss takes, on average.
        steps_left: of the job, the next one included; None: no end is known.
        steps_at_stake: committed since the last checkpoint: lost if all replicas of a layer are.
        checkpoint_every: steps between checkpoints; 0: they are not by steps.
        checkpoint_every_s: seconds between them; 0: they are not by time. With both 0, none is written on the way but
            under a degraded plan.
        decision_s: that a decision takes; workers wait for it. One that follows another costs so much.
        storage: that checkpoints are read from.
        change_s: that a change of plans takes for which nothing moves, the decision aside.
        transfer_stretch: how many times longer state is under way than the profile's links say.
        restore_s: until the first step from a checkpoint begins, when a layer's last replica is lost.
        is_prepared: state moved beside the last step: another step beside which some moves does not follow.
        at_once: the plan is for the next step, so its state moves first, or beside that step. Else it is for the step
            after, and its state moves beside the plan of now in any case.
        after_loss: a loss is being recovered from.
    """

    time_to_failure_s: float = MEAN_TIME_BETWEEN_FAILURES_S
    nodes_together: float = 1.0
    steps_left: int | None = None
    steps_at_stake: int = 0
    checkpoint_every: int = 0
    checkpoint_every_s: float = 0.0
    decision_s: float = USUAL_DECISION_S
    storage: Storage = field(default_factory=Storage)
    change_s: float = CHANGE_S
    transfer_stretch: float = 1.0
    restore_s: float = RESTORE_S
    is_prepared: bool = False
    at_once: bool = True
    after_loss: bool = False

    def horizon_s(self, least_step_s: float) -> float:
        """Returns the seconds over which candidates are compared: to the next loss, or the end of the job at the
        fastest step."""
        if self.steps_left is None:
            return self.time_to_failure_s
        return min(self.time_to_failure_s, max(1, self.steps_left) * least_step_s)


@dataclass(frozen=True, slots=True)
class Exposure:
    """The exposure to losses of nodes that hold parameter groups.

    Attributes:
        num_nodes: all that hold something, or could.
        last: for sets of nodes that alone hold some group: among how many nodes a bulk that takes all of a set is
            drawn, how many the set has, and how many such sets there are.
    """

    num_nodes: int
    last: tuple[tuple[int, int, int], ...]

    def peril(self, together: float) -> float:
        """Returns the share of the next losses that takes a last replica; at most 1. The bulks' sizes are geometric.

        A bulk of M nodes takes all of m certain ones among n with a chance of M (M - 1) ... (M - m + 1) over
        n (n - 1) ... (n - m + 1), and the mean of the former is m! mean (mean - 1)^(m - 1). Chances are added up.

        Args:
            together: nodes that go together, on average; at least 1.
        """
        chance = 0.0
        for among, size, number in self.last:
            drawn = together / among
            for taken in range(1, size):
                drawn *= (taken + 1) * (together - 1) / (among - taken)
            chance += number * among / self.num_nodes * min(1.0, drawn)
        return min(1.0, chance)


def exposure(
    holders: Iterable[tuple[NodeId, Collection[int]]], num_groups: int, zones: Mapping[NodeId, str] | None = None
) -> Exposure:
    """Returns the exposure of nodes that hold these parameter groups.

    Args:
        holders: each node, or worker of it, with what it holds.
        num_groups: the model's number of groups.
        zones: of nodes, where they are known: a bulk comes from one.
    """
    held: list[set[NodeId]] = [set() for _ in range(num_groups)]
    nodes: set[NodeId] = set()
    for node, groups in holders:
        nodes.add(node)
        for group in groups:
            held[group].add(node)
    sets = {frozenset(on) for on in held if on}
    zone_of = {node: (zones or {}).get(node, "") for node in nodes}
    populations = Counter(zone_of.values())
    found: Counter[tuple[int, int]] = Counter()
    for on in sets:
        where = {zone_of[node] for node in on}
        if len(where) == 1 and not any(other < on for other in sets):
            found[populations[where.pop()], len(on)] += 1
    return Exposure(len(nodes), tuple((among, size, number) for (among, size), number in sorted(found.items())))


NOBODY = Exposure(1, ())
"""The exposure where it was not found out."""
