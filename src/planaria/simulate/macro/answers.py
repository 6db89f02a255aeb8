"""Answers: what a policy proposed where nodes are dealt out anew, so that an episode that is gone through again does
not ask twice.

A policy is a pure function of what it is asked, and an episode asks in the order in which things happen. So the
answers of a stretch, in their order, stand for the policy when the very same stretch comes again. Nothing is decided
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.speeds import Speeds
from planaria.plan.zones import Zones
from planaria.policy.outlook import Outlook
from planaria.policy.proposal import Policy, Proposal

Answer = Proposal | None


class Answers:
    """To the questions about placements in the stretch of an episode that is gone through.

    They are kept where a step goes on beside which state moves: nobody is lost then, so all nodes could be dealt out
    anew, and to look for that is long work. What is asked after a loss is asked again, as a plan takes some room.
    """

    def __init__(self) -> None:
        self._given: deque[Answer] = deque()
        self._told: list[Answer] = []
        self._is_kept = False
        self._is_whole = True

    def begin(self, given: Iterable[Answer] = ()) -> None:
        """A stretch, which was gone through before with these answers; none: it was not."""
        self._given = deque(given)
        self._told = []
        self._is_kept = False
        self._is_whole = True

    @property
    def told(self) -> tuple[Answer, ...]:
        """In this stretch, where they are kept; none where one of them was an error: then all are to be asked again."""
        return tuple(self._told) if self._is_kept and self._is_whole else ()

    def ask(self, question: Callable[[], Answer], *, is_kept: bool = False) -> Answer:
        """What was answered before, or is now. Raises PlanError, as the question does.

        Args:
            question: to the policy.
            is_kept: the answers of this stretch are.
        """
        self._is_kept |= is_kept
        if self._given:
            return self._given.popleft()
        try:
            answer = question()
        except PlanError:
            self._is_whole = False
            raise
        self._told.append(answer)
        return answer


class Recalling:
    """A policy whose answers are noted, or given again. The rest of a step is asked anew: that is little work.

    Args:
        policy: it.
        answers: of the episode.
    """

    def __init__(self, policy: Policy, answers: Answers) -> None:
        self._policy = policy
        self._answers = answers
        self.estimated = policy.estimated
        self.initial = policy.initial
        self.ponder = policy.ponder
        self.finishes = policy.finishes
        self.finish_step = policy.finish_step

    def with_speeds(self, speeds: Speeds) -> Recalling:
        return Recalling(self._policy.with_speeds(speeds), self._answers)

    def with_stretch(self, stretch: float) -> Recalling:
        return Recalling(self._policy.with_stretch(stretch), self._answers)

    def with_zones(self, zones: Zones) -> Recalling:
        return Recalling(self._policy.with_zones(zones), self._answers)

    def with_outlook(self, outlook: Outlook) -> Recalling:
        return Recalling(self._policy.with_outlook(outlook), self._answers)

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        answer = self._answers.ask(lambda: self._policy.reconfigure(plan, lost, holders, generation, leaving))
        assert answer is not None
        return answer

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        return self._answers.ask(lambda: self._policy.warm_up(plan, target, generation), is_kept=True)
