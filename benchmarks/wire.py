"""Beyond one host: steps, bytes, estimates and recoveries over limited links, against torch on the same ones.

Hosts are network namespaces, each with a cable of a given rate to a switch; the coordinator has a host of its own.

sums: R replicas of one stage (GPT-2 of 3.2 million parameters, two microbatches each), fast and exact, against
    DistributedDataParallel over gloo, and how true the plan's estimate of the step is, at first and at the end.
pipeline: 4 stages over 4 hosts against Schedule1F1B over gloo, likewise.
bytes: what workers' sockets sent in a step, over what the encoding and what the estimate say.
estimate: of steps of emulated devices (more of them than cores), against what they took.
tls: steps of four replicas and of four stages under TLS, whole and with plain tensors, over steps of plain connections.
kill: from the kill of a replica's worker to the next commit, less a step.
plans: the plan chosen against the fastest of all that were tried for real.
zones: pipelines over two zones against one zone (Bamboo, Table 5).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import fidelity
import msgspec
from figures import Figures, note
from hosts import Cluster, HostSide, NoNamespaces, cluster, started, torch_on
from interleave import interleave, ratios, step_time_s
from sides import make_job, planaria_side
from wire_cases import (
    GBIT,
    JOB,
    NUMERICS,
    PATIENCE_STEPS,
    SETTLED,
    SHORT,
    STEP_GOAL,
    Size,
    hosts,
    one_pipeline,
    replicas,
)
from wire_plans import plans
from wire_zones import zones

from planaria.estimate.conditions import AS_PROFILED
from planaria.estimate.durations import Durations
from planaria.plan.costs.model_profile import LinkCost, Links, ModelProfile
from planaria.plan.plan import Pipeline, Plan, Stage, WorkerId
from planaria.planner.instantiation.instantiate import contiguous_routes
from planaria.protocol.messages.records import AnyRecord, EstimateCorrected, NodeLost, PlanTaken, StepCommitted
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.wire.certificates import make_certificates


def estimates(records: Sequence[tuple[AnyRecord, float]]) -> tuple[float, float]:
    """Estimated seconds of a step before the first one, and the newest estimate after so many as should be enough."""
    first, last, steps = 0.0, 0.0, 0
    for record, _ in records:
        match record:
            case PlanTaken() if steps <= SETTLED:
                first = first or record.estimated_step_s
                last = record.estimated_step_s
            case EstimateCorrected() if steps <= SETTLED:
                last = record.step_s
            case StepCommitted():
                steps += 1
            case _:
                pass
    return first, last


def tell_estimates(figures: Figures, title: str, records: Sequence[tuple[AnyRecord, float]], measured_s: float) -> None:
    """The estimates over what steps took: before the first one, and after some."""
    for when, estimated_s, error in zip(("before", f"after-{SETTLED}"), estimates(records), (0.15, 0.05), strict=True):
        found = estimated_s / measured_s
        goal = f">= {1 - error}" if found < 1 else f"<= {1 + error}"
        figures.add(f"{title}.estimate-{when}", found, "ratio", goal=goal)


def compare(figures: Figures, title: str, baseline: HostSide, ours: Sequence[Cluster], size: Size) -> None:
    """Run all in turns; ratios of neighbours, with the lowest and the highest of the rounds."""
    interleave([baseline, *ours], turns=size.turns, steps=size.steps, warm_up=4, patience=1)
    figures.add(f"{title}.torch.step", step_time_s(baseline) * 1e3, "ms", samples=size.turns * size.steps)
    for side in ours:
        name = f"{title}.{side.name}"
        found = sorted(ratios(side, baseline))
        figures.add(f"{name}.step", step_time_s(side) * 1e3, "ms", samples=size.turns * size.steps)
        figures.add(
            f"{name}.over-torch", statistics.median(found), "ratio", goal=STEP_GOAL[side.name], samples=len(found)
        )
        taken = next(record for record, _ in side.records if isinstance(record, PlanTaken))
        note(f"{name}: over torch by round {' '.join(f'{ratio:.2f}' for ratio in found)}; plan {taken.pipelines}")
        tell_estimates(figures, name, side.records, step_time_s(side))
        shutil.rmtree(side.folder.path)


# The parts


def sums(figures: Figures, size: Size) -> None:
    for count, (gbits, delay_ms, name) in itertools.product(size.replicas, size.links):
        with hosts(count, gbits, delay_ms) as made:
            compare(
                figures,
                f"wire.sums.{count}-replicas.{name}",
                torch_on(made, "torch", "ddp.py", make_job(JOB, *replicas(count, "fast"), f"cluster.nodes={count}")),
                [cluster(made, numerics, JOB, *replicas(count, numerics)) for numerics in NUMERICS],
                size,
            )


def pipeline(figures: Figures, size: Size) -> None:
    """Both are cut where our planner does; the goal of exact is that of fast."""
    cuts = "2,3,4"
    for gbits, delay_ms, name in size.links:
        with hosts(4, gbits, delay_ms) as made:
            job = make_job(JOB, *one_pipeline(4, "fast"), "cluster.nodes=4")
            compare(
                figures,
                f"wire.pipeline.{name}",
                torch_on(made, "torch", "one_f_one_b.py", job, [cuts]),
                [cluster(made, numerics, JOB, *one_pipeline(4, numerics)) for numerics in NUMERICS],
                size,
            )


def bytes_sent(figures: Figures, size: Size) -> None:
    """Of one stage a replica, and of pipelines."""
    for numerics in NUMERICS:
        for count in size.replicas:
            name = f"wire.bytes.{count}-replicas.{numerics}"
            sent, parameters = sent_in_a_step(figures, name, count, replicas(count, numerics), size)
            figures.add(f"{name}.a-parameter-and-owner", sent / parameters / count, "bytes", samples=size.bytes_steps)
            ring = 8 * (count - 1) * parameters
            figures.add(f"{name}.over-float32-ring", sent / ring, "ratio", goal="<= 1.03", samples=size.bytes_steps)
        sent_in_a_step(figures, f"wire.bytes.4-stages.{numerics}", 4, one_pipeline(4, numerics), size)


def sent_in_a_step(
    figures: Figures, name: str, count: int, overrides: Sequence[str], size: Size
) -> tuple[float, float]:
    """Bytes that all workers sent to each other in a step, and the model's parameters."""
    with hosts(count, 1.0) as made, started(side := cluster(made, "bytes", JOB, *overrides)):
        side.steps(3)
        first, before = side.at_edge()
        side.steps(size.bytes_steps)
        last, after = side.at_edge()
        steps, sent = last - first, (after - before) / (last - first)
        profile = side.profile
        figures.add(f"{name}.a-step", sent / 1e6, "MB", samples=steps)
        thought = estimated_bytes(plan_of(side), profile)
        figures.add(f"{name}.over-estimate", sent / thought, "ratio", goal="<= 1.05", samples=steps)
        return sent, sum(group.size_bytes for group in profile.groups) / 4


