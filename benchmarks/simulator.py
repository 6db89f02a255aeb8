"""The simulator: how fast it is, that one seed has one result, and what the adaptive policy comes to over many traces.

speed: runs a second in Bamboo's Table 3a setting (BERT-Large, 48 nodes, to completion), as the simulator first meets it
    and once it knows the situations; 9 h at 10% an hour on 32, 1,024 and 4,096 nodes; memory after many runs.
determinism: results of one process and of two.
adaptive: against the best single policy on every trace, and as a share of the physical limit. Traces: made-up ones (2%
    to 40% an hour, bulks, zones), and files given by --traces. With --results FILE it can be broken off.
fidelity: a drill's run folder (planaria drill) against the simulation of its trace: --run, --job and --trace.

Times are of the processor, of one thread. --quick: fewer of everything.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from best_single import MODELS, SINGLES, Task, Wanted, compare, made_up, simulate, tell
from figures import note, report

from planaria.job.parse import load_job
from planaria.plan.plan import ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.profile.presets.presets import preset
from planaria.runtime.component_settings import job_profile, named_profile, planner_settings
from planaria.runtime.launch.rehearsal.simulations import seldom_collected
from planaria.simulate.experiment import Experiment
from planaria.simulate.results import RunResult
from planaria.simulate.timings import Timings, calibrated
from planaria.simulate.traces.formats import read_trace
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.trace import HOUR_S, Trace

PARTS = ("speed", "determinism", "adaptive", "fidelity")

TABLE_3A_NODES = 48
TABLE_3A_SAMPLES = 23 * HOUR_S * 1150
"""23 hours' work at the preset's speed: so long Bamboo's runs at 10% an hour were (99.77 losses, 0.23 h apart)."""
TABLE_3A_ARRIVAL_S = 5440.0
"""Of a node for a lost one: then 41.7 nodes are there on average at 10% an hour, as in the table."""


def bert(nodes: int, microbatches: int, **terms: object) -> Experiment:
    profile = preset("bert-large", "v100")
    settings = PlannerSettings(
        num_microbatches=microbatches,
        fault_tolerance=1,
        num_nodes=nodes,
        devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
        min_nodes=8,
    )
    return replace(Experiment(profile=profile, settings=settings), **terms)  # type: ignore[arg-type]


# Speed


def table_3a_trace(seed: int) -> Trace:
    """Without zones: nodes go one by one, and with zones fewer situations come twice."""
    population = Population(nodes=TABLE_3A_NODES, arrival_s=TABLE_3A_ARRIVAL_S)
    return generate(ConstantRate(hourly=0.1), population, 26 * HOUR_S, seed=seed, name=f"seed {seed}")


def measure_speed(*, quick: bool, policy: str) -> None:
    about = bert(TABLE_3A_NODES, 128, samples=TABLE_3A_SAMPLES, mean_time_between_failures_s=900.0)
    runner = about.runner(policy)
    number = 30 if quick else 1000
    began, runs = time.process_time(), [runner.run(table_3a_trace(seed)) for seed in range(number)]
    cold_s = time.process_time() - began
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    again = [runner.run(table_3a_trace(seed)) for seed in range(number)]
    warm_s = time.process_time() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / before_kb
    assert runs == again
    losses = sum(run.losses for run in runs) / number
    done = sum(run.completed for run in runs) / number
    hours = sum(run.seconds for run in runs) / number / HOUR_S
    note(f"Table 3a's setting, {policy}: {losses:.0f} losses, {hours:.1f} h a run, {done:.0%} complete, {number} runs")
    report(f"simulator.table3a.{policy}.first", number / cold_s, "runs/s")
    report(f"simulator.table3a.{policy}.known", number / warm_s, "runs/s", goal=">= 300")
    report(f"simulator.table3a.{policy}.memory", grown, "ratio", goal="<= 1.05")
    for nodes, goal_s in ((32, 0.1), (1024, 5.0), (4096, 60.0)):
        if quick and nodes > 32:
            continue
        measure_large(nodes, goal_s, policy)


def measure_large(nodes: int, goal_s: float, policy: str) -> None:
    """9 h at 10% an hour: a first run, and one that knows the situations."""
    about = bert(nodes, 4 * nodes)
    runner = about.runner(policy)
    trace = generate(ConstantRate(hourly=0.1), Population(nodes=nodes), 9 * HOUR_S, seed=1, name="9 h")
    for name in ("first", "known") if nodes <= 32 else ("first",):
        began = time.process_time()
        run = runner.run(trace)
        took_s = time.process_time() - began
        report(f"simulator.{nodes}.{policy}.{name}", took_s, "s", goal=f"<= {goal_s:g}")
        note(f"{nodes} nodes, {run.losses} losses: {1e3 * took_s / max(1, run.losses):.1f} ms a loss")


# Determinism


def simulated(tasks: Sequence[Task], processes: int) -> list[RunResult | None]:
    if processes == 1:
        return [simulate(task) for task in tasks]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(simulate, tasks))


