"""When other speeds of nodes are worth another plan, and which slow nodes the job does better without.

A node that is left out rests: it lives, holds nothing and computes nothing, so nobody can tell how fast it is. After a
while it is given back what little a node of its speed gets, for a few steps: if it is fast again it stays, else it
rests twice as long. The estimate decides all else. Pure: proposals come from whoever calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.thresholds import STEPS_AHEAD
from planaria.policy.interface import Candidate
from planaria.protocol.messages.run_measurements import Rest, Rests
from planaria.protocol.planning.straggler_detection import SpeedEvidence
from planaria.protocol.thresholds import AGREEING_WINDOWS, FIRST_REST_STEPS, MOST_RESTING, WORTH_CHANGING, WORTH_RESTING

TRIAL_STEPS = AGREEING_WINDOWS + 2
"""Steps from the plan that gives a node back to its judgement: one beside which it gets its state, one not judged, and
the judged ones."""


class StragglerPolicy:
    """Which slow nodes rest, and whether the plan in force is to be reviewed.

    Args:
        evidence: how often plans may follow speeds.

    Attributes:
        resting: nodes that live and that the placement does without because they are slow.
    """

    def __init__(self, evidence: SpeedEvidence | None = None) -> None:
        self._rest_s = (evidence or SpeedEvidence()).rest_s
        self._quiet_until: float | None = None
        self.resting: frozenset[NodeId] = frozenset()
        self._rests: dict[NodeId, Rest] = {}
        self._look_at: int | None = None

    @property
    def learnt(self) -> Rests:
        """Slow nodes that rest, for the next coordinator."""
        rests = dict(sorted(self._rests.items()))
        resting, quiet_until = tuple(sorted(self.resting)), self._quiet_until if self._rest_s else None
        return Rests(resting=resting, rests=rests, look_at=self._look_at, quiet_until=quiet_until)

    def recall(self, learnt: Rests, live: Collection[NodeId]) -> None:
        """Takes over what the last coordinator knew of the nodes that live."""
        self._rests = {node: rest for node, rest in learnt.rests.items() if node in live}
        self.resting = frozenset(learnt.resting) & self._rests.keys()
        self._look_at = learnt.look_at
        self._quiet_until = learnt.quiet_until

    def look_again(self, step: int) -> None:
        """Asks for a review of the plan before this step or a later one, because something is new."""
        self._look_at = step if self._look_at is None else min(step, self._look_at)

    def is_due(self, step: int, now: float) -> bool:
        """Returns whether the plan is to be reviewed before this step, which begins now: not soon after the last time
        that another one was taken."""
        if self._quiet_until is not None and now < self._quiet_until:
            return False
        return (self._look_at is not None and self._look_at <= step) or bool(self._rested(step))

    def _rested(self, step: int) -> frozenset[NodeId]:
        return frozenset(node for node in self.resting if self._rests[node].until <= step)

    def forget(self, node: NodeId) -> None:
        """Forgets a lost node."""
        self.resting -= {node}
        self._rests.pop(node, None)

    def wake_all(self) -> None:
        """Lets no node rest, as all are needed; they are judged again after a step."""
        self.resting = frozenset()

    def choose(
        self,
        step: int,
        speeds: Mapping[NodeId, float],
        propose: Callable[[frozenset[NodeId]], Candidate],
        stay: Candidate | None,
        steps_left: int,
        *,
        now: float = 0.0,
        lasts_steps: int | None = None,
        change_s: float = 0.0,
    ) -> Candidate | None:
        """Returns the best plan before a step; None where it pays to go on with the plan in force.

        Args:
            step: the step that is about to begin.
            now: monotonic seconds.
            speeds: of the slow nodes.
            propose: a plan that does without these nodes.
            stay: the plan of now; None where it cannot stay.
            steps_left: of the job.
            lasts_steps: for how long the speeds of now are thought to last; None: nobody knows.
            change_s: that a change of plans takes for which nothing moves.

        Raises:
            PlanError: no plan can be made.
        """
        on_trial = self._rested(step)
        self._look_at = step + TRIAL_STEPS if on_trial else None
        for node in on_trial:
            rest = self._rests[node]
            self._rests[node] = Rest(until=step + rest.num_steps, num_steps=rest.num_steps)
        best, resting = self._best(speeds, propose, on_trial)
        lasts_steps = steps_left if lasts_steps is None else min(steps_left, lasts_steps)
        if stay is not None and not on_trial and not pays(stay, best, lasts_steps, change_s):
            if lasts_steps < steps_left and pays(stay, best, steps_left, change_s):
                self._look_at = step + max(1, lasts_steps)  # they may last longer than such speeds did before
            return None
        self._quiet_until = now + self._rest_s
        self._rest(step, resting, speeds)
        return best

    def _best(
        self,
        speeds: Mapping[NodeId, float],
        propose: Callable[[frozenset[NodeId]], Candidate],
        on_trial: frozenset[NodeId],
    ) -> tuple[Candidate, frozenset[NodeId]]:
        slowest = sorted(speeds, key=lambda node: (speeds[node], node))[:MOST_RESTING]
        options = [frozenset(slowest[:count]) for count in range(len(slowest) + 1)]
        found: list[tuple[Candidate, frozenset[NodeId]]] = []
        error: PlanError | None = None
        for option in options:
            if not (option & on_trial):
                try:
                    found.append((propose(option), option))
                except PlanError as caught:
                    error = caught
        if not found:
            assert error is not None
            raise error
        best = found[0]
        for other in found[1:]:
            drops_more = len(other[0].plan.dropped) > len(best[0].plan.dropped)
            if not drops_more and other[0].batch_s < WORTH_RESTING * best[0].batch_s:
                best = other
        return best

    def _rest(self, step: int, resting: frozenset[NodeId], speeds: Mapping[NodeId, float]) -> None:
        for node in resting - self.resting:
            before = self._rests.get(node)
            num_steps = FIRST_REST_STEPS if before is None else 2 * before.num_steps
            self._rests[node] = Rest(until=step + num_steps, num_steps=num_steps)
        for node in [node for node in self._rests if node not in speeds]:
            del self._rests[node]
        self.resting = resting


def pays(stay: Candidate, other: Candidate, steps_left: int, change_s: float = 0.0) -> bool:
    """Returns whether a plan gains more than it costs: its transfers, the change of plans, and a step boundary at which
    all workers wait."""
    gain_s = stay.batch_s - other.batch_s
    return (
        other.batch_s <= WORTH_CHANGING * stay.batch_s
        and gain_s * min(steps_left, STEPS_AHEAD) > other.transfer_s + change_s + stay.step_time_s
    )


def same_work(one: Plan, other: Plan) -> bool:
    """Returns whether the plans have the same pipelines and microbatches, whose shadows compute the same, and
    whether the other has all shadows of the one."""
    return (
        one.pipelines == other.pipelines
        and _shares(one) == _shares(other)
        and one.redundancy == other.redundancy
        and all(set(groups) <= set(other.groups_of.get(worker, ())) for worker, groups in one.groups_of.items())
    )


def _shares(plan: Plan) -> dict[object, int]:
    shares: dict[object, int] = {}
    for route in plan.routes:
        shares[route.key] = shares.get(route.key, 0) + len(route.microbatches)
    return shares