def plan_of(side: Cluster) -> Plan:
    """The plan that a run began with."""
    taken = next(record for record, _ in side.records if isinstance(record, PlanTaken))
    profile = side.profile
    pipelines = tuple(
        Pipeline(stages=tuple(Stage(worker=WorkerId(w), first_layer=a, end_layer=e) for w, a, e in stages))
        for stages in taken.pipelines
    )
    return Plan(
        generation=1,
        num_layers=profile.num_layers,
        num_microbatches=sum(taken.microbatches),
        devices_per_node=1,
        groups=profile.groups,
        pipelines=pipelines,
        routes=contiguous_routes(pipelines, taken.microbatches, profile.num_layers, 1),
        sync_epochs=(1,) * len(profile.groups),
    )


def estimated_bytes(plan: Plan, profile: ModelProfile) -> float:
    """What the estimate thinks goes through links in a step: seconds on a link of one byte a second."""
    link = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    slow = msgspec.structs.replace(profile, links=Links(within_node=link, between_nodes=link))
    durations = Durations(plan, slow, AS_PROFILED)
    read = sum(durations.sum_times(worker, group).read_s for worker in plan.workers for group in plan.groups_of[worker])
    passed = 0.0
    for route in plan.routes:
        for one, other in itertools.pairwise(route.hops):
            both_ways = durations.message_s(one.worker, other.worker, other.first_layer) * 2
            passed += both_ways * len(route.microbatches)
    return read + passed