def measure_determinism(*, quick: bool) -> None:
    traces = made_up(4 if quick else 12, hours=1.0, nodes=12)
    tasks = [
        Task(model="BERT-Large", policy=policy, trace=trace, nodes=12)
        for policy in ("templates", "reroute")
        for trace in traces
    ]
    one, two, backward = simulated(tasks, 1), simulated(tasks, 2), simulated(tasks[::-1], 2)[::-1]
    differ = sum(not (a == b == c) for a, b, c in zip(one, two, backward, strict=True))
    report("simulator.determinism.different", differ, "count", goal="<= 0")


# Adaptive


def measure_adaptive(wanted: Wanted, results: Path | None, minutes: float | None, processes: int) -> None:
    rows = compare(wanted, results, minutes, processes)
    tell(rows, missing=len(wanted.cases) - len(rows))


# Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of a real run, from its events.

    Attributes:
        samples_per_s: from its first committed step to its last.
        recoveries: of losses.
        restores: of them, from a checkpoint.
    """

    samples_per_s: float
    recoveries: int
    restores: int


def measured(run: Path, samples_per_step: int) -> Measured:
    """What the events of a run folder say."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    times = [event["time"] for event in events if event["type"] == "step_committed"]
    kinds = [event["type"] for event in events]
    return Measured(
        samples_per_s=(len(times) - 1) * samples_per_step / (times[-1] - times[0]),
        recoveries=kinds.count("recovered"),
        restores=kinds.count("restored"),
    )


def fidelity(run: Path, job_file: Path, trace: Trace) -> float:
    """The simulated samples per second over the measured ones of an emulated run over this trace."""
    job = load_job(job_file)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    base = {name: getattr(Timings(start_s=0.0), name) for name in Timings.__struct_fields__}
    timings, _ = calibrated(events, base)
    profile = named_profile(job)
    about = Experiment(
        profile=job_profile(job, profile),
        settings=planner_settings(job, profile),
        checkpoint_every=job.run.checkpoint_every,
        mean_time_between_failures_s=job.resilience.mean_time_between_failures_s,
        timings=Timings(**timings),
        num_parts=4,
    )
    (told,) = about.run(job.resilience.policy.value, [trace])
    real = measured(run, job.train.global_batch)
    note(f"recoveries: {real.recoveries} measured, {sum(told.survived.values())} simulated; from a checkpoint: "
         f"{real.restores} and {told.fatal}")  # fmt: skip
    report("simulator.fidelity.recoveries", sum(told.survived.values()) - real.recoveries, "count")
    return told.samples_per_s / real.samples_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["speed", "determinism", "adaptive"], help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    parser.add_argument("--policy", default="templates", help="of speed")
    parser.add_argument("--traces", type=Path, help="a folder of trace files, for adaptive")
    parser.add_argument("--models", default="", help=f"of adaptive, with commas between: {', '.join(MODELS)}")
    parser.add_argument("--generated", type=int, help="of adaptive: how many traces are made up (200)")
    parser.add_argument("--singles", default=",".join(SINGLES), help="of adaptive: the single policies")
    parser.add_argument(
        "--schedule",
        type=ScheduleKind,
        default=ScheduleKind.ONE_F_ONE_B,
        help="of adaptive: the job's own; results of another one go into another file",
    )
    parser.add_argument("--results", type=Path, help="of adaptive: what is done, and is not done again")
    parser.add_argument("--minutes", type=float, help="of adaptive: after which no other trace is begun")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--run", type=Path, help="of fidelity: a run folder of planaria drill")
    parser.add_argument("--job", type=Path, help="of fidelity: its job file")
    parser.add_argument("--trace", type=Path, help="of fidelity: its trace, at the drill's speed")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if "speed" in arguments.parts:
        with seldom_collected():  # as in planaria simulate
            measure_speed(quick=arguments.quick, policy=arguments.policy)
    if "determinism" in arguments.parts:
        measure_determinism(quick=arguments.quick)
    if "adaptive" in arguments.parts:
        models = arguments.models.split(",") if arguments.models else list(MODELS)[: 1 if arguments.quick else None]
        generated = arguments.generated if arguments.generated is not None else 3 if arguments.quick else 200
        wanted = Wanted(
            models=models,
            generated=generated,
            hours=2.0 if arguments.quick else 4.0,
            folder=arguments.traces,
            singles=arguments.singles.split(","),
            schedule=arguments.schedule,
        )
        measure_adaptive(wanted, arguments.results, arguments.minutes, arguments.processes)
    if "fidelity" in arguments.parts:
        if not (arguments.run and arguments.job and arguments.trace):
            parser.error("fidelity needs --run, --job and --trace")
        trace = read_trace(arguments.trace.read_text(), arguments.trace.name).trace
        report("simulator.fidelity.samples_per_s", fidelity(arguments.run, arguments.job, trace), "ratio")


if __name__ == "__main__":
    main()
