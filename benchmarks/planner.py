"""The planner's speed, part by part.

start: the command `planaria plan` in a new process.
instantiation: pipelines and shares for up to thousands of nodes (planner_instantiation.py).
transfers: who gets what from whom after losses, at 512 nodes (planner_transfers.py).
presets: how far the presets' templates can be from the best.
templates: Oobleck's Table 3 with both objectives: one template of each cell, all of the largest, and one of 64 nodes.
estimate: events a second of the step time of a chain, compiled and interpreted.

The first run of everything does not count, so that compiled kernels are warm. Times are of
the processor, of one thread, so that other programs disturb them less.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from figures import note, report
from papers.oobleck_data import TABLE_3_S
from planner_instantiation import measure_instantiation
from planner_transfers import measure_transfers

from planaria.plan.compiled import Work
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.costs.pipeline_time import times_s
from planaria.plan.plan import Group, PlanError, ScheduleKind
from planaria.plan.settings import Objective, PlannerSettings
from planaria.planner.templates.oobleck import OobleckSearch
from planaria.planner.templates.split_search import StepTimeSearch
from planaria.planner.templates.splits import make_space
from planaria.planner.templates.templates import make_templates
from planaria.profile.presets.presets import MODELS, preset

COMPILED = Work(compiled=True)
PARTS = ("start", "instantiation", "transfers", "estimate", "presets", "templates")
NODES, DEVICES, LAYERS = (8, 16, 24), (1, 4, 8), (24, 32, 64, 96)


def transformer(num_layers: int, devices: int) -> ModelProfile:
    """Equal blocks of a 2048-wide decoder between an embedding and a head, `num_layers` in all, on A100-like devices.

    Tensor parallelism costs two sums of the activations a pass, and 2% of the compute for each further device.
    """
    hidden, tokens, vocabulary, flops_per_s = 2048, 1024, 50257, 120e12
    inside, between = (
        LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=150e9),
        LinkCost(latency_s=3e-5, bandwidth_bytes_per_s=12.5e9),
    )

    def layer(name: str, parameters: int, flops: float, activation_bytes: int, output_bytes: int) -> LayerCost:
        def times(d: int) -> LayerTimes:
            sums = 0.0 if d == 1 else 2 * inside.time_s(2 * tokens * hidden)
            forward = flops / flops_per_s / d * (1 + 0.02 * (d - 1)) + sums
            return LayerTimes(
                num_devices=d, forward_s=forward, backward_input_s=forward, backward_weight_s=forward - sums
            )

        return LayerCost(
            name=name,
            times=tuple(times(d) for d in range(1, devices + 1)),
            parameter_bytes=2 * parameters,
            gradient_bytes=2 * parameters,
            optimizer_bytes=12 * parameters,
            activation_bytes=activation_bytes,
            recompute_activation_bytes=2 * tokens * hidden,
            output_bytes=output_bytes,
        )

    output = 2 * tokens * hidden
    table = vocabulary * hidden
    block_flops = 24.0 * tokens * hidden**2 + 4.0 * tokens**2 * hidden
    layers = [layer("embedding", table, 20.0 * tokens * hidden, output, output)]
    layers += [
        layer(f"block.{n}", 12 * hidden**2, block_flops, 34 * tokens * hidden, output) for n in range(num_layers - 2)
    ]
    layers.append(layer("head", table, 2.0 * tokens * hidden * vocabulary, 4 * tokens * vocabulary, 4 * tokens))
    return ModelProfile(
        layers=tuple(layers),
        groups=tuple(Group(layers=(n,), size_bytes=cost.parameter_bytes) for n, cost in enumerate(layers)),
        links=Links(within_node=inside, between_nodes=between),
        device=DeviceKind(name="synthetic A100", memory_bytes=80 * 10**9),
    )


def measured(work: Callable[[], object]) -> float:
    """Seconds of the quicker of two runs after a first."""
    work()
    times = []
    for _ in range(2):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def template(nodes: int, devices: int, layers: int, objective: Objective) -> float:
    """Build one template; returns its gap."""
    settings = PlannerSettings(
        num_microbatches=4 * nodes, fault_tolerance=0, num_nodes=nodes, devices_per_node=devices, objective=objective
    )
    space = make_space(transformer(layers, devices), settings)
    if objective is Objective.OOBLECK:
        assert OobleckSearch(space, nodes, COMPILED).run() is not None
        return 0.0
    found = StepTimeSearch(space, nodes, settings.microbatches_per_pipeline, work=COMPILED).run()
    assert found is not None
    return found.time_s / found.lower_bound_s - 1


def all_templates(most: int, devices: int, layers: int, objective: Objective) -> None:
    """As the planner makes them."""
    settings = PlannerSettings(
        num_microbatches=4 * most, fault_tolerance=0, num_nodes=most, devices_per_node=devices, objective=objective
    )
    assert len(make_templates(transformer(layers, devices), settings)) == most


def templates_part(*, every: bool) -> None:
    goal = 0.1
    for objective in Objective:
        worst = {"one": 0.0, "gap": 0.0}
        for nodes, devices in TABLE_3_S:
            cells = []
            for place, layers in enumerate(LAYERS):
                seconds = measured(partial(template, nodes, devices, layers, objective))
                gap = template(nodes, devices, layers, objective)
                worst = {"one": max(worst["one"], seconds), "gap": max(worst["gap"], gap)}
                paper = TABLE_3_S[nodes, devices][place]
                cells.append(f"{layers} layers {1e3 * seconds:.1f} ms, gap {gap:.2%} (paper {paper:.2f} s)")
            note(f"{objective}: {nodes} nodes x {devices}: " + "; ".join(cells))
        name = f"planner.templates.{objective}"
        report(f"{name}.slowest_cell", 1e3 * worst["one"], "ms", goal=f"<= {1e3 * goal:g}")
        if objective is Objective.STEP_TIME:
            report(f"{name}.largest_gap", worst["gap"], "ratio", goal="<= 0.01")
        seconds = measured(partial(template, 64, 8, 128, objective))
        report(f"{name}.64x8x128", 1e3 * seconds, "ms", goal=f"<= {5e3 * goal:g}")
        if every:
            seconds = measured(partial(all_templates, NODES[-1], 8, 96, objective))
            report(f"{name}.all_of_24x8x96", seconds, "s", goal=f"<= {10 * goal:g}")


def estimate_part() -> None:
    generator = np.random.default_rng(1)
    stages, microbatches, chains = 24, 512, 16
    forward = generator.random((chains, stages))
    link = 0.1 * generator.random((chains, stages - 1))
    for compiled, goal in ((True, 100), (False, 3)):
        for schedule in (kind for kind in ScheduleKind if not kind.splits_backward):
            work = Work(compiled=compiled)
            seconds = measured(partial(times_s, forward[:1], 2 * forward[:1], link[:1], microbatches, schedule, work))
            events = 2 * stages * microbatches / seconds / 1e6
            name = f"planner.estimate.{schedule}.{'compiled' if compiled else 'interpreted'}"
            report(name, events, "million events/s", goal=f">= {goal}")
            seconds = measured(partial(times_s, forward, 2 * forward, link, microbatches, schedule, work))
            report(f"{name}.16_chains", chains * 2 * stages * microbatches / seconds / 1e6, "million events/s")


def start_part() -> None:
    """What a user waits for: `planaria plan` in a new process; small enough that it imports no numba."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_bytes(msgspec.json.encode(transformer(24, 1)))
        command = [sys.executable, "-m", "planaria.ui.cli.main", "plan", "--profile", str(path)]
        command += ["--nodes", "8", "--global-batch", "64", "--json"]
        walls = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            walls.append(time.perf_counter() - began)
    report("planner.cold_start", statistics.median(walls), "s", goal="<= 1.5")