def estimate(figures: Figures, size: Size) -> None:
    """Emulated devices and links, so cores are not what is measured."""
    for gbits, (count, pipelines) in itertools.product(size.gbits, ((4, 4), (8, 8), (8, 2))):
        case = fidelity.Case(
            name=f"{pipelines} pipelines of {count} nodes, {gbits:g} Gbit/s",
            nodes=count,
            layers=fidelity.EVEN,
            link_ms=0.1 + fidelity.MB / (gbits * GBIT / 8) * 1e3,
            overrides=[*fidelity.f_n0(pipelines - 1, count // pipelines), f"train.steps={SETTLED + 4}"],
        )
        job, _ = fidelity.emulated_job(case, 0.0)
        side = planaria_side("emulated", job)
        with started(side):
            side.steps(2)
            measured = statistics.median(side.steps(SETTLED))
            records = list(read_events(side.log))
        tell_estimates(figures, f"wire.estimate.{case.name}", records, measured)


def tls(figures: Figures, size: Size) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tls"
        make_certificates(folder, days=1)
        for (kind, job), (gbits, delay_ms, name) in itertools.product(
            (("replicas", replicas(4, "exact")), ("stages", one_pipeline(4, "exact"))), size.links
        ):
            with hosts(4, gbits, delay_ms) as made:
                plain = cluster(made, "plain", JOB, *job)
                secure = cluster(made, "tls", JOB, *job, tls=folder)
                control = cluster(made, "tls-but-tensors", JOB, *job, "cluster.data_encryption=false", tls=folder)
                interleave([plain, secure, control], turns=size.turns, steps=size.steps, warm_up=4, patience=1)
            title = f"wire.tls.4-{kind}.{name}"
            for side in (plain, secure, control):
                figures.add(f"{title}.{side.name}.step", step_time_s(side) * 1e3, "ms", samples=size.turns * size.steps)
                shutil.rmtree(side.folder.path)
            for side in (secure, control):
                found = ratios(side, plain)
                figures.add(f"{title}.{side.name}.over-plain", statistics.median(found), "ratio", samples=len(found))


def kill(figures: Figures, size: Size) -> None:
    """One worker after the other; its agent offers the node again, and all are in the plan before the next."""
    draw = random.Random(1)
    for numerics in NUMERICS:
        found = []
        job = [*replicas(4, numerics), "resilience.fault_tolerance=1"]
        with hosts(4, 1.0) as made, started(side := cluster(made, numerics, JOB, *job)):
            side.steps(3)
            for _ in range(size.kills):
                step_s = statistics.median(side.steps(3))
                time.sleep(draw.uniform(0, step_s))
                found.append(kill_one(side, draw) - step_s)
                back(side, 4)
        note(f"wire.kill.{numerics}: {' '.join(f'{seconds * 1e3:.0f}' for seconds in sorted(found))} ms")
        figures.add(
            f"wire.kill.{numerics}.resume-less-a-step", statistics.median(found), "s", goal="<= 0.3", samples=len(found)
        )


def kill_one(side: Cluster, draw: random.Random) -> float:
    """Seconds from the kill of some host's worker to the next commit."""
    pids = side.workers_at(draw.choice(side.farm.network.hosts[1:]))
    killed = time.time()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return commit_after(side, lambda record, time_s: isinstance(record, NodeLost) and time_s > killed) - killed


def back(side: Cluster, count: int) -> None:
    """Wait until so many nodes have work again, and for a step of them."""

    def has_all(record: AnyRecord, _: float) -> bool:
        return isinstance(record, PlanTaken) and sum(map(len, record.pipelines)) == count

    last = max(time_s for record, time_s in side.records if isinstance(record, NodeLost))
    commit_after(side, lambda record, time_s: time_s > last and has_all(record, time_s))


def commit_after(side: Cluster, wanted: Callable[[AnyRecord, float], bool]) -> float:
    """When the first step after a wanted record was committed."""
    for _ in range(PATIENCE_STEPS):
        is_after = False
        for record, time_s in side.records:
            is_after = is_after or wanted(record, time_s)
            if is_after and isinstance(record, StepCommitted):
                return time_s
        side.steps(1)
    raise RuntimeError(f"{side.name}: {PATIENCE_STEPS} steps, and still not what was waited for; see {side.log}")


Part = Callable[[Figures, Size], None]
PARTS: dict[str, Part] = {
    "sums": sums,
    "pipeline": pipeline,
    "bytes": bytes_sent,
    "estimate": estimate,
    "tls": tls,
    "kill": kill,
    "plans": plans,
    "zones": zones,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--short", action="store_true", help="4 replicas and one rate alone, few steps")
    parser.add_argument("--replicas", type=int, nargs="*", help="numbers of them (default: 2 4 8)")
    parser.add_argument("--gbits", type=float, nargs="*", help="rates of links (default: 0.2 1 10)")
    parser.add_argument("--delays-ms", type=float, nargs="*", help="of links (default: 0 5)")
    parser.add_argument("--nodes", type=int, nargs="*", help="of which all plans are tried (default: 3 4)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {' '.join(sorted(unknown))}")
    asked = {"replicas": given.replicas, "gbits": given.gbits, "delays_ms": given.delays_ms, "nodes": given.nodes}
    size = replace(SHORT if given.short else Size(), **{name: value for name, value in asked.items() if value})
    figures = Figures("wire")
    note(f"{os.cpu_count()} cores; with more workers than that, steps are what the cores take, on both sides")
    try:
        for name in given.parts or PARTS:
            PARTS[name](figures, size)
    except NoNamespaces as reason:
        note(f"network namespaces cannot be made here: {reason}")
        return
    figures.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
