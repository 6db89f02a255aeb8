"""The cache of episodes' moments, so that what happened once need not be found out again.

A moment lasts until the next thing that happens by itself, or until a disturbance. From it lead ways to the moment
after, and to those after each disturbance, at whatever part of it that comes. Ways are found by `Episode`, in canonical
names, whether they are remembered or not: a memory answers what would have been found.

An episode that is gone through again, to where another way leads on, does not ask twice for placements: a policy is a
pure function of what it is asked, and an episode asks in the order in which things happen. So its answers on the way to
a moment, in their order, are remembered with the moment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.simulate.episode.episode import Episode
from planaria.simulate.episode.situation import State
from planaria.simulate.episode.subject import Disturbance, EpisodeTally, RestAfterEpisode, RunOutlook, SimulatedJob

MOST_WORKERS = 500_000
"""Workers in all remembered states, each of up to half a kilobyte; what else is remembered counts as so many: some
hundred megabytes. Then everything is forgotten, and found out again."""

WORKERS_OF_MOMENT = 2
"""Workers of a state that take as much room as a moment's."""
NAMES_OF_WORKER = 64
"""Names of nodes that take as much room as a worker of a state."""

Answer = Candidate | None

Way = tuple[int, int, int, str]
"""A disturbance of a moment: which part of it, what happens, to which node, or worker where that is of a device alone;
and the zone of a node that comes."""


class Moment:
    """A moment of an episode.

    Attributes:
        lasts_s: until the next thing happens by itself; infinite: nothing does.
        tally: of what led to it.
        spent: the causes to which it gives seconds, with them.
        is_quiet: nothing came of it but time.
        rest: where the job trains undisturbed.
        is_waiting: whether the job waits for nodes.
        answers: of the policy, on the way to it; none where no way leads on that goes through it again.
    """

    __slots__ = (
        "after",
        "answers",
        "before",
        "is_quiet",
        "is_waiting",
        "lasts_s",
        "rest",
        "spent",
        "struck",
        "tally",
        "way",
    )

    def __init__(
        self,
        episode: Episode,
        tally: EpisodeTally,
        before: Moment | None,
        way: Way | None,
        answers: tuple[Answer, ...] = (),
    ) -> None:
        next_s = episode.next_s
        self.lasts_s = next_s if math.isinf(next_s) else max(0.0, next_s - episode.now)
        self.tally = tally
        self.spent = tuple((cause, seconds) for cause, seconds in enumerate(tally.causes) if seconds)
        self.is_quiet = not (tally.steps or tally.restored or tally.survived or tally.plans or tally.moved_bytes)
        self.rest = episode.rest
        self.is_waiting = episode.is_waiting
        self.before = before
        self.way = way
        self.answers = answers if episode.rest is None else ()
        self.after: Moment | None = None
        self.struck: dict[Way, Moment] = {}

    @property
    def num_workers(self) -> int:
        """Workers of a state that would take as much room."""
        number = WORKERS_OF_MOMENT + sum(len(answer.plan.workers) for answer in self.answers if answer is not None)
        return number if self.rest is None else number + len(self.rest.order) // NAMES_OF_WORKER


@dataclass(slots=True, eq=False)
class Root:
    """The beginning of a step in a state, and what may follow."""

    state: State
    known: RunOutlook
    episode: Episode | None = None
    leaf: Moment | None = None
    first: Moment | None = None


