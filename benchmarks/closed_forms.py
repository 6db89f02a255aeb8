"""How far closed forms and the lower bound are from the event simulation, and how fast that is.

Random pipelines and reroutes from a fixed seed; docs/explanation/estimates.md has the figures.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from figures import note, report
from papers import formulas as forms

from planaria.estimate.conditions import AS_PROFILED
from planaria.estimate.durations import Durations
from planaria.estimate.lower_bound import lower_bound_s
from planaria.estimate.simulation.simulation import run_programs
from planaria.estimate.step_time import step_time_s
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.costs.stage_costs import pipeline_cost
from planaria.plan.plan import Group, Pipeline, Plan, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program.programs import programs

Times = Sequence[tuple[float, float]]
"""Forward and backward of each stage, in seconds."""


def profile_of(stages: Times, message_s: float, group_bytes: int = 0) -> ModelProfile:
    """One layer a stage; a message takes `message_s` whatever its size."""
    layers = tuple(
        LayerCost(
            name=f"stage.{number}",
            times=(LayerTimes(forward_s=forward, backward_input_s=backward / 2, backward_weight_s=backward / 2),),
            parameter_bytes=group_bytes,
            gradient_bytes=group_bytes,
            optimizer_bytes=2 * group_bytes,
            activation_bytes=1,
            recompute_activation_bytes=1,
            output_bytes=0,
        )
        for number, (forward, backward) in enumerate(stages)
    )
    link = LinkCost(latency_s=message_s, bandwidth_bytes_per_s=1e9)
    groups = tuple(Group(layers=(n,), size_bytes=group_bytes) for n in range(len(layers)) if group_bytes)
    return ModelProfile(
        layers=layers,
        groups=groups,
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="random"),
        step=StepCosts(sum_s_per_byte=1e-10, apply_s_per_byte=2e-10),
    )


def pipelines(profile: ModelProfile, number: int, each: int, kind: ScheduleKind, per_stage: int = 1) -> Plan:
    """`number` pipelines of stages of `per_stage` layers, with `each` microbatches."""
    depth = profile.num_layers // per_stage
    made, routes = [], []
    for p in range(number):
        stages = tuple(
            Stage(worker=WorkerId(p * depth + k), first_layer=k * per_stage, end_layer=(k + 1) * per_stage)
            for k in range(depth)
        )
        made.append(Pipeline(stages=stages))
        microbatches = tuple(range(p * each, (p + 1) * each))
        routes.append(Route(hops=stages, microbatches=microbatches, born=1, counted=tuple(range(profile.num_layers))))
    return plan_of(profile, made, routes, number * each, kind)


def plan_of(
    profile: ModelProfile, made: Sequence[Pipeline], routes: Sequence[Route], microbatches: int, kind: ScheduleKind
) -> Plan:
    return Plan(
        generation=1,
        num_layers=profile.num_layers,
        num_microbatches=microbatches,
        devices_per_node=1,
        groups=profile.groups,
        pipelines=tuple(made),
        routes=tuple(routes),
        sync_epochs=(1,) * len(profile.groups),
        schedule=kind,
    )


def rerouted(profile: ModelProfile, whole: Plan, dead: set[tuple[int, int]]) -> Plan:
    """Each dead (pipeline, place)'s microbatches dealt out to its peers."""
    depth, turns = profile.num_layers, [0] * profile.num_layers
    ways: dict[tuple[Stage, ...], list[int]] = defaultdict(list)
    for at, route in enumerate(whole.routes):
        for microbatch in route.microbatches:
            hops = []
            for place in range(depth):
                pipeline = at
                if (pipeline, place) in dead:
                    peers = [p for p in range(len(whole.routes)) if (p, place) not in dead]
                    pipeline = peers[turns[place] % len(peers)]
                    turns[place] += 1
                hops.append(whole.pipelines[pipeline].stages[place])
            ways[tuple(hops)].append(microbatch)
    left = [tuple(s for s in p.stages if (at, s.first_layer) not in dead) for at, p in enumerate(whole.pipelines)]
    routes = [Route(hops=h, microbatches=tuple(m), born=1, counted=tuple(range(depth))) for h, m in ways.items()]
    return plan_of(profile, [Pipeline(stages=s) for s in left if s], routes, whole.num_microbatches, whole.schedule)


def print_biases(title: str, biases: dict[str, list[float]]) -> None:
    for name, found in sorted(biases.items()):
        low, mean, high = min(found), statistics.fmean(found), max(found)
        note(f"{title:38} {name:26} {low:+7.1%} {mean:+7.1%} {high:+7.1%}  ({len(found)})")
        report(f"closed_forms.{title}.{name}.mean".replace(" ", "_"), 100 * mean, "%")


