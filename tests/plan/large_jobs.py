"""Jobs of the sizes that people have, drawn at random: what the planner must answer within seconds."""

from __future__ import annotations

import random

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group, ScheduleKind
from planaria.plan.settings import PlannerSettings

MOST_LAYERS, MOST_NODES, MOST_PER_NODE = 128, 64, 8
_STATE_BYTES = 900_000_000
"""Of an even layer."""


def large_job(seed: int) -> tuple[ModelProfile, PlannerSettings, PolicyName]:
    """Any number of layers, nodes, devices and device counts; with and without a memory limit and an n0."""
    generator = random.Random(seed)
    choose, between = generator.choice, generator.randint
    per_node = choose([1, 1, 2, 3, 4, 6, MOST_PER_NODE, MOST_PER_NODE])
    counts = choose([[1], [1], [1, 2], [1, 2, 4, 8], list(range(1, per_node + 1)), [2, 4], [1, 3, 5]])
    num_layers = choose([between(2, 12), between(10, 50), between(30, MOST_LAYERS)])
    nodes = choose([between(1, 6), between(2, 20), between(8, MOST_NODES)])
    fault_tolerance = choose([0, 1, 1, 2])
    fair_share = num_layers * _STATE_BYTES // between(1, 40)
    settings = PlannerSettings(
        num_microbatches=choose([between(1, 16), between(8, 64), between(64, 512), between(256, 2048)]),
        fault_tolerance=fault_tolerance,
        num_nodes=nodes,
        devices_per_node=per_node,
        memory_bytes=choose([0, 0, fair_share, between(2, 80) * 10**9]),
        min_nodes=choose([0, 0, 0, between(1, max(1, nodes // (fault_tolerance + 1)))]),
        schedule=choose(list(ScheduleKind)),
        overlap=generator.random() < 0.8,
        powers_of_two=generator.random() < 0.15,
        shadows=generator.random() < 0.1,
    )
    policy = choose([PolicyName.TEMPLATES, PolicyName.ADAPTIVE, PolicyName.REROUTE, PolicyName.MORPH])
    return _profile(generator, num_layers, [d for d in counts if d <= per_node] or [1]), settings, policy


def _profile(generator: random.Random, num_layers: int, counts: list[int]) -> ModelProfile:
    is_even, loss = generator.random() < 0.5, generator.choice([0.0, 0.05, 0.3])
    layers = []
    for number in range(num_layers):
        time_s, ratio = (0.01, 2.0) if is_even else (generator.randint(1, 90) / 1000, 3 * generator.random())
        weight = 1 if is_even else generator.randint(1, 9)
        shared = [(d, time_s / d * (1 + loss * (d - 1))) for d in counts]
        layers.append(
            LayerCost(
                name=f"layer.{number}",
                times=tuple(
                    LayerTimes(
                        num_devices=d, forward_s=s, backward_input_s=ratio * s / 2, backward_weight_s=ratio * s / 2
                    )
                    for d, s in shared
                ),
                parameter_bytes=10**8 * weight,
                gradient_bytes=10**8 * weight,
                optimizer_bytes=7 * 10**8 * weight,
                activation_bytes=10**7 * generator.randint(1, 9),
                recompute_activation_bytes=10**6,
                output_bytes=10**6 * generator.randint(1, 60),
                workspace_bytes=10**7,
            )
        )
    return ModelProfile(
        layers=tuple(layers),
        groups=tuple(Group(layers=(n,), size_bytes=layer.parameter_bytes) for n, layer in enumerate(layers)),
        links=Links(
            within_node=LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=1e11),
            between_nodes=LinkCost(latency_s=3e-5, bandwidth_bytes_per_s=generator.choice([1e8, 1e9, 1e10])),
        ),
        device=DeviceKind(name="synthetic"),
    )
