"""The work and view of `planaria simulate`: a table for people, JSON for programs, pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from planaria.job.errors import UserError
from planaria.plan.plan import PlanError
from planaria.policy.sentences import join
from planaria.profile.of_scenario import load_scenario, traces_of
from planaria.runtime.launch.rehearsal.simulations import simulate_pieces
from planaria.simulate.results import Outcome, RunResult, summarise
from planaria.simulate.scenario import Scenario, check_policies
from planaria.simulate.sweep import Piece, Point, pieces, points
from planaria.simulate.timings import Timings, calibrated
from planaria.ui.cli.options import tell_repairs
from planaria.ui.plots.picture_file import check_picture
from planaria.ui.plots.simulation_plot import plot_runs
from planaria.ui.plots.sweep_plot import plot_sweep, varied_most
from planaria.ui.report.report import write_found
from planaria.ui.report.simulations import Columns, figures, simulation_sheet, where_the_time_went

_WIDTH_WITHOUT_TERMINAL = 118
_GAP = 2
"""Spaces between columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """The options of the command; see `planaria simulate --help`."""

    overrides: tuple[str, ...]
    policies: tuple[str, ...]
    runs: int | None
    swept: bool
    results: Path | None
    processes: int
    calibrated: Path | None
    plots: tuple[Path, ...]
    report: Path | None
    wants_timeline: bool
    as_json: bool


def show(path: Path, wanted: SimulationOptions) -> None:
    """Simulates a scenario and shows the outcome.

    Raises:
        UserError: the scenario, or a file that it names, cannot be used.
        PlanError: the model does not fit.
    """
    scenario = _scenario(path, wanted)
    if wanted.swept and not any(msgspec.to_builtins(scenario.sweep).values()):
        raise UserError(f"{path}: --sweep, and [sweep] lists nothing. Add for instance [sweep] hourly = [0.05, 0.1].")
    for target in wanted.plots:
        check_picture(target)
    _say_repairs(scenario, path.resolve().parent)
    found = points(scenario, swept=wanted.swept)
    along = varied_most(point.varied for point in found)
    is_drawn = bool(wanted.plots) or wanted.report is not None
    wants_timeline = wanted.wants_timeline or (is_drawn and along is None)
    work = [piece for point in found for piece in pieces(point, wants_timeline=wants_timeline)]
    runs = _simulated(work, path.resolve().parent, wanted)
    outcomes = _outcomes(found, work, runs)
    found = [point for point, outcome in zip(found, outcomes, strict=True) if outcome.runs]
    outcomes = [outcome for outcome in outcomes if outcome.runs]
    if not outcomes:
        raise UserError(f"{path}: there is no plan for any scenario of the sweep. Add nodes, or vary other values.")
    if wanted.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(outcomes)).decode())
    else:
        for point, outcome in zip(found, outcomes, strict=True):
            _tell(point.scenario, outcome)
    for target in wanted.plots:
        _draw(outcomes, along, target)
        click.echo(f"picture: {target}", err=wanted.as_json)
    if wanted.report is not None:
        write_found(simulation_sheet(path.stem, outcomes), wanted.report)
        click.echo(f"report: {wanted.report}", err=wanted.as_json)


def _draw(outcomes: Sequence[Outcome], along: str | None, target: Path) -> None:
    """Draws a sweep's means over what was varied, or one scenario's runs over time."""
    if along is not None:
        plot_sweep([(outcome.varied, outcome.summaries) for outcome in outcomes], along, target)
    else:
        plot_runs({policy: of for policy, of in outcomes[0].runs.items() if of}, target)


def _say_repairs(scenario: Scenario, folder: Path) -> None:
    """Reports what was wrong with the trace's file, what was done about it, and what the trace stands in for."""
    if not scenario.failures.trace:
        return
    said: list[str] = []
    unused = {
        "failures.arrival_s": scenario.failures.arrival_s >= 0,
        "failures.notice_s": scenario.failures.notice_s > 0,
        "cluster.zones": bool(scenario.cluster.zones),
    }
    if any(unused.values()):
        names = join([name for name, is_given in unused.items() if is_given])
        said.append(f"{names}: not used, as arrivals, notices and zones are those of {scenario.failures.trace}")
    one = msgspec.structs.replace(scenario.failures, runs=min(2, scenario.failures.runs))
    traces_of(msgspec.structs.replace(scenario, failures=one), folder, said.append)
    tell_repairs(said)


def _scenario(path: Path, wanted: SimulationOptions) -> Scenario:
    scenario = load_scenario(path, wanted.overrides)
    if wanted.policies:
        check_policies("--policy", wanted.policies)
        scenario = msgspec.structs.replace(
            scenario, job=msgspec.structs.replace(scenario.job, policies=list(wanted.policies))
        )
    if wanted.runs is not None:
        scenario = msgspec.structs.replace(
            scenario, failures=msgspec.structs.replace(scenario.failures, runs=wanted.runs)
        )
    if wanted.calibrated is not None:
        timings, told = calibrated(_events(wanted.calibrated), msgspec.structs.asdict(scenario.timings))
        scenario = msgspec.structs.replace(scenario, timings=Timings(**timings))
        for sentence in told:
            click.echo(f"planaria: {wanted.calibrated}: {sentence}", err=True)
    return scenario


