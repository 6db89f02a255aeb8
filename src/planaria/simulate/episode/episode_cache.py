"""The cache of episodes' moments, so that what happened once need not be found out again.

A moment lasts until the next thing that happens by itself, or until a disturbance. From it lead ways to the moment
after, and to those after each disturbance, at whatever part of it that comes. Ways are found by `Episode`, in canonical
names, whether they are remembered or not: a memory answers what would have been found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planaria.plan.plan import NodeId
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate
from planaria.simulate.episode.answers import Answer, Answers, Recalling
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

Way = tuple[int, int, int, str]
"""A disturbance of a moment: which part of it, what happens, to which node; and the zone of one that comes."""


class Moment:
    """A moment of an episode.

    Attributes:
        lasts_s: until the next thing happens by itself; infinite: nothing does.
        tally: of what led to it.
        spent: the causes to which it gives seconds, with them.
        is_quiet: nothing came of it but time.
        rest: where the job trains undisturbed.
        is_waiting: for nodes.
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


class Root:
    """The beginning of a step in a state, and what may follow."""

    __slots__ = ("episode", "first", "known", "leaf", "moments", "state")

    def __init__(self, state: State, known: RunOutlook) -> None:
        self.state = state
        self.known = known
        self.episode: Episode | None = None
        self.leaf: Moment | None = None
        self.first: Moment | None = None


class EpisodeCache:
    """The cache of one subject's episodes.

    Args:
        subject: of all episodes.
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
        policy = subject.policy
        self._answers = Answers()
        self._recalling = replace(subject, policy=Recalling.around(policy, self._answers)) if remembers else subject
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

    def after(self, root: Root, moment: Moment) -> Moment:
        """Returns what happens by itself when the moment is over."""
        found = moment.after
        if found is None:
            episode = self._live(root, moment)
            self._answers.begin()
            found = moment.after = self._found(root, episode, episode.advance(), moment, None)
        return found

    def struck(self, root: Root, moment: Moment, way: Way) -> Moment:
        """Returns the moment to which a disturbance leads."""
        found = moment.struck.get(way)
        if found is None:
            episode = self._live(root, moment)
            self._answers.begin()
            at_s = episode.now + self.part_s(moment, way[0])
            tally = episode.disturb(Disturbance(way[1]), NodeId(way[2]), at_s, way[3])
            found = self._found(root, episode, tally, moment, way)
            moment.struck[way] = found
        return found

    def part_s(self, moment: Moment, part: int) -> float:
        """Returns the middle of a part of a moment, in seconds from its beginning; -1 is the beginning itself."""
        return 0.0 if part < 0 else moment.lasts_s * (part + 0.5) / self.num_parts

    def _found(self, root: Root, episode: Episode, tally: EpisodeTally, before: Moment, way: Way | None) -> Moment:
        self.num_found += 1
        found = root.leaf = Moment(episode, tally, before, way, self._answers.told)
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
        ways: list[Moment] = []
        at: Moment = moment
        while at.before is not None:
            ways.append(at)
            at = at.before
        episode = self._begin(root)
        for step in reversed(ways):
            before = step.before
            assert before is not None
            self._answers.begin(step.answers)
            if step.way is None:
                episode.advance()
            else:
                part, what, node, zone = step.way
                episode.disturb(Disturbance(what), NodeId(node), episode.now + self.part_s(before, part), zone)
        return episode
