"""Golden outputs of the planner: templates, first plans, estimates and decisions of random jobs and of all examples.

    python scripts/golden.py --check         plans everything again, and prints every difference from tests/golden/
    python scripts/golden.py                 writes tests/golden/ anew; the commit says what differs and why
    python scripts/golden.py --check 3 17 spot.toml     of these alone

A job follows from `SEED` and its number. Differences of times and memory are told as better or worse than before.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from planaria.api import PlanReport, load_job, plan_for
from planaria.estimate.step_remainder import PlanInterval
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import Device
from planaria.plan.costs.model_profile import LayerCost, ModelProfile
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.planner.finish_step.salvage import to_halt
from planaria.policy.interface import Candidate, FailureForecast, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.profile.of_job import profile_of_job
from planaria.profile.of_scenario import load_scenario, profile_of, traces_of
from planaria.profile.presets.presets import MODELS, preset
from planaria.runtime.component_settings import job_profile, planner_settings
from planaria.simulate.scenario import experiment

SEED, NUM_JOBS = 20261123, 50
ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
GOLDEN = ROOT / "tests" / "golden" / "planner.jsonl"
TOLERANCE = 1e-9
"""Relative, of numbers: sums may be added up in another order."""
LARGEST = ("resnet-152", "gpt2-1.5b")
"""Models that are left out: they take a third of the time."""
COSTS = ("_s", "bytes", "gap")
"""How names of numbers end that are better when they are less."""


def drawn_profile(draw: random.Random, devices: int) -> ModelProfile:
    """Draws a published model on a published device, half of them with layers that take other times than published."""
    profile = preset(
        draw.choice([model for model in sorted(MODELS) if model not in LARGEST]),
        draw.choice(["v100", "a100", "h100"]),
        device_counts=[count for count in (1, 2, 4) if count <= devices],
        network_gbit_s=10 ** draw.uniform(0, 2.3),
    )
    spread = draw.choice([0.0, 0.0, 0.3, 0.8])
    factors = [draw.uniform(1 - spread, 1 + spread) for _ in profile.layers]
    return replace(profile, layers=tuple(map(slowed, profile.layers, factors)))


def slowed(layer: LayerCost, factor: float) -> LayerCost:
    """The layer with a forward and weight gradients that take so many times as long."""
    times = [
        replace(t, forward_s=factor * t.forward_s, backward_weight_s=factor * t.backward_weight_s) for t in layer.times
    ]
    return replace(layer, times=tuple(times))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """A random job, and what befalls it: (nodes lost, nodes that join, nodes that leave with notice), one by one."""

    profile: ModelProfile
    settings: PlannerSettings
    speeds: dict[NodeId, float]
    zones: dict[NodeId, str]
    forecast: FailureForecast
    events: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...]

    def policy(self, name: PolicyName) -> Policy:
        policy = make_policy(name, Planner(self.profile, self.settings, zones=self.zones)).with_forecast(self.forecast)
        return policy.with_planner(policy.planner.with_speeds(self.speeds)) if self.speeds else policy

    @property
    def about(self) -> str:
        """The job for people."""
        s = self.settings
        return (
            f"{self.profile.name} on {self.profile.device.name}, {s.num_nodes}x{s.devices_per_node} devices, "
            f"f {s.fault_tolerance}, {s.num_microbatches} microbatches, {s.schedule.value}, {s.memory_bytes} bytes, "
            f"speeds {self.speeds}, "
            f"{len(set(self.zones.values()))} zones, cores {s.num_cores}, lost/joining/leaving {self.events}"
        )


def drawn_job(number: int) -> Drawn:
    draw = random.Random(f"{SEED}-{number}")
    nodes = draw.choice([draw.randint(3, 12), draw.randint(3, 12), draw.randint(13, 24)])
    devices = draw.choice([1, 1, 1, 2, 2, 4] if nodes <= 12 else [1])
    profile, tolerance = drawn_profile(draw, devices), draw.choice([0, 1, 1, 1, 2])
    state = sum(layer.state_bytes for layer in profile.layers) * (tolerance + 1) / (nodes * devices)
    activations = sum(layer.activation_bytes + layer.workspace_bytes for layer in profile.layers)
    settings = PlannerSettings(
        num_microbatches=max(nodes, draw.choice([8, 16, 32])),
        fault_tolerance=tolerance,
        num_nodes=nodes,
        devices_per_node=devices,
        memory_bytes=int(draw.uniform(1.5, 4.0) * state + 2 * activations) if draw.random() < 0.5 else 0,
        min_nodes=draw.choice([0, 0, 1, 2]),
        schedule=draw.choice([ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER_ONE_F_ONE_B, *ScheduleKind]),
        overlap=draw.random() < 0.8,
        may_drop=draw.random() < 0.2,
        may_restore=draw.random() < 0.5,
        num_cores=2.0 if devices == 1 and draw.random() < 0.1 else None,
    )
    some = [NodeId(node) for node in draw.sample(range(nodes), 3)]
    slow = {node: draw.choice([0.5, 0.7, 0.9, 1.2]) for node in some[1:]}
    names, every = draw.choice(["", "", "ab", "abc"]), draw.choice([0, 0, 10, 100])
    befalls = [((some[0],), 0, ()), ((some[0],), 0, ()), (tuple(some[:2]), 0, ()), ((), 1, ()), ((), 0, (some[0],))]
    return Drawn(
        profile=profile,
        settings=settings,
        speeds=slow if draw.random() < 0.3 else {},
        zones={NodeId(node): names[node % len(names)] for node in range(nodes + 2)} if names else {},
        forecast=FailureForecast(
            time_to_failure_s=10 ** draw.uniform(2, 4.3),
            checkpoint_every=every,
            steps_at_stake=every // 2,
            after_loss=True,
        ),
        events=(draw.choice(befalls), draw.choice([((some[2],), 0, ()), ((), 1, ())])),
    )


def planned(plan: Plan) -> dict[str, Any]:
    """The plan's pipelines for people (layers of each stage, with its devices if they are several, and microbatches),
    and a digest of all that it says."""
    counts = Counter(
        "|".join(f"{s.first_layer}-{s.end_layer - 1}" + f"/{s.num_devices}" * (s.num_devices > 1) for s in p.stages)
        + f":{sum(len(r.microbatches) for r in plan.routes if r.hops[0].worker == p.stages[0].worker)}"
        for p in plan.pipelines
    )
    hops = partial(map, lambda s: [s.worker, s.first_layer, s.end_layer, s.num_devices])
    text = json.dumps(
        [
            [list(hops(pipeline.stages)) for pipeline in plan.pipelines],
            [[list(hops(r.hops)), r.microbatches, r.born, r.counted, r.reached] for r in plan.routes],
            list(hops(plan.shadows)),
            [[move.group, move.source, move.target, move.part] for move in plan.transfers],
            [plan.num_microbatches, plan.generation, plan.sync_epochs, plan.spare_in_flight, plan.dropped],
            [plan.schedule.value, plan.redundancy and plan.redundancy.value],
        ]
    )
    shapes = [f"{count}x {shape}" if count > 1 else shape for shape, count in counts.items()]
    return {"pipelines": shapes, "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}


def reported(report: PlanReport) -> dict[str, Any]:
    """Templates, first plan and estimates."""
    return {
        "templates": [
            {
                "split": " ".join(f"{s.end_layer}" + f"/{s.num_devices}" * (s.num_devices > 1) for s in t.stages),
                "step_s": t.step_time_s,
                "gap": t.gap if t.lower_bound_s else None,
            }
            for t in report.templates
        ],
        "plan": planned(report.plan),
        "step_s": report.step_time_s,
        "simulated_s": report.timeline.step_time_s,
        "bound_s": report.lower_bound_s,
        "memory_bytes": max(use.total for use in report.memory.values()),
        "all_memory_bytes": sum(use.total for use in report.memory.values()),
        "after_losses": [decided(proposal) for proposal in report.after_losses],
    }


def decided(proposal: Candidate) -> dict[str, Any]:
    """A decision: which plan, by which name, and what is expected of it."""
    best = proposal.candidates[0] if proposal.candidates else None
    return {
        "how": proposal.how,
        "name": best and best.name,
        "step_s": proposal.step_time_s,
        "transition_s": proposal.transition_s,
        "transfer_s": proposal.transfer_s,
        "transfer_bytes": proposal.transfer_bytes,
        "rest_s": proposal.rest_s,
        "beside": proposal.beside and planned(proposal.beside.plan)["digest"],
        **planned(proposal.plan),
    }


def decisions(job: Drawn, name: PolicyName) -> Iterator[dict[str, Any]]:
    """The policy's first plan, the rest of its first step where a node is lost in the middle, and its plan after each
    event. "refused": there is no such plan."""
    policy = job.policy(name)
    alive = {NodeId(node) for node in range(job.settings.num_nodes)}
    proposal = policy.initial(sorted(alive), 1)
    yield decided(proposal)
    yield rest(policy, proposal)
    for generation, (lost, joins, leaving) in enumerate(job.events, 2):
        gone, plan = {NodeId(node) for node in lost} & alive, proposal.plan
        alive = alive - gone | {NodeId(max(alive) + 1) for _ in range(joins)}
        per_node = job.settings.devices_per_node
        workers = [WorkerId(node * per_node + device) for node in sorted(alive) for device in range(per_node)]
        holders = {worker: plan.groups_of.get(worker, ()) for worker in workers}
        staying = {NodeId(node) for node in leaving}
        proposal = policy.reconfigure(
            ReplanRequest(plan=plan, lost=sorted(gone), holders=holders, generation=generation, leaving=sorted(staying))
        )
        yield decided(proposal)


def rest(policy: Policy, proposal: Candidate) -> dict[str, Any]:
    """Half of the step is done when the second node of the first pipeline is lost."""
    plan = proposal.plan
    lost = plan.node_of(plan.pipelines[0].stages[-1].worker)
    live = [worker for worker in plan.workers if plan.node_of(worker) != lost]
    counted: list[set[int]] = [set() for _ in range(plan.num_layers)]
    for route in plan.routes:
        for hop in route.hops:
            for layer in hop.layers if hop.worker in live else ():
                counted[layer].update(route.microbatches[: len(route.microbatches) // 2])
    holders = {worker: plan.layers_of[worker] for worker in live}
    so_far = (PlanInterval(plan=plan, seconds=proposal.step_time_s / 2),)
    try:
        return decided(
            policy.finish_step(
                FinishRequest(
                    plan=plan,
                    live=live,
                    halted=to_halt(plan, live),
                    counted=Ledger.of(counted),
                    holders=holders,
                    generation=2,
                    so_far=so_far,
                )
            )
        )
    except PlanError:
        return {"refused": True}


def of_job(number: int) -> dict[str, Any]:
    job = drawn_job(number)
    found: dict[str, Any] = {"name": str(number), "about": job.about}
    try:
        report = plan_for(job.profile, job.settings, zones=dict(job.zones))
    except PlanError:
        return found | {"refused": True}
    found |= reported(report) | {"decisions": {}}
    for name in PolicyName:
        made = found["decisions"][name.value] = []
        try:
            made.extend(decisions(job, name))
        except PlanError:
            made.append({"refused": True})
    return found


def of_example(path: Path) -> dict[str, Any]:
    """A job's plans at first and after two losses, of two nodes one, with costs of an A100; a scenario's first run
    under each policy."""
    if path.parent.name == "scenarios":
        scenario = load_scenario(path, ["failures.runs=1", "failures.hours=1"])
        about, traces = experiment(scenario, profile_of(scenario, path.parent)), traces_of(scenario, path.parent)
        names = [*dict.fromkeys([*scenario.job.policies, PolicyName.ADAPTIVE.value])]
        return {"name": path.name, "runs": {name: msgspec.to_builtins(about.run(name, traces)[0]) for name in names}}
    job = load_job(path)
    has_dataset = ":" in job.data.source
    if has_dataset or ":" in job.model.type or job.model.weights or job.cluster.device is Device.EMULATED:
        model = "alexnet" if has_dataset or ":" in job.model.type else "gpt2-345m"
        profile = preset(model, "a100", microbatch_size=job.train.microbatch)
    else:
        profile = profile_of_job(job, "a100")
    settings = planner_settings(job, profile)
    if job.cluster.device is Device.CPU:
        settings = dataclasses.replace(settings, num_cores=2.0)
    costs = job_profile(job, profile)
    losses = [{1}, {2}] if job.cluster.least_nodes > 2 else []  # of two nodes none can be spared
    report = plan_for(costs, settings, policy=job.resilience.policy, losses=losses)
    return {"name": path.name, **reported(report)}


def examples() -> list[Path]:
    return sorted([*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("scenarios/*.toml")])


def golden(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Outputs of today's code; of the jobs and examples of these names, or of all."""
    for path in examples():
        if not names or path.name in names:
            yield of_example(path)
    for number in range(NUM_JOBS):
        if not names or str(number) in names:
            yield of_job(number)


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Every place in which two outputs differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{where}[{place}]")
    elif isinstance(old, float | int) and isinstance(new, float | int):
        if abs(old - new) > TOLERANCE * max(abs(old), abs(new)):
            judged = ("better" if new < old else "worse") + ": " if where.endswith(COSTS) else ""
            yield f"{where}: {judged}{old:.6g} -> {new:.6g} ({100 * (new / old - 1) if old else 100:+.3f}%)"
    elif old != new:
        yield f"{where}: {old} -> {new}"


def kept() -> dict[str, Any]:
    """The golden outputs by name."""
    lines = map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines() if GOLDEN.exists() else [])
    return {line["name"]: line for line in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="numbers of jobs, names of examples; none: all")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    before, found = kept(), 0
    for new in golden(arguments.names):
        new = json.loads(json.dumps(new))
        for difference in differences(before.get(new["name"], {}), new, new["name"]):
            found += 1
            print(difference[:400], flush=True)
        before[new["name"]] = new
    if not arguments.check:
        GOLDEN.write_text("".join(json.dumps(line) + "\n" for line in before.values()), encoding="utf-8")
    print(f"{found} differences")
    return 1 if found and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