def presets_part(*, thorough: bool) -> None:
    """How sure templates of the presets are: their distance from a bound that no split beats."""
    gaps: dict[int, list[float]] = {}
    for model, device, devices in itertools.product(MODELS, ("v100", "a100"), (1, 4, 8)):
        profile = preset(model, device, device_counts=tuple(d for d in (1, 2, 4, 8) if d <= devices))
        settings = PlannerSettings(
            num_microbatches=32,
            fault_tolerance=0,
            num_nodes=8,
            devices_per_node=devices,
            memory_bytes=profile.device.memory_bytes,
            schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
            thorough=thorough,
        )
        try:
            made = make_templates(profile, settings)
        except PlanError as error:
            note(f"{model} on {device}, {devices} a node: {error}")
            continue
        gaps.setdefault(devices, []).extend(template.gap for template in made)
        note(f"{model} on {device}, {devices} a node: " + " ".join(f"{100 * t.gap:.2f}%" for t in made))
    for devices, found in gaps.items():
        name = f"planner.presets.{devices}_devices{'.thorough' if thorough else ''}"
        within = sum(gap <= 0.01 for gap in found) / len(found)
        report(f"{name}.within_1_percent", within, "ratio", goal=">= 1")
        report(f"{name}.gap_median", statistics.median(found), "ratio")
        report(f"{name}.gap_worst", max(found), "ratio", goal="<= 0.01")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which parts; none: all")
    parser.add_argument("--thorough", action="store_true", help="the presets' templates with twenty times the budget")
    parser.add_argument("--quick", action="store_true", help="without all templates of the largest cell")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    if "start" in parts:
        start_part()
    if "instantiation" in parts:
        measure_instantiation()
    if "transfers" in parts:
        measure_transfers()
    if "estimate" in parts:
        estimate_part()
    if "presets" in parts:
        presets_part(thorough=arguments.thorough)
    if "templates" in parts:
        templates_part(every=not arguments.quick)


if __name__ == "__main__":
    main()
