"""Answers: what a policy proposed where nodes are dealt out anew, so that an episode that is gone through again does
not ask twice.

A policy is a pure function of what it is asked, and an episode asks in the order in which things happen. So the
answers of a stretch, in their order, stand for the policy when the very same stretch comes again. Nothing is decided
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner

Answer = Candidate | None


class Answers:
    """Answers to the questions about placements in one part of an episode.

    They are kept where a step goes on beside which state moves: nobody is lost then, so all nodes could be dealt out
    anew, and to look for that is long work. What is asked after a loss is asked again, as a plan takes some room.
    """

    def __init__(self) -> None:
        self._given: deque[Answer] = deque()
        self._told: list[Answer] = []
        self._is_kept = False
        self._is_whole = True

    def begin(self, given: Iterable[Answer] = ()) -> None:
        """Begins a part of an episode, which was gone through before with these answers; none: it was not."""
        self._given = deque(given)
        self._told = []
        self._is_kept = False
        self._is_whole = True

    @property
    def told(self) -> tuple[Answer, ...]:
        """The answers in this part, where kept; none where one was an error: then all are to be asked again."""
        return tuple(self._told) if self._is_kept and self._is_whole else ()

    def ask(self, question: Callable[[], Answer], *, is_kept: bool = False) -> Answer:
        """Returns the answer noted before, or asks now. Raises PlanError, as the question does.

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


@dataclass(frozen=True, eq=False)
class Recalling(Policy):
    """A policy whose answers are noted, or given again. The rest of a step is asked anew: that is little work.

    Attributes:
        policy: it.
        answers: of the episode.
    """

    policy: Policy
    answers: Answers

    @classmethod
    def around(cls, policy: Policy, answers: Answers) -> Self:
        return cls(policy.planner, policy, answers)

    def with_planner(self, planner: Planner) -> Self:
        return replace(self, planner=planner, policy=self.policy.with_planner(planner))

    def with_forecast(self, forecast: FailureForecast) -> Self:
        return replace(self, policy=self.policy.with_forecast(forecast))

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        return self.policy.initial(nodes, generation)

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        answer = self.answers.ask(lambda: self.policy.reconfigure(request))
        assert answer is not None
        return answer

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        return self.policy.precompute(request, at_once=at_once)

    def finishes(self, request: ReplanRequest) -> bool:
        return self.policy.finishes(request)

    def finish_step(self, request: FinishRequest) -> Candidate:
        return self.policy.finish_step(request)

    def warm_up(self, plan: Plan, target: Candidate, generation: int) -> Candidate | None:
        return self.answers.ask(lambda: self.policy.warm_up(plan, target, generation), is_kept=True)