def _events(run: Path) -> list[dict[str, object]]:
    """Returns a run folder's events."""
    path = run / "events.jsonl" if run.is_dir() else run
    try:
        lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.strip()]
        if lines and not lines[-1].endswith((b"\n", b"}")):
            lines.pop()  # which a run that was killed, or goes on, had not written to its end
        return [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
    except OSError as error:
        raise UserError(f"--calibrate {run}: {error.strerror}. Give a run folder, which has an events.jsonl.") from None
    except msgspec.DecodeError as error:
        raise UserError(f"--calibrate {run}: {path.name} is damaged: {error}. Give a run folder.") from None


def _simulated(work: Sequence[Piece], folder: Path, wanted: SimulationOptions) -> list[list[RunResult]]:
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=len(work))

        def progress(piece: Piece) -> None:
            what = f"{piece.label}, {piece.policy}" if wanted.swept else piece.policy
            bar.update(task, advance=1, description=what)
            if not console.is_terminal:
                of_all = f"{bar.tasks[0].completed:.0f} of {len(work)}"
                click.echo(f"planaria: simulated {of_all}: {what}", err=True)

        def unplanned(piece: Piece, error: PlanError) -> None:
            if piece.first_seed == piece.scenario.failures.seed:
                click.echo(f"planaria: {piece.label}, {piece.policy} is left out: {error}", err=True)

        return simulate_pieces(
            work,
            folder,
            processes=wanted.processes,
            results=wanted.results,
            progress=progress,
            told=lambda text: click.echo(f"planaria: {text}", err=True),
            unplanned=unplanned if wanted.swept else None,
        )


def _outcomes(found: Sequence[Point], work: Sequence[Piece], runs: Sequence[list[RunResult]]) -> list[Outcome]:
    outcomes = []
    for point in found:
        of: dict[str, list[RunResult]] = {}
        for piece, results in zip(work, runs, strict=True):
            if piece.scenario is point.scenario and results:
                of.setdefault(piece.policy, []).extend(results)
        summaries = [summarise(results) for results in of.values()]
        outcomes.append(Outcome(varied=point.varied, summaries=summaries, runs=of))
    return outcomes


# Tables


def _tell(scenario: Scenario, outcome: Outcome) -> None:
    console = Console(width=None if os.isatty(1) else _WIDTH_WITHOUT_TERMINAL)
    runs = max(len(of) for of in outcome.runs.values())
    console.print(_title(scenario, outcome), style="bold", highlight=False)
    _print(console, figures(outcome), of_all=_NUM_FIGURES)
    console.print(
        f"{f'Mean of {runs} runs, with half the 95% interval. ' if runs > 1 else ''}"
        "Value: samples/s for a dollar an hour.",
        style="dim",
    )
    console.print("\nShare of the time", style="bold")
    _print(console, where_the_time_went(outcome))
    for summary in outcome.summaries:
        if summary.survived:
            ways = ", ".join(f"{number:.3g} by {how}" for how, number in summary.survived.items())
            console.print(f"{summary.policy}: losses survived: {ways}", highlight=False)
        if not 0 < summary.completed < 1 and summary.completed:
            continue
        if scenario.job.samples and summary.completed < 1:
            console.print(f"{summary.policy}: {summary.completed:.0%} of the runs trained all samples", highlight=False)
    console.print()


_NUM_FIGURES = 5
"""Columns that are shown first where all are too wide for the screen, the policy included."""


def _print(console: Console, columns: Columns, of_all: int = 0) -> None:
    """Prints one table; or two, one below the other, where the screen is too narrow: the first of so many columns."""
    widths = [max(map(len, (name, *cells))) for name, cells in columns]
    is_wide = sum(widths) + _GAP * (len(widths) - 1) <= console.width
    first = len(columns) if is_wide else of_all or (len(columns) + 1) // 2
    for part in (columns[:first], [columns[0], *columns[first:]]):
        if len(part) == 1:
            break
        table = Table(box=None, pad_edge=False, header_style="dim")
        for at, (name, _) in enumerate(part):
            table.add_column(name, justify="right" if at else "left", no_wrap=True)
        for row in zip(*(cells for _, cells in part), strict=True):
            table.add_row(*row)
        console.print(table)


def _title(scenario: Scenario, outcome: Outcome) -> str:
    model = scenario.model.preset or Path(scenario.model.profile).name
    varied = ", ".join(f"{name} = {value:.12g}" for name, value in outcome.varied.items())
    failures = scenario.failures
    what = failures.trace or f"{failures.kind.value} failures"
    return f"{model}, {scenario.cluster.nodes} nodes, {what}{': ' if varied else ''}{varied}"
