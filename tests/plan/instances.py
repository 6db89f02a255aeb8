"""Small random planning problems with stages of several devices, and all their splits by plain recursion."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.costs.stage_costs import StageCosts
from planaria.plan.plan import Group, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.planner.templates.splits import Split

WHOLE_BACKWARDS = [kind for kind in ScheduleKind if not kind.splits_backward]


@dataclass(frozen=True)
class Instance:
    profile: ModelProfile
    settings: PlannerSettings
    nodes: int

    @property
    def microbatches(self) -> int:
        return self.settings.num_microbatches


def instances(
    count: int, seed: int, *, most_layers: int = 7, most_devices: int = 4, most_nodes: int = 3
) -> Iterator[Instance]:
    """With and without a memory limit, all schedules, overlapping communication or not, quick and slow links."""
    generator = random.Random(seed)
    for number in range(count):
        devices, nodes = generator.randint(1, most_devices), generator.randint(1, most_nodes)
        profile = _profile(generator, generator.randint(nodes, most_layers), devices)
        settings = PlannerSettings(
            num_microbatches=generator.randint(1, 12),
            fault_tolerance=0,
            num_nodes=nodes,
            devices_per_node=devices,
            memory_bytes=generator.choice([0, generator.randint(60, 900)]),
            schedule=WHOLE_BACKWARDS[number % 3],
            overlap=generator.random() < 0.7,
            powers_of_two=generator.random() < 0.2,
        )
        yield Instance(profile, settings, nodes)


def _profile(generator: random.Random, num_layers: int, devices: int) -> ModelProfile:
    layers = []
    for number in range(num_layers):
        time, loss = generator.choice([0.03, generator.randint(1, 9) / 100]), generator.random() * 0.4
        ratio = generator.choice([2.0, 2.0, generator.random() * 3])
        times = tuple(
            LayerTimes(
                num_devices=d,
                forward_s=time / d * (1 + loss * (d - 1)),
                backward_input_s=ratio * time / 2 / d * (1 + loss * (d - 1)),
                backward_weight_s=ratio * time / 2 / d,
            )
            for d in range(1, devices + 1)
        )
        layers.append(
            LayerCost(
                name=f"layer.{number}",
                times=times,
                parameter_bytes=10 * generator.randint(1, 9),
                gradient_bytes=10,
                optimizer_bytes=20,
                activation_bytes=10 * generator.randint(0, 9),
                recompute_activation_bytes=5,
                output_bytes=generator.randint(1, 100),
                workspace_bytes=generator.randint(0, 20),
            )
        )
    between = LinkCost(latency_s=generator.choice([0.0, 1e-3, 1e-2]), bandwidth_bytes_per_s=1e4)
    return ModelProfile(
        layers=tuple(layers),
        groups=tuple(Group(layers=(n,), size_bytes=layer.parameter_bytes) for n, layer in enumerate(layers)),
        links=Links(within_node=LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e5), between_nodes=between),
        device=DeviceKind(name="synthetic"),
    )


def all_splits(instance: Instance) -> list[Split]:
    """Every split whose stages use all devices of every node and fit the memory at their place."""
    settings, costs = instance.settings, StageCosts(instance.profile)
    per_node = settings.devices_per_node
    counts = [d for d in instance.profile.device_counts if not (settings.powers_of_two and d not in (1, 2, 4, 8))]
    last = instance.profile.num_layers

    def fill(devices: int) -> Iterator[tuple[int, ...]]:
        if devices == 0:
            yield ()
        for d in counts:
            if d <= devices:
                for rest in fill(devices - d):
                    yield (d, *rest)

    def mappings(nodes: int) -> Iterator[tuple[int, ...]]:
        if nodes == 0:
            yield ()
        else:
            for node in fill(per_node):
                for rest in mappings(nodes - 1):
                    yield (*node, *rest)

    def cuts(first: int, stages: int) -> Iterator[tuple[int, ...]]:
        if stages == 1:
            yield (last,)
        else:
            for end in range(first + 1, last - stages + 2):
                for rest in cuts(end, stages - 1):
                    yield (end, *rest)

    def fits(split: Split) -> bool:
        first = 0
        for place, (end, devices) in enumerate(split):
            kept = settings.schedule.in_flight(len(split) - 1 - place, settings.num_microbatches)
            if settings.memory_bytes and costs.memory_bytes(first, end, kept, devices) > settings.memory_bytes:
                return False
            first = end
        return True

    found = []
    for devices in mappings(instance.nodes):
        if len(devices) <= last:
            for ends in cuts(0, len(devices)):
                split = tuple(zip(ends, devices, strict=True))
                if fits(split):
                    found.append(split)
    return found
