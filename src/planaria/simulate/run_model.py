"""The basis of runs: what runs of one policy on one kind of cluster have in common, and share of what is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from planaria.plan.plan import PlanError
from planaria.plan.settings import PlannerSettings
from planaria.simulate.episode.episode_cache import EpisodeCache
from planaria.simulate.episode.situation import State
from planaria.simulate.episode.subject import EpisodeTally, RestAfterEpisode, RunOutlook, SimulatedJob
from planaria.simulate.results import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a run, beside its subject.

    Attributes:
        settings: the planner's settings.
        samples: after which the job is complete; None: it trains for as long as the trace lasts.
        checkpoint_every: steps between checkpoints; 0: none but the state that the run begins with.
        mean_time_between_failures_s: as expected before any is seen.
        prices: what nodes cost.
        wants_timeline: nodes and throughput over time are told.
        begins_trained: the trace begins when a step of the job is committed, not when its first nodes come.
    """

    settings: PlannerSettings
    samples: float | None = None
    checkpoint_every: int = 0
    mean_time_between_failures_s: float = 10_800.0
    prices: Prices = field(default_factory=Prices)
    wants_timeline: bool = False
    begins_trained: bool = False


class RunBasis:
    """The basis that runs of one policy on one kind of cluster share: how they begin, and what steps cost.

    Args:
        subject: the subject of all runs.
        terms: the terms of all runs.
        memory: what is known by now; default: nothing.
    """

    def __init__(self, subject: SimulatedJob, terms: Terms, memory: EpisodeCache | None = None) -> None:
        self.subject = subject
        self.terms = terms
        self.memory = memory or EpisodeCache(subject)
        self._starts: dict[tuple[str, ...], tuple[RestAfterEpisode, EpisodeTally] | None] = {}
        self._costs: dict[State, tuple[float, float, float]] = {}
        self._num_forgotten = 0

    def start(self, zones: tuple[str, ...]) -> tuple[RestAfterEpisode, EpisodeTally] | None:
        """Returns the beginning of a run on nodes in these zones; None where they make no plan."""
        self._forget()
        if zones not in self._starts:
            known = RunOutlook(
                time_to_failure_s=self.terms.mean_time_between_failures_s, steps_left=1_000_000, steps_at_stake=0
            )
            try:
                self._starts[zones] = self.memory.start(zones, known) if zones else None
            except PlanError:
                self._starts[zones] = None
        return self._starts[zones]

    def costs(self, state: State) -> tuple[float, float, float]:
        """Returns a step's seconds in this state, those that it stalls while state is copied for a checkpoint, and the
        steps after which a checkpoint is whole."""
        found = self._costs.get(state)
        if found is None:
            self._forget()
            step_s = self.memory.step_s(state)
            every = self.terms.checkpoint_every
            stall_s, lag = 0.0, 0.0
            if every:
                timings, plan = self.subject.timings, state.plan
                share = sum(group.moved_bytes / on for group, on in zip(plan.groups, plan.num_owners, strict=True))
                workers = max(1, len(plan.workers))
                most = max(max((group.moved_bytes for group in plan.groups), default=0), share / workers)
                stall_s = share / workers / timings.checkpoint_copy_bytes_per_s / every
                lag = most / timings.storage_bytes_per_s / step_s
            found = self._costs[state] = (step_s, stall_s, lag)
        return found

    def _forget(self) -> None:
        """Forgets here, too, what the episode cache has forgotten."""
        if self._num_forgotten != self.memory.num_forgotten:
            self._costs.clear()
            self._starts.clear()
            self._num_forgotten = self.memory.num_forgotten
