"""Bamboo's cluster: spot nodes as its tables describe them, Bamboo's speed on it, and means over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

from bamboo_data import MODELS, SPOT_PER_HOUR
from bamboo_system import Bamboo
from grids import Grids
from ours import OWN, PUBLISHED, scaled
from replay import Checkpoints, Outcome, System, replay
from systems import Varuna

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.profile.presets.presets import LINK_SHARE, preset
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.trace import HOUR_S, Trace

ZONES = ("a", "b", "c")
MEAN_BULK = 2.4
"""Nodes that go together: what preemptions, intervals and throughput of Table 3a come to, at each probability."""

RECONFIGURATION_S = 60.0
"""The paper gives none. With this one Table 3a comes out best; with a longer one each of its rows comes out slower."""
RECONFIGURATION_7_PERCENT_S = 240.0
"""With this one pauses take the 7% of the time that section 6.1 reports of the runs of Table 2 at 10% an hour."""
RESTART_S = 300.0
"""From a checkpoint: rendezvous, framework and loading; the paper gives none, and fatal failures are rare."""
CHECKPOINT_S = 300.0
STEP_SAMPLES = 1024
"""256 a GPU (section 6), in four pipelines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A cluster of spot nodes.

    Attributes:
        wanted: nodes that are asked for.
        hourly: of the nodes there are, the share that goes in an hour.
        mean_nodes: on average, as in the paper: how soon others come follows from it.
        mean_bulk: nodes that go together.
    """

    wanted: int
    hourly: float
    mean_nodes: float
    mean_bulk: float = MEAN_BULK

    @property
    def arrival_s(self) -> float:
        """So many nodes are missing on average as go in the time until one comes (Little's law)."""
        return HOUR_S * max(0.0, self.wanted - self.mean_nodes) / (self.hourly * self.mean_nodes)

    def trace(self, hours: float, seed: int) -> Trace:
        population = Population(nodes=self.wanted, zones=ZONES, arrival_s=self.arrival_s)
        failures = ConstantRate(hourly=self.hourly, mean_bulk=self.mean_bulk)
        return generate(failures, population, hours * HOUR_S, seed=seed, name=f"{self.hourly:.0%} an hour, seed {seed}")


def bamboo(
    model: str,
    *,
    demand: float | None = None,
    depth: int | None = None,
    shadow_slows: float = 1.0,
    reconfiguration_s: float = RECONFIGURATION_S,
) -> Bamboo:
    """Bamboo-S, at the speed of the paper's on-demand run less the redundant computation of its Table 4."""
    data = MODELS[model]
    full = (demand or data.demand) / (1 + data.overhead)
    step_s = STEP_SAMPLES / full
    return Bamboo(
        num_pipelines=data.num_pipelines,
        depth=depth or data.depth,
        step_s=step_s,
        samples=STEP_SAMPLES,
        recovery_s=step_s,
        reconfiguration_s=reconfiguration_s,
        restart_s=RESTART_S,
        shadow_slows=shadow_slows,
        checkpoints=Checkpoints(write_s=CHECKPOINT_S),
    )


def bert_profile(numerics: str) -> ModelProfile:
    """BERT-Large on V100s."""
    return preset("bert-large", "v100", microbatch_size=8, network_gbit_s=LINK_SHARE * 10, numerics=numerics)


@cache
def bert_grids() -> Grids:
    """At the speed at which the best grid on 32 nodes does what Demand-S does."""
    profile = bert_profile(PUBLISHED)
    settings = PlannerSettings(
        num_microbatches=STEP_SAMPLES // 8,
        fault_tolerance=1,
        num_nodes=48,
        devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
    )
    grids = Grids(profile, settings)
    for _ in range(5):
        found = grids.symmetric(32)
        assert found is not None
        # What is not compute does not become faster.
        beside_s = grids.beside_s(found[0], found[1])
        grids = grids.with_factor(
            grids.factor * (STEP_SAMPLES / MODELS["BERT"].demand - beside_s) / (found[2] - beside_s)
        )
    return grids


def bert() -> tuple[ModelProfile, PlannerSettings]:
    """The same for this project's policies, with their own bytes."""
    grids = bert_grids()
    return scaled(bert_profile(OWN), grids.factor), grids.settings


def varuna(restart_s: float = RESTART_S) -> Varuna:
    """BERT with checkpoints beside training, restarted at every change of nodes (section 6.3)."""
    return Varuna(grids=bert_grids(), restart_s=restart_s, checkpoints=Checkpoints(write_s=CHECKPOINT_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Over seeds: what Bamboo's tables list. `interval_h`: between moments at which nodes go."""

    throughput: float
    nodes: float
    fatal: float
    preemptions: float
    interval_h: float
    restart_share: float
    redone_share: float

    @property
    def cost(self) -> float:
        return self.nodes * SPOT_PER_HOUR

    @property
    def value(self) -> float:
        return self.throughput / self.cost


def to_completion(make: Callable[[], System], spot: Spot, samples: float, hours: float, seeds: Sequence[int]) -> Means:
    """Train so many samples on as many traces. `hours`: more than it takes."""
    outcomes: list[Outcome] = []
    preemptions: list[int] = []
    moments: list[int] = []
    for seed in seeds:
        trace = spot.trace(hours, seed)
        outcome = replay(make(), trace, samples=samples)
        outcomes.append(outcome)
        at_s = [e.at_s for e in trace.events if e.change == "remove" and e.at_s <= outcome.end_s]
        preemptions.append(len(at_s))
        moments.append(len(set(at_s)))
    return Means(
        throughput=mean(outcome.samples_per_s for outcome in outcomes),
        nodes=mean(outcome.mean_nodes for outcome in outcomes),
        fatal=mean(outcome.hows["checkpoint"] for outcome in outcomes),
        preemptions=mean(preemptions),
        interval_h=sum(outcome.end_s for outcome in outcomes) / HOUR_S / max(1, sum(moments)),
        restart_share=mean(outcome.share("restart") for outcome in outcomes),
        redone_share=mean(outcome.share("redone") for outcome in outcomes),
    )
