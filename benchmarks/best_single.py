"""Adaptive against the best single policy, trace by trace: `simulator.py adaptive`.

Traces: made-up ones (2% to 40% an hour, bulks, zones), each for one of the models, and files, each for all of them.
What is done is kept in a file, a line a trace and model; whoever begins again does only what is missing.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from figures import note, report
from rich.console import Console
from rich.table import Table

from planaria.job.registry import PolicyName
from planaria.plan.plan import PlanError, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.profile.presets.presets import preset
from planaria.simulate.episode.episode_cache import EpisodeCache
from planaria.simulate.experiment import Experiment
from planaria.simulate.results import RunResult
from planaria.simulate.simulation import Simulation
from planaria.simulate.traces.formats import read_trace
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.trace import HOUR_S, Trace

MODELS = {
    # preset, device, samples in a step
    "BERT-Large": ("bert-large", "v100", 512),
    "GPT-2": ("gpt2-1.5b", "a100", 128),
    "GPT-3 2.7B": ("gpt3-2.7b", "a100", 64),
    "GPT-3 6.7B": ("gpt3-6.7b", "a100", 64),
}

SINGLES = tuple(name.value for name in PolicyName if name.value not in ("adaptive", "drop"))
NODES = 16
"""Of made-up traces; files have what they have, and jobs are planned for at least so many."""

AT_A_TIME = 4
"""Traces that one process does before it tells: they share what is known of situations."""

EQUAL = 0.999
"""Below it, adaptive loses: rounding of what is known of the time to come aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One policy, one model, one trace."""

    model: str
    policy: str
    trace: Trace
    nodes: int
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B


def experiment_of(task: Task) -> Experiment:
    name, device, samples = MODELS[task.model]
    profile = preset(name, device)
    settings = PlannerSettings(
        num_microbatches=samples // profile.microbatch_size,
        fault_tolerance=1,
        num_nodes=task.nodes,
        devices_per_node=1,
        memory_bytes=profile.device.memory_bytes,
        schedule=task.schedule,
    )
    losses_an_hour = max(0.2, sum(e.change == "remove" for e in task.trace.events) / (task.trace.horizon_s / HOUR_S))
    return Experiment(profile=profile, settings=settings, mean_time_between_failures_s=HOUR_S / losses_an_hour)


def simulate(task: Task, memory: dict[str, EpisodeCache] | None = None) -> RunResult | None:
    """None: the model does not fit on so many nodes.

    Args:
        task: whose run it is.
        memory: of tasks that differ in their traces alone, by policy; it changes no result.
    """
    about = experiment_of(task)
    known = memory.get(task.policy) if memory is not None else None
    try:
        # With what is known there is a policy, too: making one (its templates) takes up to some seconds.
        runner = about.runner(task.policy) if known is None else Simulation(known.subject, about.terms, known)
        if memory is not None and isinstance(runner, Simulation):
            memory[task.policy] = runner.memory
        return runner.run(task.trace)
    except PlanError as error:
        print(f"{task.model}, {task.policy}, {task.trace.name}: {error}", file=sys.stderr)
        return None


def made_up(number: int, *, hours: float, nodes: int) -> list[Trace]:
    """2% to 40% an hour, in bulks or one by one, with zones or without, with and without others that come."""
    traces = []
    for seed in range(number):
        draw = random.Random(seed)
        hourly = 0.02 * 20 ** draw.random()
        failures = ConstantRate(hourly=hourly, mean_bulk=draw.choice([1.0, 1.0, 2.0, 3.0]))
        zones = draw.choice([("",), ("a", "b"), ("a", "b", "c")])
        arrival_s = draw.choice([None, 600.0, 3600.0])
        population = Population(nodes=nodes, zones=zones, arrival_s=arrival_s, notice_s=draw.choice([0.0, 0.0, 120.0]))
        name = f"{hourly:.0%} an hour, seed {seed}"
        traces.append(generate(failures, population, hours * HOUR_S, seed=seed, name=name))
    return traces


def files(folder: Path, hours: float) -> list[Trace]:
    """Windows of trace files that begin with nodes."""
    traces = []
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.txt")]):
        whole = read_trace(path.read_text(), path.name).trace
        for share in (0.15, 0.4, 0.65):
            start_s = share * whole.horizon_s
            if start_s + hours * HOUR_S <= whole.horizon_s:
                part = whole.window(start_s, hours * HOUR_S)
                traces.append(Trace(name=f"{path.name} at {share:.0%}", horizon_s=part.horizon_s, events=part.events))
    return traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to compare.

    Attributes:
        models: of `MODELS`.
        generated: made-up traces.
        hours: of each trace.
        folder: of trace files.
        singles: policies.
        schedule: the job's own; adaptive may leave it.
    """

    models: Sequence[str]
    generated: int
    hours: float
    folder: Path | None
    singles: Sequence[str]
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B

    @property
    def cases(self) -> list[tuple[str, Trace]]:
        """Model and trace: a made-up one for one of the models, in turn, a file for all."""
        names = list(MODELS)
        traces = made_up(self.generated, hours=self.hours, nodes=NODES)
        given = files(self.folder, self.hours) if self.folder is not None else []
        cases = [(names[at % len(names)], trace) for at, trace in enumerate(traces)]
        cases += itertools.product(names, given)
        return [(model, trace) for model, trace in cases if model in self.models]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Of one model and trace: samples a second by policy; a policy that makes no plan is left out."""

    model: str
    trace: str
    rates: dict[str, float]
    cpu_s: float

    @property
    def best(self) -> str:
        """Of the single policies."""
        return max((name for name in self.rates if name in SINGLES), key=self.rates.__getitem__)

    @property
    def ratio(self) -> float:
        return self.rates["adaptive"] / self.rates[self.best]


_MEMORIES: dict[tuple[str, int, ScheduleKind], dict[str, EpisodeCache]] = {}
"""Of this process: by what policies are made for, then by policy."""


def rows_of(
    model: str,
    traces: Sequence[Trace],
    singles: Sequence[str],
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
) -> list[Row]:
    """Of traces with as many nodes."""
    nodes = max(NODES, len(traces[0].initial))
    memory = _MEMORIES.setdefault((model, nodes, schedule), {})
    rows = []
    for trace in traces:
        began, rates = time.process_time(), {}
        for policy in (*singles, "adaptive", "ideal"):
            task = Task(model=model, policy=policy, trace=trace, nodes=nodes, schedule=schedule)
            run = simulate(task, memory)
            if run is not None and run.steps:
                rates[policy] = run.samples_per_s
        rows.append(Row(model=model, trace=trace.name, rates=rates, cpu_s=time.process_time() - began))
    return rows


def pieces(cases: Sequence[tuple[str, Trace]]) -> Iterator[tuple[str, list[Trace]]]:
    """Of a model and a number of nodes each, in the order of the first trace."""
    groups: dict[tuple[str, int], list[Trace]] = {}
    for model, trace in cases:
        groups.setdefault((model, max(NODES, len(trace.initial))), []).append(trace)
    parts = [
        [(model, group[at : at + AT_A_TIME]) for at in range(0, len(group), AT_A_TIME)]
        for (model, _), group in groups.items()
    ]
    for turn in itertools.zip_longest(*parts):
        yield from filter(None, turn)


def compare(wanted: Wanted, results: Path | None, minutes: float | None, processes: int) -> list[Row]:
    """All rows that are known by then: pieces that began in time are finished."""
    rows = _kept(results) if results is not None else {}
    cases = wanted.cases
    left = iter(list(pieces([case for case in cases if (case[0], case[1].name) not in rows])))
    ends_at = None if minutes is None else time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[list[Row]]] = set()
        while True:
            while len(running) < processes and (ends_at is None or time.monotonic() < ends_at):
                piece = next(left, None)
                if piece is None:
                    break
                running.add(pool.submit(rows_of, *piece, wanted.singles, wanted.schedule))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for row in itertools.chain.from_iterable(future.result() for future in done):
                rows[row.model, row.trace] = row
                if results is not None:
                    _keep(results, row)
    order = {(model, trace.name): at for at, (model, trace) in enumerate(cases)}
    return sorted((row for key, row in rows.items() if key in order), key=lambda row: order[row.model, row.trace])


def _kept(results: Path) -> dict[tuple[str, str], Row]:
    lines = results.read_text().splitlines() if results.exists() else []
    found = [Row(**json.loads(line)) for line in lines]
    return {(row.model, row.trace): row for row in found}


def _keep(results: Path, row: Row) -> None:
    with results.open("a") as file:
        print(json.dumps({name: getattr(row, name) for name in Row.__slots__}), file=file)


def tell(rows: Collection[Row], *, missing: int) -> None:
    """Figures, and a table of traces."""
    told = [row for row in rows if "adaptive" in row.rates and any(name in SINGLES for name in row.rates)]
    table = Table(title="samples a second, adaptive over the best single policy")
    for column in ("model", "trace", "adaptive", "best", "ratio", "of ideal"):
        table.add_column(column)
    for row in told:
        rates = row.rates
        cells = [f"{rates['adaptive']:.4g}", f"{row.best} {rates[row.best]:.4g}", f"{row.ratio:.4f}"]
        table.add_row(row.model, row.trace, *cells, f"{rates['adaptive'] / rates['ideal']:.3f}")
    Console(stderr=True).print(table)
    for model in MODELS:
        ratios = [row.ratio for row in told if row.model == model]
        if not ratios:
            continue
        shares = [row.rates["adaptive"] / row.rates["ideal"] for row in told if row.model == model]
        name = f"simulator.adaptive.{model.lower().replace(' ', '-')}"
        report(f"{name}.to_best.least", min(ratios), "ratio", goal=">= 1.0")
        report(f"{name}.to_best.mean", sum(ratios) / len(ratios), "ratio")
        report(f"{name}.traces", len(ratios), "count")
        report(f"{name}.loses", sum(ratio < EQUAL for ratio in ratios), "count", goal="<= 0")
        report(f"{name}.of_ideal", sum(shares) / len(shares), "ratio")
    if missing:
        note(f"{missing} traces and models were not done in time; begin again with the same --results")