def measure_pipelines(draw: random.Random, count: int) -> None:
    """Biases of the forms of one pipeline."""
    for title, spread, ratios, messages in (
        ("even stages", 0.0, (2.0, 2.0), 0.0),
        ("uneven by 20%", 0.2, (2.0, 2.0), 0.0),
        ("uneven by 50%", 0.5, (2.0, 2.0), 0.0),
        ("uneven by 20%, other ratios", 0.2, (1.0, 3.0), 0.0),
        ("even stages, messages of 10%", 0.0, (2.0, 2.0), 0.1),
        ("uneven by 20%, messages of 10%", 0.2, (2.0, 2.0), 0.1),
    ):
        biases: dict[str, list[float]] = defaultdict(list)
        for _ in range(count):
            depth = draw.randint(2, 12)
            number = depth * draw.choice([1, 2, 4])
            wholes = [0.03 * draw.uniform(1 - spread, 1 + spread) for _ in range(depth)]
            forwards = [whole / (1 + draw.uniform(*ratios)) for whole in wholes]
            stages = [(f, whole - f) for f, whole in zip(forwards, wholes, strict=True)]
            profile = profile_of(stages, messages * 0.03)
            simulated = step_time_s(pipelines(profile, 1, number, ScheduleKind.ONE_F_ONE_B), profile)
            said = {
                "T1 + T2 + T3": forms.oobleck_s(wholes, number),
                "Eq. 9, slowest stage": forms.symmetric_s(depth, number, max(wholes)),
                "Eq. 9, mean stage": forms.symmetric_s(depth, number, statistics.fmean(wholes)),
                "Eq. 10 and 11": forms.asymmetric_s([(stages, number)]),
                "pipeline_cost": pipeline_cost(profile, [(k, k + 1) for k in range(depth)]).time_s(number),
            }
            for name, seconds in said.items():
                biases[name].append(seconds / simulated - 1)
        print_biases(title, biases)


def measure_reroutes(draw: random.Random, count: int) -> None:
    """Biases of the forms of rerouting."""
    for kind in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER_ONE_F_ONE_B, ScheduleKind.GPIPE):
        for failed in (1, 2, 4, 6):
            biases: dict[str, list[float]] = defaultdict(list)
            for _ in range(count):
                number, depth = draw.randint(3, 6), draw.randint(3, 8)
                each = depth * draw.choice([2, 4])
                cells = [(p, k) for p in range(number) for k in range(depth)]
                dead = set(draw.sample(cells, failed))
                failures = [sum(at == k for _, at in dead) for k in range(depth)]
                if max(failures) == number:
                    continue
                profile = profile_of([(0.01, 0.02)] * depth, 0.0)
                plan = rerouted(profile, pipelines(profile, number, each, kind), dead)
                simulated = step_time_s(plan, profile)
                biases["Eq. 13"].append(forms.failures_s(number, failures, each, 0.03) / simulated - 1)
                biases["busiest place"].append(forms.busiest_s(number, failures, each, 0.03) / simulated - 1)
                if failed == 1:
                    biases["Eq. 12"].append(forms.one_failure_s(number, depth, each, 0.03) / simulated - 1)
            print_biases(f"{kind.value}, {failed} failed", biases)


def measure_bound(draw: random.Random, count: int) -> None:
    """How far the certified lower bound is below."""
    for kind in ScheduleKind:
        for messages in (0.0, 0.1):
            biases: dict[str, list[float]] = defaultdict(list)
            for _ in range(count):
                depth = draw.randint(2, 12)
                stages = [(0.01 * draw.uniform(0.8, 1.2), 0.02 * draw.uniform(0.8, 1.2)) for _ in range(depth)]
                profile = profile_of(stages, messages * 0.03, group_bytes=20_000_000)
                plan = pipelines(profile, draw.randint(1, 4), depth * draw.choice([1, 2, 4]), kind)
                biases["lower bound"].append(lower_bound_s(plan, profile) / step_time_s(plan, profile) - 1)
            print_biases(f"{kind.value}, messages of {messages:.0%}", biases)


def measure_speed() -> None:
    """1,024 workers: 16 pipelines of 64 stages of 2 layers, 128 microbatches each; in seconds of the processor."""
    profile = profile_of([(0.01, 0.02)] * 128, 0.001, group_bytes=1_000_000)
    best: dict[str, float] = defaultdict(lambda: float("inf"))
    for turn in range(5):
        plan = pipelines(profile, 16, 128, ScheduleKind.ONE_F_ONE_B, per_stage=2)
        plan = msgspec.structs.replace(plan, generation=turn + 1)
        begin = time.process_time()
        step_time_s(plan, profile)
        best["estimate"] = min(best["estimate"], time.process_time() - begin)
        begin = time.process_time()
        all_programs = programs(plan)
        best["programs"] = min(best["programs"], time.process_time() - begin)
        begin = time.process_time()
        run_programs(all_programs, Durations(plan, profile, AS_PROFILED), overlap=True)
        best["events"] = min(best["events"], time.process_time() - begin)
    instructions = sum(map(len, all_programs.values()))
    passes = 16 * 64 * 128 * 2
    report("estimate.1024_workers.new_plan", best["estimate"] * 1e3, "ms")
    report("estimate.1024_workers.programs", best["programs"] * 1e3, "ms")
    report("estimate.1024_workers.simulation.passes", passes / best["events"] / 1e6, "million/s")
    report("estimate.1024_workers.simulation.instructions", instructions / best["events"] / 1e6, "million/s")


def main() -> None:
    count = 20 if "--quick" in sys.argv else 200
    note(f"{'instances':38} {'form':26} {'lowest':>7} {'mean':>7} {'highest':>7}")
    measure_pipelines(random.Random(1), count)
    measure_reroutes(random.Random(2), max(10, count // 5))
    measure_bound(random.Random(3), count)
    measure_speed()


if __name__ == "__main__":
    main()
