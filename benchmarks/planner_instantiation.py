"""How long instantiation takes: pipelines and batch shares for up to thousands of nodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from figures import report

from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.costs.pipeline_time import Template, TemplateStage
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import Group, NodeId
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import instances, instantiate
from planaria.planner.instantiation.microbatch_shares import distribute

CASES = (
    # nodes, microbatches, smallest and largest template, fault tolerance
    (24, 128, 2, 22, 1),
    (64, 512, 4, 52, 3),
    (1024, 100, 4, 100, 1),
    (1024, 128, 4, 100, 3),
    (1024, 256, 4, 100, 2),
    (1024, 512, 4, 100, 2),
    (1021, 512, 4, 100, 3),
    (1024, 4096, 4, 96, 3),
    (10_000, 4096, 4, 100, 3),
)


def templates(smallest: int, largest: int) -> list[Template]:
    """Of 128 layers of 10 ms on stages of one device, cut as evenly as they can be."""
    return [
        Template(
            num_nodes=nodes,
            stages=tuple(
                TemplateStage(first_layer=128 * at // nodes, end_layer=128 * (at + 1) // nodes, node=at)
                for at in range(nodes)
            ),
            step_time_s=0.0,
            cost=PipelineCost(period_s=0.01 * -(-128 // nodes) + 0.0004, path_s=1.28 + 0.0004 * (nodes - 1)),
        )
        for nodes in range(smallest, largest + 1)
    ]


def profile() -> ModelProfile:
    times = LayerTimes(forward_s=0.0033, backward_input_s=0.0033, backward_weight_s=0.0034)
    layer = LayerCost(
        name="block",
        times=(times,),
        parameter_bytes=1 << 20,
        gradient_bytes=1 << 20,
        optimizer_bytes=1 << 21,
        activation_bytes=1,
        recompute_activation_bytes=1,
        output_bytes=200_000,
    )
    link = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e9)
    return ModelProfile(
        layers=(layer,) * 128,
        groups=tuple(Group(layers=(number,), size_bytes=1 << 20) for number in range(128)),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="synthetic"),
    )


def median_ms(call: Callable[[], object], repeats: int = 15) -> float:
    """Wall-clock time of a call, the first left out."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def measure_instantiation() -> None:
    for nodes, microbatches, smallest, largest, fault_tolerance in CASES:
        settings = PlannerSettings(
            num_microbatches=microbatches, fault_tolerance=fault_tolerance, num_nodes=nodes, devices_per_node=1
        )
        made = templates(smallest, largest)
        took = median_ms(lambda made=made, nodes=nodes, settings=settings: instantiate(made, nodes, settings))
        name = f"instantiation.{nodes}_nodes.{microbatches}_microbatches.f{fault_tolerance}"
        report(name, took, "ms", goal="<= 20" if nodes <= 1024 else None)
    settings = PlannerSettings(num_microbatches=512, fault_tolerance=2, num_nodes=1024, devices_per_node=1)
    made, costs, nodes_of = templates(4, 100), profile(), [NodeId(node) for node in range(1024)]
    for name, speeds in (
        ("one_slow", {NodeId(7): 0.5}),
        ("all_different", {NodeId(node): 1 - node / 4096 for node in range(1024)}),
    ):
        took = median_ms(lambda speeds=speeds: instances(costs, made, settings, nodes_of, speeds), repeats=3)
        report(f"instantiation.1024_nodes.speeds.{name}", took, "ms")
    chosen = instances(costs, made, settings, nodes_of, {})
    report("distribution.1024_nodes", median_ms(lambda: distribute([one.times for one in chosen], 512)), "ms")