class EpisodeCache:
    """The cache of one subject's episodes.

    Args:
        subject: the subject of all episodes.
        most_workers: see `MOST_WORKERS`.
        num_parts: into how many parts a moment is divided: a disturbance comes in the middle of one.
        remembers: else everything is found out each time; for tests.
    """

    def __init__(
        self, subject: SimulatedJob, *, num_parts: int = 1, remembers: bool = True, most_workers: int = MOST_WORKERS
    ) -> None:
        self.subject = subject
        self.num_parts = num_parts
        self.num_found = 0
        self.num_forgotten = 0
        self._num_workers = 0
        self._remembers = remembers
        self._most_workers = most_workers
        self._roots: dict[tuple[State, RunOutlook], Root] = {}
        self._estimated: dict[State, Candidate] = {}
        self._states: dict[State, State] = {}
        self._given: deque[Answer] = deque()
        """Answers of the policy that are known on the way that an episode goes."""
        self._told: list[Answer] | None = []
        """Its other answers on this way; None where one was an error: then all are to be asked again."""
        self._keeps_told = False
        policy = subject.policy
        self._recalling = replace(subject, policy=_Recalling(policy.planner, policy, self)) if remembers else subject
        """The subject of episodes."""
        self.knows_forecast = policy.with_forecast(FailureForecast()) is not policy

    def step_s(self, state: State) -> float:
        """Returns the seconds of an undisturbed step."""
        return self._estimate(state).step_time_s

    def _estimate(self, state: State) -> Candidate:
        found = self._estimated.get(state)
        if found is None:
            found = self._estimated[state] = self.subject.policy.estimated(state.plan)
        return found

    def root(self, state: State, known: RunOutlook) -> Root:
        """Returns where episodes begin in this state."""
        key = (state, known)
        found = self._roots.get(key) if self._remembers else None
        if found is None:
            self._make_room(len(state.plan.workers))
            found = self._roots[key] = Root(state, known)
            self._begin(found)
        return found

    def _make_room(self, num_workers: int) -> None:
        """Forgets everything when full, so that the cache does not grow without end."""
        self._num_workers += num_workers
        if self._num_workers > self._most_workers:
            self._roots.clear()
            self._estimated.clear()
            self._states.clear()
            self._num_workers = num_workers
            self.num_forgotten += 1

    def _begin(self, root: Root) -> Episode:
        root.episode = Episode.of(self._recalling, root.known, root.state, self._estimate(root.state))
        if root.first is None:
            root.first = Moment(root.episode, EpisodeTally(), None, None)
        root.leaf = root.first
        return root.episode

    def start(self, zones: Sequence[str], known: RunOutlook) -> tuple[RestAfterEpisode, EpisodeTally]:
        """Returns the beginning of a run on nodes in these zones. Raises PlanError: so few nodes make no plan."""
        episode = Episode.first(self.subject, known, zones)
        tally = episode.advance()
        assert episode.rest is not None
        return self._known_as(episode.rest), tally

    def ask(self, question: Callable[[], Answer], *, is_kept: bool = False) -> Answer:
        """Returns the policy's answer as it was, or asks now. Raises PlanError, as the question does.

        Args:
            question: what the policy is asked.
            is_kept: the answers on this way are remembered.
        """
        self._keeps_told |= is_kept
        if self._given:
            return self._given.popleft()
        try:
            answer = question()
        except PlanError:
            self._told = None
            raise
        if self._told is not None:
            self._told.append(answer)
        return answer

    def after(self, root: Root, moment: Moment) -> Moment:
        """Returns what happens by itself when the moment is over."""
        if moment.after is None:
            moment.after = self._found(root, moment, None)
        return moment.after

    def struck(self, root: Root, moment: Moment, way: Way) -> Moment:
        """Returns the moment to which a disturbance leads."""
        found = moment.struck.get(way)
        if found is None:
            found = moment.struck[way] = self._found(root, moment, way)
        return found

    def part_s(self, moment: Moment, part: int) -> float:
        """Returns the middle of a part of a moment, in seconds from its beginning; -1 is the beginning itself."""
        return 0.0 if part < 0 else moment.lasts_s * (part + 0.5) / self.num_parts

    def _found(self, root: Root, before: Moment, way: Way | None) -> Moment:
        episode = self._live(root, before)
        tally = self._go(episode, before, way)
        self.num_found += 1
        answers = tuple(self._told or ()) if self._keeps_told else ()
        found = root.leaf = Moment(episode, tally, before, way, answers)
        self._num_workers += found.num_workers
        if found.rest is not None:
            found.rest = self._known_as(found.rest)
            root.episode = None  # it is over, and can be made again
        return found

    def _known_as(self, rest: RestAfterEpisode) -> RestAfterEpisode:
        """Returns it with the one object that stands for this state, so that comparisons are quick."""
        return replace(rest, state=self._states.setdefault(rest.state, rest.state))

    def _live(self, root: Root, moment: Moment) -> Episode:
        """Returns the episode at this moment: as it was left, or gone through from its beginning."""
        if root.leaf is moment and root.episode is not None:
            return root.episode
        ways: list[tuple[Moment, Moment]] = []
        while moment.before is not None:
            ways.append((moment.before, moment))
            moment = moment.before
        episode = self._begin(root)
        for before, found in reversed(ways):
            self._go(episode, before, found.way, found.answers)
        return episode

    def _go(self, episode: Episode, before: Moment, way: Way | None, given: Sequence[Answer] = ()) -> EpisodeTally:
        """Takes an episode one way on from a moment, on which these answers of the policy are known."""
        self._given, self._told, self._keeps_told = deque(given), [], False
        if way is None:
            return episode.advance()
        part, what, number, zone = way
        at_s, disturbance = episode.now + self.part_s(before, part), Disturbance(what)
        if disturbance.is_of_device:
            return episode.disturb_device(disturbance, WorkerId(number), at_s)
        return episode.disturb(disturbance, NodeId(number), at_s, zone)


@dataclass(frozen=True, eq=False)
class _Recalling(Policy):
    """A policy that is asked for placements through the cache. The rest of a step is asked anew: that is little work.

    Answers are kept where a step goes on beside which state moves: nobody is lost then, so all nodes could be dealt out
    anew, and to look for that is long work. What is asked after a loss is asked again, as a plan takes some room.

    Attributes:
        policy: the policy that is asked.
        cache: the cache that remembers its answers.
    """

    policy: Policy
    cache: EpisodeCache

    def with_planner(self, planner: Planner) -> Self:
        return replace(self, planner=planner, policy=self.policy.with_planner(planner))

    def with_forecast(self, forecast: FailureForecast) -> Self:
        return replace(self, policy=self.policy.with_forecast(forecast))

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        return self.policy.initial(nodes, generation)

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        answer = self.cache.ask(lambda: self.policy.reconfigure(request))
        assert answer is not None
        return answer

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        return self.policy.precompute(request, at_once=at_once)

    def finishes(self, request: ReplanRequest) -> bool:
        return self.policy.finishes(request)

    def finish_step(self, request: FinishRequest) -> Candidate:
        return self.policy.finish_step(request)

    def warm_up(self, plan: Plan, target: Candidate, generation: int, *, in_parts: bool = False) -> Candidate | None:
        return self.cache.ask(lambda: self.policy.warm_up(plan, target, generation, in_parts=in_parts), is_kept=True)
