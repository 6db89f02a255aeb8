"""Oobleck's cluster and models: grids of them, at the paper's speed; and the costs that its tables imply."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from grids import Grids, state_bytes
from oobleck_data import (
    FEWEST_NODES,
    FREQUENCIES_S,
    GLOBAL_BATCH,
    MEMORY_BYTES,
    MICROBATCH,
    MODELS,
    NETWORK_GBIT_S,
    NUM_NODES,
    TABLE_2,
    TABLE_4_FREE,
)
from ours import OWN, PUBLISHED, Ours, scaled
from replay import Checkpoints, Outcome, replay
from systems import Oobleck, Varuna

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import ScheduleKind
from planaria.plan.settings import Objective, PlannerSettings
from planaria.profile.presets.presets import LINK_SHARE, preset
from planaria.simulate.traces.generators import Monotonic, Population, generate
from planaria.simulate.traces.trace import Trace

FAULT_TOLERANCE = 2
"""The paper does not say which f it ran with; with 2 the largest model still has its replicas on 15 nodes."""


@cache
def profile_of(model: str, numerics: str = PUBLISHED) -> ModelProfile:
    """With activation checkpointing, as Oobleck and Varuna run."""
    network_gbit_s = LINK_SHARE * NETWORK_GBIT_S
    named, microbatch_size = MODELS[model], MICROBATCH[model]
    return preset(
        named, "a40", microbatch_size=microbatch_size, network_gbit_s=network_gbit_s, numerics=numerics
    ).recomputed()


@cache
def uncalibrated(model: str) -> Grids:
    settings = PlannerSettings(
        num_microbatches=GLOBAL_BATCH[model] // MICROBATCH[model],
        fault_tolerance=FAULT_TOLERANCE,
        num_nodes=NUM_NODES,
        devices_per_node=1,
        memory_bytes=MEMORY_BYTES,
        objective=Objective.OOBLECK,
    )
    return Grids(profile_of(model), settings)


@cache
def monotonic(frequency: str) -> Trace:
    """A node goes after each interval until as few are left as the paper waits for."""
    interval_s = FREQUENCIES_S[frequency]
    horizon_s = (NUM_NODES - FEWEST_NODES + 1) * interval_s
    failures = Monotonic(interval_s=interval_s, down_to=FEWEST_NODES - 1)
    return generate(failures, Population(nodes=NUM_NODES), horizon_s, seed=1, name=f"a loss every {frequency}")


@cache
def grids(model: str) -> Grids:
    """At the speed at which Oobleck's cell of one loss in 6 h comes out."""
    found, target = uncalibrated(model), TABLE_2["Oobleck"][model][0]
    for _ in range(2):
        rare = replay(Oobleck(grids=found, pause_s=0.0, disturbs=False), monotonic("6h"))
        found = found.with_factor(found.factor * rare.samples_per_s / target)
    return found


@cache
def implied_pause() -> tuple[float, float]:
    """Seconds of a reconfiguration of Oobleck: a constant, and per byte of state; least squares over Table 2.

    What a failure costs follows from two cells of a model: the same nodes in the same order, and 36 times (or 6 times)
    as many losses an hour.
    """
    rows, costs = [], []
    for model, (rare, often, most_often) in TABLE_2["Oobleck"].items():
        for value, frequency in ((often, "1h"), (most_often, "10m")):
            rows.append((1.0, state_bytes(profile_of(model))))
            costs.append((1 - value / rare) * FREQUENCIES_S[frequency])
    (constant_s, per_byte_s), *_ = np.linalg.lstsq(np.array(rows), np.array(costs), rcond=None)
    return max(0.0, float(constant_s)), float(per_byte_s)


def own_terms(model: str) -> tuple[ModelProfile, PlannerSettings]:
    """For this project's policies: the same times of layers, and bytes, schedule and objective of its own."""
    grid = grids(model)
    settings = replace(grid.settings, schedule=ScheduleKind.EAGER_ONE_F_ONE_B, objective=Objective.STEP_TIME)
    return scaled(profile_of(model, OWN), grid.factor), settings


def own(policy: str, model: str) -> dict[str, Ours]:
    """A policy of this project, by how often a node is lost."""
    found = Ours.run(policy, *own_terms(model), map(monotonic, FREQUENCIES_S), start_s=0.0)
    return {f: Ours(results=[result]) for f, result in zip(FREQUENCIES_S, found.results, strict=True)}


def oobleck(model: str) -> Oobleck:
    constant_s, per_byte_s = implied_pause()
    pause_s = constant_s + per_byte_s * state_bytes(profile_of(model))
    return Oobleck(grids=grids(model), pause_s=pause_s, disturbs=False)


@cache
def storage_bytes_per_s() -> float:
    """Of Varuna's checkpoints: what the difference between its two rows of Table 4 at one loss in 6 h implies."""
    speeds = []
    for model, (free, *_) in TABLE_4_FREE.items():
        step_s = GLOBAL_BATCH[model] / free
        with_checkpoints_s = GLOBAL_BATCH[model] / TABLE_2["Varuna"][model][0]
        speeds.append(state_bytes(profile_of(model)) / (10 * (with_checkpoints_s - step_s)))
    return float(np.mean(speeds))


def is_fitted(system: str, model: str, frequency: str) -> bool:
    """Whether a cell of Table 2 went into `grids`, `implied_pause` or `storage_bytes_per_s`."""
    return system == "Oobleck" or (system == "Varuna" and model in TABLE_4_FREE and frequency == "6h")


INITIALISATION_S = 10.0
"""Of the framework, at a restart: what is left of a loss's cost in Table 4 (BERT-Large, without checkpoint costs) when
loading and redone steps are taken away is 5 to 15 s."""


def varuna(model: str, every: int, *, is_free: bool = False, notice_s: float = 0.0) -> Varuna:
    """Synchronous checkpoints after every so many steps; `is_free`: saving takes no time, loading does."""
    load_s = state_bytes(profile_of(model)) / storage_bytes_per_s()
    return Varuna(
        grids=grids(model),
        restart_s=INITIALISATION_S + load_s,
        checkpoints=Checkpoints(write_s=0.0 if is_free else load_s, every=every),
        notice_s=notice_s,
    )


INTERVALS = range(1, 61)
"""Steps between checkpoints that are tried."""


def best_varuna(model: str, trace: Trace, *, notice_s: float = 0.0) -> Outcome:
    """With the steps between checkpoints that turn out best on this very trace: more than any run could know."""
    outcomes = (replay(varuna(model, every, notice_s=notice_s), trace) for every in INTERVALS)
    return max(outcomes, key=lambda outcome: outcome.samples)
