"""An experiment: a job on a cluster, for which any policy and any reference can be run over any trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import MEAN_TIME_BETWEEN_FAILURES_S
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.simulate.baselines import IDEAL, ON_DEMAND, ORACLE, Oracle, run_ideal, run_on_demand
from planaria.simulate.episode.episode_cache import EpisodeCache
from planaria.simulate.episode.subject import SimulatedJob
from planaria.simulate.results import Prices, RunResult
from planaria.simulate.run_model import Terms
from planaria.simulate.simulation import Simulation
from planaria.simulate.timings import Timings
from planaria.simulate.traces.trace import Trace

ORACLE_CHOOSES = (PolicyName.TEMPLATES, PolicyName.REROUTE)
"""The policies among which the oracle chooses at each disturbance."""


class Runner(Protocol):
    """A policy or reference that can be run over traces. It remembers what it found out; that changes no result."""

    def run(self, trace: Trace) -> RunResult:
        """Returns the result of a run over a trace."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A job on a cluster.

    Attributes:
        profile: of the model on the cluster's devices and links, as the job runs (recomputing or not).
        settings: the planner's; its nodes are those that the job begins with.
        samples: after which the job is complete; None: it trains for as long as a trace lasts.
        checkpoint_every: steps between checkpoints; 0: only the state that it begins with.
        mean_time_between_failures_s: as expected before any is seen.
        prices: what nodes cost.
        timings: of what is not modelled.
        num_parts: see `planaria.simulate.episode.episode_cache.EpisodeCache`.
        wants_timeline: results tell nodes and throughput over time.
        begins_trained: a trace begins when a step of the job is committed, not when its first nodes come: so it is with
            scripts of failures on real processes.
        by_number: nodes are asked about by their own numbers, see `planaria.simulate.episode.situation.canonical`.
    """

    profile: ModelProfile
    settings: PlannerSettings
    samples: float | None = None
    checkpoint_every: int = 100
    mean_time_between_failures_s: float = MEAN_TIME_BETWEEN_FAILURES_S
    prices: Prices = field(default_factory=Prices)
    timings: Timings = field(default_factory=Timings)
    num_parts: int = 1
    wants_timeline: bool = False
    by_number: bool = False
    begins_trained: bool = False

    @cached_property
    def planner(self) -> Planner:
        """The planner that all policies plan with."""
        return Planner(self.profile, self.settings)

    @property
    def terms(self) -> Terms:
        return Terms(
            settings=self.settings,
            samples=self.samples,
            checkpoint_every=self.checkpoint_every,
            mean_time_between_failures_s=self.mean_time_between_failures_s,
            prices=self.prices,
            wants_timeline=self.wants_timeline,
            begins_trained=self.begins_trained,
        )

    def runner(self, name: str) -> Runner:
        """Returns the runner of a reference or of one of the project's policies, by name.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
            ValueError: no policy and no reference has this name.
        """
        if name == IDEAL:
            return _Ideal(self)
        if name == ON_DEMAND:
            return _OnDemand(self)
        if name == ORACLE:
            return Oracle(
                [self.simulation(policy.value, make_policy(policy, self.planner)) for policy in ORACLE_CHOOSES],
                self.terms,
            )
        return self.simulation(name, make_policy(PolicyName(name), self.planner))

    def simulation(self, name: str, policy: Policy, *, remembers: bool = True) -> Simulation:
        """Returns the simulation of any policy, the project's or another's, under a name for people."""
        subject = SimulatedJob(
            profile=self.profile,
            policy=policy,
            policy_name=name,
            fault_tolerance=self.settings.fault_tolerance,
            devices_per_node=self.settings.devices_per_node,
            num_microbatches=self.settings.num_microbatches,
            timings=self.timings,
            checkpoint_every=self.checkpoint_every,
            by_number=self.by_number,
        )
        return Simulation(subject, self.terms, EpisodeCache(subject, num_parts=self.num_parts, remembers=remembers))

    def run(self, name: str, traces: Iterable[Trace]) -> list[RunResult]:
        """Returns the results of one policy or reference over several traces."""
        runner = self.runner(name)
        return [runner.run(trace) for trace in traces]


class _Ideal:
    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def run(self, trace: Trace) -> RunResult:
        experiment = self._experiment
        return run_ideal(experiment.profile, experiment.settings.devices_per_node, experiment.terms, trace)


class _OnDemand:
    def __init__(self, experiment: Experiment) -> None:
        prices = Prices(spot=experiment.prices.on_demand)
        again = replace(experiment, prices=prices)
        policy = make_policy(PolicyName.TEMPLATES, again.planner)
        self._simulation = again.simulation(ON_DEMAND, policy)

    def run(self, trace: Trace) -> RunResult:
        return run_on_demand(self._simulation, trace.horizon_s)
