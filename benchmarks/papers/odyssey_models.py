"""Odyssey's cluster: Llama-2 7B on 32 NPUs, and the systems of its simulation."""

from __future__ import annotations

from functools import cache

from grids import Grids
from odyssey_data import GLOBAL_BATCH, HOURLY, HOURS, LAYERS_OF_RECOVERY, NUM_DEVICES, RECOVERY_S, TRANSFER_CUT
from ours import PUBLISHED

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.settings import Objective, PlannerSettings
from planaria.profile.presets.presets import preset
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.trace import HOUR_S, Trace

FAULT_TOLERANCE = 1
NUM_BLOCKS = 32

_TRANSFER_S = (RECOVERY_S[0] - RECOVERY_S[1]) / TRANSFER_CUT
PAUSE_S = RECOVERY_S[0] - _TRANSFER_S + _TRANSFER_S * NUM_BLOCKS / LAYERS_OF_RECOVERY
"""A reconfiguration of the whole model: what it took for 16 layers in rank order, transfers in proportion."""
MATCHED_PAUSE_S = RECOVERY_S[0] - _TRANSFER_S + _TRANSFER_S * (1 - TRANSFER_CUT) * NUM_BLOCKS / LAYERS_OF_RECOVERY


@cache
def profile(numerics: str = PUBLISHED) -> ModelProfile:
    """Without tensor parallelism, every NPU on its own; links as between nodes."""
    return preset("llama2-7b", "ascend-910b", microbatch_size=1, numerics=numerics)


@cache
def grids(objective: Objective) -> Grids:
    settings = PlannerSettings(
        num_microbatches=GLOBAL_BATCH,
        fault_tolerance=FAULT_TOLERANCE,
        num_nodes=NUM_DEVICES,
        devices_per_node=1,
        memory_bytes=profile().device.memory_bytes,
        objective=objective,
    )
    return Grids(profile(), settings)


def trace(seed: int) -> Trace:
    """10% of the devices go in an hour, one at a time, and none comes back."""
    failures, population = ConstantRate(hourly=HOURLY), Population(nodes=NUM_DEVICES)
    return generate(failures, population, HOURS * HOUR_S, seed=seed, name=f"{HOURLY:.0%} an hour, seed {seed}")


def interval_s(num_nodes: int) -> float:
    """Expected until the next loss."""
    return HOUR_S / (HOURLY * max(1, num_nodes))
